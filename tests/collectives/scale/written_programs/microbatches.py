"""Microbatches in a block of `accumulate`, even and uneven, of all losses of nn; and several losses of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn

from ..meshes import LABELS, SEQUENCES
from .harness import K, Program, Rank, Reading, X, mean, right, steps, total, wrong

_random = numpy.random.default_rng(53)
T = _random.normal(size=(60, 3))
BINARY = (T > 0.2) * 1.0
UNEVEN = (0, 24, 42, 60)
EVEN = (0, 20, 40, 60)
FOUR = (0, 15, 30, 45, 60)
DROPPED = (0, 16, 32, 48, 60)  # the last one is shorter
TOKENS = float((LABELS != -100).sum())

LOSSES: dict[str, tuple[Callable[..., Any], Any]] = {
    "mse_loss": (nn.mse_loss, T),
    "l1_loss": (nn.l1_loss, T),
    "smooth_l1_loss": (nn.smooth_l1_loss, T),
    "cross_entropy": (nn.cross_entropy, K),
    "binary_cross_entropy_with_logits": (nn.binary_cross_entropy_with_logits, BINARY),
    "nll_loss": (lambda z, k, reduction: nn.nll_loss(ag.ops.log_softmax(z), k, reduction=reduction), K),
    "MSELoss": (lambda z, t, reduction: nn.MSELoss(reduction=reduction)(z, t), T),
    "CrossEntropyLoss": (lambda z, k, reduction: nn.CrossEntropyLoss(reduction=reduction)(z, k), K),
}
BY_ROWS = ("cross_entropy", "nll_loss", "CrossEntropyLoss")


class Microbatch:
    """This rank's rows of a microbatch, the model, and numbers of the rows."""

    def __init__(self, e: Rank, model: Any, start: int, stop: int, parts: int, labelled: bool, targets: Any):
        self.e, self.model, self.parts, self.rows = e, model, parts, stop - start
        mine = numpy.array_split(numpy.arange(start, stop), e.n)[e.rank]
        self.own = len(mine)
        self.x: Any = X[mine]
        self.t: Any = targets[mine]
        if labelled:
            self.x, self.t = (cc.from_local(a, {"dp": cc.Shard(0)}) for a in (self.x, self.t))

    @property
    def z(self) -> Any:
        return self.model(self.x)

    def sum(self, of: Callable[..., Any]) -> Any:
        return of(self.z, self.t, reduction="sum")

    def mean(self, of: Callable[..., Any]) -> Any:
        return of(self.z, self.t, reduction="mean")


def accumulated(name: str, how: Callable[[Microbatch, Any], Any], bounds: Any = EVEN, labelled: bool = True,
                **options: Any) -> steps:  # fmt: skip
    """A loss of each microbatch, ``how(microbatch, loss of nn)``, with a backward of its own."""
    of, targets = LOSSES[name]

    def program(e: Rank) -> None:
        model = e.model("m", **options)
        with model.accumulate():
            for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
                with ag.Tape() as tape:
                    loss = how(Microbatch(e, model, start, stop, len(bounds) - 1, labelled, targets), of)
                tape.backward(loss)

    return steps(program)


def by_own(count: int) -> Callable[[Microbatch, Any], Any]:
    """The sum by the elements of the microbatch, `count` in each row."""
    return lambda b, of: total(b.sum(of)) / (b.rows * count)


def by_all(count: int) -> Callable[[Microbatch, Any], Any]:
    return lambda b, of: total(b.sum(of)) / (60 * count)


def s_mean(name: str) -> Any:
    of, targets = LOSSES[name]
    return lambda p, n: of(X @ p["m"], targets, reduction="mean")


def s_by_rows(name: str) -> Any:
    """The sum over all elements by the number of rows."""
    of, targets = LOSSES[name]
    return lambda p, n: of(X @ p["m"], targets, reduction="sum") / 60


def several(tasks: Any, labelled: bool, of: Any, parts: int = 1, together: bool = False, **options: Any) -> steps:
    """Losses of the same rows, each with a forward and a backward of its own, in one block."""

    def program(e: Rank) -> None:
        model = e.model("m", **options)
        with model.accumulate():
            for mine in numpy.array_split(numpy.arange(60), parts):
                own = numpy.array_split(mine, e.n)[e.rank]
                arrays: Any = X[own], T[own], K[own]
                if labelled:
                    arrays = tuple(cc.from_local(a, {"dp": cc.Shard(0)}) for a in arrays)
                x, t, k = arrays
                for task in tasks:
                    with ag.Tape() as tape:
                        loss = of(task(model(x), t, k), e)
                    tape.backward(loss)

    return steps(program)


