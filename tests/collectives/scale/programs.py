"""Programs of one loss, right and wrong in their scale, each with the loss of one process.

A program is a function of an `Env`: this rank's rows as plain arrays and as Shards, and the parameters. Its serial
counterpart is a function of a `Whole`, which has all rows and the rows of each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import I, R, Shard, V

__all__ = ["Env", "RIGHT", "SILENT", "WRONG", "Whole", "Wrong", "program", "serial_gradients"]

ROWS = 60
_random = numpy.random.default_rng(0)
X, Y, K = _random.normal(size=(ROWS, 3)), _random.normal(size=ROWS), _random.integers(0, 3, ROWS)
KI = numpy.where(Y > 0.5, -100, K)  # labels, some of which are ignored
WIDE, WEIGHTS = _random.normal(size=(ROWS, 60)), numpy.arange(60) / 29.5
W = {"w": numpy.array([0.3, -0.2, 0.5]), "m": numpy.eye(3) * 0.3 + 0.1}


class Env:
    """One rank's view: plain rows x, y, k, ki; Shards sx, sy, sk; Replicated parameters w, m; Invariant ones w0, m0."""

    def __init__(self, mesh: cc.Mesh):
        axis = mesh.axis("dp")
        self.mesh, self.rank, self.n, self.size = mesh, int(axis.rank), int(axis.size), axis.size
        self.w0, self.m0 = (ag.Parameter(W[name].copy(), name=name) for name in ("w", "m"))
        self.x, self.y, self.k, self.ki = (a[self.rank :: self.n] for a in (X, Y, K, KI))
        self.sx, self.sy, self.sk = (cc.from_local(a, {"dp": Shard(0)}) for a in (self.x, self.y, self.k))


    def __getattr__(self, name: str) -> Any:
        """Enter a parameter where it is first used. In Python 3.11 a `cached_property` has one lock for all threads."""
        if name not in W:
            raise AttributeError(name)
        entered = cc.cast(self.w0 if name == "w" else self.m0, "dp", to=R)
        setattr(self, name, entered)
        return entered


class Whole:
    """One process: all rows, and `parts`, the rows of each of n ranks."""

    def __init__(self, n: int):
        self.n, self.x, self.y, self.k, self.ki = n, X, Y, K, KI
        self.w0, self.m0 = (ag.Parameter(W[name].copy(), name=name) for name in ("w", "m"))
        self.w, self.m = self.w0, self.m0
        self.order = numpy.concatenate([numpy.arange(ROWS)[rank::n] for rank in range(n)])

    def parts(self, f: Callable[[Any], Any]) -> list[Any]:
        """``f`` of each rank's rows."""
        return [f(_Part(self, rank)) for rank in range(self.n)]

    def mean(self, f: Callable[[Any], Any]) -> Any:
        """The mean of ``f`` over the ranks."""
        return sum(self.parts(f)) / self.n


class _Part:
    def __init__(self, whole: Whole, rank: int):
        self.w, self.m, self.w0, self.m0, self.rank, self.n = whole.w, whole.m, whole.w0, whole.m0, rank, whole.n
        self.x, self.y, self.k, self.ki = (a[rank :: whole.n] for a in (X, Y, K, KI))


Loss = Callable[[Any], Any]


def program(loss: Loss) -> Callable[[cc.Mesh], dict[str, Any]]:
    """The program of a loss, which returns the gradients."""

    def run(mesh: cc.Mesh) -> dict[str, Any]:
        with ag.Tape() as tape:
            e = Env(mesh)
            total = loss(e)
        tape.backward(total)
        return {p.name: p.grad.numpy() for p in (e.w0, e.m0) if p.grad is not None}

    return run


def serial_gradients(loss: Loss, n: int) -> dict[str, Any]:
    """The gradients of a serial loss on one process."""
    whole = Whole(n)
    with ag.Tape() as tape:
        total = loss(whole)
    tape.backward(total)
    return {p.name: p.grad.numpy() for p in (whole.w0, whole.m0) if p.grad is not None}


