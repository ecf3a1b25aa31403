"""Programs of which something else is told than should be, with the reason and the numbers of ranks."""

from __future__ import annotations

__all__ = ["MISSED"]

_BY_REASON: dict[str, dict[str, tuple[int, ...]]] = {
    "a product with 2 hides the number of ranks": {
        "operands: c * 2 * x / 2, x = a Shard's mean": (2,),
        "operands: c * 2 * x / 2, x = a Shard's losses": (2, 3, 4, 5),
        "operands: c * 2 * x / 2, x = a mean over the ranks": (2,),
        "operands: c * 2 * x / 2, x = the penalty": (2, 3, 4, 5),
        "operands: c * 2 * x / 2, x = the penalty, plain rows": (2, 3, 4, 5),
        "operands: c * 2 * x / 2, x = a Shard's residuals": (4,),
    },
    "np.dot of a size is a plain number": {
        "operands: np.dot(c, x), x = a Shard's mean": (2, 3, 4, 5),
        "operands: np.dot(c, x), x = a Shard's losses": (2, 3, 4, 5),
        "operands: np.dot(c, x), x = a mean over the ranks": (2, 3, 4, 5),
        "operands: np.dot(c, x), x = the penalty": (2, 3, 4, 5),
        "operands: np.dot(c, x), x = the penalty, plain rows": (2, 3, 4, 5),
    },
    "2 may be the number of two ranks": {
        "operands: (2 / c) * (0.5 * x), x = a Shard's mean": (2,),
        "operands: (2 / c) * (0.5 * x), x = a Shard's losses": (2,),
        "operands: (2 / c) * (0.5 * x), x = a mean over the ranks": (2,),
        "operands: (2 / c) * (0.5 * x), x = the penalty": (2,),
    },
    "a plain array in the penalty, which is Varying": {
        "penalties: orthogonality on each rank": (2, 3, 4, 5),
        "penalties: a mean, and the orthogonality by the size": (2, 3, 4, 5),
    },
    "unequal numbers of added values, of which each rank divides by its own": {
        "reinforcement: one by one, by own episodes": (5,),
    },
    "0.5 in a function, on two ranks, may be one over their number": {
        "reinforcement: preferences, mean": (2,),
        "reinforcement: preferences, sum by own": (2,),
        "reinforcement: preferences, labelled, own mean of a cast": (2,),
        "reinforcement: preferences, labelled, by the size": (2,),
    },
    "a count of two axes, behind a mean over one of them": {
        "axes: dp = cp: sum over cp by own tokens, sum over dp": (2,),
        "axes: dp = cp: mean over cp by own tokens, mean over dp": (2, 3),
        "axes: dp = cp: mean over dp, sum over cp, by 120": (3,),
        "axes: dp = cp: rows over both, all by 60, mean outside": (2, 3),
        "axes: cp of 2: mean over cp by own tokens, mean over dp": (3, 4),
        "axes: cp of 2: rows over both, all by 60, mean outside": (3, 4),
    },
    "a norm and its square are not seen as a sum": {
        "models: np.linalg.norm squared by own rows": (2, 3, 4, 5),
    },
    "sums and losses that were gathered have no count": {
        "models: all_gather of sums, mean by all": (2, 3, 4, 5),
        "models: all_gather of losses, sum by own": (2, 3, 4, 5),
    },
    "a ratio of two sums of a rank may be a total of its own": {
        "models: an overlap of each image, mean": (2, 3, 5),
    },
    "2 or 0.5 beside two or four ranks": {
        "reinforcement: PPO, value by own steps, policy by all": (2, 4),
        "models: two views, mean": (2, 4),
        "models: two views, sum by 2 b": (2, 4),
        "models: cosine of two views, mean": (2, 4),
        "models: cosine of two views, by own": (2, 4),
        "models: VAE, divergence as a mean, reconstruction by all": (2, 4),
        "models: VAE, by own elements": (4,),
        "models: free bits, means summed": (4,),
    },
    "a number of elements or rows that the number of ranks divides": {
        "coincidences: classes == rows: averaged sum by all rows": (5,),
        "coincidences: classes == rows of all ranks: sum by own elements": (2,),
    },
    "a scale, or a loss of a stage, times the number of ranks": {
        "layers: pipeline: MSELoss(sum), scale size times": (2, 3),
        "layers: pipeline: size times a reduced sum": (2, 3),
    },
    "own rows, and the rows of all behind a mean over the ranks": {
        "ports: allreduce(own * loss, op=Average) / all": (2, 3, 4, 5),
    },
    "shares of the rows under a mean over the ranks": {
        "ports: clients: sums by own, times the share, averaged": (2, 3, 4, 5),
    },
    "the size by a number of all rows is one over those of a rank": {
        "ports: allreduce(size / all * loss) of sums": (2, 3, 4, 5),
    },
}

MISSED = {name: (why, ranks) for why, rows in _BY_REASON.items() for name, ranks in rows.items()}