def regress(z: Any, t: Any, k: Any) -> Any:
    return ((z - t) ** 2).mean()


def classify(z: Any, t: Any, k: Any) -> Any:
    return nn.cross_entropy(z, k)


def shrink(z: Any, t: Any, k: Any) -> Any:
    return 0.1 * np.absolute(z).mean()


def s_tasks(*tasks: Any) -> Any:
    return lambda p, n: sum(task(X @ p["m"], T, K) for task in tasks)


def semi_supervised(labelled_rows: int, labelled: bool, of: Any) -> steps:
    """A cross-entropy of the rows that have classes, and a penalty of the others, each with a backward of its own."""

    def program(e: Rank) -> None:
        model = e.model("m")
        with model.accumulate():
            for mine, task in ((numpy.arange(labelled_rows), classify), (numpy.arange(labelled_rows, 60), shrink)):
                own = numpy.array_split(mine, e.n)[e.rank]
                arrays: Any = X[own], T[own], K[own]
                if labelled:
                    arrays = tuple(cc.from_local(a, {"dp": cc.Shard(0)}) for a in arrays)
                x, t, k = arrays
                with ag.Tape() as tape:
                    loss = of(task(model(x), t, k), e)
                tape.backward(loss)

    return steps(program)


def s_semi(rows: int) -> Any:
    return lambda p, n: (
        classify(X[:rows] @ p["m"], T[:rows], K[:rows]) + shrink(X[rows:] @ p["m"], T[rows:], K[rows:]))


def tokens(how: Callable[..., Any], parts: int = 4, labelled: bool = False) -> steps:
    """A language model with ignored labels: ``how(sum of own tokens, their number, that of the batch, all, parts)``."""

    def program(e: Rank) -> None:
        model = e.model("m")
        with model.accumulate():
            for mine in numpy.array_split(numpy.arange(12), parts):
                own = numpy.array_split(mine, e.n)[e.rank]
                x: Any = SEQUENCES[own].reshape(-1, 4)
                k: Any = LABELS[own].reshape(-1)
                if labelled:
                    x, k = (cc.from_local(a, {"dp": cc.Shard(0)}) for a in (x, k))
                with ag.Tape() as tape:
                    value = nn.cross_entropy(model(x), k, ignore_index=-100, reduction="sum")
                    loss = how(value, float((LABELS[own] != -100).sum()), float((LABELS[mine] != -100).sum()), parts)
                tape.backward(loss)

    return steps(program)


def s_tokens(p: Any, n: int) -> Any:
    return nn.cross_entropy(SEQUENCES.reshape(-1, 4) @ p["m"], LABELS.reshape(-1), ignore_index=-100)


def without_a_block(how: Any) -> steps:
    """One tape over all microbatches, whose losses are added: the loop of a textbook."""

    def program(e: Rank) -> None:
        with ag.Tape() as tape:
            w: Any = e.p("m")
            found: Any = 0.0
            for start, stop in zip(EVEN[:-1], EVEN[1:], strict=True):
                mine = numpy.array_split(numpy.arange(start, stop), e.n)[e.rank]
                found = found + how((X[mine] @ w - T[mine]) ** 2, 3)
        tape.backward(found)

    return steps(program)


def s_square(p: Any, n: int) -> Any:
    return ((X @ p["m"] - T) ** 2).mean()


TASKS = Reading("three tasks, each with rows of its own", lambda p, n: 3 * s_square(p, n))