def AR(x: Any) -> Any:
    return cc.all_reduce(x, "dp", to=I)


def MEAN(x: Any) -> Any:
    return cc.mean(x, "dp", to=I)


def sq(e: Any) -> Any:
    return (e.x @ e.w - e.y) ** 2


def ssq(e: Any) -> Any:
    return (e.sx @ e.w - e.sy) ** 2


def features(e: Any) -> Any:
    return (e.x @ e.m - e.x) ** 2


def ce(e: Any, reduction: str = "mean", **words: Any) -> Any:
    return nn.cross_entropy(e.x @ e.m, e.k, reduction=reduction, **words)


def bce(e: Any, x: Any, target: float) -> Any:
    return nn.binary_cross_entropy_with_logits(x @ e.w, numpy.full(len(x), target))


def penalty(w: Any) -> Any:
    return 0.03 * (w * w).sum()


def halo_square(e: Any, reduce: Callable[[Any], Any]) -> Any:
    """Finite differences over a Shard with ghosts."""
    u = cc.from_local(e.y, {"dp": Shard(0)}) * e.w.sum()
    wide = cc.halo_exchange(u, "dp", 1)
    return reduce((wide[2:] - wide[:-2]) ** 2)


def serial_halo(s: Any) -> Any:
    u = Y[s.order] * s.w.sum()
    wide = np.concatenate([numpy.zeros(1), u, numpy.zeros(1)])
    return ((wide[2:] - wide[:-2]) ** 2).sum()


# -- right ------------------------------------------------------------------------------------------------------------
def s_mean(s: Any) -> Any:
    return sq(s).mean()


def s_sum(s: Any) -> Any:
    return sq(s).sum()


def s_ce(s: Any) -> Any:
    return ce(s)


def s_features(s: Any) -> Any:
    return features(s).mean(axis=1).mean()


def s_penalised(s: Any) -> Any:
    return sq(s).mean() + penalty(s.w)


def tokens_ignored(e: Any) -> Any:
    count = cc.all_reduce(ag.tensor(float((e.ki != -100).sum())), "dp", to=I)
    return AR(nn.cross_entropy(e.x @ e.m, e.ki, ignore_index=-100, reduction="sum")) / count


def tokens_weighted(e: Any) -> Any:
    weights = numpy.abs(e.y)
    return AR((ce(e, "none") * weights).sum()) / AR(ag.tensor(weights.sum()))


def gan(e: Any) -> Any:
    return bce(e, e.x, 1.0) + bce(e, e.x + 1, 0.0)


def gan_sums(e: Any) -> Any:
    return AR(np.log1p(np.exp(-(e.x @ e.w))).sum() / 60) + AR(np.log1p(np.exp((e.x + 1) @ e.w)).sum() / 60)


def contrastive(e: Any) -> Any:
    z = e.x @ e.m
    return nn.cross_entropy(z @ z.T, numpy.arange(len(e.x)))


def contrastive_global(e: Any) -> Any:
    z = e.sx @ e.m
    whole = cc.all_gather(z, "dp")
    own = cc.cast(z, "dp", to=V)
    at = e.rank * len(e.x) + numpy.arange(len(e.x))
    return AR(nn.cross_entropy(own @ whole.T, at, reduction="sum") / 60)


def serial_contrastive(s: Any) -> Any:
    z = X[s.order] @ s.m
    return nn.cross_entropy(z @ z.T, numpy.arange(ROWS))


def tensor_parallel(e: Any) -> Any:
    xs = cc.shard(ag.tensor(WIDE, {"dp": R}), "dp", dim=1)
    ws = cc.shard(np.tile(e.w0, 20), "dp", dim=0)
    y = cc.all_reduce(xs @ ws, "dp", to=I)
    return (y * y).mean()


