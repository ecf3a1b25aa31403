"""Programs of which something else is told than should be, with the reason and the numbers of ranks."""

from __future__ import annotations

__all__ = ["MISSED"]

_BY_REASON: dict[str, dict[str, tuple[int, ...]]] = {
    "own rows, and the rows of all behind a mean over the ranks": {
        "ports: allreduce(own * loss, op=Average) / all": (2, 3, 4, 5),
    },
    "shares of the rows under a mean over the ranks": {
        "ports: clients: sums by own, times the share, averaged": (2, 3, 4, 5),
    },
    "a count of two axes, behind a mean over one of them": {
        "axes: dp = cp: mean over cp by own tokens, mean over dp": (2, 3),
        "axes: dp = cp: mean over dp, sum over cp, by 120": (3,),
        "axes: dp = cp: rows over both, all by 60, mean outside": (2, 3),
        "axes: cp of 2: mean over cp by own tokens, mean over dp": (3, 4),
        "axes: cp of 2: rows over both, all by 60, mean outside": (3, 4),
    },
    "a loop adds sums of steps, so that the number of its episodes counts none of the values": {
        "reinforcement: one by one, by own episodes": (5,),
    },
    "0.5 in a function, on two ranks, may be one over their number": {
        "reinforcement: preferences, mean": (2,),
        "reinforcement: preferences, sum by own": (2,),
        "reinforcement: preferences, labelled, own mean of a cast": (2,),
        "reinforcement: preferences, labelled, by the size": (2,),
        "models: two views, mean": (2,),
        "models: two views, sum by 2 b": (2,),
    },
    "a gather exchanges no counts of the rows": {
        "models: all_gather of sums, mean by all": (2, 3, 4, 5),
        "models: all_gather of losses, sum by own": (2, 3, 4, 5),
    },
    "a ratio of two sums of a rank may be a total of its own": {
        "models: an overlap of each image, mean": (2, 3, 5),
    },
    "a product with 2 may be one with the number of a rank's rows, and hides the number of ranks": {
        "operands: c * 2 * x / 2, x = a Shard's losses": (3, 4, 5),
        "operands: c * 2 * x / 2, x = the penalty": (3, 4, 5),
        "operands: c * 2 * x / 2, x = the penalty, plain rows": (3, 4, 5),
        "operands: c * 2 * x / 2, x = a Shard's residuals": (4,),
    },
}

MISSED = {name: (why, ranks) for why, rows in _BY_REASON.items() for name, ranks in rows.items()}
