"""Calls by every algorithm, and the dense reference of their results: for threads and for processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import collectives as cc
from collectives.algorithms import algorithms_of
from collectives.algorithms.selected import Channel, Selected

OPTIONS = {"tree": ("", ":1", ":3"), "pipelined": ("", ":4"), "pipelined_tree": ("", ":3"), "double_tree": ("", ":3"),
           "hierarchical": ("", ":ring,ring", ":native,ring", ":halving_doubling,recursive_doubling",
                            ":tree,tree"),
           "reproducible": ("", ":tree")}  # fmt: skip


def names(operation: str) -> list[str]:
    """Every algorithm of an operation, with options."""
    return [name + option for name in algorithms_of(operation) for option in OPTIONS.get(name, ("",))]


def call(operation: str, algorithm: str, x: Any, counts: Sequence[int], root: int) -> tuple[Any, Any]:
    group = Selected(Channel(cc.world()), algorithm)
    arguments: dict[str, tuple[Any, ...]] = {"reduce_scatter": (counts,), "all_gather": (counts,), "broadcast": (root,),
                                             "reduce": (root,)}  # fmt: skip
    return getattr(group, operation)(x, *arguments.get(operation, ())), group.traffic


def data(operation: str, ranks: int, size: int, dtype: Any, counts: Sequence[int]) -> list[Any]:
    """Small integers, different on every rank: their sums are exact in every dtype."""
    rng = np.random.default_rng([ranks, size])
    lengths = counts if operation == "all_gather" else [size] * ranks
    return [rng.integers(0, 2 if dtype == np.bool_ else 9, n).astype(dtype) for n in lengths]


def expected(operation: str, xs: list[Any], counts: Sequence[int], root: int) -> list[Any]:
    total = xs[0].copy() if operation != "all_gather" else None
    for x in xs[1:] if total is not None else []:
        total = total + x
    ends = np.cumsum(counts)
    if operation == "all_reduce":
        return [total] * len(xs)
    if operation == "reduce_scatter":
        return [total[end - n : end] for n, end in zip(counts, ends, strict=True)]
    if operation == "all_gather":
        return [np.concatenate(xs)] * len(xs)
    return [xs[root]] * len(xs) if operation == "broadcast" else [total if r == root else None for r in range(len(xs))]


def uneven(size: int, ranks: int, seed: int) -> list[int]:
    """Counts that differ, zeros among them."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, size + 1, ranks - 1)).tolist()
    return np.diff([0, *cuts, size]).tolist()
