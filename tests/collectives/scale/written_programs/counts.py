"""Factors that count rows, their shares, counts of two axes, of loops and of gathers, and numbers in functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import I, V

from ..meshes import LABELS, SEQUENCES
from .axes import BOTH, CP, CP2, TP, TP2, TPN, half, parts, s_sequences, s_tokens, tokens
from .harness import Program, Rank, Reading, X, Y, each_counts, mean, right, total, wrong
from .masks import MASK, PADDED, TOKENS, s_masked
from .models import IMAGES, MAPS, OWN_ELEMENTS, WANTED
from .ports import federated

Serial = Callable[[Any, int], Any]


def err(e: Rank) -> Any:
    return e.own(X) @ e.p("w") - e.own(Y)


def own(e: Rank) -> Any:
    return err(e) ** 2


def serial(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


# -- the rows of a rank, times their mean ------------------------------------------------------------------------------
def by_own(of: Callable[[Any, int, Rank], Any]) -> Callable[[Rank], Any]:
    """``of(losses, rows, e)``."""
    return lambda e: of(own(e), len(e.own(X)), e)


def masked(e: Rank) -> tuple[Any, float]:
    """The mean over the rows that a mask leaves, and their number."""
    m = e.own(MASK)
    return (own(e) * m).sum() / m.sum(), float(m.sum())


def language(e: Rank) -> tuple[Any, int]:
    """The mean over this rank's tokens, and their number."""
    x, labels = e.own(SEQUENCES).reshape(-1, 4), e.own(LABELS).reshape(-1)
    return nn.cross_entropy(x @ e.p("m"), labels, ignore_index=-100), int((labels != -100).sum())


def s_language(p: Any, n: int) -> Any:
    return nn.cross_entropy(SEQUENCES.reshape(-1, 4) @ p["m"], LABELS.reshape(-1), ignore_index=-100)


ROWS: dict[str, Program] = {
    "1 / all times the average of rows times means": wrong(
        by_own(lambda d, k, e: (1 / 60) * mean(k * d.mean())), serial),
    "average of means times rows, by all": wrong(by_own(lambda d, k, e: mean(d.mean() * k) / 60), serial),
    "average of means times rows by all": wrong(by_own(lambda d, k, e: mean(d.mean() * k / 60)), serial),
    "average of float(rows) times means, by all": wrong(by_own(lambda d, k, e: mean(float(k) * d.mean()) / 60), serial),
    "average of float64(rows) times means, by all": wrong(
        by_own(lambda d, k, e: mean(numpy.float64(k) * d.mean()) / 60), serial),
    "sum of rows times means, by all and the size": wrong(
        by_own(lambda d, k, e: total(k * d.mean()) / (60 * e.size)), serial),
    "sum of rows times means, by own": wrong(by_own(lambda d, k, e: total(k * d.mean()) / k), serial),
    "sum of rows times means": wrong(
        by_own(lambda d, k, e: total(k * d.mean())), serial,
        reading=Reading("the sum over all rows", lambda p, n: 60 * serial(p, n))),
    "sum of rows times means, by all": right(by_own(lambda d, k, e: total(k * d.mean()) / 60), serial),
    "sum of rows times means by all": right(by_own(lambda d, k, e: total(d.mean() * k / 60)), serial),
    "1 / all times the sum of rows times means": right(by_own(lambda d, k, e: (1 / 60) * total(k * d.mean())), serial),
    "average of the size times rows times means, by all": right(
        by_own(lambda d, k, e: mean(e.size * (k * d.mean())) / 60), serial),
    "average of rows times means, by own": right(by_own(lambda d, k, e: mean(k * d.mean()) / k), serial),
    "average of rows times means by own": right(by_own(lambda d, k, e: mean(k * d.mean() / k)), serial),
    "average of means times a weight of as many": right(
        by_own(lambda d, k, e: mean(float(k) * d.mean())), lambda p, n: 60 / n * serial(p, n)),
    "sum of means times a weight of as many, by the size": right(
        by_own(lambda d, k, e: total(float(k) * d.mean()) / e.size), lambda p, n: 60 / n * serial(p, n)),
    "masks: average of counts times means, by all": wrong(
        lambda e: (lambda d, k: mean(k * d) / MASK.sum())(*masked(e)), s_masked),
    "masks: sum of counts times means, by all": right(
        lambda e: (lambda d, k: total(k * d) / MASK.sum())(*masked(e)), s_masked),
    "masks: average of means by their shares": wrong(
        lambda e: (lambda d, k: mean(k / MASK.sum() * d))(*masked(e)), s_masked),
    "masks: sum of means by their shares": right(
        lambda e: (lambda d, k: total(k / MASK.sum() * d))(*masked(e)), s_masked),
    "tokens: average of counts times means, by all": wrong(
        lambda e: (lambda d, k: mean(k * d) / TOKENS)(*language(e)), s_language),
    "tokens: sum of counts times means, by all": right(
        lambda e: (lambda d, k: total(k * d) / TOKENS)(*language(e)), s_language),
    "tokens: average of means by their shares": wrong(
        lambda e: (lambda d, k: mean(d * (k / TOKENS)))(*language(e)), s_language),
    "tokens: sum of means by their shares": right(
        lambda e: (lambda d, k: total(d * (k / TOKENS)))(*language(e)), s_language),
    "tokens: average of means by the size times their shares": right(
        lambda e: (lambda d, k: mean(e.size * (d * (k / TOKENS))))(*language(e)), s_language),
    "tokens: average of means by their shares of an average": right(
        lambda e: (lambda d, k: mean(d * (k / (TOKENS / e.n))))(*language(e)), s_language),
}  # fmt: skip


