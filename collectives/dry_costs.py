"""What a call costs by the alpha-beta-gamma model: to send n bytes takes ``alpha + n beta``, to add them ``n gamma``.

`predict` counts one rank, the one that sends most; `ALGORITHMS` says which ones there are for a call. ``lg`` is the
number of rounds, ``log2(ranks)``.

==================  ====================  =====================================================================
call                algorithm             time
==================  ====================  =====================================================================
all_reduce          recursive_doubling    lg (alpha + n beta + n gamma)
all_reduce          tree                  2 lg (alpha + n beta) + lg n gamma
all_reduce          ring                  2 (p-1) alpha + 2 n (p-1)/p beta + n (p-1)/p gamma
all_reduce          halving_doubling      2 lg alpha + 2 n (p-1)/p beta + n (p-1)/p gamma
all_reduce          pipelined             2 (lg+k) (alpha + 2 (n/k) beta) + (lg+k) (n/k) gamma, the best k
all_gather          ring                  (p-1) alpha + n (p-1)/p beta
all_gather          recursive_doubling    lg alpha + n (p-1)/p beta
reduce_scatter      ring                  (p-1) alpha + n (p-1)/p (beta + gamma)
reduce_scatter      halving_doubling      lg alpha + n (p-1)/p (beta + gamma)
broadcast, reduce   tree                  lg (alpha + n beta), and lg n gamma for the sums
gather, scatter     tree                  lg alpha + n (p-1)/p beta
all_to_all          pairwise              (p-1) alpha + n (p-1)/p beta
send, recv          direct                alpha + n beta
barrier             recursive_doubling    lg alpha
maximum, product    recursive_doubling    as all_reduce
scan                recursive_doubling    lg (alpha + n beta + n gamma)
get, accumulate     direct                alpha + n beta, and n gamma for the sums; n is what is another rank's
==================  ====================  =====================================================================

n is the size of the whole value: the sum's, or all parts' together. Where p is not a power of two, recursive doubling
and halving fold the odd ranks into the others first: 2 alpha + 2 n beta + n gamma more. Sources: Thakur, Rabenseifner
and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005), sections 3 and 4; for the
pipelined tree, Traeff and Ripke, "Optimal broadcast for fully connected processor-node networks", JPDC 68 (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .topology import Link, Topology

__all__ = ["ALGORITHMS", "Cost", "costs", "predict", "predict_hierarchical"]

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "halving_doubling", "recursive_doubling", "tree", "pipelined"),
    "all_gather": ("ring", "recursive_doubling"),
    "exchange": ("ring", "recursive_doubling"),
    "reduce_scatter": ("ring", "halving_doubling"),
    "broadcast": ("tree",),
    "reduce": ("tree",),
    "gather": ("tree",),
    "scatter": ("tree",),
    "all_to_all": ("pairwise",),
    "send": ("direct",),
    "recv": ("direct",),
    "barrier": ("recursive_doubling",),
    "maximum": ("recursive_doubling",),
    "product": ("recursive_doubling",),
    "scan": ("recursive_doubling",),
    "get": ("direct",),
    "accumulate": ("direct",),
}
"""The algorithms of every call of a transport, the usual one first."""


class Cost(NamedTuple):
    """What one call costs the rank that sends most.

    Attributes
    ----------
    time_s : float
    messages : float
        Sent by that rank.
    bytes : float
        Of payload, sent by that rank.
    """

    time_s: float
    messages: float
    bytes: float


def predict(
    operation: str,
    algorithm: str,
    bytes: float,
    ranks: int,
    alpha_s: float,
    beta_s_per_byte: float,
    gamma_s_per_byte: float,
) -> Cost:
    """The cost of one call.

    Parameters
    ----------
    operation, algorithm : str
        A pair of the table above.
    bytes : float
        Of the whole value.
    ranks : int
    alpha_s, beta_s_per_byte, gamma_s_per_byte : float
        Latency of a message, time to send a byte, time to add one.

    Raises
    ------
    KeyError
        A pair that is not in the table.

    Examples
    --------
    >>> from collectives.dry_costs import predict
    >>> predict("all_reduce", "ring", 800, 4, 1.0, 0.01, 0.0)
    Cost(time_s=18.0, messages=6, bytes=1200.0)
    """
    if algorithm not in ALGORITHMS[operation]:
        raise KeyError(f"{operation} has no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS[operation])}")
    if ranks == 1:
        return Cost(0.0, 0, 0)
    return _FORMULAS[operation, algorithm](bytes, ranks, alpha_s, beta_s_per_byte, gamma_s_per_byte)


def predict_hierarchical(
    bytes: float,
    ranks_per_host: int,
    hosts: int,
    inside: tuple[float, float],
    between: tuple[float, float],
    gamma_s_per_byte: float,
) -> Cost:
    """An all-reduce in three steps: reduce-scatter in each host, all-reduce of the parts between hosts, all-gather.

    `inside` and `between` are (alpha_s, beta_s_per_byte). Every step is a ring.

    Examples
    --------
    >>> from collectives.dry_costs import predict_hierarchical
    >>> predict_hierarchical(800, 2, 2, (0.0, 0.0), (1.0, 0.01), 0.0)
    Cost(time_s=6.0, messages=4, bytes=1200.0)
    """
    steps = [
        predict("reduce_scatter", "ring", bytes, ranks_per_host, *inside, gamma_s_per_byte),
        predict("all_reduce", "ring", bytes / ranks_per_host, hosts, *between, gamma_s_per_byte),
        predict("all_gather", "ring", bytes, ranks_per_host, *inside, gamma_s_per_byte),
    ]
    return Cost(*(sum(column) for column in zip(*steps, strict=True)))


def costs(call: str, bytes: int, ranks: tuple[int, ...], machine: Topology | None) -> Iterator[tuple[str, Cost]]:
    """Every algorithm that a call has, the usual one first, with its cost on a described machine.

    Parameters
    ----------
    call : str
        A communicator's.
    bytes : int
        Of the whole value.
    ranks : tuple of int
        The world ranks of the group.
    machine : Topology, optional
        Without it all times are 0.

    Examples
    --------
    >>> from collectives.dry_costs import costs
    >>> next(costs("all_reduce", 800, (0, 1, 2, 3), None))
    ('ring', Cost(time_s=0.0, messages=6, bytes=1200.0))
    """
    alpha, beta, gamma = 0.0, 0.0, 0.0
    if machine is not None:
        (alpha, beta), gamma = _rates(machine.link(ranks)), machine.gamma_s_per_byte
    for name in ALGORITHMS[call]:
        yield name, predict(call, name, bytes, len(ranks), alpha, beta, gamma)
    hosts = [] if machine is None else machine.hosts(ranks)
    if machine is not None and call == "all_reduce" and len(hosts) > 1 and hosts[0] > 1 and len(set(hosts)) == 1:
        between = _rates(machine.between)
        yield "hierarchical", predict_hierarchical(bytes, hosts[0], len(hosts), _rates(machine.inside), between, gamma)


def _rates(link: Link) -> tuple[float, float]:
    return link.latency_s, 1 / link.bytes_per_s


Formula = Callable[[float, int, float, float, float], Cost]


def _ring(n: float, p: int, a: float, b: float, c: float) -> Cost:
    moved = 2 * n * (p - 1) / p
    return Cost(2 * (p - 1) * a + moved * b + moved / 2 * c, 2 * (p - 1), moved)


def _folded(p: int) -> tuple[int, int]:
    """The rounds among the greatest power of two ranks, and whether there are more."""
    rounds = p.bit_length() - 1
    return rounds, int(2**rounds != p)


def _recursive_doubling(n: float, p: int, a: float, b: float, c: float) -> Cost:
    rounds, odd = _folded(p)
    time_s = (rounds + 2 * odd) * (a + n * b) + (rounds + odd) * n * c
    return Cost(time_s, rounds + odd, (rounds + odd) * n)


def _halving_doubling(n: float, p: int, a: float, b: float, c: float) -> Cost:
    rounds, odd = _folded(p)
    core = 2**rounds
    moved = 2 * n * (core - 1) / core
    time_s = 2 * rounds * a + moved * b + moved / 2 * c + odd * (2 * a + 2 * n * b + n * c)
    return Cost(time_s, 2 * rounds + odd, moved + odd * n)


def _tree_sum(n: float, p: int, a: float, b: float, c: float) -> Cost:
    rounds = (p - 1).bit_length()
    return Cost(2 * rounds * (a + n * b) + rounds * n * c, rounds, rounds * n)


def _pipelined(n: float, p: int, a: float, b: float, c: float) -> Cost:
    rounds = (p - 1).bit_length()
    most = max(1, int(n) // 1024)  # smaller segments than that nobody sends
    k = most if a == 0 else min(most, max(1, round(math.sqrt(2 * n * b * rounds / a))))
    time_s = 2 * (rounds + k) * (a + 2 * n / k * b) + (rounds + k) * n / k * c
    return Cost(time_s, 3 * k, 3 * n)  # an inner rank sends each segment up once and down twice


def _steps(rounds: Callable[[int], int], adds: bool = False) -> Formula:
    """A number of messages that together carry all parts but this rank's own."""
    def formula(n: float, p: int, a: float, b: float, c: float) -> Cost:
        moved = n * (p - 1) / p
        return Cost(rounds(p) * a + moved * b + adds * moved * c, rounds(p), moved)

    return formula