def stages_regulariser(e: Any, reduce: Callable[[Any], Any]) -> Any:
    v = ag.Parameter(numpy.ones((2, 2)) * (e.rank + 1), {"dp": V})
    return AR(reduce(v * v)) + (e.w0 * e.w0).sum()


def moe_balance(e: Any) -> Any:
    f = MEAN(np.exp(e.x @ e.m).mean(axis=0))
    return 3 * (f * f).sum()


def gradient_penalty(e: Any) -> Any:
    z = e.x @ e.m
    return z[:, 0].mean() + 10.0 * ((np.sqrt((z * z).sum(axis=1)) - 1) ** 2).mean()


def value_baseline(e: Any) -> Any:
    v = e.x @ e.w
    advantage = e.y - ag.stop_gradient(v)
    return -(advantage * v).mean() + 0.5 * ((v - e.y) ** 2).mean()


def variance(e: Any) -> Any:
    z = e.x @ e.w
    m = cc.mean(z.mean(), "dp")
    return MEAN(((z - m) ** 2).mean())


def variance_of_sums(e: Any) -> Any:
    z = e.sx @ e.w
    m = cc.all_reduce(z.sum(), "dp") / 60
    return AR(((z - m) ** 2).sum()) / 60


def serial_variance(s: Any) -> Any:
    z = s.x @ s.w
    return ((z - z.mean()) ** 2).mean()


