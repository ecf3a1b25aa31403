"""Programs with the layers of `parallel`, right and wrong in their scale, each with the gradients of one process.

A row is a program as a user writes it, with one place that a way of normalising fills. All train the same two layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.whole import whole_of
from collectives import I, Shard, V
from parallel import Column, DataParallel, Experts, Float16, MixtureOfExperts, Pipeline, Ring, parallelize, side_losses
from parallel import Row as RowStyle
from parallel.expert.side_losses import add_side_loss

__all__ = ["LAYERS", "Layered", "Wrong"]

_random = numpy.random.default_rng(17)
N = 60
X, Y = _random.normal(size=(N, 4)), _random.normal(size=(N, 3))
TOKENS, WANTED = _random.normal(size=(12, 10, 4)), _random.normal(size=(12, 10, 4))
SHAPES = {"0.weight": (4, 12), "0.bias": (12,), "2.weight": (12, 3), "2.bias": (3,)}
START = {name: _random.normal(size=shape) / 2 for name, shape in SHAPES.items()}
LARGE, SMALL = "times too large", "times too small"


class Wrong(NamedTuple):
    """A wrong way: `says` are words of the message, and ``factor(n)`` that of the gradient; None if it is no multiple.

    `error` says whether labels prove it.
    """

    how: Any
    says: tuple[str, ...]
    factor: Callable[[int], float] | None = float
    error: bool = False


class Layered(NamedTuple):
    """A row: ``program(mesh, how)`` returns the gradients of whole parameters, ``serial()`` those of one process.

    `silent` are wrong ways that stay silent, by the reason. `most` is the largest n; with 5 microbatches, 5 ranks could
    be meant by their number.
    """

    program: Callable[[cc.Mesh, Any], dict[str, Any]]
    right: tuple[Any, ...]
    serial: Callable[[], dict[str, Any]]
    wrong: tuple[Wrong, ...] = ()
    axes: Callable[[int], Mapping[str, int]] = lambda n: {"dp": n}
    silent: Mapping[str, Any] = {}
    close: float = 1e-12
    most: int = 5


def network() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 12, dtype=float), nn.Tanh(), nn.Linear(12, 3, dtype=float))
    for name, p in made.named_parameters():
        p.data = START[name].copy()
    return made


def gradients(model: Any) -> dict[str, Any]:
    """The gradients of whole parameters, by the names in the layers. All ranks call it."""
    return {
        name.removeprefix("module."): numpy.asarray(whole_of(p.grad.array, p.layout, "gradients", name))
        for name, p in model.named_parameters() if p.grad is not None
    }  # fmt: skip


def own(mesh: cc.Mesh, a: Any) -> Any:
    """This rank's rows."""
    dp = mesh.axis("dp")
    return numpy.array_split(a, int(dp.size))[int(dp.rank)]


def total(x: Any, axis: Any = "dp") -> Any:
    return cc.all_reduce(x, axis, to=I)


def mean(x: Any, axis: Any = "dp") -> Any:
    return cc.mean(x, axis, to=I)


def serial_mean() -> dict[str, Any]:
    model = network()
    with ag.Tape() as tape:
        loss = ((model(X) - Y) ** 2).mean()
    tape.backward(loss)
    return gradients(model)


# -- data parallel -----------------------------------------------------------------------------------------------------
def data_parallel(**options: Any) -> Callable[[cc.Mesh, Any], dict[str, Any]]:
    """One backward of this rank's rows, as plain arrays or as Shards: ``how(d, mesh)``."""

    def program(mesh: cc.Mesh, how: Any) -> dict[str, Any]:
        settings = {name: make() if callable(make) else make for name, make in options.items()}
        is_labelled = settings.pop("labelled", False)
        model = DataParallel(network(), "dp", **settings)
        x, y = own(mesh, X), own(mesh, Y)
        if is_labelled:
            x, y = (cc.from_local(a, {"dp": Shard(0)}) for a in (x, y))
        with ag.Tape() as tape:
            loss = how((model(x) - y) ** 2, mesh)
        tape.backward(loss)
        return gradients(model)

    return program