# -- unequal shares ----------------------------------------------------------------------------------------------------
def clients(of: Callable[[Any, int, Rank], Any]) -> Callable[[Rank], Any]:
    return lambda e: federated(e, of)


SHARES: dict[str, Program] = {
    "means times the share, averaged": wrong(clients(lambda d, k, e: mean((k / 60) * d.mean())), serial),
    "means times rows by all, averaged": wrong(clients(lambda d, k, e: mean(d.mean() * k / 60)), serial),
    "means times rows, averaged, by all": wrong(clients(lambda d, k, e: mean(k * d.mean()) / 60), serial),
    "share times sums by own, averaged": wrong(clients(lambda d, k, e: mean((k / 60) * (d.sum() / k))), serial),
    "share times sums, by own, averaged": wrong(clients(lambda d, k, e: mean((k / 60) * d.sum() / k)), serial),
    "means of shares times losses, averaged": wrong(clients(lambda d, k, e: mean(((k / 60) * d).mean())), serial),
    "means of shares times losses, summed": right(clients(lambda d, k, e: total(((k / 60) * d).mean())), serial),
    "sums of shares times losses, by own, summed": right(
        clients(lambda d, k, e: total(((k / 60) * d).sum() / k)), serial),
    "means times the share, by the size": wrong(clients(lambda d, k, e: total((k / 60) * d.mean()) / e.size), serial),
    "means times the share, summed": right(clients(lambda d, k, e: total((k / 60) * d.mean())), serial),
    "means times rows by all, summed": right(clients(lambda d, k, e: total(d.mean() * k / 60)), serial),
    "means times rows, summed, by all": right(clients(lambda d, k, e: total(k * d.mean()) / 60), serial),
    "share times sums by own, summed": right(clients(lambda d, k, e: total((k / 60) * (d.sum() / k))), serial),
    "share times sums, by own, summed": right(clients(lambda d, k, e: total((k / 60) * d.sum() / k)), serial),
    "size times means times the share, averaged": right(
        clients(lambda d, k, e: mean(e.size * ((k / 60) * d.mean()))), serial),
    "means times the share of an average, averaged": right(
        clients(lambda d, k, e: mean(d.mean() * (k * e.n / 60))), serial),
    "means times the share, and a penalty of each share": right(
        clients(lambda d, k, e: total((k / 60) * (d.mean() + 0.03 * (e.p("w") ** 2).sum()))),
        lambda p, n: serial(p, n) + 0.03 * (p["w"] ** 2).sum()),
}  # fmt: skip

