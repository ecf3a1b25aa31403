"""Extents and numbers that two things share: classes and ranks, features and rows, microbatches and their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import collectives as cc
from autograd import nn
from collectives import R, V

from .harness import START, Program, Rank, Reading, each_counts, mean, right, steps, total, wrong

_random = numpy.random.default_rng(71)
DATA = _random.normal(size=(256, 16))
MADE = _random.normal(size=(16, 16)) / 2
LABELS = _random.integers(0, 2, 256)

# Sizes as functions of the number of ranks: rows of a rank, features, classes.
Sizes = Callable[[int], tuple[int, int, int]]
SIZES: dict[str, Sizes] = {
    "classes == ranks": lambda n: (7, 4, n),
    "rows == ranks": lambda n: (n, 4, 6),
    "features == ranks": lambda n: (7, n, 6),
    "features == rows": lambda n: (7, 7, 6),
    "classes == rows": lambda n: (6, 4, 6),
    "all == ranks": lambda n: (n, n, n),
    "classes == rows of all ranks": lambda n: (2, 4, 2 * n),
    "two rows of each rank": lambda n: (2, 4, 3),
    "one row of each rank": lambda n: (1, 4, 3),
    "rows == ranks times classes": lambda n: (3 * n, 4, 3),
}


class Case:
    """This rank's rows, targets and labels, and a matrix that all ranks hold."""

    def __init__(self, e: Rank, sizes: Sizes, labelled: bool):
        self.rows, features, self.classes = sizes(e.n)
        self.all, self.e = self.rows * e.n, e
        mine = slice(e.rank * self.rows, (e.rank + 1) * self.rows)
        x, t, k = data(e.n, sizes)
        self.x, self.t, self.k = x[mine], t[mine], k[mine]
        if labelled:
            self.x, self.t, self.k = (
                cc.from_local(numpy.ascontiguousarray(a), {"dp": cc.Shard(0)}) for a in (self.x, self.t, self.k))
        p = ag.Parameter(START["g"].copy(), name="g")
        e._made["g"] = p, ...
        self.m = matrix(cc.cast(p, "dp", to=R), features, self.classes)
        self.z = self.x @ self.m
        self.d = (self.z - self.t) ** 2


def data(n: int, sizes: Sizes) -> tuple[Any, Any, Any]:
    rows, features, classes = sizes(n)
    return DATA[: rows * n, :features], DATA[100 : 100 + rows * n, 16 - classes :], (
        LABELS[: rows * n] * (classes - 1))  # fmt: skip


def matrix(g: Any, features: int, classes: int) -> Any:
    """A matrix (features, classes) of a parameter (4, 4)."""
    return ag.constant(MADE[:features, :4]) @ g @ ag.constant(MADE[4:8, :classes])


def s_elements(sizes: Sizes) -> Any:
    def serial(p: Any, n: int) -> Any:
        x, t, _ = data(n, sizes)
        return ((x @ matrix(p["g"], *sizes(n)[1:]) - t) ** 2).mean()

    return serial


def s_rows(sizes: Sizes) -> Any:
    def serial(p: Any, n: int) -> Any:
        x, t, _ = data(n, sizes)
        return ((x @ matrix(p["g"], *sizes(n)[1:]) - t) ** 2).sum() / len(x)

    return serial


def s_classes(sizes: Sizes) -> Any:
    def serial(p: Any, n: int) -> Any:
        x, _, k = data(n, sizes)
        return nn.cross_entropy(x @ matrix(p["g"], *sizes(n)[1:]), k)

    return serial


