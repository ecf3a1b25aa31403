"""Cost models of the algorithms: the predicted time, and the messages and bytes of the rank that sends most.

The alpha-beta-gamma model (Hockney 1994; Thakur, Rabenseifner and Gropp 2005, section "Cost model"): a message of n
bytes takes alpha + n beta, a rank can send one message and receive one at the same time, and adding n bytes takes
n gamma. The formulas are in the modules of the algorithms. Here n is the size of the whole array in bytes and p the
number of ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from autograd.errors import MeshError

from ..transports.steps import piece_count
from .hierarchical import BETWEEN, INSIDE, names_of
from .table import algorithms_of, check_name

__all__ = ["Cost", "Levels", "best_segments", "candidates", "hierarchies", "level_costs", "predict"]


Levels = Sequence[tuple[int, float, float]]
"""For each level from the inside: members of a domain, and the latency and the time to send a byte inside it."""


class Cost(NamedTuple):
    """A predicted cost. `messages` and `bytes` are those of the rank that sends most."""

    time_s: float
    messages: int
    bytes: float


def predict(
    operation: str,
    algorithm: str,
    bytes: float,
    ranks: int,
    alpha_s: float,
    beta_s_per_byte: float,
    gamma_s_per_byte: float = 0.0,
    *,
    levels: Levels = ((1, 0.0, 0.0),),
) -> Cost:
    """Predict the cost of one call by one algorithm.

    Parameters
    ----------
    operation : str
        all_reduce, reduce_scatter, all_gather, broadcast or reduce.
    algorithm : str
        A name of `table`. For ``native`` and ``auto`` the cost is that of the cheapest algorithm, assuming that the
        library chooses well.
    bytes : float
        The size of the whole array: the operand of reduce_scatter, the result of all_gather.
    ranks : int
    alpha_s, beta_s_per_byte, gamma_s_per_byte : float
        Latency, time to send a byte, and time to add a byte. For ``hierarchical``, between the outermost domains.
    levels : sequence of (int, float, float)
        For ``hierarchical`` only, from the inside: how many of the level below are in each domain (the ranks of a host,
        the hosts of a rack), and alpha and beta inside it.

    Returns
    -------
    Cost

    Raises
    ------
    MeshError
        The operation has no such algorithm, or one whose cost is not predicted.

    Examples
    --------
    >>> predict("all_reduce", "ring", 4000.0, 4, alpha_s=1e-6, beta_s_per_byte=1e-9).bytes
    6000.0
    """
    n, p, a, b, g = float(bytes), ranks, alpha_s, beta_s_per_byte, gamma_s_per_byte
    check_name(algorithm, operation)
    if p == 1:
        return Cost(0.0, 0, 0.0)
    if algorithm in ("native", "auto"):
        return min(predict(operation, name, n, p, a, b, g) for name in candidates(operation, n, p, a, b))
    name, _, option = algorithm.partition(":")
    if name == "hierarchical":
        found = [cost for _, _, cost in level_costs(n, p, a, b, g, option, levels)]
        return Cost(sum(x.time_s for x in found), sum(x.messages for x in found), sum(x.bytes for x in found))
    if name == "shared":  # no messages: two barriers, and every byte is copied in and out
        return Cost(2 * a + 2 * n * b, 0, 0.0)
    if name == "reproducible" and option == "tree":  # rank 0's first child has half of the ranks' nodes, one if p = 2^k
        steps, whole = (p - 1).bit_length(), piece_count(math.ceil(n))
        return Cost(2 * steps * (a + n * b) + steps * n * g, steps * whole, steps * n)
    if name == "reproducible":
        share = n * (p - 1) / p
        messages = 2 * (p - 1) * piece_count(math.ceil(n / p))
        return Cost(2 * (p - 1) * a + 2 * share * b + share * g, messages, 2 * share)
    if name == "ring":
        return _ring(operation, n, p, a, b, g)
    if name in ("recursive_doubling", "halving_doubling"):
        return _doubling(operation, name, n, p, a, b, g)
    if name in ("tree", "double_tree", "pipelined", "pipelined_tree"):
        return _tree(operation, name, option, n, p, a, b, g)
    raise MeshError(f"{operation}: algorithm={algorithm!r} has no predicted cost; needed: one in `predict`")


def _ring(operation: str, n: float, p: int, a: float, b: float, g: float) -> Cost:
    rounds = 2 if operation == "all_reduce" else 1
    share = n * (p - 1) / p
    adding = 0.0 if operation == "all_gather" else share * g
    messages = rounds * (p - 1) * piece_count(math.ceil(n / p))
    return Cost(rounds * ((p - 1) * a + share * b) + adding, messages, rounds * share)


def _block_messages(part: float, width: int, shared: int) -> int:
    """The number of messages for a block of `width` seats, of which the first `shared` have two parts.

    See `halving._messages`.
    """
    count, half = piece_count(math.ceil((width + shared) * part)), width // 2
    if half == 0 or count <= 1:
        return count
    return _block_messages(part, half, min(shared, half)) + _block_messages(part, half, max(0, shared - half))


def _doubling(operation: str, name: str, n: float, p: int, a: float, b: float, g: float) -> Cost:
    """Recursive doubling and halving.

    If p is not a power of two, the extra ranks first send their array (all-gather: their part) to a neighbour, and
    later receive the result (reduce-scatter: their part of it). See `halving.Fold`.
    """
    steps, q = p.bit_length() - 1, 1 << (p.bit_length() - 1)
    is_folded, whole, shared = p > q, piece_count(math.ceil(n)), p - q
    halved, widths = n * (q - 1) / q, [1 << k for k in range(steps)]
    if operation == "all_reduce":
        if name == "recursive_doubling":
            cost = Cost(steps * (a + n * b + n * g), steps * whole, steps * n)
        else:
            messages = 2 * sum(_block_messages(n / q, width, 0) for width in widths)
            cost = Cost(2 * steps * a + 2 * halved * b + halved * g, messages, 2 * halved)
        before, after, adding = n, n, n
    elif operation == "reduce_scatter":  # shared seats come first; seat 0 also sends its partner's part
        messages = sum(_block_messages(n / p, width, max(0, min(width, shared - width))) for width in widths)
        cost = Cost(steps * a + halved * b + halved * g, messages, halved)
        before, after, adding = n, n / p, n
    else:  # seat 0 has most to send
        blocks = [(width + min(width, shared)) * n / p for width in widths]
        messages = sum(_block_messages(n / p, width, min(width, shared)) for width in widths)
        cost = Cost(steps * a + sum(blocks) * b, messages, sum(blocks))
        before, after, adding = n / p, n, 0.0
    if not is_folded:
        return cost
    # in a pair, one rank only sends its array beforehand; the other sends everything else, including the result
    time = cost.time_s + 2 * a + (before + after) * b + adding * g
    most = (cost.messages + piece_count(math.ceil(after)), cost.bytes + after)
    return Cost(time, max(most[0], piece_count(math.ceil(before))), max(most[1], before))


def _degrees(kind: str, arity: int, p: int) -> tuple[int, int, int]:
    """The largest number of children of a rank, the largest number of messages per segment, and the tree's height.

    Messages count both ways: to the children and to the parent.
    """
    if kind == "binomial":
        steps = (p - 1).bit_length()
        return steps, steps, steps
    below = min(arity, p - 1)
    height, width, reached = 0, 1, 1
    while reached < p:
        width, height = width * arity, height + 1
        reached += width
    if arity == 1:
        height = p - 1
    return below, max(below, 1 + max(0, min(arity, p - 1 - arity))), height


def _tree(operation: str, name: str, option: str, n: float, p: int, a: float, b: float, g: float) -> Cost:
    up = 0 if operation == "broadcast" else 1
    both = 2 if operation == "all_reduce" else 1
    if name == "double_tree":
        k = int(option) if option else max(1, piece_count(math.ceil(n / 2)))
        rounds = p.bit_length() - 2 + k
        sent = min(p, 4)  # of a rank in both trees: who has children in one is a leaf of the other
        time = both * rounds * (2 * a + n / k * b) + up * rounds * n / k * g
        return Cost(time, sent * k, sent * n / 2)
    if name == "tree":
        most, sent, height = _degrees("k_ary" if option else "binomial", int(option or 0), p)
        k, width = 1, most if option else 1
    else:
        most, sent, height = _degrees("k_ary", 1 if name == "pipelined" else 2, p)
        k, width = int(option) if option else max(1, piece_count(math.ceil(n))), most
    sent = {"all_reduce": sent, "reduce": 1}.get(operation, most)
    rounds = (height - 1 + k) * width
    return Cost(rounds * (both * (a + n / k * b) + up * n / k * g), sent * k, sent * n)


def level_costs(
    n: float, p: int, a: float, b: float, g: float, option: str, levels: Levels
) -> list[tuple[str, int, Cost]]:
    """The algorithm, the number of members of a domain, and the cost, of each level and of the last all-reduce.

    Arguments as in `predict`. Messages inside the transport's own collectives are not counted.
    """
    *inside, last = names_of(option, len(levels))
    found = []
    for name, (size, alpha, beta) in zip(inside, levels, strict=False):
        if p % size:
            raise MeshError(f"{p} ranks with {size} in each domain; needed: the same number on every host")
        calls = ("all_reduce",) if name == "tree" else ("reduce_scatter", "all_gather")
        times, messages, sent = zip(*(predict(call, name, n, size, alpha, beta, g) for call in calls), strict=True)
        counted = name != "native"
        found.append((name, size, Cost(sum(times), counted * sum(messages), counted * sum(sent))))
        n, p = n if name == "tree" else n / size, p // size
    return [*found, (last, p, predict("all_reduce", last, n, p, a, b, g))]


def hierarchies(levels: int) -> list[str]:
    """The hierarchical algorithms that `auto` predicts: shared memory inside hosts, and any others outside."""
    middle = [name for name in INSIDE if name not in ("shared", "native")]
    choices = [["shared"], *[middle] * (levels - 1), [name for name in BETWEEN if name != "native"]]
    return [f"hierarchical:{','.join(names)}" for names in itertools.product(*choices)]


def best_segments(n: float, rounds: float, alpha_s: float, beta_s_per_byte: float) -> int:
    """The number of segments k that minimizes (rounds + k)(alpha + n/k beta): ``sqrt(rounds n beta / alpha)``."""
    if alpha_s <= 0 or rounds <= 0:
        return 1
    return max(1, min(4096, round(math.sqrt(rounds * n * beta_s_per_byte / alpha_s))))


def candidates(operation: str, n: float, p: int, alpha_s: float, beta_s_per_byte: float) -> list[str]:
    """The algorithms that `auto` predicts by one alpha and beta; pipelines have the best number of segments."""
    names = [name for name in algorithms_of(operation) if name not in ("reproducible", "hierarchical", "shared")]
    found = []
    for name in names:
        if name == "pipelined":
            name += f":{best_segments(n, p - 2, alpha_s, beta_s_per_byte)}"
        elif name == "pipelined_tree":
            name += f":{best_segments(n, p.bit_length() - 2, alpha_s, beta_s_per_byte)}"
        elif name == "double_tree":
            name += f":{best_segments(n / 2, p.bit_length() - 2, alpha_s, beta_s_per_byte)}"
        found.append(name)
    return found