def stacked(x: Any, axis: str = "dp") -> Any:
    return cc.all_gather(np.reshape(x, (1,)), axis, to=I)


# -- two axes ----------------------------------------------------------------------------------------------------------
HALF = "half of the squares: the number is twice that of each rank"
AXES: dict[str, Program] = {}
for _name, _axes, _ranks in (("dp = cp", CP, (2, 3)), ("cp of 2", CP2, (3, 4))):
    _two_of_dp = tuple(n for n in _ranks if n == 2)
    _two_of_cp = tuple(n for n in _ranks if n == 2 or _name == "cp of 2")
    AXES |= {
        f"{_name}: by 120, sum over cp, mean over dp": wrong(
            lambda e: mean(total(parts(e).sum() / 120, "cp")), s_tokens, axes=_axes, ranks=_ranks,
            reading=Reading(HALF, half(s_tokens), _two_of_dp)),
        f"{_name}: sum over cp, by 120, mean over dp": wrong(
            lambda e: mean(total(parts(e).sum(), "cp") / 120), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: mean over both, by 120": wrong(
            lambda e: mean(parts(e).sum(), BOTH) / 120, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: 1 / 120 times means over both in turn": wrong(
            lambda e: (1 / 120) * mean(mean(parts(e).sum(), "cp")), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sums of sequences over cp, by 12, mean over dp": wrong(
            lambda e: mean(total(parts(e).sum(axis=1), "cp").sum() / 12), s_sequences, axes=_axes, ranks=_ranks),
        f"{_name}: mean over cp, by own tokens, sum over dp": wrong(
            lambda e: total(mean(parts(e).sum(), "cp") / tokens(e)), s_tokens, axes=_axes,
            ranks=tuple(n for n in _ranks if _name == "cp of 2")),
        f"{_name}: sum over cp of sums by own tokens of dp, sum over dp": wrong(
            lambda e: total(total(parts(e).sum() / tokens(e), "cp")), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: mean over cp of sums by 120, sum over dp": wrong(
            lambda e: total(mean(parts(e).sum() / 120, "cp")), s_tokens, axes=_axes, ranks=_ranks,
            reading=Reading("half of the squares of the same rows on two ranks of cp", half(s_tokens), _two_of_cp)),
        f"{_name}: the mean of those gathered along cp, by own tokens, mean over dp": wrong(
            lambda e: mean(stacked(parts(e).sum(), "cp").mean() / tokens(e)), s_tokens, axes=_axes, ranks=_ranks,
            reading=Reading(HALF, half(s_tokens), _two_of_cp)),
        f"{_name}: gathered along cp, by own tokens, mean over dp": right(
            lambda e: mean(stacked(parts(e).sum(), "cp").sum() / tokens(e)), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: tokens times means, sum over both, by 120": right(
            lambda e: total(parts(e).size * parts(e).mean(), BOTH) / 120, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: tokens times means, mean over both, by 120": wrong(
            lambda e: mean(parts(e).size * parts(e).mean(), BOTH) / 120, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: shares along cp times means, sum over cp, mean over dp": right(
            lambda e: mean(total(parts(e).size / tokens(e) * parts(e).mean(), "cp")), s_tokens, axes=_axes,
            ranks=_ranks),
        f"{_name}: by 120, sum over cp, sum over dp": right(
            lambda e: total(total(parts(e).sum() / 120, "cp")), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over cp, by 120, sum over dp": right(
            lambda e: total(total(parts(e).sum(), "cp") / 120), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: by own tokens of dp, sum over cp, mean over dp": right(
            lambda e: mean(total(parts(e).sum() / tokens(e), "cp")), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: size of cp times a mean over cp, by own tokens, mean over dp": right(
            lambda e: mean(mean(e.mesh.axis("cp").size * parts(e).sum(), "cp") / tokens(e)), s_tokens, axes=_axes,
            ranks=_ranks),
        f"{_name}: sum over dp, sum over cp, by 120": right(
            lambda e: total(total(parts(e).sum()), "cp") / 120, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: size times a mean over dp, sum over cp, by 120": right(
            lambda e: total(mean(e.size * parts(e).sum()), "cp") / 120, s_tokens, axes=_axes, ranks=_ranks),
    }
