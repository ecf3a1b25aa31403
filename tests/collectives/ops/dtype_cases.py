"""Every collective on arrays of every dtype, against NumPy on one process. Run on threads and on MPI."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from collectives.algorithms.table import algorithms_of

SMALL = ("?", "i1", "u1", "i2", "u2", "i4", "u4")
WIDE = ("i8", "u8", "q", "Q")
INEXACT = ("f2", "f4", "f8", "g", "F", "D", "G")
if find_spec("ml_dtypes") is not None:
    import ml_dtypes  # so that NumPy knows the name

    assert ml_dtypes.bfloat16
    INEXACT += ("bfloat16",)
SWAPPED = tuple(np.dtype(each).newbyteorder("S").str for each in ("i2", "u4", "i8", "f2", "f4", "f8", "F", "D"))
DTYPES = SMALL + WIDE + INEXACT + SWAPPED


TOLERANCES = {"f2": 8e-3, SWAPPED[3]: 8e-3, "bfloat16": 3e-2}
"""Relative and absolute, of dtypes of 16 bits; 1e-5 for the others."""


def data(dtype: str, rank: int) -> Any:
    """The operand of a rank: not contiguous, of numbers whose sums and products overflow small integers."""
    kind, rng = np.dtype(dtype), np.random.default_rng([rank, 7])
    if kind.kind == "b":
        x = rng.random((6, 8)) < 0.6
    elif kind.kind in "iu":
        x = rng.integers(60, 127, (6, 8))
    else:
        x = rng.standard_normal((6, 8))
        x = x + 1j * rng.standard_normal((6, 8)) if kind.kind == "c" else x
    return x.astype(kind)[:, ::2]


def native(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder("="))


Reference = Callable[[list[Any], int], Any]
Case = tuple[Callable[[Any], Any], Reference]


def _part(whole: Any, rank: int, size: int) -> Any:
    return np.array_split(whole, size)[rank]


def _exclusive(xs: list[Any], rank: int) -> Any:
    return np.cumsum(xs, axis=0)[rank - 1] if rank else np.zeros_like(np.sum(xs, axis=0))


def _mean(xs: list[Any], rank: int) -> Any:
    return np.mean(xs, axis=0)


def _sum(xs: list[Any], rank: int) -> Any:
    return np.sum(xs, axis=0)


def _sharded(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A sum of all elements of a value that is divided by rows, through its Partial value."""
    return lambda x: cc.all_reduce(reduce(cc.from_local(x, {"dp": cc.Shard(0)})), "dp")


CASES: dict[str, Case] = {
    "all_reduce": (lambda x: cc.all_reduce(x, "dp"), _sum),
    "all_reduce(to=I)": (lambda x: cc.all_reduce(ag.tensor(x), "dp", to=cc.I), _sum),
    "all_reduce of P": (lambda x: cc.all_reduce(cc.declare_partial(x, "dp"), "dp"), _sum),
    "all_reduce_async": (lambda x: cc.all_reduce_async(x, "dp").wait(), _sum),
    "reduce": (lambda x: cc.reduce(x, "dp"), lambda xs, r: _sum(xs, r) if r == 0 else None),
    "reduce_async": (lambda x: cc.reduce_async(x, "dp").wait(), lambda xs, r: _sum(xs, r) if r == 0 else None),
    "reduce_scatter": (lambda x: cc.reduce_scatter(x, "dp"), lambda xs, r: _part(_sum(xs, r), r, len(xs))),
    "reduce_scatter_async": (
        lambda x: cc.reduce_scatter_async(x, "dp").wait(), lambda xs, r: _part(_sum(xs, r), r, len(xs))),
    "reproducible_sum": (lambda x: cc.reproducible_sum([x], [cc.world().index], "dp"), _sum),
    "scan": (lambda x: cc.scan(x, "dp"), lambda xs, r: np.cumsum(xs, axis=0)[r]),
    "exscan": (lambda x: cc.exscan(x, "dp"), _exclusive),
    "mean": (lambda x: cc.mean(x, "dp"), _mean),
    "sum of a Shard": (_sharded(lambda x: x.sum()), lambda xs, r: np.sum(np.concatenate(xs))),
    "all_prod": (lambda x: cc.all_prod(x, "dp"), lambda xs, r: np.prod(xs, axis=0)),
    "all_max": (lambda x: cc.all_max(x, "dp"), lambda xs, r: np.max(xs, axis=0)),
    "all_min": (lambda x: cc.all_min(x, "dp"), lambda xs, r: np.min(xs, axis=0)),
    "all_gather": (lambda x: cc.all_gather(x, "dp"), lambda xs, r: np.concatenate(xs)),
    "all_gather_async": (lambda x: cc.all_gather_async(x, "dp").wait(), lambda xs, r: np.concatenate(xs)),
    "gather": (lambda x: cc.gather(x, "dp"), lambda xs, r: np.concatenate(xs) if r == 0 else None),
    "broadcast": (lambda x: cc.broadcast(x, "dp"), lambda xs, r: xs[0]),
    "broadcast(None)": (
        lambda x: cc.broadcast(None if cc.world().index else x, "dp"), lambda xs, r: xs[0]),
    "broadcast_async": (lambda x: cc.broadcast_async(x, "dp").wait(), lambda xs, r: xs[0]),
    "scatter": (lambda x: cc.scatter(x, "dp"), lambda xs, r: _part(xs[0], r, len(xs))),
    "all_to_all": (
        lambda x: cc.all_to_all(x, "dp", 0, 0),
        lambda xs, r: np.concatenate([_part(x, r, len(xs)) for x in xs])),
    "all_to_all_async": (
        lambda x: cc.all_to_all_async(x, "dp", 0, 0).wait(),
        lambda xs, r: np.concatenate([_part(x, r, len(xs)) for x in xs])),
    "permute": (lambda x: cc.permute(x, "dp", _ring()), lambda xs, r: xs[r - 1]),
    "permute_async": (lambda x: cc.permute_async(x, "dp", _ring()).wait(), lambda xs, r: xs[r - 1]),
    "isend and irecv": (lambda x: _passed_on(x), lambda xs, r: xs[r - 1]),
    "halo_exchange": (
        lambda x: cc.halo_exchange(x, "dp", 1, periodic=True),
        lambda xs, r: np.concatenate([xs[r - 1][-1:], xs[r], xs[(r + 1) % len(xs)][:1]])),
    "get": (
        lambda x: cc.get(x, "dp", [0] * 6, np.arange(6)[::-1].copy()), lambda xs, r: xs[0][::-1]),
    "from_local": (lambda x: cc.from_local(x, {"dp": cc.Shard(0)}), lambda xs, r: xs[r]),
    "cast": (lambda x: cc.cast(x, "dp", to=cc.V), lambda xs, r: xs[r]),
    "shard": (lambda x: cc.shard(ag.constant(_same(x)), "dp"), lambda xs, r: _part(xs[0], r, len(xs))),
}  # fmt: skip
for _name in algorithms_of("all_reduce"):
    CASES[f"all_reduce by {_name}"] = (lambda x, _name=_name: cc.all_reduce(x, "dp", algorithm=_name), _sum)
