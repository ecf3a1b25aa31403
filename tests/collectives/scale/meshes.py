"""Programs on meshes of one and two axes, right and wrong in their scale, each with the gradients of one process.

A row has one program, which takes the way in which it normalises: ``right``, and any number of wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import I, R, Shard, V

__all__ = ["ROWS", "Row", "Wrong"]

_random = numpy.random.default_rng(7)
X, Y, K = _random.normal(size=(60, 4)), _random.normal(size=60), _random.integers(0, 3, 60)
SEQUENCES = _random.normal(size=(12, 10, 4))
LABELS = numpy.where(_random.random((12, 10)) < 0.3, -100, _random.integers(0, 3, (12, 10)))
START = {
    "w": _random.normal(size=4), "m": _random.normal(size=(4, 3)) / 2, "up": _random.normal(size=(4, 20)) / 2,
    "down": _random.normal(size=(20, 3)) / 4, "g": _random.normal(size=(4, 4)) / 2,
}  # fmt: skip
Loss = Callable[..., Any]


class Wrong(NamedTuple):
    """A way to normalise wrongly: `says` are words of the message, `error` whether labels prove it, and `factor(n)`
    that of the gradient; None for a gradient that is no multiple.
    """

    how: Any
    says: tuple[str, ...]
    factor: Callable[[int], float] | None = float
    error: bool = False


class Row(NamedTuple):
    """A program: ``loss(e, how)`` on each rank of the mesh ``axes(n)``, and ``serial(p, n)`` of the whole parameters.

    `silent` are wrong ways that stay silent, by the reason.
    """

    loss: Loss
    right: tuple[Any, ...]
    serial: Callable[..., Any]
    wrong: tuple[Wrong, ...] = ()
    axes: Callable[[int], Mapping[str, int]] = lambda n: {"dp": n}
    silent: Mapping[str, Any] = {}

    def program(self, how: Any) -> Callable[[cc.Mesh], dict[str, Any]]:
        """The program of one rank, which returns its gradients; those of divided parameters with their part."""

        def run(mesh: cc.Mesh) -> dict[str, Any]:
            with ag.Tape() as tape:
                e = Ranks(mesh)
                total = self.loss(e, how)
            tape.backward(total)
            return e.gradients()

        return run

    def gradients(self, n: int) -> dict[str, Any]:
        """The gradients of one process."""
        p = {name: ag.Parameter(value.copy(), name=name) for name, value in START.items()}
        with ag.Tape() as tape:
            total = self.serial(p, n)
        tape.backward(total)
        return {name: each.grad.numpy() for name, each in p.items() if each.grad is not None}


class Ranks:
    """One rank's parameters, rows and reductions."""

    def __init__(self, mesh: cc.Mesh):
        self.mesh = mesh
        self.dp = mesh.axis("dp")
        self.n, self.rank = int(self.dp.size), int(self.dp.rank)
        self._made: dict[str, tuple[Any, Any]] = {}

    def own(self, a: Any) -> Any:
        """This rank's rows of an array, which has 60 or 12: uneven in 5 or 7."""
        return numpy.array_split(a, self.n)[self.rank]

    def rows(self, a: Any) -> Any:
        """This rank's rows as a Shard."""
        return cc.from_local(self.own(a), {"dp": Shard(0)} | {axis: R for axis in self.mesh.names if axis != "dp"})

    def p(self, name: str) -> Any:
        """A parameter that all ranks hold, as R along all axes."""
        if name not in self._made:
            self._made[name] = ag.Parameter(START[name].copy(), name=name), ...
        value = self._made[name][0]
        for axis in self.mesh.names:
            value = cc.cast(value, axis, to=R)
        return value

    def divided(self, name: str, dim: int, axis: str) -> Any:
        """A parameter that is divided along an axis, as R along the others."""
        on = self.mesh.axis(axis)
        parts = numpy.array_split(numpy.arange(START[name].shape[dim]), int(on.size))
        part = (slice(None),) * dim + (parts[int(on.rank)],)
        layout = {other: Shard(dim) if other == axis else I for other in self.mesh.names}
        own = ag.Parameter(START[name][part].copy(), layout, global_shape=START[name].shape, name=name)
        self._made[name] = own, part
        value = own
        for other in self.mesh.names:
            value = value if other == axis else cc.cast(value, other, to=R)
        return value

    def gradients(self) -> dict[str, Any]:
        """The gradients, each with the part of the whole that it is."""
        return {
            name: (p.grad.numpy(), part) for name, (p, part) in self._made.items() if p.grad is not None
        }