for _name, _axes, _ranks in (("dp = tp", TPN, (2, 3)), ("tp of 2", TP2, (3, 4))):
    AXES |= {
        f"{_name}: the same rows, mean over tp of sums by own, mean over dp": right(
            lambda e: mean(mean(own(e).sum() / len(e.own(X)), "tp")), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, mean over tp, by own, mean over dp": right(
            lambda e: mean(mean(own(e).sum(), "tp") / len(e.own(X))), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, mean over tp, by twice own, mean over dp": right(
            lambda e: mean(mean(own(e).sum(), "tp") / (2 * len(e.own(X)))), half(serial), axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, sum over dp by 60, mean over tp": right(
            lambda e: mean(total(own(e).sum(), "dp") / 60, "tp"), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, mean over tp of sums by 60, sum over dp": right(
            lambda e: total(mean(own(e).sum() / 60, "tp")), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, mean over tp, by 60, sum over dp": right(
            lambda e: total(mean(own(e).sum(), "tp") / 60), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, half of squares by 120, mean over tp, sum over dp": right(
            lambda e: total(mean(own(e).sum() / 120, "tp")), half(serial), axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, rows times means, sum over dp by 60, mean over tp": right(
            lambda e: mean(total(len(e.own(X)) * own(e).mean()) / 60, "tp"), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, shares times means, sum over dp, mean over tp": right(
            lambda e: mean(total((len(e.own(X)) / 60) * own(e).mean()), "tp"), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, gathered along dp, mean over tp": right(
            lambda e: mean(stacked(own(e).sum()).sum() / 60, "tp"), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, mean over tp, gathered along dp": right(
            lambda e: stacked(mean(own(e).sum(), "tp")).sum() / 60, serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, the mean of those gathered along dp, mean over tp": wrong(
            lambda e: mean(stacked(own(e).sum()).mean() / 60, "tp"), serial, axes=_axes,
            ranks=tuple(n for n in _ranks if n == 2 or _name == "tp of 2"),
            reading=Reading(HALF, half(serial), tuple(n for n in _ranks if n == 2))),
        f"{_name}: the same rows, the mean of those gathered along tp, by 60, sum over dp": right(
            lambda e: total(stacked(own(e).sum(), "tp").mean() / 60), serial, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows, mean over both of means": right(
            lambda e: mean(own(e).mean(), TP), serial, axes=_axes, ranks=_ranks),
    }
AXES = {name: row for name, row in AXES.items() if row.ranks}


# -- loops -------------------------------------------------------------------------------------------------------------
def loop(e: Rank, divide: Callable[[Any, int], Any]) -> Any:
    """The sums of the tokens of one sequence after another."""
    w, found = e.p("w"), 0.0
    for x, m in zip(e.own(SEQUENCES), e.own(PADDED), strict=True):
        length = int(m.sum())
        found = found + ((x[:length] @ w - 1.0) ** 2).sum()
    return divide(found, len(e.own(SEQUENCES)))


def s_loop(p: Any, n: int) -> Any:
    return ((SEQUENCES @ p["w"] - 1.0) ** 2 * PADDED).sum() / 12


def images(e: Rank, divide: Callable[[Any, int], Any]) -> Any:
    m, found = e.p("m"), 0.0
    for x, t in zip(e.own(IMAGES), e.own(WANTED), strict=True):
        found = found + ((x @ m - t) ** 2).sum()
    return divide(found, len(e.own(IMAGES)))