def _whole(sends: Callable[[int], int], adds: bool) -> Formula:
    """A tree in which every message is the whole value."""
    def formula(n: float, p: int, a: float, b: float, c: float) -> Cost:
        rounds = (p - 1).bit_length()
        return Cost(rounds * (a + n * b) + adds * rounds * n * c, sends(rounds), sends(rounds) * n)

    return formula


def _log(p: int) -> int:
    return (p - 1).bit_length()


def _others(p: int) -> int:
    return p - 1


_FORMULAS: dict[tuple[str, str], Formula] = {
    ("all_reduce", "ring"): _ring,
    ("all_reduce", "recursive_doubling"): _recursive_doubling,
    ("all_reduce", "halving_doubling"): _halving_doubling,
    ("all_reduce", "tree"): _tree_sum,
    ("all_reduce", "pipelined"): _pipelined,
    ("all_gather", "ring"): _steps(_others),
    ("all_gather", "recursive_doubling"): _steps(_log),
    ("exchange", "ring"): _steps(_others),
    ("exchange", "recursive_doubling"): _steps(_log),
    ("reduce_scatter", "ring"): _steps(_others, adds=True),
    ("reduce_scatter", "halving_doubling"): _steps(_log, adds=True),
    ("broadcast", "tree"): _whole(lambda rounds: rounds, adds=False),
    ("reduce", "tree"): _whole(lambda rounds: 1, adds=True),
    ("gather", "tree"): _steps(_log),
    ("scatter", "tree"): _steps(_log),
    ("all_to_all", "pairwise"): _steps(_others),
    ("send", "direct"): lambda n, p, a, b, c: Cost(a + n * b, 1, n),
    ("recv", "direct"): lambda n, p, a, b, c: Cost(a + n * b, 0, 0),
    ("maximum", "recursive_doubling"): _recursive_doubling,
    ("product", "recursive_doubling"): _recursive_doubling,
    ("scan", "recursive_doubling"): _whole(lambda rounds: rounds, adds=True),
    ("get", "direct"): lambda n, p, a, b, c: Cost(a + n * b, 1, n),
    ("accumulate", "direct"): lambda n, p, a, b, c: Cost(a + n * (b + c), 1, n),
    ("barrier", "recursive_doubling"): lambda n, p, a, b, c: Cost(_log(p) * a, _log(p), 0),
}