RIGHT_FORMS: dict[str, tuple[bool, Callable[[Case], Any], Any]] = {
    "labelled mean": (True, lambda c: total(c.d.mean()), s_elements),
    "labelled sum by rows": (True, lambda c: total(c.d.sum()) / c.x.global_shape[0], s_rows),
    "labelled means of rows": (True, lambda c: total(c.d.mean(axis=1).mean()), s_elements),
    "labelled sums of rows, mean": (True, lambda c: total(c.d.sum(axis=1).mean()), s_rows),
    "labelled cross-entropy": (True, lambda c: total(nn.cross_entropy(c.z, c.k)), s_classes),
    "averaged mean": (False, lambda c: mean(c.d.mean()), s_elements),
    "averaged sum by own rows": (False, lambda c: mean(c.d.sum() / c.rows), s_rows),
    "sum by all elements": (False, lambda c: total(c.d.sum() / (c.all * c.classes)), s_elements),
    "sum by all rows": (False, lambda c: total(c.d.sum()) / c.all, s_rows),
    "sums of rows by all": (False, lambda c: total(c.d.sum(axis=1).sum() / c.all), s_rows),
    "1 / all times sums of rows": (False, lambda c: (1 / c.all) * total(c.d.sum(axis=1).sum()), s_rows),
    "means of rows by all": (False, lambda c: total(c.d.mean(axis=1).sum() / c.all), s_elements),
    "mean by the size": (False, lambda c: total(c.d.mean()) / c.e.size, s_elements),
    "1 / size times a mean": (False, lambda c: total((1 / c.e.size) * c.d.mean()), s_elements),
    "averaged cross-entropy": (False, lambda c: mean(nn.cross_entropy(c.z, c.k)), s_classes),
    "cross-entropy sum by all": (
        False, lambda c: total(nn.cross_entropy(c.z, c.k, reduction="sum") / c.all), s_classes),
    "cross-entropy by the size": (False, lambda c: total(nn.cross_entropy(c.z, c.k)) / c.e.size, s_classes),
}
WRONG_FORMS: dict[str, tuple[bool, Callable[[Case], Any], Any]] = {
    "mean": (False, lambda c: total(c.d.mean()), s_elements),
    "sum by own elements": (False, lambda c: total(c.d.sum() / (c.rows * c.classes)), s_elements),
    "sum by own rows": (False, lambda c: total(c.d.sum() / c.rows), s_rows),
    "sums of rows, mean": (False, lambda c: total(c.d.sum(axis=1).mean()), s_rows),
    "means of rows, mean": (False, lambda c: total(c.d.mean(axis=1).mean()), s_elements),
    "cross-entropy": (False, lambda c: total(nn.cross_entropy(c.z, c.k)), s_classes),
    "cross-entropy sum by own": (
        False, lambda c: total(nn.cross_entropy(c.z, c.k, reduction="sum") / c.rows), s_classes),
    "averaged sum by all rows": (False, lambda c: mean(c.d.sum() / c.all), s_rows),
    "averaged cross-entropy, sum by all": (
        False, lambda c: mean(nn.cross_entropy(c.z, c.k, reduction="sum") / c.all), s_classes),
    "averaged mean by the size": (False, lambda c: mean(c.d.mean()) / c.e.size, s_elements),
    "labelled mean by the size": (True, lambda c: total(c.d.mean()) / c.e.size, s_elements),
    "size times a labelled mean": (True, lambda c: c.e.size * total(c.d.mean()), s_elements),
    "labelled cross-entropy by the size": (True, lambda c: total(nn.cross_entropy(c.z, c.k)) / c.e.size, s_classes),
    "labelled cast, mean": (True, lambda c: total(cc.cast(c.d, "dp", to=V).mean()), s_elements),
}


def of(form: Callable[[Case], Any], sizes: Sizes, labelled: bool) -> Any:
    return lambda e: form(Case(e, sizes, labelled))


# -- microbatches ------------------------------------------------------------------------------------------------------
def in_microbatches(form: Callable[..., Any], rows: int, parts: int, outputs: int, labelled: bool) -> steps:
    """`parts` microbatches of a batch of `rows`: ``form(losses, rows, parts, outputs)``."""

    def program(e: Rank) -> None:
        model = e.model("m")
        with model.accumulate():
            for mine in numpy.array_split(numpy.arange(rows), parts):
                own = numpy.array_split(mine, e.n)[e.rank]
                x: Any = DATA[own, :4]
                x = cc.from_local(x, {"dp": cc.Shard(0)}) if labelled else x
                with ag.Tape() as tape:
                    loss = form(model(x)[:, :outputs] ** 2, rows, parts, outputs)
                tape.backward(loss)

    return steps(program)


def s_batch(rows: int, outputs: int, by: Callable[[int, int], float]) -> Any:
    return lambda p, n: ((DATA[:rows, :4] @ p["m"])[:, :outputs] ** 2).sum() / by(rows, outputs)


def by_elements(rows: int, outputs: int) -> float:
    return rows * outputs


def by_rows(rows: int, outputs: int) -> float:
    return rows


BATCHES = ((12, 3, 3), (24, 2, 2), (30, 3, 3), (9, 3, 3), (40, 2, 1), (24, 3, 2), (36, 6, 3), (16, 4, 2))