def s_loop_of_images(p: Any, n: int) -> Any:
    return ((IMAGES @ p["m"] - WANTED) ** 2).sum() / 30


PARTS = Reading("a part of each of these sequences on each rank", each_counts(s_loop), (2, 3, 4))
LOOPS: dict[str, Program] = {
    "sums of sequences, by own": wrong(lambda e: total(loop(e, lambda x, k: x / k)), s_loop, reading=PARTS),
    "1 / own times sums of sequences": wrong(
        lambda e: total(loop(e, lambda x, k: (1 / k) * x)), s_loop, reading=PARTS),
    "sums of images, by own": wrong(
        lambda e: total(images(e, lambda x, k: x / k)), s_loop_of_images,
        reading=Reading(PARTS.why, each_counts(s_loop_of_images), (2, 3, 5))),
    "sums of images, by twice own": wrong(
        lambda e: total(images(e, lambda x, k: x / (2 * k))), half(s_loop_of_images), ranks=(4,)),
    "sums of images, by all": right(lambda e: total(images(e, lambda x, k: x / 30)), s_loop_of_images),
    "sums of images, averaged, by own": right(
        lambda e: mean(images(e, lambda x, k: x / k)), s_loop_of_images, ranks=(2, 3, 5)),
    "sums of sequences, by all": right(lambda e: total(loop(e, lambda x, k: x / 12)), s_loop),
    "sums of sequences, by own, times the share": right(
        lambda e: total(loop(e, lambda x, k: (x / k) * (k / 12))), s_loop),
}

# -- gathers -----------------------------------------------------------------------------------------------------------
GATHERS: dict[str, Program] = {
    "sums, np.mean, by all": wrong(lambda e: np.mean(stacked(own(e).sum())) / 60, serial),
    "1 / all times the mean of sums": wrong(lambda e: (1 / 60) * stacked(own(e).sum()).mean(), serial),
    "sums by all, mean": wrong(lambda e: stacked(own(e).sum() / 60).mean(), serial),
    "sums, by all and the size": wrong(lambda e: stacked(own(e).sum()).sum() / (60 * e.size), serial),
    "sums by own, sum": wrong(lambda e: stacked(own(e).sum() / len(e.own(X))).sum(), serial),
    "means, sum": wrong(lambda e: stacked(own(e).mean()).sum(), serial),
    "sums of two losses, mean by all": wrong(
        lambda e: cc.all_gather(np.stack([own(e).sum(), 0 * own(e).sum()])[None], "dp", to=I).mean(axis=0)[0] / 60,
        serial),
    "sums one by one, by all": right(
        lambda e: sum(stacked(own(e).sum())[i] for i in range(e.n)) / 60, serial),
    "residuals, squares, by all and the size": wrong(
        lambda e: (cc.all_gather(err(e), "dp", to=I) ** 2).sum() / (60 * e.size), serial),
    "residuals, squares, by own": wrong(
        lambda e: (cc.all_gather(err(e), "dp", to=I) ** 2).sum() / len(e.own(X)), serial),
    "sums to the root, mean by all": wrong(
        lambda e: cc.gather(np.reshape(own(e).sum(), (1,)), "dp", 0).mean() / 60, serial),
    "sums of masks, mean by all": wrong(
        lambda e: stacked((own(e) * e.own(MASK)).sum()).mean() / MASK.sum(), s_masked),
    "sums, by all": right(lambda e: stacked(own(e).sum()).sum() / 60, serial),
    "sums by all, sum": right(lambda e: stacked(own(e).sum() / 60).sum(), serial),
    "size times the mean of sums, by all": right(lambda e: e.size * stacked(own(e).sum()).mean() / 60, serial),
    "sums, mean by own": right(lambda e: stacked(own(e).sum()).mean() / len(e.own(X)), serial),
    "sums by own, mean": right(lambda e: stacked(own(e).sum() / len(e.own(X))).mean(), serial),
    "means, mean": right(lambda e: np.mean(stacked(own(e).mean())), serial),
    "residuals, squares, mean": right(lambda e: (cc.all_gather(err(e), "dp", to=I) ** 2).mean(), serial),
    "residuals, squares, by all": right(lambda e: (cc.all_gather(err(e), "dp", to=I) ** 2).sum() / 60, serial),
    "sums of masks, by all": right(lambda e: stacked((own(e) * e.own(MASK)).sum()).sum() / MASK.sum(), s_masked),
    "predictions on each rank": right(
        lambda e: ((cc.all_gather(e.own(X) @ e.p("w"), "dp", to=I) - ag.constant(Y)) ** 2).mean(), serial),
    "sums and rows beside each other": right(
        lambda e: (lambda both: both[:, 0].sum() / both[:, 1].sum())(cc.all_gather(np.stack(
            [own(e).sum(), ag.tensor(float(len(e.own(X))))])[None], "dp", to=I)), serial),
    "means and rows beside each other": right(
        lambda e: (lambda both: (both[:, 0] * both[:, 1]).sum() / both[:, 1].sum())(cc.all_gather(np.stack(
            [own(e).mean(), ag.tensor(float(len(e.own(X))))])[None], "dp", to=I)), serial),
}  # fmt: skip

