"""Penalties of parameters and of activations beside a loss of rows: inside and outside of the sum, divided and not."""

from __future__ import annotations

from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, V

from .harness import START, Program, Rank, Reading, X, Y, mean, right, steps, total, wrong


def own(e: Rank) -> Any:
    return (e.own(X) @ e.p("w") - e.own(Y)) ** 2


def rows(e: Rank) -> Any:
    return (e.labelled(X) @ e.p("w") - e.labelled(Y)) ** 2


def once(e: Rank) -> Any:
    """The parameter as one value of all ranks."""
    return cc.cast(e.p("w"), "dp", to=I)


def l2(w: Any) -> Any:
    return 0.03 * (w * w).sum()


def l1(w: Any) -> Any:
    return 0.02 * np.absolute(w).sum()


def proximal(w: Any) -> Any:
    """FedProx: the distance from the weights of the server."""
    return 0.5 * 0.07 * ((w - ag.constant(START["w"] * 1.1)) ** 2).sum()


def square(p: Any) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def s_l2(p: Any, n: int) -> Any:
    return square(p) + l2(p["w"])


def s_l1(p: Any, n: int) -> Any:
    return square(p) + l1(p["w"])


def s_proximal(p: Any, n: int) -> Any:
    return square(p) + proximal(p["w"])


def s_elastic(p: Any, n: int) -> Any:
    return square(p) + l1(p["w"]) + l2(p["w"])


FISHER = numpy.abs(START["w"]) + 0.3


def ewc(w: Any) -> Any:
    """Elastic weight consolidation: a quadratic form around old weights."""
    return 0.4 * (ag.constant(FISHER) * (w - ag.constant(0.9 * START["w"])) ** 2).sum()


def s_ewc(p: Any, n: int) -> Any:
    return square(p) + ewc(p["w"])


def orthogonal(g: Any) -> Any:
    return 0.01 * ((g.T @ g - numpy.eye(4)) ** 2).sum()


def hidden(e: Rank) -> Any:
    return np.tanh(e.own(X) @ e.p("g"))


def s_hidden(p: Any, n: int) -> Any:
    h = np.tanh(X @ p["g"])
    return ((h @ p["w"] - Y) ** 2).mean() + 0.05 * np.absolute(h).mean()


def s_hidden_sums(p: Any, n: int) -> Any:
    h = np.tanh(X @ p["g"])
    return ((h @ p["w"] - Y) ** 2).mean() + 0.05 * np.absolute(h).sum(axis=1).mean()


def s_orthogonal(p: Any, n: int, each: int = 1) -> Any:
    return ((np.tanh(X @ p["g"]) @ p["w"] - Y) ** 2).mean() + each * orthogonal(p["g"])


def hidden_squares(e: Rank) -> Any:
    return (hidden(e) @ e.p("w") - e.own(Y)) ** 2


def hidden_rows(e: Rank) -> Any:
    return (np.tanh(e.labelled(X) @ e.p("g")) @ e.p("w") - e.labelled(Y)) ** 2


def expert(e: Rank) -> Any:
    """A parameter of this rank alone."""
    return ag.Parameter(START["w"] * (e.rank + 1), {"dp": V})


def of_model(e: Rank, of: Any) -> None:
    """A model under DataParallel, whose parameters are penalised by a loop over `parameters()` outside of it."""
    model = e.model("m")
    with ag.Tape() as tape:
        d = (model(e.own(X)) - e.own(X)[:, :3]) ** 2
        loss = of(d, sum((p * p).sum() for p in model.parameters()))
    tape.backward(loss)


def s_model(p: Any, n: int) -> Any:
    return ((X @ p["m"] - X[:, :3]) ** 2).mean() + 0.01 * (p["m"] ** 2).sum()


