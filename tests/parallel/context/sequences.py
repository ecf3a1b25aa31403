"""Random sequences, the parts of them that ranks hold, and attention of one process to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import ops
from parallel import context

ROWS, TOKENS, HEADS, WIDTH = 2, 24, 4, 6
ZIGZAG, CONTIGUOUS, UNEVEN, ULYSSES = "zigzag", "contiguous", "uneven", "ulysses"
Function = Callable[[Any], Any]


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def length_of(kind: str, ranks: int) -> int:
    """A number of tokens that the ranks can divide in this order."""
    return 12 * ranks if kind == ZIGZAG else 4 * ranks + 3


def places(kind: str, tokens: int, rank: int, ranks: int) -> Any:
    """The positions of a rank's tokens."""
    if kind == ZIGZAG:
        return context.zigzag_positions(tokens, rank, ranks)
    if kind == UNEVEN:  # the first rank has none, the last one most
        cuts = [tokens * r * r // (ranks * ranks) if r > 1 else 0 for r in range(ranks + 1)]
        cuts[-1] = tokens
        return np.arange(cuts[rank], cuts[rank + 1])
    return np.array_split(np.arange(tokens), ranks)[rank]


def part(a: Any, kind: str, dim: int = 1) -> Any:
    """This rank's part of an array, as a Tensor, under the mesh with the axis "cp" alone."""
    on = cc.current_mesh().axis("cp")
    at = places(kind, a.shape[dim], on.group.index, on.size)
    return cc.from_local(np.take(a, at, dim), {"cp": cc.V if kind == ZIGZAG else cc.Shard(dim)})


def attention_of(kind: str, causal: bool) -> Function:
    if kind == ULYSSES:
        return lambda x: context.ulysses_self_attention(x, "cp", causal=causal)
    return lambda x: context.ring_self_attention(x, "cp", causal=causal, zigzag=kind == ZIGZAG)


def derivatives(f: Function, x: Any, ct: Any, tangent: Any) -> list[Any]:
    """The value, the cotangent, the tangent, and the derivative of the cotangent along another cotangent."""
    y, pull = ag.vjp(f, x)
    second = ag.vjp(lambda x: ag.vjp(f, x)[1](ct), x)[1](tangent)
    return [y, pull(ct), ag.jvp(f, (x,), (tangent,))[1], second]


def serial(tokens: int, causal: bool) -> tuple[list[Any], list[Any]]:
    """A sequence, a cotangent and a tangent, and the derivatives of attention on one process."""
    given = [random(ROWS, tokens, 3, HEADS, WIDTH), random(ROWS, tokens, HEADS, WIDTH, seed=1),
             random(ROWS, tokens, 3, HEADS, WIDTH, seed=2)]  # fmt: skip
    return given, derivatives(lambda x: ops.self_attention(x, causal=causal), *given)


def assert_parts(found: Sequence[Any], whole: Any, kind: str, tolerance: float, dim: int = 1) -> None:
    """Compare the ranks' parts with the whole value, by the norm of the difference."""
    ranks = len(found)
    error = 0.0
    for rank, ours in enumerate(found):
        expected = np.take(whole, places(kind, whole.shape[dim], rank, ranks), dim)
        assert ours.shape == expected.shape
        error += float(np.square(ours - expected).sum())
    assert error**0.5 <= tolerance * float(np.linalg.norm(whole)), (kind, error**0.5 / np.linalg.norm(whole))