for _name in algorithms_of("reduce_scatter"):
    CASES[f"reduce_scatter by {_name}"] = (
        lambda x, _name=_name: cc.reduce_scatter(x, "dp", algorithm=_name), CASES["reduce_scatter"][1])  # fmt: skip
for _name in algorithms_of("reduce"):
    CASES[f"reduce by {_name}"] = (lambda x, _name=_name: cc.reduce(x, "dp", algorithm=_name), CASES["reduce"][1])
ORDERED = ("all_max", "all_min")


def _same(x: Any) -> Any:
    """An array of the dtype of `x` that is the same on all ranks."""
    if type(x) is not np.ndarray:  # a subclass, or a list
        return x
    name = x.dtype.name if x.dtype.name == "bfloat16" else x.dtype.str
    return data(name, 0) if x.dtype.kind in "biufc" or name == "bfloat16" else x


def _ring() -> list[tuple[int, int]]:
    size = cc.world().size
    return [(rank, (rank + 1) % size) for rank in range(size)]


def _passed_on(x: Any) -> Any:
    size, rank = cc.world().size, cc.world().index
    if size == 1:
        return ag.tensor(x)
    there, here = cc.isend(x, "dp", (rank + 1) % size), cc.irecv("dp", (rank - 1) % size)
    there.wait()
    return here.wait()


def mistakes() -> tuple[int, list[str]]:
    """The number of cases of this rank, and what is wrong with their results."""
    wrong: list[str] = []
    size, rank, count = cc.world().size, cc.world().index, 0
    with np.errstate(over="ignore"), cc.Mesh(dp=-1):
        for name, (use, reference) in CASES.items():
            for dtype in DTYPES:
                if name in ORDERED and np.dtype(dtype).kind == "c":
                    continue
                count += 1
                y = use(data(dtype, rank))
                needed = reference([native(data(dtype, r)) for r in range(size)], rank)
                have = y.data
                if needed is None or have is None:  # rooted on another rank
                    wrong += [f"{name} of {dtype}: {have}; needed: {needed}"] if have is not needed else []
                    continue
                tolerance = 0.0 if needed.dtype.kind in "biu" else TOLERANCES.get(dtype, 1e-5)
                have = np.asarray(have)
                if have.dtype != needed.dtype or not have.dtype.isnative or have.shape != needed.shape:
                    wrong.append(f"{name} of {dtype}: {have.dtype}{have.shape}; needed: {needed.dtype}{needed.shape}")
                elif not np.allclose(have, needed, rtol=tolerance, atol=tolerance):
                    wrong.append(f"{name} of {dtype}: {have.ravel()[:3]}; needed: {needed.ravel()[:3]}")
        for name in ORDERED:
            for dtype in ("f2", "f4", "f8", "g", ">f4", ">f8"):
                x = data(dtype, rank)
                x[rank % 6, 0] = np.nan
                count += 1
                if not np.isnan(np.asarray(CASES[name][0](x).local)[:size, 0]).all():
                    wrong.append(f"{name} of {dtype}: a nan of one rank is lost")
    return count, wrong