PROGRAMS: dict[str, Program] = {}
for _name in LOSSES:
    _count = 1 if _name in BY_ROWS else 3
    _s = s_mean(_name)
    PROGRAMS |= {
        f"{_name}, sum by the rows of the microbatch": wrong(
            accumulated(_name, lambda b, of: total(b.sum(of) / b.x.global_shape[0])), s_by_rows(_name)),
        f"{_name}, sum by a number of the microbatch's elements": wrong(accumulated(_name, by_own(_count), FOUR), _s),
        f"{_name}, mean of each microbatch": wrong(accumulated(_name, lambda b, of: total(b.mean(of))), _s),
        f"{_name}, sum by all elements": right(
            accumulated(_name, by_all(_count)), _s),
        f"{_name}, mean by the number of microbatches": right(
            accumulated(_name, lambda b, of: total(b.mean(of)) / b.parts), _s),
        f"{_name}, uneven, mean by their number": wrong(
            accumulated(_name, lambda b, of: total(b.mean(of)) / b.parts, UNEVEN), _s),
        f"{_name}, uneven, share of the rows times the mean": right(
            accumulated(_name, lambda b, of: (b.rows / 60) * total(b.mean(of)), UNEVEN), _s),
        f"{_name}, uneven, sum by all rows": right(
            accumulated(_name, lambda b, of: total(b.sum(of) / 60), UNEVEN), s_by_rows(_name)),
        f"{_name}, uneven, sum by own rows of the microbatch": wrong(
            accumulated(_name, lambda b, of: total(b.sum(of)) / b.x.global_shape[0] / b.parts, UNEVEN),
            s_by_rows(_name)),
        f"{_name}, plain rows, sum by the rows of the microbatch": wrong(
            accumulated(_name, lambda b, of: total(b.sum(of) / b.rows), labelled=False), s_by_rows(_name)),
        f"{_name}, plain rows, mean over ranks of means by their number": right(
            accumulated(_name, lambda b, of: mean(b.mean(of)) / b.parts, labelled=False, bounds=(0, 60)), _s),
        f"{_name}, plain rows, sum of means by their number": wrong(
            accumulated(_name, lambda b, of: total(b.mean(of)) / b.parts, labelled=False), _s),
    }