def reading(sizes: str, form: str) -> Reading | None:
    """What else a form means for these sizes."""
    of_rows, of_elements, of_classes = (s(SIZES[sizes]) for s in (s_rows, s_elements, s_classes))
    found = {
        # as many rows of a rank as ranks: the mean over the ranks of the sums of each
        **{(name, form): Reading("the mean over the ranks of a total of each", each_counts(s))
           for name in ("rows == ranks", "all == ranks")
           for form, s in (("sum by own rows", of_rows), ("sum by own elements", of_elements),
                           ("cross-entropy sum by own", of_classes))},
        # the elements of a rank are as many as the rows of all
        ("classes == ranks", "sum by own elements"): Reading("the sum by the rows of all", of_rows),
        ("one row of each rank", "sum by own elements"): Reading("the sum by the rows of all", of_rows, (3,)),
        ("rows == ranks times classes", "sum by own elements"): Reading("the sum by the rows of all", of_rows, (3,)),
        **{(name, "averaged sum by all rows"): Reading("the mean over the ranks of the means of each", of_elements, at)
           for name, at in (("classes == ranks", (2, 3, 4, 5)), ("all == ranks", (2, 3, 4, 5)),
                            ("two rows of each rank", (3,)),
                            ("rows == ranks times classes", (3,)))},
        ("classes == rows", "averaged sum by all rows"): Reading(
            "the mean over the ranks of the means over the 6 * 5 pairs of each", lambda p, n: of_rows(p, n) / n, (5,)),
        ("rows == ranks times classes", "sum by own rows"): Reading(
            "the mean over the ranks of the sums over rows of the means of each", each_counts(of_rows), (3,)),
        ("two rows of each rank", "sum by own elements"): Reading(
            "the sum by the rows of all; the mean over two ranks and three classes of sums over rows",
            lambda p, n: (of_rows if n == 3 else each_counts(of_elements))(p, n), (2, 3)),
        # two rows of each rank: half of the sum; one: the sum itself
        **{(name, form): Reading("half of the sum over all rows", each_counts(s))
           for name in ("two rows of each rank", "classes == rows of all ranks")
           for form, s in (("sum by own rows", of_rows), ("cross-entropy sum by own", of_classes))},
        ("one row of each rank", "averaged cross-entropy, sum by all"): Reading(
            "a mean over the ranks, with a weight", lambda p, n: of_classes(p, n) / n),
        ("one row of each rank", "averaged sum by all rows"): Reading(
            "a mean over the ranks, with a weight", lambda p, n: of_rows(p, n) / n),
        ("classes == rows of all ranks", "sum by own elements"): Reading(
            "half of the sum by the rows of all", lambda p, n: of_rows(p, n) / 2, (2,)),
        ("one row of each rank", "sum by own rows"): Reading("the sum over all rows", each_counts(of_rows)),
        ("one row of each rank", "cross-entropy sum by own"): Reading("the sum over all rows", each_counts(of_classes)),
    }  # fmt: skip
    return found.get((sizes, form))


PROGRAMS: dict[str, Program] = {}
for _name, _sizes in SIZES.items():
    PROGRAMS |= {f"{_name}: {name}": right(of(form, _sizes, labelled), s(_sizes))
                 for name, (labelled, form, s) in RIGHT_FORMS.items()}  # fmt: skip
    PROGRAMS |= {f"{_name}: {name}": wrong(of(form, _sizes, labelled), s(_sizes), reading=reading(_name, name))
                 for name, (labelled, form, s) in WRONG_FORMS.items()
                 if not (_name == "one row of each rank" and labelled)}  # fmt: skip
for _rows, _parts, _outputs in BATCHES:
    _text = f"{_rows} rows, {_parts} microbatches, {_outputs} outputs"
    for _labelled in (True, False):
        _on = "labelled" if _labelled else "plain"
        PROGRAMS |= {
            f"{_text}, {_on}: sum by all rows": right(
                in_microbatches(lambda d, rows, parts, outputs: total(d.sum()) / rows, _rows, _parts, _outputs,
                                _labelled), s_batch(_rows, _outputs, by_rows)),
            f"{_text}, {_on}: sum by all elements": right(
                in_microbatches(lambda d, rows, parts, outputs: total(d.sum() / (rows * outputs)), _rows, _parts,
                                _outputs, _labelled), s_batch(_rows, _outputs, by_elements)),
        }
    if _rows % _parts == 0:
        PROGRAMS |= {
            f"{_text}: labelled mean by their number": right(
                in_microbatches(lambda d, rows, parts, outputs: total(d.mean()) / parts, _rows, _parts, _outputs, True),
                s_batch(_rows, _outputs, by_elements)),
            f"{_text}: labelled mean": wrong(
                in_microbatches(lambda d, rows, parts, outputs: total(d.mean()), _rows, _parts, _outputs, True),
                s_batch(_rows, _outputs, by_elements)),
            f"{_text}: labelled sum by the rows of the microbatch": wrong(
                in_microbatches(lambda d, rows, parts, outputs: total(d.sum()) / d.global_shape[0], _rows, _parts,
                                _outputs, True), s_batch(_rows, _outputs, by_rows)),
        }  # fmt: skip