def accumulated(m: int, labelled: bool = False, **options: Any) -> Callable[[cc.Mesh, Any], dict[str, Any]]:
    """``how(d, mesh, m)`` for each of m microbatches in a block of `accumulate`."""

    def program(mesh: cc.Mesh, how: Any) -> dict[str, Any]:
        model = DataParallel(network(), "dp", **options)
        with model.accumulate():
            for x, y in zip(numpy.split(X, m), numpy.split(Y, m), strict=True):
                x, y = own(mesh, x), own(mesh, y)
                if labelled:
                    x, y = (cc.from_local(a, {"dp": Shard(0)}) for a in (x, y))
                with ag.Tape() as tape:
                    loss = how((model(x) - y) ** 2, mesh, m)
                tape.backward(loss)
        return gradients(model)

    return program


PLAIN_RIGHT = (
    lambda d, mesh: total(d.sum()) / 180, lambda d, mesh: total(d.sum() / 180),
    lambda d, mesh: total(d.mean() * (len(d) / 60)),
)  # fmt: skip
PLAIN_WRONG = (
    Wrong(lambda d, mesh: total(d.mean()), (LARGE, "'dp'", "cc.from_local"), None),
    Wrong(lambda d, mesh: mean(d.sum() / 180), (SMALL, "'dp'", "fix: all_reduce("), lambda n: 1 / n),
    Wrong(lambda d, mesh: mean(d.mean()) / mesh.axis("dp").size, (SMALL, "'dp'", "leave the division"), None),
)
SHARD_RIGHT = (lambda d, mesh: total(d.mean()), lambda d, mesh: total(d.sum()) / (3 * d.global_shape[0]))
SHARD_WRONG = (
    Wrong(lambda d, mesh: total(d.mean()) / mesh.axis("dp").size, (SMALL, "'dp'"), lambda n: 1 / n, True),
    Wrong(lambda d, mesh: total(d.mean()) * mesh.axis("dp").size, (LARGE, "'dp'"), float, True),
    Wrong(lambda d, mesh: total(cc.cast(d, "dp", to=V).mean()), (LARGE, "'dp'"), None, True),
)
EACH_RIGHT = (lambda d, mesh, m: total(d.sum()) / 180, lambda d, mesh, m: total(d.sum() / 180))
EACH_WRONG = (
    Wrong(lambda d, mesh, m: total(d.mean()) / m, (LARGE, "'dp'"), None),
    Wrong(lambda d, mesh, m: total(d.sum() / (180 // m)), (LARGE, "m = 5 "), lambda n: 5),
)
EACH_SHARD_RIGHT = (lambda d, mesh, m: total(d.mean()) / m, lambda d, mesh, m: total(d.sum()) / 180)
EACH_SHARD_WRONG = (
    Wrong(lambda d, mesh, m: total(d.mean()), (LARGE, "m = 5 "), lambda n: 5),
    Wrong(lambda d, mesh, m: total(d.mean()) / m / mesh.axis("dp").size, (SMALL, "'dp'"), lambda n: 1 / n, True),
)
SILENT = {
    "the number of rows of the batch, of which a microbatch knows a part": lambda d, mesh, m: mean(d.sum() / 180),
    "a number of microbatches is a plain number": lambda d, mesh, m: total(d.sum()) / 180 / m,
}
SHARD_SILENT = {
    "a number of microbatches is a plain number": lambda d, mesh, m: total(d.sum()) / 180 / m,
}


# -- pipelines ---------------------------------------------------------------------------------------------------------
class Of(NamedTuple):
    """A way to normalise in a pipeline: the loss of a microbatch, and the scale of `step`."""

    loss: Callable[[Any, Any], Any]
    scale: Callable[[cc.Mesh, int], Any]


def pipeline(labelled: bool = True, m: int = 5, **options: Any) -> Callable[[cc.Mesh, Of], dict[str, Any]]:
    def program(mesh: cc.Mesh, how: Of) -> dict[str, Any]:
        words = {"data": "dp"} | options
        layers = network()
        if options.get("schedule") in ("interleaved", "zb-v"):
            layers = nn.Sequential(*layers, nn.Identity())
        model = Pipeline(layers, how.loss, microbatches=m, **words)
        x, y = own(mesh, X), own(mesh, Y)
        if labelled:
            x, y = (cc.from_local(a, {"dp": Shard(0), "pp": V}) for a in (x, y))
        model.step(x, y, scale=how.scale(mesh, m))
        return gradients(model)

    return program


def square(z: Any, t: Any) -> Any:
    return (z - t) ** 2


def whole(mesh: cc.Mesh, m: int) -> float:
    return 1 / 180


def scaled(number: float) -> Any:
    """A number as loss scalers give it: a Tensor."""
    return ag.constant(number)


TENSOR_RIGHT = (
    Of(lambda z, t: square(z, t).sum(), lambda mesh, m: scaled(1 / 180)),
    Of(lambda z, t: total(square(z, t).sum()) / 180, lambda mesh, m: scaled(1.0)),
)
TENSOR_WRONG = (
    Wrong(Of(lambda z, t: total(square(z, t).sum()) / mesh_size(), lambda mesh, m: scaled(1 / 180)),
          (SMALL, "'dp'"), lambda n: 1 / n, True),
    Wrong(Of(lambda z, t: total(square(z, t).mean()), lambda mesh, m: scaled(1.0)), (LARGE, "m = 5 "), None),
)  # fmt: skip
TENSOR_PLAIN_WRONG = (
    Wrong(Of(lambda z, t: total(square(z, t).mean()), lambda mesh, m: scaled(1 / m)), (LARGE, "'dp'"), None),
    Wrong(Of(lambda z, t: mean(square(z, t).mean()), lambda mesh, m: scaled(1.0)), (LARGE, "m = 5 "), None),
)


PIPE_RIGHT = (
    Of(lambda z, t: square(z, t).sum(), whole), Of(lambda z, t: total(square(z, t).sum()), whole),
    Of(lambda z, t: total(square(z, t).sum()) / 180, lambda mesh, m: 1.0),
)  # fmt: skip
PIPE_WRONG = (
    Wrong(Of(lambda z, t: total(square(z, t).sum()) / mesh_size(), whole), (SMALL, "'dp'"), lambda n: 1 / n, True),
    Wrong(Of(lambda z, t: total(square(z, t).sum()), lambda mesh, m: 1 / mesh.axis("dp").size / 180),
          (SMALL, "'dp'"), lambda n: 1 / n, True),
    Wrong(Of(lambda z, t: total(square(z, t).mean()), lambda mesh, m: 1.0), (LARGE, "m = 5 "), None),
)  # fmt: skip
PIPE_PLAIN_RIGHT = (
    Of(lambda z, t: total(square(z, t).sum()), whole),
    Of(lambda z, t: total(square(z, t).sum() / 180), lambda mesh, m: 1.0),
)
PIPE_PLAIN_WRONG = (
    Wrong(Of(lambda z, t: total(square(z, t).mean()), lambda mesh, m: 1 / m), (LARGE, "'dp'"), None),
    Wrong(Of(lambda z, t: mean(square(z, t).mean()), lambda mesh, m: mesh.axis("dp").size / m), (LARGE, "'dp'"), None),
    Wrong(Of(lambda z, t: mean(square(z, t).mean()), lambda mesh, m: 1.0), (LARGE, "m = 5 "), None),
    Wrong(Of(lambda z, t: mean(square(z, t).mean()), lambda mesh, m: 1 / (m * mesh.axis("dp").size)),
          (SMALL, "'dp'"), None),
)  # fmt: skip


PIPE_SILENT = {
    "the number of rows of the batch": Of(lambda z, t: mean(square(z, t).sum() / 180), lambda mesh, m: 1.0),
    "a number of microbatches": Of(lambda z, t: total(square(z, t).sum()), lambda mesh, m: 1 / 180 / m),
}


def mesh_size() -> Any:
    return cc.current_mesh().axis("dp").size


class WithSide(nn.Module):
    """A layer with a loss of its own, a sum over the rows: of the first stage only, or of the last."""

    def __init__(self, layer: nn.Module, side: Callable[[Any], Any]):
        self.layer, self.side = layer, side

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        add_side_loss(self.side(y))
        return y


class OfStage(NamedTuple):
    """A way to normalise where one stage has a loss of its own: that loss, the last stage's, and the scale."""

    side: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    scale: Callable[[cc.Mesh, int], Any]


def one_stage(at: int, labelled: bool = True, m: int = 5) -> Callable[[cc.Mesh, OfStage], dict[str, Any]]:
    def program(mesh: cc.Mesh, how: OfStage) -> dict[str, Any]:
        layers = list(network())
        layers[at] = WithSide(layers[at], how.side)
        model = Pipeline(nn.Sequential(*layers), how.loss, microbatches=m, data="dp", side_losses=side_losses)
        x, y = own(mesh, X), own(mesh, Y)
        if labelled:
            x, y = (cc.from_local(a, {"dp": Shard(0), "pp": V}) for a in (x, y))
        model.step(x, y, scale=how.scale(mesh, m))
        return {name.replace("layer.", ""): g for name, g in gradients(model).items()}

    return program


def serial_one_stage(at: int) -> Callable[[], dict[str, Any]]:
    def serial() -> dict[str, Any]:
        layers = list(network())
        layers[at] = WithSide(layers[at], lambda y: (y**2).sum() * 0.1)
        model = nn.Sequential(*layers)
        with ag.Tape() as tape, side_losses() as found:
            loss = (((model(X) - Y) ** 2).sum() + sum(found)) / 180
        tape.backward(loss)
        return {name.replace("layer.", ""): g for name, g in gradients(model).items()}

    return serial


def small(y: Any) -> Any:
    return (y**2).sum() * 0.1


STAGE_RIGHT = (
    OfStage(small, lambda z, t: square(z, t).sum(), whole),
    OfStage(lambda y: total(small(y)), lambda z, t: total(square(z, t).sum()), whole),
    OfStage(lambda y: small(y) / 180, lambda z, t: square(z, t).sum() / 180, lambda mesh, m: 1.0),
)
STAGE_WRONG = (
    Wrong(OfStage(lambda y: total(small(y)) / mesh_size(), lambda z, t: total(square(z, t).sum()), whole),
          (SMALL, "'dp'"), None, True),
    Wrong(OfStage(small, lambda z, t: total(square(z, t).sum()), lambda mesh, m: 1 / mesh.axis("dp").size / 180),
          (SMALL, "'dp'"), lambda n: 1 / n, True),
)  # fmt: skip
STAGE_SILENT = {
    "a plain number may hold the number of ranks": OfStage(
        small, lambda z, t: total(square(z, t).sum()) * mesh_size(), whole),
}


# -- experts -----------------------------------------------------------------------------------------------------------
def mixture(**options: Any) -> MixtureOfExperts:
    random.seed(5)
    return MixtureOfExperts(4, 6, experts=4, top_k=2, balance=0.1, z=0.01, dtype=float, **options)


def experts(labelled: bool = True, **options: Any) -> Callable[[cc.Mesh, Any], dict[str, Any]]:
    """Experts along ep; the tokens are divided along dp and ep: ``how(d, side, mesh)``."""

    def program(mesh: cc.Mesh, how: Any) -> dict[str, Any]:
        both = mesh.axis(BOTH)
        model = parallelize(mixture(**options), {"": Experts("ep")})
        wrapped = DataParallel(model, BOTH)
        x = numpy.array_split(X, int(both.size))[int(both.rank)]
        x = cc.from_local(x, dict.fromkeys(BOTH, Shard(0))) if labelled else ag.tensor(x, dict.fromkeys(BOTH, V))
        with ag.Tape() as tape, side_losses() as found:
            d = (wrapped(x) - 0.3) ** 2
            loss = how(d.sum(), sum(found), d, mesh)
        tape.backward(loss)
        return gradients(wrapped)

    return program


BOTH = ("dp", "ep")


def serial_experts(**options: Any) -> dict[str, Any]:
    model = mixture(**options)
    with ag.Tape() as tape, side_losses() as found:
        loss = (((model(X) - 0.3) ** 2).sum() + sum(found)) / 60
    tape.backward(loss)
    return gradients(model)


# -- tensor parallel, context parallel ---------------------------------------------------------------------------------
def tensor_parallel(labelled: bool) -> Callable[[cc.Mesh, Any], dict[str, Any]]:
    def program(mesh: cc.Mesh, how: Any) -> dict[str, Any]:
        model = DataParallel(parallelize(network(), {"0": Column("tp"), "2": RowStyle("tp")}), "dp")
        layout = {"dp": Shard(0) if labelled else V, "tp": I}
        x, y = ((cc.from_local if labelled else ag.tensor)(own(mesh, a), layout) for a in (X, Y))
        with ag.Tape() as tape:
            loss = how((model(x) - y) ** 2, mesh)
        tape.backward(loss)
        return gradients(model)

    return program


class Attention(nn.Module):
    """Attention with a projection."""

    def __init__(self) -> None:
        self.project = nn.Linear(4, 12, dtype=float)
        self.project.weight.data, self.project.bias.data = START["0.weight"].copy(), START["0.bias"].copy()
        self.attend = nn.SelfAttention(4)

    def forward(self, x: Any) -> Any:
        return self.attend(self.project(x).reshape(*x.shape[:-1], 3, 4))


def context(labelled: bool) -> Callable[[cc.Mesh, Any], dict[str, Any]]:
    """Attention over sequences whose tokens are divided along cp, and whose rows along dp."""

    def program(mesh: cc.Mesh, how: Any) -> dict[str, Any]:
        layout = {"dp": Shard(0) if labelled else V, "cp": Shard(1)}
        model = DataParallel(parallelize(Attention(), {"attend": Ring("cp", zigzag=False)}), ("dp", "cp"))
        cp = mesh.axis("cp")
        parts = [numpy.array_split(own(mesh, a), int(cp.size), axis=1)[int(cp.rank)] for a in (TOKENS, WANTED)]
        x, y = (cc.from_local(a, layout) for a in parts)
        with ag.Tape() as tape:
            loss = how((model(x) - y) ** 2, mesh)
        tape.backward(loss)
        return gradients(model)

    return program


def serial_context() -> dict[str, Any]:
    model = Attention()
    with ag.Tape() as tape:
        loss = ((model(TOKENS) - WANTED) ** 2).mean()
    tape.backward(loss)
    return gradients(model)


def with_(other: str) -> Callable[[int], Mapping[str, int]]:
    return lambda n: {"dp": n, other: 2}


def rows(program: Any, right: Any, wrong: Any, **options: Any) -> Layered:
    return Layered(program, right, serial_mean, wrong, **options)


SIDE_RIGHT = (
    lambda s, side, d, mesh: total(s + side, BOTH) / 60,
    lambda s, side, d, mesh: total(s, BOTH) / 60 + total(side, BOTH) / 60,
)
SIDE_PLAIN_RIGHT = (
    *SIDE_RIGHT, lambda s, side, d, mesh: total(s * (1 / 60), BOTH) + total(side / 60, BOTH),
    lambda s, side, d, mesh: mean((s / 60 + side / 60) * mesh.axis(BOTH).size, BOTH),
)
SIDE_WRONG = (
    Wrong(lambda s, side, d, mesh: total(s + side, BOTH) / 60 / mesh.axis("ep").size, (SMALL, "'ep'"),
          lambda n: 1 / 2, True),
    Wrong(lambda s, side, d, mesh: total(s + side, BOTH) / 60 / mesh.axis("dp").size, (SMALL, "'dp'"),
          lambda n: 1 / n, True),
    Wrong(lambda s, side, d, mesh: total(s, BOTH) / 60 + total(side, BOTH) / 60 * mesh.axis("ep").size,
          ("unequal scale", "'ep'"), None, True),
    Wrong(lambda s, side, d, mesh: total(s, BOTH) / 60 + total(side, BOTH) / 60 / mesh.axis("ep").size,
          ("unequal scale", "'ep'"), None, True),
)  # fmt: skip
CONTEXT_RIGHT = (lambda d, mesh: total(d.mean(), CP), lambda d, mesh: total(d.sum(), CP) / 480)
CONTEXT_WRONG = (
    Wrong(lambda d, mesh: total(d.mean(), CP) / mesh.axis("cp").size, (SMALL, "'cp'"), lambda n: 1 / 2, True),
    Wrong(lambda d, mesh: total(d.mean(), CP) / mesh.axis("dp").size, (SMALL, "'dp'"), lambda n: 1 / n, True),
    Wrong(lambda d, mesh: total(cc.cast(cc.cast(d, "dp", to=V), "cp", to=V).mean(), CP), (LARGE,), None, True),
)
CONTEXT_PLAIN_RIGHT = (
    lambda d, mesh: total(d.sum() / 480, CP), lambda d, mesh: total(total(d.sum(), "cp") / 480),
    lambda d, mesh: total(d.sum(), CP) / 480, lambda d, mesh: total(total(d.mean(axis=(1, 2)), "cp").sum() / 12),
)  # fmt: skip
CONTEXT_PLAIN_SILENT = {
    "the number of elements that two axes divide": lambda d, mesh: mean(total(d.sum(), "cp") / 480),
}
CP = ("dp", "cp")


LAYERS: dict[str, Layered] = {
    "DataParallel": rows(data_parallel(), PLAIN_RIGHT, PLAIN_WRONG),
    "DataParallel, labelled": rows(data_parallel(labelled=True), SHARD_RIGHT, SHARD_WRONG),
    "small buckets": rows(data_parallel(bucket_bytes=0), PLAIN_RIGHT, PLAIN_WRONG),
    "compression": rows(data_parallel(reduction=Float16), PLAIN_RIGHT, PLAIN_WRONG, close=1e-2),
    **{f"ZeRO {z}": rows(data_parallel(zero=z), PLAIN_RIGHT, PLAIN_WRONG) for z in (1, 2, 3)},
    **{f"ZeRO {z}, labelled": rows(data_parallel(zero=z, labelled=True), SHARD_RIGHT, SHARD_WRONG) for z in (2, 3)},
    "microbatches": rows(accumulated(5), EACH_RIGHT, EACH_WRONG, silent=SILENT, most=4),
    "microbatches, labelled": rows(accumulated(5, True), EACH_SHARD_RIGHT, EACH_SHARD_WRONG,
        silent=SHARD_SILENT, most=4),
    "microbatches, ZeRO 2": rows(accumulated(5, True, zero=2), EACH_SHARD_RIGHT, EACH_SHARD_WRONG, most=4),
    "1f1b": rows(pipeline(), PIPE_RIGHT, PIPE_WRONG, axes=with_("pp"), most=4),
    "1f1b, plain rows": rows(pipeline(False), PIPE_PLAIN_RIGHT, PIPE_PLAIN_WRONG, axes=with_("pp"),
        silent=PIPE_SILENT, most=4),
    "gpipe, ZeRO 2": rows(pipeline(schedule="gpipe", zero=2), PIPE_RIGHT, PIPE_WRONG, axes=with_("pp"), most=4),
    "interleaved": rows(pipeline(schedule="interleaved", m=4), PIPE_RIGHT, PIPE_WRONG[:2], axes=with_("pp"), most=4),
    "zero bubble": rows(pipeline(False, schedule="zb-h1"), PIPE_PLAIN_RIGHT, PIPE_PLAIN_WRONG, axes=with_("pp"),
        silent=PIPE_SILENT, most=4),
    "zero bubble of two chunks": rows(pipeline(schedule="zb-v", m=5), PIPE_RIGHT, PIPE_WRONG[:2], axes=with_("pp"),
        most=4),
    "scale as a Tensor": rows(pipeline(), TENSOR_RIGHT, TENSOR_WRONG, axes=with_("pp"), most=4),
    "scale as a Tensor, plain rows": rows(pipeline(False), (), TENSOR_PLAIN_WRONG, axes=with_("pp"), most=4),
    **{f"a loss of stage {i}": Layered(
        one_stage(at), STAGE_RIGHT, serial_one_stage(at), STAGE_WRONG, with_("pp"), STAGE_SILENT, most=4)
        for i, at in enumerate((0, 2))},
    "dropped tokens": Layered(experts(capacity=0.6), SIDE_RIGHT, partial(serial_experts, capacity=0.6), SIDE_WRONG,
        with_("ep")),
    "experts": Layered(experts(), SIDE_RIGHT, serial_experts, SIDE_WRONG, with_("ep")),
    "experts, plain rows": Layered(
        experts(False), SIDE_PLAIN_RIGHT, serial_experts, (), with_("ep")),
    "tensor parallel": rows(tensor_parallel(True), SHARD_RIGHT, SHARD_WRONG, axes=with_("tp")),
    "tensor parallel, plain rows": rows(tensor_parallel(False), PLAIN_RIGHT, PLAIN_WRONG, axes=with_("tp")),
    "context parallel, plain rows": Layered(
        context(False), CONTEXT_PLAIN_RIGHT, serial_context, (), with_("cp"), CONTEXT_PLAIN_SILENT),
    "context parallel": Layered(context(True), CONTEXT_RIGHT, serial_context, CONTEXT_WRONG, with_("cp")),
}  # fmt: skip
"""Programs by the layer."""