RIGHT: dict[str, tuple[Loss, Loss]] = {
    # the study's
    "readme": (lambda e: AR(ssq(e).sum()) / e.sx.global_shape[0], s_mean),
    "mean of a Shard": (lambda e: AR(ssq(e).mean()), s_mean),
    "cross-entropy of a Shard": (lambda e: AR(nn.cross_entropy(e.sx @ e.m, e.sk)), s_ce),
    "cross-entropy sum of a Shard": (lambda e: AR(nn.cross_entropy(e.sx @ e.m, e.sk, reduction="sum") / 60), s_ce),
    "sum of a Shard": (lambda e: AR(ssq(e).sum()), s_sum),
    "sum by the rows of all": (lambda e: AR(sq(e).sum() / 60), s_mean),
    "sum of sums": (lambda e: AR(sq(e).sum()), s_sum),
    "mean of means": (lambda e: MEAN(sq(e).mean()), s_mean),
    "sum of means by a plain n": (lambda e: AR(sq(e).mean()) / e.n, s_mean),
    "sum of means by the size": (lambda e: AR(sq(e).mean()) / e.size, s_mean),
    "mean times a plain 1/n": (lambda e: AR(sq(e).mean() * (1 / e.n)), s_mean),
    "mean times 1/size": (lambda e: AR(sq(e).mean() * (1 / e.size)), s_mean),
    "mean of sums by len": (lambda e: MEAN(sq(e).sum() / len(e.y)), s_mean),
    "weighted by len": (lambda e: AR(sq(e).mean() * len(e.x) / 60), s_mean),
    "weighted by a share": (lambda e: AR(sq(e).mean() * (len(e.x) / 60)), s_mean),
    "mean of features, sum of rows": (lambda e: AR(features(e).mean(axis=1).sum() / 60), s_features),
    "sum of features, mean of rows": (
        lambda e: MEAN(features(e).sum(axis=1).mean()), lambda s: features(s).sum(axis=1).mean()),
    "rows per rank times ranks": (lambda e: AR(sq(e).sum() / 12 / e.size), lambda s: sq(s).sum() / 12 / s.n),
    "rows per rank times ranks in one number": (lambda e: AR(sq(e).sum() / (len(e.x) * e.size)), s_mean),
    "mean of cross-entropies": (lambda e: MEAN(ce(e)), s_ce),
    "tokens with ignored labels": (
        tokens_ignored, lambda s: nn.cross_entropy(s.x @ s.m, s.ki, ignore_index=-100)),
    "weighted tokens": (
        tokens_weighted, lambda s: (ce(s, "none") * numpy.abs(Y)).sum() / numpy.abs(Y).sum()),
    "penalty after the sum": (lambda e: AR(sq(e).sum() / 60) + penalty(e.w0), s_penalised),
    "penalty in a mean": (lambda e: MEAN(sq(e).mean() + penalty(e.w)), s_penalised),
    "penalty by the size": (lambda e: AR(sq(e).sum() / 60 + penalty(e.w) / e.size), s_penalised),
    "penalty by a plain n": (lambda e: AR(sq(e).sum() / 60 + penalty(e.w) / e.n), s_penalised),
    "gan": (lambda e: MEAN(gan(e)), gan),
    "gan of sums": (
        gan_sums, lambda s: np.log1p(np.exp(-(s.x @ s.w))).mean() + np.log1p(np.exp((s.x + 1) @ s.w)).mean()),
    "contrastive over all": (contrastive_global, serial_contrastive),
    "tasks, declared": (
        lambda e: cc.all_reduce(cc.declare_partial(sq(e).mean(), "dp"), "dp", to=I),
        lambda s: sum(s.parts(lambda p: sq(p).mean()))),
    "one sample of pixels on each rank": (
        lambda e: AR(((e.x[0] @ e.m - e.x[0]) ** 2).mean()),
        lambda s: sum(s.parts(lambda p: ((p.x[0] @ p.m - p.x[0]) ** 2).mean()))),
    "energy of an ensemble": (
        lambda e: MEAN((np.tanh(e.x * e.w) ** 2).sum()),
        lambda s: s.mean(lambda p: (np.tanh(p.x * p.w) ** 2).sum())),
    "estimator": (lambda e: MEAN(np.exp(-e.x @ e.w).mean()), lambda s: np.exp(-s.x @ s.w).mean()),
    "log of a mean": (lambda e: np.log(AR(np.exp(e.x @ e.w).sum()) / 60), lambda s: np.log(np.exp(s.x @ s.w).mean())),
    "root of a mean": (lambda e: np.sqrt(AR(sq(e).sum()) / 60), lambda s: np.sqrt(sq(s).mean())),
    "norm": (lambda e: np.sqrt(AR(sq(e).sum())), lambda s: np.sqrt(sq(s).sum())),
    "variance": (variance, serial_variance),
    "variance of sums": (variance_of_sums, serial_variance),
    "ratio of sums": (lambda e: AR(sq(e).sum()) / AR((sq(e) * 0 + 1).sum()), s_mean),
    "mean of ratios": (
        lambda e: MEAN(sq(e).sum() / numpy.abs(e.y).sum()),
        lambda s: s.mean(lambda p: sq(p).sum() / numpy.abs(p.y).sum())),
    "halo": (lambda e: halo_square(e, lambda d: AR(d.sum())), serial_halo),
    "halo, mean": (lambda e: halo_square(e, lambda d: AR(d.sum() / 60)), lambda s: serial_halo(s) / 60),
    "penalty of stages": (
        lambda e: stages_regulariser(e, lambda v: v.sum()), lambda s: (s.w0 * s.w0).sum()),
    "mean penalty of stages": (
        lambda e: stages_regulariser(e, lambda v: v.mean()), lambda s: (s.w0 * s.w0).sum()),
    "tensor parallel": (
        tensor_parallel,
        lambda s: ((WIDE @ np.tile(s.w, 20)) ** 2).mean()),
    "gathered means": (lambda e: cc.all_gather(np.reshape(sq(e).mean(), (1,)), "dp", to=I).mean(), s_mean),
    "gathered rows": (lambda e: cc.all_gather(sq(e), "dp", to=I).mean(), s_mean),
    "gathered rows, summed": (lambda e: cc.all_gather(sq(e), "dp", to=I).sum(), s_sum),
    "balance of experts": (
        moe_balance, lambda s: 3 * (np.exp(s.x @ s.m).mean(axis=0) ** 2).sum()),
    "loss scale": (lambda e: AR(sq(e).sum() / 60) * 1024.0, lambda s: sq(s).mean() * 1024.0),
    "entropy": (
        lambda e: AR(sq(e).sum() / 60) - 0.1 * MEAN(np.tanh(sq(e)).mean()),
        lambda s: sq(s).mean() - 0.1 * np.tanh(sq(s)).mean()),
    "gradient penalty": (lambda e: MEAN(gradient_penalty(e)), gradient_penalty),
    "advantage": (lambda e: MEAN(value_baseline(e)), value_baseline),
    "nonblocking": (lambda e: cc.all_reduce_async(sq(e).sum() / 60, "dp", to=I).wait(), s_mean),
    "reduce and broadcast": (
        lambda e: cc.broadcast(cc.reduce(sq(e).sum() / 60, "dp", 0), "dp", 0, to=I), s_mean),
    "chunks of sums": (lambda e: AR(sum(sq(e)[i::2].sum() for i in range(2)) / 60), s_mean),
    "chunks of means": (
        lambda e: MEAN(sum(sq(e)[i::2].mean() for i in range(2)) / 2),
        lambda s: s.mean(lambda p: sum(sq(p)[i::2].mean() for i in range(2)) / 2)),
    # more
    "half of the squares": (lambda e: AR((sq(e)).sum() / 2), lambda s: sq(s).sum() / 2),
    "half of a mean": (lambda e: MEAN(0.5 * sq(e).mean()), lambda s: 0.5 * sq(s).mean()),
    "dot product": (
        lambda e: AR((e.x @ e.w - e.y) @ (e.x @ e.w - e.y) / 60), s_mean),
    "norm per row": (
        lambda e: AR(np.sqrt((features(e)).sum(axis=1)).sum() / 60),
        lambda s: np.sqrt(features(s).sum(axis=1)).mean()),
    "largest of a row": (
        lambda e: MEAN(np.max(features(e), axis=1).mean()), lambda s: np.max(features(s), axis=1).mean()),
    "weights of classes": (
        lambda e: AR(ce(e, "sum", weight=numpy.array([1.0, 2.0, 0.5]))) / 60,
        lambda s: ce(s, "sum", weight=numpy.array([1.0, 2.0, 0.5])) / 60),
    "label smoothing": (
        lambda e: MEAN(ce(e, label_smoothing=0.1)), lambda s: ce(s, label_smoothing=0.1)),
    "temperature": (
        lambda e: AR(nn.cross_entropy(e.x @ e.m / 4.0, e.k, reduction="sum") / 60),
        lambda s: nn.cross_entropy(s.x @ s.m / 4.0, s.k)),
    "huber": (
        lambda e: MEAN(nn.smooth_l1_loss(e.x @ e.w, e.y)), lambda s: nn.smooth_l1_loss(s.x @ s.w, s.y)),
    "masked by a count of all": (
        lambda e: AR((sq(e) * (e.y > 0)).sum()) / float((Y > 0).sum()),
        lambda s: (sq(s) * (Y > 0)).sum() / float((Y > 0).sum())),
    "two losses": (
        lambda e: AR(ssq(e).mean()) + 0.3 * AR(nn.cross_entropy(e.sx @ e.m, e.sk)),
        lambda s: sq(s).mean() + 0.3 * ce(s)),
    "a Shard and plain rows": (
        lambda e: AR(ssq(e).mean()) + 0.3 * MEAN(ce(e)), lambda s: sq(s).mean() + 0.3 * ce(s)),
    "scattered sum": (
        lambda e: AR((cc.reduce_scatter(np.tile(sq(e).sum() / 60, (60,)) * WEIGHTS, "dp")).sum()) / 60, s_mean),
    "mean of a cast": (
        lambda e: MEAN(cc.cast(ssq(e), "dp", to=V).mean()), s_mean),
    "sum of a cast by all rows": (
        lambda e: AR(cc.cast(ssq(e), "dp", to=V).sum()) / e.sx.global_shape[0], s_mean),
    "plain rows by global_shape": (lambda e: AR(sq(e).sum() / e.sx.global_shape[0]), s_mean),
    "ring of partial sums": (
        lambda e: AR(cc.permute(sq(e).sum() / 60, "dp", [(i, (i + 1) % e.n) for i in range(e.n)])), s_mean),
    "maximum of means": (
        lambda e: cc.all_max(sq(e).mean(), "dp", to=I),
        lambda s: np.max(np.stack(s.parts(lambda p: sq(p).mean())))),
}  # fmt: skip
"""Programs without a fault, and the losses of one process."""


