"""The loops of other systems, carried over line by line: each rank's own backward, averages, syncs that come twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import collectives as cc
from autograd import nn
from collectives import I, R, V

from ..meshes import LABELS, SEQUENCES
from .harness import START, K, Program, Rank, Reading, X, Y, mean, right, steps, total, wrong


def own(e: Rank) -> Any:
    return (e.own(X) @ e.p("w") - e.own(Y)) ** 2


def serial(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def by_hand(loss: Callable[[Rank, Any], Any], sync: Callable[[Rank, Any], Any] | None = None) -> steps:
    """mpi4py: a loss of an entered parameter, a backward, and what the program does with the gradient."""

    def program(e: Rank) -> None:
        w = ag.Parameter(START["w"].copy(), name="w")
        e._made["w"] = w, ...
        with ag.Tape() as tape:
            value = loss(e, (e.own(X) @ cc.cast(w, "dp", to=R) - e.own(Y)) ** 2)
        tape.backward(value)
        if sync is not None:
            w.grad = sync(e, w.grad)

    return steps(program)


def local_parameter(e: Rank) -> None:
    """A parameter that has not entered: this rank's gradient alone."""
    w = ag.Parameter(START["w"].copy(), name="w")
    e._made["w"] = w, ...
    with ag.Tape() as tape:
        loss = ((e.own(X) @ w - e.own(Y)) ** 2).mean()
    tape.backward(loss)


def trainer(e: Rank, scaled: Callable[[Any, Any, Any, int], Any], items_of: str = "all") -> None:
    """Hugging Face's Trainer: microbatches of sequences, each the sum of its tokens by the items of the whole batch."""
    model = e.model("m")
    with model.accumulate():
        batches = [numpy.array_split(mine, e.n)[e.rank] for mine in numpy.array_split(numpy.arange(12), 2)]
        counts = [float((LABELS[own] != -100).sum()) for own in batches]
        items = cc.all_reduce(ag.tensor(sum(counts)), "dp") if items_of == "all" else sum(counts)
        for own, count in zip(batches, counts, strict=True):
            with ag.Tape() as tape:
                logits = model(SEQUENCES[own].reshape(-1, 4))
                value = nn.cross_entropy(logits, LABELS[own].reshape(-1), ignore_index=-100, reduction="sum")
                loss = scaled(value, items, count, len(batches))
            tape.backward(loss)


def s_tokens(p: Any, n: int) -> Any:
    return nn.cross_entropy(SEQUENCES.reshape(-1, 4) @ p["m"], LABELS.reshape(-1), ignore_index=-100)