# -- numbers in a function ---------------------------------------------------------------------------------------------
FUNCTIONS: dict[str, Callable[[Any, Any, Any, int], Any]] = {
    "tanh(x / 2)": lambda x, y, p, n: (np.tanh(x @ p("w") / 2) - y) ** 2,
    "exp(-x**2 / 2)": lambda x, y, p, n: 1 - np.exp(-0.5 * (x @ p("w") - y) ** 2),
    "a Gaussian": lambda x, y, p, n: np.exp(-((x @ p("w") - y) ** 2) / 2) * y,
    "sigmoid(2 x)": lambda x, y, p, n: (nn.sigmoid(2 * (x @ p("w"))) - y) ** 2,
    "a temperature of 0.5": lambda x, y, p, n: -ag.ops.log_softmax(x @ p("m") / 0.5)[:, 0],
    "softmax over three classes": lambda x, y, p, n: (ag.ops.softmax(0.5 * (x @ p("m"))) ** 2).sum(axis=1),
    "a hinge": lambda x, y, p, n: np.maximum(0.0, 1 - 0.5 * (x @ p("w"))),
    "a pseudo-Huber loss": lambda x, y, p, n: np.sqrt(1 + (0.5 * (x @ p("w") - y)) ** 2) - 1,
    "layer_norm": lambda x, y, p, n: (ag.ops.layer_norm(0.5 * (x @ p("g"))) @ p("w") - y) ** 2,
    "GELU by hand": lambda x, y, p, n: -ag.ops.log_softmax(gelu(x @ p("g")) @ p("m"))[:, 1],
    "a Cauchy loss": lambda x, y, p, n: np.log(1 + 0.5 * (x @ p("w") - y) ** 2),
    "a cosine": lambda x, y, p, n: cosine(x @ p("g"), x),
    "a norm": lambda x, y, p, n: np.sqrt(((x @ p("g")) ** 2).sum(axis=1) + 1e-6),
    "half of the squares": lambda x, y, p, n: (np.tanh(x @ p("w")) - y) ** 2 / 2,
    "x / n": lambda x, y, p, n: (np.tanh(x @ p("w") / n) - y) ** 2,
    "n x": lambda x, y, p, n: np.sin(n * (x @ p("w"))),
}


def cosine(a: Any, b: Any) -> Any:
    return 1 - (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))


def gelu(z: Any) -> Any:
    return 0.5 * z * (1 + np.tanh(0.8 * z))


def s_function(f: Any) -> Serial:
    return lambda p, n: f(X, Y, p.__getitem__, n).mean()


def of_elements(name: str, f: Any) -> Reading:
    at = {"softmax over three classes": (3,), "a cosine": (4,)}.get(name, ())
    return Reading(OWN_ELEMENTS, lambda p, n: s_function(f)(p, n) / n, at)