PROGRAMS |= {
    "mse_loss, sum by as many elements of the microbatch as rows of all": wrong(
        accumulated("mse_loss", lambda b, of: total(b.sum(of)) / (b.rows * 3)), s_mean("mse_loss"),
        reading=Reading("the sum by the rows of all", s_by_rows("mse_loss"))),
    "a reduced sum by the rows of the microbatch": wrong(
        accumulated("cross_entropy", lambda b, of: total(b.sum(of)) / b.x.global_shape[0]), s_mean("cross_entropy")),
    "1 / rows of the microbatch times a sum": wrong(
        accumulated("cross_entropy", lambda b, of: (1 / b.x.global_shape[0]) * total(b.sum(of))),
        s_mean("cross_entropy")),
    "one microbatch": right(
        accumulated("cross_entropy", lambda b, of: total(b.mean(of)), (0, 60)), s_mean("cross_entropy")),
    "1 / number times the mean": right(
        accumulated("mse_loss", lambda b, of: (1 / b.parts) * total(b.mean(of))), s_mean("mse_loss")),
    "the last one is shorter, mean by their number": wrong(
        accumulated("mse_loss", lambda b, of: total(b.mean(of)) / b.parts, DROPPED), s_mean("mse_loss")),
    "the last one is shorter, sums by all": right(
        accumulated("mse_loss", lambda b, of: total(b.sum(of) / 180), DROPPED), s_mean("mse_loss")),
    "means, by the number and by the size": wrong(
        accumulated("mse_loss", lambda b, of: total(b.mean(of)) / b.parts / b.e.size), s_mean("mse_loss"),
        ranks=(2, 4, 5)),
    "means, size times, by the number": wrong(
        accumulated("mse_loss", lambda b, of: b.e.size * total(b.mean(of)) / b.parts), s_mean("mse_loss"),
        ranks=(2, 4, 5)),
    "ZeRO 2, mean of each microbatch": wrong(
        accumulated("cross_entropy", lambda b, of: total(b.mean(of)), zero=2), s_mean("cross_entropy")),
    "ZeRO 3, sum by the rows of the microbatch": wrong(
        accumulated("cross_entropy", lambda b, of: total(b.sum(of) / b.x.global_shape[0]), zero=3),
        s_mean("cross_entropy")),
    "ZeRO 3, sum by all": right(
        accumulated("cross_entropy", lambda b, of: total(b.sum(of) / 60), zero=3), s_mean("cross_entropy")),
    "ZeRO 1, mean by their number": right(
        accumulated("mse_loss", lambda b, of: total(b.mean(of)) / b.parts, zero=1), s_mean("mse_loss")),
    # tokens
    "tokens: sum by own of each microbatch": wrong(
        tokens(lambda s, own, batch, m: total(s / max(own, 1.0)) / m), s_tokens),
    "tokens: sum by those of the microbatch, by their number": wrong(
        tokens(lambda s, own, batch, m: total(s) / batch / m), s_tokens),
    "tokens: sum by those of the microbatch": wrong(tokens(lambda s, own, batch, m: total(s) / batch), s_tokens),
    "tokens, labelled: sum by those of the microbatch, by their number": wrong(
        tokens(lambda s, own, batch, m: total(s) / batch / m, labelled=True), s_tokens),
    "tokens, labelled: sum by those of the microbatch": wrong(
        tokens(lambda s, own, batch, m: total(s / batch), labelled=True), s_tokens),
    "tokens: sum by all": right(tokens(lambda s, own, batch, m: total(s / TOKENS)), s_tokens),
    "tokens, labelled: 1 / all times the sum": right(
        tokens(lambda s, own, batch, m: (1 / TOKENS) * total(s), labelled=True), s_tokens),
    "tokens: mean of the microbatch times its share": right(
        tokens(lambda s, own, batch, m: total(s) / batch * (batch / TOKENS)), s_tokens),
    # several losses of a batch
    "two losses, labelled": right(
        several((regress, classify), True, lambda x, e: total(x)), s_tasks(regress, classify)),
    "two losses, averaged": right(
        several((regress, classify), False, lambda x, e: mean(x)), s_tasks(regress, classify)),
    "three losses, labelled": right(
        several((regress, classify, shrink), True, lambda x, e: total(x)), s_tasks(regress, classify, shrink)),
    "three losses, averaged": right(
        several((classify, shrink, regress), False, lambda x, e: mean(x)), s_tasks(regress, classify, shrink)),
    "two losses of two microbatches, labelled, halved": right(
        several((regress, classify), True, lambda x, e: total(x) / 2, parts=2), s_tasks(regress, classify)),
    "two losses of three microbatches, labelled, by their number": right(
        several((regress, classify), True, lambda x, e: (1 / 3) * total(x), parts=3), s_tasks(regress, classify)),
    "the same loss twice, halved": right(
        several((regress, regress), True, lambda x, e: total(x) / 2), s_tasks(regress)),
    "two losses, summed": wrong(several((regress, classify), False, lambda x, e: total(x)), s_tasks(regress, classify)),
    "two losses of three microbatches, labelled": wrong(
        several((regress, classify), True, lambda x, e: total(x), parts=3), s_tasks(regress, classify)),
    "two losses, labelled, by the size": wrong(
        several((regress, classify), True, lambda x, e: total(x) / e.size), s_tasks(regress, classify)),
    "two losses, labelled, 1 / size times": wrong(
        several((regress, classify), True, lambda x, e: (1 / e.size) * total(x)), s_tasks(regress, classify)),
    "three losses of two microbatches, averaged": wrong(
        several((regress, classify, shrink), False, lambda x, e: mean(x), parts=2), s_tasks(regress, classify, shrink)),
    "labelled and unlabelled rows, as many": right(semi_supervised(30, True, lambda x, e: total(x)), s_semi(30)),
    "labelled and unlabelled rows, more": right(semi_supervised(20, True, lambda x, e: total(x)), s_semi(20)),
    "labelled and unlabelled rows, as many, averaged": right(
        semi_supervised(30, False, lambda x, e: mean(x)), s_semi(30), ranks=(2, 3, 5)),
    "labelled and unlabelled rows, more, averaged": right(
        semi_supervised(20, False, lambda x, e: mean(x)), s_semi(20), ranks=(2, 4, 5)),
    "labelled and unlabelled rows, more, summed": wrong(
        semi_supervised(20, False, lambda x, e: total(x)), s_semi(20), ranks=(2, 4, 5)),
    "labelled and unlabelled rows, by the size": wrong(
        semi_supervised(20, True, lambda x, e: total(x) / e.size), s_semi(20)),
    # in one tape
    "one tape, mean over ranks of means by their number": right(
        without_a_block(lambda d, m: mean(d.mean()) / m), s_square, ranks=(2, 4, 5)),
    "one tape, sums by all": right(without_a_block(lambda d, m: total(d.sum() / 180)), s_square),
    "one tape, means by their number": wrong(without_a_block(lambda d, m: total(d.mean()) / m), s_square),
    "one tape, sums by those of a microbatch": wrong(
        without_a_block(lambda d, m: total(d.sum() / 60)), s_square, reading=TASKS),
    "one tape, means": wrong(
        without_a_block(lambda d, m: mean(d.mean())), s_square, reading=Reading(TASKS.why, TASKS.serial, (2, 4, 5))),
}  # fmt: skip