PROGRAMS: dict[str, Program] = {
    # inside of the sum, on each rank
    "L1 on each rank": wrong(lambda e: total(own(e).sum() / 60 + l1(e.p("w"))), s_l1),
    "L1 on each rank, labelled": wrong(lambda e: total(rows(e).mean() + l1(e.p("w"))), s_l1),
    "L2 first, on each rank": wrong(lambda e: total(l2(e.p("w")) + own(e).sum() / 60), s_l2),
    "proximal on each rank": wrong(lambda e: total(own(e).sum() / 60 + proximal(e.p("w"))), s_proximal),
    "consolidation on each rank": wrong(lambda e: total(own(e).sum() / 60 + ewc(e.p("w"))), s_ewc),
    "two penalties on each rank": wrong(lambda e: total(own(e).sum() / 60 + l1(e.p("w")) + l2(e.p("w"))), s_elastic),
    "orthogonality on each rank": wrong(
        lambda e: total(hidden_squares(e).sum() / 60 + orthogonal(e.p("g"))), s_orthogonal,
        reading=Reading("targets of each rank in place of the eye", lambda p, n: s_orthogonal(p, n, each=n))),
    "orthogonality on each rank, labelled": wrong(
        lambda e: total(hidden_rows(e).mean() + orthogonal(e.p("g"))), s_orthogonal),
    "L2 in the rows": wrong(lambda e: total((own(e) + l2(e.p("w"))).mean()), s_l2),
    "L2 in the rows, summed by all": right(lambda e: total((own(e) + l2(e.p("w"))).sum() / 60), s_l2),
    "L2 in the rows, labelled": right(lambda e: total((rows(e) + l2(e.p("w"))).mean()), s_l2),
    "L2 in the rows, mean of means": right(lambda e: mean((own(e) + l2(e.p("w"))).mean()), s_l2),
    # only the penalty is divided
    "a mean, and the penalty by the size": wrong(lambda e: total(own(e).mean() + l2(e.p("w")) / e.size), s_l2),
    "a mean, and 1 / size times the penalty": wrong(lambda e: total(own(e).mean() + (1 / e.size) * l1(e.p("w"))), s_l1),
    "a mean, and the penalty by the number": wrong(lambda e: total(own(e).mean() + l2(e.p("w")) / e.n), s_l2),
    "a sum by own rows, and the penalty by the size": wrong(
        lambda e: total(own(e).sum() / len(e.own(X)) + l2(e.p("w")) / e.size), s_l2),
    "the penalty by the size, and a mean": wrong(lambda e: total(l2(e.p("w")) / e.size + own(e).mean()), s_l2),
    "a mean, and the orthogonality by the size": wrong(
        lambda e: total(hidden_squares(e).mean() + orthogonal(e.p("g")) / e.size), s_orthogonal),
    "a mean, and the penalty by the size, and by it": wrong(
        lambda e: total(own(e).mean() + l2(e.p("w")) / e.size) / e.size, s_l2),
    "a mean by the size, and the penalty by it": right(
        lambda e: total(own(e).mean() / e.size + l2(e.p("w")) / e.size), s_l2),
    "both by the size": right(lambda e: total(own(e).mean() + l2(e.p("w"))) / e.size, s_l2),
    "both by the number": right(lambda e: total(own(e).mean() + l1(e.p("w"))) / e.n, s_l1),
    "both times 1 / size": right(lambda e: (1 / e.size) * total(l1(e.p("w")) + own(e).mean()), s_l1),
    "a sum by all, and the penalty by the size": right(
        lambda e: total(own(e).sum() / 60 + l1(e.p("w")) / e.size), s_l1),
    "a sum by all, and 1 / size times the proximal term": right(
        lambda e: total(own(e).sum() / 60 + (1 / e.size) * proximal(e.p("w"))), s_proximal),
    "a share of the penalty by the rows": right(
        lambda e: total(own(e).sum() / 60 + l2(e.p("w")) * (len(e.own(X)) / 60)), s_l2),
    "a share of the penalty by the rows, on the left": right(
        lambda e: total((len(e.own(X)) / 60) * (own(e).mean() + l2(e.p("w")))), s_l2),
    # only the sum is averaged
    "a mean over ranks of sums by all, and the penalty": wrong(lambda e: mean(own(e).sum() / 60 + l2(e.p("w"))), s_l2),
    "the penalty, and a mean over ranks of sums by all": wrong(
        lambda e: l1(once(e)) + mean(own(e).sum() / 60), s_l1),
    "a mean over ranks of means, and the penalty": right(
        lambda e: mean(own(e).mean() + proximal(e.p("w"))), s_proximal),
    "the penalty of a mean over ranks, by the size": wrong(
        lambda e: mean(own(e).mean() + l2(e.p("w")) / e.size), s_l2),
    "outside, by the size": wrong(lambda e: mean(own(e).mean()) + l1(once(e)) / e.size, s_l1),
    "outside, 1 / size times": wrong(lambda e: total(rows(e).mean()) + (1 / e.size) * l1(once(e)), s_l1),
    "outside, subtracted, times the size": wrong(
        lambda e: total(rows(e).mean()) - e.size * -l1(once(e)), s_l1),
    "outside": right(lambda e: total(own(e).sum() / 60) + l1(once(e)), s_l1),
    "outside, first": right(lambda e: ewc(once(e)) + total(rows(e).mean()), s_ewc),
    "outside, two": right(lambda e: mean(own(e).mean()) + l1(once(e)) + l2(once(e)), s_elastic),
    "outside, of a Parameter that has not entered": right(
        lambda e: total(rows(e).mean()) + l2(e._made["w"][0]), s_l2),
    "outside, beside a sum of means": wrong(lambda e: l1(once(e)) + total(own(e).mean()), s_l1),
    "outside, beside a sum of means, divided together": wrong(
        lambda e: (l1(once(e)) + total(own(e).mean())) / e.size, s_l1),
    "outside, beside a sum of means, divided alone": right(
        lambda e: l1(once(e)) + total(own(e).mean()) / e.size, s_l1),
    # of activations
    "sparsity of activations, a mean": wrong(
        lambda e: total(hidden_squares(e).sum() / 60 + 0.05 * np.absolute(hidden(e)).mean()), s_hidden),
    "sparsity of activations, a mean, apart": wrong(
        lambda e: total(hidden_squares(e).sum() / 60) + 0.05 * total(np.absolute(hidden(e)).mean()), s_hidden),
    "sparsity of activations, by own rows": wrong(
        lambda e: total(hidden_squares(e).sum() / 60 + 0.05 * np.absolute(hidden(e)).sum() / len(e.own(X))),
        s_hidden_sums),
    "sparsity of activations, by all": right(
        lambda e: total(hidden_squares(e).sum() / 60 + 0.05 * np.absolute(hidden(e)).sum() / 240), s_hidden),
    "sparsity of activations, means": right(
        lambda e: mean(hidden_squares(e).mean() + 0.05 * np.absolute(hidden(e)).mean()), s_hidden),
    "sparsity of activations, sums": right(
        lambda e: total((hidden_squares(e) + 0.05 * np.absolute(hidden(e)).sum(axis=1)).sum() / 60), s_hidden_sums),
    # of parameters that each rank has of its own, as experts
    "own experts, a sum of squares": right(lambda e: total(own(e).sum() / 60 + l2(expert(e))), lambda p, n: square(p)),
    "own experts, a mean of squares": right(
        lambda e: total(own(e).sum() / 60 + 0.1 * (expert(e) ** 2).mean()), lambda p, n: square(p)),
    "own experts, apart": right(
        lambda e: mean(own(e).mean()) + total(l2(expert(e))), lambda p, n: square(p)),
    # of a model
    "parameters() in the sum": wrong(
        steps(lambda e: of_model(e, lambda d, p: total(d.sum() / 180 + 0.01 * p))), s_model),
    "parameters() in the sum, by the size": right(
        steps(lambda e: of_model(e, lambda d, p: total(d.sum() / 180) + 0.01 * p)), s_model),
    "parameters() beside a sum of means": wrong(
        steps(lambda e: of_model(e, lambda d, p: total(d.mean()) + 0.01 * p)), s_model),
    "parameters() beside a mean of means": right(
        steps(lambda e: of_model(e, lambda d, p: mean(d.mean()) + 0.01 * p)), s_model),
    "size times parameters() beside a mean of means": wrong(
        steps(lambda e: of_model(e, lambda d, p: mean(d.mean()) + e.size * (0.01 * p))), s_model),
    "parameters() by the size beside a sum by all": wrong(
        steps(lambda e: of_model(e, lambda d, p: total(d.sum() / 180) + 0.01 * p / e.size)), s_model),
}  # fmt: skip