def of_halves(name: str, f: Any) -> Reading:
    return Reading("one over two ranks is a half: the mean over them of the squares", each_counts(s_function(f)),
                   (2,) if name == "half of the squares" else ())  # fmt: skip


IN_FUNCTIONS: dict[str, Program] = {}
for _name, _f in FUNCTIONS.items():
    IN_FUNCTIONS |= {
        f"{_name}, mean": wrong(
            lambda e, f=_f: total(f(e.own(X), e.own(Y), e.p, e.n).mean()), s_function(_f),
            reading=of_halves(_name, _f)),
        f"{_name}, sum by own": wrong(
            lambda e, f=_f: total(f(e.own(X), e.own(Y), e.p, e.n).sum() / len(e.own(X))), s_function(_f),
            reading=of_halves(_name, _f)),
        f"{_name}, averaged sum by all": wrong(
            lambda e, f=_f: mean(f(e.own(X), e.own(Y), e.p, e.n).sum() / 60), s_function(_f),
            reading=of_elements(_name, _f)),
        f"{_name}, labelled, by the size": wrong(
            lambda e, f=_f: total(f(*e.labelled(X, Y), e.p, e.n).mean()) / e.size, s_function(_f)),
        f"{_name}, cast, mean": wrong(
            lambda e, f=_f: total(cc.cast(f(*e.labelled(X, Y), e.p, e.n), "dp", to=V).mean()), s_function(_f),
            reading=of_halves(_name, _f)),
        f"{_name}, averaged": right(lambda e, f=_f: mean(f(e.own(X), e.own(Y), e.p, e.n).mean()), s_function(_f)),
        f"{_name}, by all": right(lambda e, f=_f: total(f(e.own(X), e.own(Y), e.p, e.n).sum() / 60), s_function(_f)),
        f"{_name}, each by all": right(
            lambda e, f=_f: total((f(e.own(X), e.own(Y), e.p, e.n) / 60).sum()), s_function(_f)),
        f"{_name}, by the size": right(
            lambda e, f=_f: total(f(e.own(X), e.own(Y), e.p, e.n).mean()) / e.size, s_function(_f)),
        f"{_name}, labelled": right(lambda e, f=_f: total(f(*e.labelled(X, Y), e.p, e.n).mean()), s_function(_f)),
    }
IN_FUNCTIONS |= {
    "exp of a mean over the ranks by a plain size": right(
        lambda e: np.exp(total(own(e).mean()) / e.n), lambda p, n: np.exp(serial(p, n))),
    "exp of a plain size times an averaged sum by all": right(
        lambda e: np.exp(e.n * mean(own(e).sum() / 60)), lambda p, n: np.exp(serial(p, n))),
    "exp of half a mean": right(
        lambda e: np.exp(0.5 * mean(own(e).mean())), lambda p, n: np.exp(0.5 * serial(p, n))),
    "tanh of a sum of each rank, averaged": right(
        lambda e: mean(np.tanh(0.01 * own(e).sum())),
        lambda p, n: sum(np.tanh(0.01 * ((X[i] @ p["w"] - Y[i]) ** 2).sum())
                         for i in numpy.array_split(numpy.arange(60), n)) / n),
    "tanh of a sum of each rank, summed": right(
        lambda e: total(np.tanh(0.01 * own(e).sum())),
        lambda p, n: sum(np.tanh(0.01 * ((X[i] @ p["w"] - Y[i]) ** 2).sum())
                         for i in numpy.array_split(numpy.arange(60), n))),
}  # fmt: skip


# -- ratios ------------------------------------------------------------------------------------------------------------
def overlaps(images: Any, maps: Any, m: Any, smooth: float = 0.0) -> Any:
    """The intersection of each image by its union."""
    q, t = nn.sigmoid((images @ m)[..., 1]), (maps == 1) * 1.0
    both = (q * t).sum(axis=(1, 2))
    return 1 - (both + smooth) / ((q + t).sum(axis=(1, 2)) - both + smooth)