def total(x: Any, axis: Any = "dp") -> Any:
    return cc.all_reduce(x, axis, to=I)


def mean(x: Any, axis: Any = "dp") -> Any:
    return cc.mean(x, axis, to=I)


LARGE, SMALL, UNEQUAL = "times too large", "times too small", "terms of unequal scale"


# -- one axis: token losses, ragged and empty batches ------------------------------------------------------------------
def tokens(e: Ranks, how: Callable[..., Any]) -> Any:
    """A token loss with ignored labels, on sequences of the rank: ``how(sum, count of this rank, mean)``."""
    x, labels = e.own(SEQUENCES).reshape(-1, 4), e.own(LABELS).reshape(-1)
    logits = x @ e.p("m")
    return how(
        nn.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"), float((labels != -100).sum()),
        lambda: nn.cross_entropy(logits, labels, ignore_index=-100),
    )  # fmt: skip


def serial_tokens(p: Any, n: int) -> Any:
    return nn.cross_entropy(SEQUENCES.reshape(-1, 4) @ p["m"], LABELS.reshape(-1), ignore_index=-100)


COUNT = float((LABELS != -100).sum())


def ragged(e: Ranks, how: Callable[..., Any]) -> Any:
    """Batches of different sizes: rank r has the rows of the triangle, and the last one the rest; rank 0 has one."""
    starts = [k * (k + 1) // 2 for k in range(e.n)] + [60]
    mine = slice(starts[e.rank], starts[e.rank + 1])
    return how((X[mine] @ e.p("w") - Y[mine]) ** 2)


def empty(e: Ranks, how: Callable[..., Any]) -> Any:
    """Rank 0 has no row."""
    parts = [slice(0, 0), *(slice(a[0], a[-1] + 1) for a in numpy.array_split(numpy.arange(60), e.n - 1))]
    return how((X[parts[e.rank]] @ e.p("w") - Y[parts[e.rank]]) ** 2, e)


def squares(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


# -- two axes ----------------------------------------------------------------------------------------------------------
def two(other: str) -> Callable[[int], Mapping[str, int]]:
    return lambda n: {"dp": n, other: 2}


def megatron(e: Ranks, how: Callable[..., Any]) -> Any:
    """Data parallel and tensor parallel: the hidden units are divided along tp."""
    h = np.tanh(e.rows(X) @ e.divided("up", 1, "tp"))
    y = cc.all_reduce(h @ e.divided("down", 0, "tp"), "tp", to=I)
    return how((y - 0.1) ** 2, e)


def megatron_plain(e: Ranks, how: Callable[..., Any]) -> Any:
    """The same with plain rows."""
    x = ag.tensor(e.own(X), {"dp": V, "tp": R})
    h = np.tanh(x @ e.divided("up", 1, "tp"))
    y = cc.all_reduce(h @ e.divided("down", 0, "tp"), "tp", to=I)
    return how((y - 0.1) ** 2, e)


def serial_megatron(p: Any, n: int) -> Any:
    return ((np.tanh(X @ p["up"]) @ p["down"] - 0.1) ** 2).mean()


def context(e: Ranks, how: Callable[..., Any]) -> Any:
    """Data parallel and context parallel: each rank has a part of the sequence of its rows, as a plain array."""
    x, y = (
        numpy.array_split(e.own(a), 2, axis=1)[int(e.mesh.axis("cp").rank)]
        for a in (SEQUENCES, SEQUENCES.sum(axis=2))
    )  # fmt: skip
    return how((x @ e.p("w") - y) ** 2, e)


def context_shards(e: Ranks, how: Callable[..., Any]) -> Any:
    """The same, labelled."""
    x, y = (
        cc.from_local(
            numpy.array_split(e.own(a), 2, axis=1)[int(e.mesh.axis("cp").rank)], {"dp": Shard(0), "cp": Shard(1)})
        for a in (SEQUENCES, SEQUENCES.sum(axis=2))
    )  # fmt: skip
    return how((x @ e.p("w") - y) ** 2, e)


def serial_context(p: Any, n: int) -> Any:
    return ((SEQUENCES @ p["w"] - SEQUENCES.sum(axis=2)) ** 2).mean()


BOTH = ("dp", "cp")


# -- stages, experts ---------------------------------------------------------------------------------------------------
def stages(e: Ranks, how: Callable[..., Any]) -> Any:
    """Data parallel, and two stages along pp: the first sends its activations, the second computes the loss."""
    stage, x, y = int(e.mesh.axis("pp").rank), e.own(X), e.own(Y)
    layout = {"dp": I, "pp": V}
    own = ag.Parameter((START["g"] if stage == 0 else START["m"]).copy(), layout, name="g" if stage == 0 else "m")
    e._made[own.name] = own, ...
    w = cc.cast(own, "dp", to=R)
    if stage == 0:
        cc.send(np.tanh(x @ w), "pp", 1)
        h = ag.tensor(numpy.zeros(()), {"dp": V, "pp": V})
    else:
        z = cc.recv("pp", 0) @ w
        h = how((z.sum(axis=1) - y) ** 2)
    loss = how.finish(h)  # type: ignore[attr-defined]
    return cc.broadcast(loss, "pp", 1, to=I)


class _Stages:
    def __init__(self, local: Any, finish: Any):
        self.local, self.finish = local, finish

    def __call__(self, losses: Any) -> Any:
        return self.local(losses)


def serial_stages(p: Any, n: int) -> Any:
    return (((np.tanh(X @ p["g"]) @ p["m"]).sum(axis=1) - Y) ** 2).mean()


def experts(e: Ranks, how: Callable[..., Any]) -> Any:
    """Two experts along ep, each of which has all tokens of its dp rank, weighted by a gate."""
    gate = nn.softmax(e.rows(X) @ e.p("g")[:, :2])
    one = e.divided("up", 1, "ep")
    y = (np.tanh(e.rows(X) @ one) * (1 + gate[:, :1])).sum(axis=1)
    return how((cc.all_reduce(y, "ep", to=I) - cc.cast(e.rows(Y), "ep", to=I)) ** 2, e)


def serial_experts(p: Any, n: int) -> Any:
    gate = nn.softmax(X @ p["g"][:, :2])
    return (((np.tanh(X @ p["up"]) * (1 + gate[:, :1])).sum(axis=1) - Y) ** 2).mean()


# -- physics, ensembles, estimators, metrics ---------------------------------------------------------------------------
def physics(e: Ranks, how: Callable[..., Any]) -> Any:
    """The residual of a Poisson equation on a field that is divided along dp, with a halo of one cell."""
    u = e.rows(X) @ e.p("w")
    wide = cc.halo_exchange(u, "dp", 1)
    own = cc.cast(e.rows(Y), "dp", to=V)
    return how((wide[2:] - 2 * wide[1:-1] + wide[:-2] - own) ** 2, e)


def serial_physics(p: Any, n: int) -> Any:
    zero = numpy.zeros(1)
    u = np.concatenate([zero, X @ p["w"], zero])
    return ((u[2:] - 2 * u[1:-1] + u[:-2] - Y) ** 2).mean()


def physics_informed(e: Ranks, how: Callable[..., Any]) -> Any:
    """A loss inside, on the rank's points, and one of the boundary, which all ranks have."""
    inside = (np.tanh(e.own(X) @ e.p("w")) - e.own(Y)) ** 2
    return how(inside, lambda w: ((ag.constant(X[:3]) @ w - 1) ** 2).mean(), e)


def serial_informed(p: Any, n: int) -> Any:
    return ((np.tanh(X @ p["w"]) - Y) ** 2).mean() + ((X[:3] @ p["w"] - 1) ** 2).mean()


def ensemble(e: Ranks, how: Callable[..., Any]) -> Any:
    """Members along dp, one on each rank, of which all have all rows; the prediction is their mean."""
    shift = 0.1 * e.rank
    member = np.tanh(X @ e.p("w") + shift)
    return how(member)


def serial_ensemble(p: Any, n: int) -> Any:
    predicted = sum(np.tanh(X @ p["w"] + 0.1 * rank) for rank in range(n)) / n
    return ((predicted - Y) ** 2).mean()


def estimator(e: Ranks, how: Callable[..., Any]) -> Any:
    """A score-function estimator: samples of the rank, rewards less their mean over all samples."""
    logp = -((e.own(X) @ e.p("w")) ** 2)
    return how(logp, e.own(Y), e)


def serial_estimator(p: Any, n: int) -> Any:
    return -((Y - Y.mean()) * -((X @ p["w"]) ** 2)).mean()


def importance(e: Ranks, how: Callable[..., Any]) -> Any:
    """Self-normalised importance sampling: a ratio of two sums over all samples."""
    weights = np.exp(e.own(X) @ e.p("w") / 3.5)
    return how(weights * e.own(Y), weights)


def serial_importance(p: Any, n: int) -> Any:
    weights = np.exp(X @ p["w"] / 3.5)
    return (weights * Y).sum() / weights.sum()


def dice(e: Ranks, how: Callable[..., Any]) -> Any:
    """A soft F1 score of all rows as a loss."""
    p = nn.sigmoid(e.own(X) @ e.p("w"))
    t = (e.own(Y) > 0) * 1.0
    return how((p * t).sum(), p.sum(), float(t.sum()))


def serial_dice(p: Any, n: int) -> Any:
    q, t = nn.sigmoid(X @ p["w"]), (Y > 0) * 1.0
    return 1 - 2 * (q * t).sum() / (q.sum() + t.sum())


def correlation(e: Ranks, how: Callable[..., Any]) -> Any:
    """The explained variance of all rows, from moments."""
    z = e.own(X) @ e.p("w")
    return how(z, e.own(Y))


def serial_correlation(p: Any, n: int) -> Any:
    z = X @ p["w"]
    return (z * Y).mean() / np.sqrt((z * z).mean() + 1.0)


def perplexity(e: Ranks, how: Callable[..., Any]) -> Any:
    return np.exp(how(nn.cross_entropy(e.rows(X) @ e.p("m"), e.rows(K), reduction="none"), e))


def serial_perplexity(p: Any, n: int) -> Any:
    return np.exp(nn.cross_entropy(X @ p["m"], K))


def gan(e: Ranks, how: Callable[..., Any]) -> Any:
    """A critic with a gradient penalty, in closed form: the critic is x @ w."""
    w = e.p("w")
    real, fake = e.own(X) @ w, (e.own(X) + 1) @ w
    norms = np.sqrt((np.reshape(w, (1, 4)) ** 2 * (1 + 0 * e.own(X))).sum(axis=1))
    return how(fake - real, (norms - 1) ** 2)


def serial_gan(p: Any, n: int) -> Any:
    return ((X + 1) @ p["w"] - X @ p["w"]).mean() + 10.0 * (np.sqrt((p["w"] ** 2).sum()) - 1) ** 2


ROWS: dict[str, Row] = {
    "tokens with ignored labels": Row(
        tokens,
        (lambda s, c, m: total(s) / total(ag.tensor(c)), lambda s, c, m: total(s) / COUNT,
         lambda s, c, m: total(s / COUNT), lambda s, c, m: total(m() * c) / COUNT),
        serial_tokens,
        (Wrong(lambda s, c, m: total(m()), (LARGE, "that this rank's mask leaves"), None),
         Wrong(lambda s, c, m: mean(s / COUNT), (SMALL, "all_reduce("), lambda n: 1 / n))),
    "ragged": Row(
        ragged,
        (lambda d: total(d.sum()) / 60, lambda d: total(d.sum() / 60),
         lambda d: total(d.sum()) / total(ag.tensor(float(len(d))))),
        squares,
        (Wrong(lambda d: total(d.mean()), (LARGE, "rank 0 of"), None),
         Wrong(lambda d: mean(d.sum() / 60), (SMALL, "all_reduce("), lambda n: 1 / n))),
    "empty": Row(
        empty,
        (lambda d, e: total(d.sum()) / 60, lambda d, e: total(d.sum() / 60)),
        squares,
        (Wrong(lambda d, e: mean(d.sum() / 60), (SMALL,), lambda n: 1 / n),)),
    "dp x tp": Row(
        megatron,
        (lambda d, e: total(d.sum()) / 180, lambda d, e: total(d.mean())), serial_megatron,
        (Wrong(lambda d, e: total(d.mean()) / e.dp.size, (SMALL, "'dp'"), lambda n: 1 / n, True),
         Wrong(lambda d, e: total(d.mean()) / e.mesh.axis("tp").size, (SMALL, "'tp'"), lambda n: 1 / 2, True),
         Wrong(lambda d, e: total(d.mean()) * e.mesh.axis("tp").size, (LARGE, "'tp'"), lambda n: 2, True),
         Wrong(lambda d, e: total(d.mean()) / cc.world().size, (SMALL,), lambda n: 1 / (2 * n), True)),
        two("tp")),
    "dp x tp, plain rows": Row(
        megatron_plain,
        (lambda d, e: total(d.sum()) / 180, lambda d, e: mean(d.mean()),
         lambda d, e: total(d.mean()) / e.dp.size), serial_megatron,
        (Wrong(lambda d, e: total(d.mean()), (LARGE, "'dp'"), None),
         Wrong(lambda d, e: total(d.mean()) / cc.world().size, (SMALL, "'tp'"), lambda n: 1 / 2, True),
         Wrong(lambda d, e: total(d.mean()) / e.mesh.axis("tp").size, ("along axis",), lambda n: n / 2, True)),
        two("tp")),
    "dp x cp": Row(
        context,
        (lambda d, e: total(d.sum(), BOTH) / 120, lambda d, e: total(total(d.sum() / 120, "cp"), "dp"),
         lambda d, e: mean(total(d.sum() / 60, "dp"), "cp"), lambda d, e: total(mean(d.sum(), "cp") / 60, "dp")),
        serial_context,
        (Wrong(lambda d, e: total(d.mean(), BOTH), (LARGE,), None),
         Wrong(lambda d, e: total(mean(d.mean(), "cp")), (LARGE, "'dp'"), None),
         Wrong(lambda d, e: mean(total(d.mean(), "cp")), (LARGE, "'cp'"), None),
         Wrong(lambda d, e: mean(d.sum() / 120, BOTH), (SMALL,), lambda n: 1 / (2 * n))),
        two("cp")),
    "dp x cp, labelled": Row(
        context_shards,
        (lambda d, e: total(d.mean(), BOTH), lambda d, e: total(d.sum(), BOTH) / 120), serial_context,
        (Wrong(lambda d, e: total(d.mean(), BOTH) / e.dp.size, (SMALL, "'dp'"), lambda n: 1 / n, True),
         Wrong(lambda d, e: total(d.mean(), BOTH) / e.mesh.axis("cp").size, (SMALL, "'cp'"), lambda n: 1 / 2, True),
         Wrong(lambda d, e: total(d.sum(), BOTH) / (120 * e.mesh.axis(BOTH).size), (SMALL,),
               lambda n: 1 / (2 * n), True)),
        two("cp")),
    "dp x pp": Row(
        stages,
        (_Stages(lambda d: d.sum() / 60, total), _Stages(lambda d: d.sum(), lambda x: total(x) / 60)),
        serial_stages,
        (), two("pp"),
        {"what is computed from a message is unknown": _Stages(
            lambda d: d.sum() / 60, lambda x: total(x) / cc.current_mesh().axis("dp").size)}),
    "experts": Row(
        experts,
        (lambda d, e: total(d.sum()) / 60, lambda d, e: total(d.mean())), serial_experts,
        (Wrong(lambda d, e: total(d.mean()) / e.dp.size, (SMALL, "'dp'"), lambda n: 1 / n, True),
         Wrong(lambda d, e: total(d.mean()) / e.mesh.axis("ep").size, (SMALL, "'ep'"), lambda n: 1 / 2, True)),
        two("ep")),
    "physics with a halo": Row(
        physics, (lambda d, e: total(d.sum()) / 60, lambda d, e: total(d.sum() / 60)), serial_physics,
        (Wrong(lambda d, e: total(d.mean()), (LARGE,), None, True),
         Wrong(lambda d, e: mean(d.sum() / 60), (SMALL,), lambda n: 1 / n, True))),
    "physics-informed": Row(
        physics_informed,
        (lambda d, b, e: total(d.sum() / 60) + b(cc.cast(e.p("w"), "dp", to=I)),
         lambda d, b, e: total(d.sum() / 60 + b(e.p("w")) / e.dp.size),
         lambda d, b, e: total(d.sum()) / 60 + mean(cc.cast(b(e.p("w")), "dp", to=V))), serial_informed,
        (Wrong(lambda d, b, e: total(d.mean()) + b(cc.cast(e.p("w"), "dp", to=I)), (UNEQUAL,), None),
         Wrong(lambda d, b, e: mean(d.sum() / 60) + b(cc.cast(e.p("w"), "dp", to=I)), (UNEQUAL,), None))),
    "ensemble": Row(
        ensemble,
        (lambda z: ((mean(z) - ag.constant(Y)) ** 2).mean(),
         lambda z: ((total(z) / cc.current_mesh().axis("dp").size - ag.constant(Y)) ** 2).mean()), serial_ensemble,
        ()),
    "estimator": Row(
        estimator,
        (lambda logp, r, e: -total(((r - Y.mean()) * logp).sum()) / 60,
         lambda logp, r, e: -total(((r - Y.mean()) * logp).sum() / 60)), serial_estimator,
        (Wrong(lambda logp, r, e: -total(((r - Y.mean()) * logp).mean()), (LARGE,), None),
         Wrong(lambda logp, r, e: -mean(((r - Y.mean()) * logp).sum() / 60), (SMALL,), lambda n: 1 / n))),
    "importance sampling": Row(
        importance,
        (lambda a, b: total(a.sum()) / total(b.sum()), lambda a, b: mean(a.sum()) / mean(b.sum()),
         lambda a, b: total(a.sum() / 60) / total(b.sum() / 60)), serial_importance,
        (Wrong(lambda a, b: total(a.sum() / 60) / mean(b.sum() / 60), (LARGE,)),
         Wrong(lambda a, b: mean(a.sum() / 60) / total(b.sum() / 60), (SMALL,), lambda n: 1 / n))),
    "soft F1": Row(
        dice, (lambda tp, p, t: 1 - 2 * total(tp) / (total(p) + float((Y > 0).sum())),), serial_dice, ()),
    "moments": Row(
        correlation,
        (lambda z, y: total((z * y).sum() / 60) / np.sqrt(total((z * z).sum() / 60) + 1.0),), serial_correlation,
        (Wrong(lambda z, y: total((z * y).mean()) / np.sqrt(total((z * z).sum() / 60) + 1.0), (LARGE,), None),)),
    "perplexity": Row(
        perplexity, (lambda losses, e: total(losses.mean()), lambda losses, e: total(losses.sum()) / 60),
        serial_perplexity, ()),
    "critic": Row(
        gan,
        (lambda a, b: total(a.sum() / 60) + total(10.0 * b.sum() / 60), lambda a, b: total((a + 10.0 * b).sum()) / 60,
         lambda a, b: total(a.sum() / 60) + total((10.0 * b).sum() / 60),
         lambda a, b: total((a.sum() + 10.0 * b.sum()) / 60),
         lambda a, b: total(a.sum()) / 60 + total(10.0 * b.sum()) / 60), serial_gan,
        (Wrong(lambda a, b: total((a + 7.0 * b).mean()), (LARGE,), None),
         Wrong(lambda a, b: total(a.sum() / 60) + total(7.0 * b.mean()), (UNEQUAL,), None),
         Wrong(lambda a, b: mean(a.sum() / 60) + total(7.0 * b.sum() / 60), (UNEQUAL,), None))),
    "features that count as rows": Row(
        lambda e, how: how((numpy.hstack([e.own(X), e.own(X)[:, :2]]) * e.p("w").sum()) ** 2),
        (lambda d: total(d.sum(axis=1).sum() / 60), lambda d: total(d.sum() / 60), lambda d: total(d.sum() / 360) * 6,
         lambda d: total(d.sum(axis=0).sum() / 60), lambda d: total(d.sum(axis=1).mean() * len(d) / 60)),
        lambda p, n: ((numpy.hstack([X, X[:, :2]]) * p["w"].sum()) ** 2).sum(axis=1).mean(),
        (Wrong(lambda d: mean(d.sum(axis=1).sum() / 60), (SMALL,), lambda n: 1 / n),),
        silent={"a sum over features that met no weight may be one over rows": lambda d: total(d.sum(axis=1).mean())}),
    "as many features as ranks": Row(
        lambda e, how: how((e.own(X) * e.p("w").sum()) ** 2),
        (lambda d: total(d.sum(axis=1).sum() / 60), lambda d: total(d.sum() / 60), lambda d: total(d.sum()) / 60),
        lambda p, n: ((X * p["w"].sum()) ** 2).sum(axis=1).mean()),
}  # fmt: skip
"""Programs by what they train."""