class Wrong(NamedTuple):
    """A wrong program.

    Attributes
    ----------
    loss, serial : the loss, and that of one process that is meant
    error : whether labels and remembered numbers prove it; otherwise it is a warning
    says : words of the message
    power : by which power of n the gradient is too large; None for another fault
    """

    loss: Loss
    serial: Loss
    error: bool = False
    says: tuple[str, ...] = ()
    power: float | None = 1


LARGE, SMALL = ("times too large",), ("times too small",)
UNEQUAL = ("adds terms of unequal scale",)
USE_MEAN, DECLARE = "or:  cc.mean(", "cc.declare_partial("
USE_SHARD = "fix: rows = cc.from_local(rows, {'dp': Shard(0)})"
DDP = (*LARGE, USE_MEAN, USE_SHARD, DECLARE, "on each rank")


def baseline(e: Any) -> Any:
    z = e.x @ e.w
    m = cc.all_reduce(z.mean(), "dp")
    return MEAN(((z - m) ** 2).mean())


WRONG: dict[str, Wrong] = {
    # the study's
    "ddp": Wrong(lambda e: AR(sq(e).mean()), s_mean, says=DDP),
    "ddp, cross-entropy": Wrong(lambda e: AR(ce(e)), s_ce, says=DDP),
    "ddp, len": Wrong(lambda e: AR(sq(e).sum() / len(e.x)), s_mean, says=DDP),
    "ddp, times 1/len": Wrong(lambda e: AR(sq(e).sum() * (1 / len(e.x))), s_mean, says=DDP),
    "ddp, sum of features": Wrong(
        lambda e: AR(features(e).sum(axis=1).mean()), lambda s: features(s).sum(axis=1).mean(), says=DDP),
    "ddp, plain data first": Wrong(
        lambda e: AR(((e.x - e.w) ** 2).sum(axis=1).mean()), lambda s: ((s.x - s.w) ** 2).sum(axis=1).mean(), says=DDP),
    "mean twice": Wrong(
        lambda e: MEAN(sq(e).mean()) / e.size, s_mean, says=(*SMALL, "leave the division"), power=-1),
    "mean of a Shard by the size": Wrong(
        lambda e: AR(ssq(e).mean()) / e.size, s_mean, True, (*SMALL, "leave the division"), -1),
    "all rows by the size": Wrong(
        lambda e: AR(ssq(e).sum()) / 60 / e.size, s_mean, True, (*SMALL, "leave the division"), -1),
    "a Shard times the size": Wrong(
        lambda e: AR(ssq(e).mean()) * e.size, s_mean, True, (*LARGE, "leave the product")),
    "mean of sums by all rows": Wrong(
        lambda e: MEAN(sq(e).sum() / 60), s_mean, says=(*SMALL, "fix: all_reduce("), power=-1),
    "mean of cross-entropies by all rows": Wrong(
        lambda e: MEAN(ce(e, "sum") / 60), s_ce, says=(*SMALL, "fix: all_reduce("), power=-1),
    "mean of a cast Shard": Wrong(
        lambda e: AR(cc.cast(ssq(e), "dp", to=V).mean()), s_mean, True, (*LARGE, "the mean of the Shard itself")),
    "mean of sums of a cast Shard": Wrong(
        lambda e: MEAN(cc.cast(ssq(e), "dp", to=V).sum()), s_sum, True, (*SMALL, "fix: all_reduce("), -1),
    "local mean behind a halo": Wrong(
        lambda e: halo_square(e, lambda d: AR(d.mean())), lambda s: serial_halo(s) / 60, True, LARGE),
    "penalty after a sum of means": Wrong(
        lambda e: AR(sq(e).mean()) + penalty(e.w0), s_penalised, says=(*UNEQUAL, *LARGE), power=None),
    "gan, mixed": Wrong(
        lambda e: MEAN(bce(e, e.x, 1.0)) + AR(bce(e, e.x + 1, 0.0)), gan, says=UNEQUAL, power=None),
    "gathered and summed": Wrong(
        lambda e: cc.all_gather(np.reshape(sq(e).mean(), (1,)), "dp", to=I).sum(), s_mean, says=LARGE),
    "baseline": Wrong(baseline, serial_variance, says=("subtract",), power=None),
    "ignored labels": Wrong(
        lambda e: AR(nn.cross_entropy(e.x @ e.m, e.ki, ignore_index=-100)),
        lambda s: nn.cross_entropy(s.x @ s.m, s.ki, ignore_index=-100), says=LARGE, power=None),
    "root of a sum": Wrong(
        lambda e: np.sqrt(AR(sq(e).mean())), lambda s: np.sqrt(sq(s).mean()), says=LARGE, power=0.5),
    # more
    "mse_loss": Wrong(
        lambda e: AR(nn.mse_loss(e.x @ e.w, e.y)), s_mean, says=DDP),
    "l1_loss": Wrong(
        lambda e: AR(nn.l1_loss(e.x @ e.w, e.y)), lambda s: nn.l1_loss(s.x @ s.w, s.y), says=DDP),
    "huber": Wrong(
        lambda e: AR(nn.smooth_l1_loss(e.x @ e.w, e.y)), lambda s: nn.smooth_l1_loss(s.x @ s.w, s.y), says=DDP),
    "binary cross-entropy": Wrong(lambda e: AR(gan(e)), gan, says=DDP),
    "label smoothing": Wrong(
        lambda e: AR(ce(e, label_smoothing=0.1)), lambda s: ce(s, label_smoothing=0.1), says=DDP),
    "weights of classes": Wrong(
        lambda e: AR(ce(e, weight=numpy.array([1.0, 2.0, 0.5]))),
        lambda s: ce(s, weight=numpy.array([1.0, 2.0, 0.5])), says=LARGE, power=None),
    "loss scale": Wrong(lambda e: AR(sq(e).mean() * 1000.5), lambda s: sq(s).mean() * 1000.5, says=DDP),
    "two means": Wrong(
        lambda e: AR(sq(e).mean() + ce(e)), lambda s: sq(s).mean() + ce(s), says=DDP),
    "two sums of means": Wrong(
        lambda e: AR(sq(e).mean()) + AR(ce(e)), lambda s: sq(s).mean() + ce(s), says=DDP),
    "minus": Wrong(lambda e: AR(-sq(e).mean()), lambda s: -sq(s).mean(), says=DDP),
    "nonblocking": Wrong(lambda e: cc.all_reduce_async(sq(e).mean(), "dp", to=I).wait(), s_mean, says=LARGE),
    "reduce": Wrong(
        lambda e: cc.broadcast(cc.reduce(sq(e).mean(), "dp", 0), "dp", 0, to=I), s_mean, says=LARGE),
    "to R and I": Wrong(
        lambda e: cc.cast(cc.all_reduce(sq(e).mean(), "dp", to=R), "dp", to=I), s_mean, says=DDP),
    "chunks": Wrong(
        lambda e: AR(sum(sq(e)[i::2].mean() for i in range(2))),
        lambda s: s.mean(lambda p: sum(sq(p)[i::2].mean() for i in range(2))), says=LARGE),
    "gradient penalty": Wrong(lambda e: AR(gradient_penalty(e)), gradient_penalty, says=DDP),
    "advantage": Wrong(lambda e: AR(value_baseline(e)), value_baseline, says=DDP),
    "estimator": Wrong(
        lambda e: AR(np.exp(-e.x @ e.w).mean()), lambda s: np.exp(-s.x @ s.w).mean(), says=DDP),
    "size twice": Wrong(
        lambda e: AR(sq(e).mean()) / e.size / e.size, s_mean, says=(*SMALL, "leave the division"), power=-1),
    "size twice in one number": Wrong(
        lambda e: AR(sq(e).mean()) / (e.size * e.size), s_mean, says=(*SMALL, "leave the division"), power=-1),
    "the world's size": Wrong(
        lambda e: AR(ssq(e).mean()) / cc.world().size, s_mean, True, (*SMALL, "leave the division"), -1),
    "the mesh's size": Wrong(
        lambda e: AR(ssq(e).mean()) / e.mesh.sizes[0], s_mean, True, (*SMALL, "leave the division"), -1),
    "1 / size": Wrong(
        lambda e: AR(ssq(e).mean()) * (1 / e.size), s_mean, True, SMALL, -1),
    "all rows times the size": Wrong(
        lambda e: AR(ssq(e).sum()) / (60 * e.size), s_mean, True, (*SMALL, "leave the division"), -1),
    "global_shape times the size": Wrong(
        lambda e: AR(ssq(e).sum()) / (e.sx.global_shape[0] * e.size), s_mean, True, SMALL, -1),
    "cross-entropy of a Shard by the size": Wrong(
        lambda e: AR(nn.cross_entropy(e.sx @ e.m, e.sk)) / e.size, s_ce, True, SMALL, -1),
    "one of two terms by the size": Wrong(
        lambda e: AR(ssq(e).mean()) / e.size + penalty(e.w0), s_penalised, True, UNEQUAL, None),
    "the penalty by the size": Wrong(
        lambda e: AR(ssq(e).mean()) + penalty(e.w0) / e.size, s_penalised, True, UNEQUAL, None),
    "the sum by the rows of one rank": Wrong(
        lambda e: AR(sq(e).sum()) / len(e.x), s_mean, says=(*LARGE, "global_shape[0]")),
    "plain rows by global_shape, then a mean": Wrong(
        lambda e: MEAN(sq(e).sum() / e.sx.global_shape[0]), s_mean, says=(*SMALL, "fix: all_reduce("), power=-1),
    "rms": Wrong(
        lambda e: np.sqrt(AR(ssq(e).mean()) / e.size), lambda s: np.sqrt(sq(s).mean()), True, SMALL, -0.5),
    "square": Wrong(
        lambda e: AR(ssq(e).mean() * e.size) ** 2, lambda s: sq(s).mean() ** 2, True, LARGE, 2),
    "scattered means": Wrong(
        lambda e: AR(cc.reduce_scatter(np.tile(sq(e).mean(), (60,)) * WEIGHTS, "dp").sum()) / 60, s_mean, says=LARGE),
}  # fmt: skip
"""Programs with a fault."""


SILENT: dict[str, tuple[Loss, Loss, str]] = {
    "mean of sums": (lambda e: MEAN(sq(e).sum()), s_sum, "a mean over ranks of sums: each may be a total of its own"),
    "a plain n after a mean": (lambda e: MEAN(sq(e).mean()) / e.n, s_mean, "the number may be a constant"),
    "a plain n after a Shard's mean": (lambda e: AR(ssq(e).mean()) / e.n, s_mean, "the number may be a constant"),
    "1.0 / size": (lambda e: AR(ssq(e).mean()) * (1.0 / e.size), s_mean, "Python computes it without asking"),
    "half of a mean on two ranks": (
        lambda e: AR((0.5 if e.n == 2 else 1 / e.n) * sq(e).mean() * e.n), s_mean, "0.5 may be 1/n"),
}
"""Wrong programs that no one can tell from right ones, and why."""