def attention(x: Any, g: Any) -> Any:
    """The rows of each sequence, weighted by a softmax that is written out."""
    scores = np.exp((x @ g)[..., 0])
    return ((scores[..., None] * x).sum(axis=1) / scores.sum(axis=1)[:, None]).sum(axis=1) ** 2


def all_overlap(e: Rank, reduce: Callable[[Any], Any]) -> Any:
    """One overlap of all images."""
    q, t = nn.sigmoid((e.own(IMAGES) @ e.p("m"))[..., 0]), (e.own(MAPS) == 0) * 1.0
    return 1 - 2 * reduce((q * t).sum()) / reduce((q + t).sum())


def s_all_overlap(p: Any, n: int) -> Any:
    q, t = nn.sigmoid((IMAGES @ p["m"])[..., 0]), (MAPS == 0) * 1.0
    return 1 - 2 * (q * t).sum() / (q + t).sum()


def s_own_overlaps(p: Any, n: int) -> Any:
    found = 0.0
    for i in numpy.array_split(numpy.arange(30), n):
        q, t = nn.sigmoid((IMAGES[i] @ p["m"])[..., 0]), (MAPS[i] == 0) * 1.0
        found = found + 1 - 2 * (q * t).sum() / (q + t).sum()
    return found


def of_ratios(f: Callable[..., Any], rows: int, *arrays: Any, name: str) -> dict[str, Program]:
    s: Serial = lambda p, n: f(*arrays, p[name]).mean()
    even = tuple(n for n in (2, 3, 4, 5) if rows % n == 0)

    def each(e: Rank) -> Any:
        return f(*map(e.own, arrays), e.p(name))

    return {
        "mean": wrong(lambda e: total(each(e).mean()), s, ranks=even),
        "sum by own": wrong(lambda e: total(each(e).sum() / len(e.own(arrays[0]))), s),
        "averaged sum by all": wrong(
            lambda e: mean(each(e).sum() / rows), s,
            reading=Reading(OWN_ELEMENTS, lambda p, n: s(p, n) / n, (4,) if f is attention else ())),
        "sum by all": right(lambda e: total(each(e).sum() / rows), s),
        "sum by all, outside": right(lambda e: total(each(e).sum()) / rows, s),
        "averaged": right(lambda e: mean(each(e).mean()), s, ranks=even),
        "by the size": right(lambda e: total(each(e).mean()) / e.size, s, ranks=even),
    }


RATIOS: dict[str, Program] = {
    **{f"overlaps, {k}": v for k, v in of_ratios(overlaps, 30, IMAGES, MAPS, name="m").items()},
    **{f"smooth overlaps, {k}": v
       for k, v in of_ratios(lambda x, t, m: overlaps(x, t, m, 1.0), 30, IMAGES, MAPS, name="m").items()},
    **{f"logarithms of overlaps, {k}": v
       for k, v in of_ratios(lambda x, t, m: -np.log(1 - overlaps(x, t, m, 1.0)), 30, IMAGES, MAPS, name="m").items()},
    **{f"softmax by hand, {k}": v for k, v in of_ratios(attention, 12, SEQUENCES, name="g").items()},
    "one overlap of all": right(lambda e: all_overlap(e, total), s_all_overlap),
    "one overlap of all, averaged": right(lambda e: all_overlap(e, mean), s_all_overlap),
    "overlaps of each rank": right(lambda e: total(all_overlap(e, lambda x: x)), s_own_overlaps),
    "overlaps of each rank, averaged": right(
        lambda e: mean(all_overlap(e, lambda x: x)), lambda p, n: s_own_overlaps(p, n) / n),
}  # fmt: skip
PROGRAMS: dict[str, Program] = {
    f"{kind}: {name}": row
    for kind, rows in (("rows", ROWS), ("shares", SHARES), ("axes", AXES), ("loops", LOOPS), ("gathers", GATHERS),
                       ("functions", IN_FUNCTIONS), ("ratios", RATIOS))
    for name, row in rows.items()
}  # fmt: skip