def federated(e: Rank, of: Callable[[Any, int, Any], Any]) -> Any:
    """FedAvg's objective: clients with unequal numbers of rows."""
    starts = numpy.cumsum([0] + [60 * (k + 1) // (e.n * (e.n + 1) // 2) for k in range(e.n - 1)] + [60])
    starts[-1] = 60
    mine = slice(int(starts[e.rank]), int(starts[e.rank + 1])) if e.rank < e.n - 1 else slice(int(starts[e.n - 1]), 60)
    rows = (X[mine] @ e.p("w") - Y[mine]) ** 2
    return of(rows, len(rows), e)


def evaluated(e: Rank) -> Any:
    """A metric beside the loss, which is averaged for a log and does not enter the loss."""
    losses = own(e)
    cc.mean(ag.stop_gradient(losses).mean(), "dp")
    return total(losses.sum() / 60)


def evaluated_and_summed(e: Rank) -> Any:
    losses = own(e)
    cc.mean(ag.stop_gradient(losses).mean(), "dp")
    return total(losses.mean())


def nested(e: Rank) -> Any:
    """An average of an average: the log's value is taken for the loss."""
    return mean(cc.cast(mean(own(e).mean()), "dp", to=V))


PROGRAMS: dict[str, Program] = {
    "backward of each rank's own mean": wrong(by_hand(lambda e, d: d.mean()), serial),
    "backward of a parameter that has not entered": wrong(steps(local_parameter), serial),
    "backward of a sum that all ranks hold": wrong(by_hand(lambda e, d: cc.all_reduce(d.mean(), "dp", to=R)), serial),
    "allreduce(loss) / Get_size()": right(by_hand(lambda e, d: total(d.mean()) / cc.world().size), serial),
    "allreduce(loss)": wrong(by_hand(lambda e, d: total(d.mean())), serial),
    "allreduce(loss), grad / size": right(by_hand(lambda e, d: mean(d.mean())), serial),
    "size * allreduce(loss, op=Average)": wrong(by_hand(lambda e, d: cc.world().size * mean(d.mean())), serial),
    "allreduce(loss / size, op=Average)": wrong(by_hand(lambda e, d: mean(d.mean() / cc.world().size)), serial),
    "allreduce(1 / size * loss, op=Average)": wrong(
        by_hand(lambda e, d: mean((1 / e.size) * d.mean())), serial),
    "allreduce(loss * size, op=Average) of sums by all": right(
        by_hand(lambda e, d: mean(d.sum() / 60 * e.size)), serial),
    "allreduce(size * loss, op=Average) of sums by all": right(
        by_hand(lambda e, d: mean(e.size * d.sum() / 60)), serial),
    "allreduce(size / all * loss, op=Average) of sums": right(
        by_hand(lambda e, d: mean((e.size / 60) * d.sum())), serial),
    "allreduce(size / all * loss) of sums": wrong(by_hand(lambda e, d: total((e.size / 60) * d.sum())), serial),
    "allreduce(own / all * loss)": right(by_hand(lambda e, d: total((len(e.own(X)) / 60) * d.mean())), serial),
    "allreduce(own / all * loss, op=Average)": wrong(
        by_hand(lambda e, d: mean((len(e.own(X)) / 60) * d.mean())), serial,
        reading=Reading("the weight of one of n equal tasks", lambda p, n: serial(p, n) / n)),
    "allreduce(own * loss, op=Average) / all": wrong(
        by_hand(lambda e, d: mean(len(e.own(X)) * d.mean()) / 60), serial),
    "allreduce(own * loss) / all": right(by_hand(lambda e, d: total(len(e.own(X)) * d.mean()) / 60), serial),
    "allreduce(own * loss) / allreduce(own)": right(
        by_hand(lambda e, d: total(d.mean() * len(e.own(X))) / total(ag.tensor(float(len(e.own(X)))))), serial),
    "a metric is averaged beside a sum by all": right(evaluated, serial),
    "a metric is averaged beside a sum of means": wrong(evaluated_and_summed, serial),
    "a mean over ranks twice": right(nested, serial),
    "Trainer: by the items of all": right(
        steps(lambda e: trainer(e, lambda s, items, count, m: total(s / items))), s_tokens),
    "Trainer: by the items of all and the microbatches": wrong(
        steps(lambda e: trainer(e, lambda s, items, count, m: total(s / items) / m)), s_tokens,
        reading=Reading("a weight of 1/2", lambda p, n: s_tokens(p, n) / 2)),
    "Trainer: by own items": wrong(
        steps(lambda e: trainer(e, lambda s, items, count, m: total(s / items), "own")), s_tokens),
    "Trainer: by own items of the microbatch and the microbatches": wrong(
        steps(lambda e: trainer(e, lambda s, items, count, m: total(s / max(count, 1.0) / m))), s_tokens),
    "clients: means by their shares": right(
        lambda e: federated(e, lambda d, k, e: total((k / 60) * d.mean())), serial),
    "clients: means, summed": wrong(lambda e: federated(e, lambda d, k, e: total(d.mean())), serial),
    "clients: means, averaged": wrong(lambda e: federated(e, lambda d, k, e: mean(d.mean())), serial),
    "clients: sums by own, times the share, averaged": wrong(
        lambda e: federated(e, lambda d, k, e: mean(d.sum() / k * (k / 60))), serial),
    "clients: sums, by all": right(lambda e: federated(e, lambda d, k, e: total(d.sum()) * (1 / 60)), serial),
    "clients: 1 / own times sums": wrong(lambda e: federated(e, lambda d, k, e: total((1 / k) * d.sum())), serial),
    "an accuracy that is no loss": right(
        lambda e: total(nn.cross_entropy(e.own(X) @ e.p("m"), e.own(K), reduction="sum") / 60),
        lambda p, n: nn.cross_entropy(X @ p["m"], K)),
    "to=R, then to=I": wrong(
        lambda e: cc.cast(cc.all_reduce(own(e).mean(), "dp", to=R), "dp", to=I), serial),
    "to=R, then to=I, by all": right(
        lambda e: cc.cast(cc.all_reduce(own(e).sum() / 60, "dp", to=R), "dp", to=I), serial),
}  # fmt: skip
