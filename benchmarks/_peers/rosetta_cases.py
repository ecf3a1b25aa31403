"""The cases of `benchmarks/rosetta.py`: operands and cotangents that differ on every rank, and serial gradients.

The objective is ``sum over ranks of <ct_r, y_r>``: every rank uses its result separately, and all results add to one
loss. The code is NumPy on lists with one array per rank, which every peer's environment can run. `invariant` is the
other interpretation in use: equal results on all ranks are one value, and their cotangents are equal too.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

RANKS = 3
ROOT = 1
Arrays = list[Any]


class Case(NamedTuple):
    """One collective: the operands' shapes by rank, the function, and its gradient from cotangents and operands."""

    shapes: list[tuple[int, ...]]
    forward: Callable[[Arrays], Arrays]
    gradient: Callable[[Arrays, Arrays], Arrays]
    invariant: Callable[[Arrays, Arrays], Arrays] | None = None
    unused: tuple[int, ...] = ()  # ranks whose result does not reach the loss, and which call no backward


def total(xs: Arrays) -> Any:
    return np.sum(np.stack(xs), axis=0)


def everywhere(y: Any) -> Arrays:
    return [y] * RANKS


def at_root(y: Any) -> Arrays:
    return [y if r == ROOT else None for r in range(RANKS)]


def zeros_but(root: int, g: Any) -> Arrays:
    return [g if r == root else np.zeros_like(g) for r in range(RANKS)]


def cut(y: Any, extents: list[int]) -> Arrays:
    return np.split(y, np.cumsum(extents)[:-1])


def rows(xs: Arrays) -> list[int]:
    return [len(x) for x in xs]


def extremum(choose: Any) -> Callable[[Arrays, Arrays], Arrays]:
    def gradient(cts: Arrays, xs: Arrays) -> Arrays:
        wins = np.stack(xs) == choose(np.stack(xs), axis=0)
        return list(wins * total(cts))

    return gradient


def product(cts: Arrays, xs: Arrays) -> Arrays:
    return [total(cts) * np.prod([x for s, x in enumerate(xs) if s != r], axis=0) for r in range(RANKS)]


def shifted(xs: Arrays, by: int) -> Arrays:
    return [xs[(r - by) % RANKS] for r in range(RANKS)]


def exchanged(xs: Arrays) -> Arrays:
    """all_to_all of RANKS equal blocks of rows."""
    blocks = [np.split(x, RANKS) for x in xs]
    return [np.concatenate([blocks[s][r] for s in range(RANKS)]) for r in range(RANKS)]


def own(cts: Arrays, xs: Arrays) -> Arrays:
    return list(cts)


EVEN = [(2, 3)] * RANKS
BLOCKS = [(6, 2)] * RANKS
UNEVEN = [(1, 2), (3, 2), (2, 2)]

CASES: dict[str, Case] = {
    "all_reduce sum": Case(EVEN, lambda xs: everywhere(total(xs)), lambda c, xs: everywhere(total(c)), own),
    "all_reduce max": Case(EVEN, lambda xs: everywhere(np.max(xs, axis=0)), extremum(np.max)),
    "all_reduce min": Case(EVEN, lambda xs: everywhere(np.min(xs, axis=0)), extremum(np.min)),
    "all_reduce prod": Case(EVEN, lambda xs: everywhere(np.prod(xs, axis=0)), product),
    "broadcast": Case(
        EVEN, lambda xs: everywhere(xs[ROOT]), lambda c, xs: zeros_but(ROOT, total(c)),
        lambda c, xs: zeros_but(ROOT, c[ROOT]),
    ),
    "reduce sum": Case(EVEN, lambda xs: at_root(total(xs)), lambda c, xs: everywhere(c[ROOT])),
    "reduce max": Case(
        EVEN, lambda xs: at_root(np.max(xs, axis=0)),
        lambda c, xs: list((np.stack(xs) == np.max(xs, axis=0)) * c[ROOT]),
    ),
    "all_gather": Case(
        EVEN, lambda xs: everywhere(np.concatenate(xs)), lambda c, xs: cut(total(c), rows(xs)),
        lambda c, xs: [cut(c[r], rows(xs))[r] for r in range(RANKS)],
    ),
    "all_gather uneven": Case(
        UNEVEN, lambda xs: everywhere(np.concatenate(xs)), lambda c, xs: cut(total(c), rows(xs)),
        lambda c, xs: [cut(c[r], rows(xs))[r] for r in range(RANKS)],
    ),
    "reduce_scatter sum": Case(
        BLOCKS, lambda xs: cut(total(xs), [2] * RANKS), lambda c, xs: everywhere(np.concatenate(c)),
    ),
    "reduce_scatter max": Case(
        BLOCKS, lambda xs: cut(np.max(xs, axis=0), [2] * RANKS),
        lambda c, xs: list((np.stack(xs) == np.max(xs, axis=0)) * np.concatenate(c)),
    ),
    "scatter": Case(
        BLOCKS, lambda xs: cut(xs[ROOT], [2] * RANKS), lambda c, xs: zeros_but(ROOT, np.concatenate(c)),
    ),
    "gather": Case(
        EVEN, lambda xs: at_root(np.concatenate(xs)), lambda c, xs: cut(c[ROOT], rows(xs)),
    ),
    "all_to_all": Case(BLOCKS, exchanged, lambda c, xs: exchanged(c)),
    "send/recv ring": Case(EVEN, lambda xs: shifted(xs, 1), lambda c, xs: shifted(c, -1)),
    "all_reduce, rank 2 unused": Case(
        EVEN, lambda xs: everywhere(total(xs)), lambda c, xs: everywhere(total(c)), None, (2,),
    ),
}  # fmt: skip


def data(name: str) -> tuple[Arrays, Arrays]:
    """Operands and cotangents by rank, positive and all different; None where a rank has no result."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    case = CASES[name]
    xs = [rng.uniform(0.5, 2.0, shape) for shape in case.shapes]
    ys = case.forward(xs)
    cts: Arrays = [None if y is None else rng.uniform(0.5, 2.0, y.shape) for y in ys]
    for r in case.unused:
        cts[r] = np.zeros_like(ys[r])
    return xs, cts


class Refused(Exception):
    """Raised if the peer has no such operation; the text gives the reason."""


def serve(gradients: Callable[[str], dict[int, Any]]) -> None:
    """Run a worker on one case. `gradients(case)` returns the gradients of the ranks in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    name = parser.parse_args().case
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        for rank, (g, y) in gradients(name).items():
            told = {"rank": rank, "gradient": np.asarray(g, float).tolist(),
                    "result": None if y is None else np.asarray(y, float).tolist()}  # fmt: skip
            print("ANSWER " + json.dumps(told), file=answers, flush=True)
    except BaseException as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[:300] or type(error).__name__
        print("ANSWER " + json.dumps({"refused": f"{type(error).__name__}: {text}"}), file=answers, flush=True)
        answers.flush()
        import os

        os._exit(3)  # other threads and ranks may wait for this one
