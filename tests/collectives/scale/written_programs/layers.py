"""Programs with ZeRO, pipelines and their `scale`, checkpoints, second losses, and gradients scaled by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from autograd.whole import whole_of
from collectives import R, Shard, V
from parallel import Pipeline

from .harness import START, K, Program, Rank, Reading, X, Y, each_counts, mean, right, steps, total, wrong

T = numpy.random.default_rng(83).normal(size=(60, 3))


# -- data parallel -----------------------------------------------------------------------------------------------------
def trained(of: Callable[[Rank, Any, Any], Any], labelled: bool, *names: str, **options: Any) -> steps:
    """A model under DataParallel: ``of(rank, outputs, (targets, classes))``."""

    def program(e: Rank) -> None:
        model = e.model(*names, **options)
        arrays = [e.own(a) for a in (X, T, K)]
        x, *targets = (cc.from_local(a, {"dp": Shard(0)}) for a in arrays) if labelled else arrays
        with ag.Tape() as tape:
            loss = of(e, model(x), targets)
        tape.backward(loss)

    return steps(program)


def s_mse(p: Any, n: int) -> Any:
    return ((X @ p["m"] - T) ** 2).mean()


def s_deep(p: Any, n: int) -> Any:
    return nn.cross_entropy(np.tanh(X @ p["g"]) @ p["m"], K)


def s_entropy(p: Any, n: int) -> Any:
    return nn.cross_entropy(X @ p["m"], K)


# -- checkpoints -------------------------------------------------------------------------------------------------------
def checkpointed(e: Rank, of: Callable[[Any], Any]) -> Any:
    """The losses of this rank's rows from a function that runs again in backward."""
    w, g = e.p("w"), e.p("g")
    return of(ag.checkpoint(lambda x: (np.tanh(x @ g) @ w - e.own(Y)) ** 2)(ag.tensor(e.own(X))))


def checkpointed_loss(e: Rank, of: Callable[[Any], Any]) -> Any:
    """The whole loss in such a function."""
    w, g = e.p("w"), e.p("g")
    return ag.checkpoint(lambda x: of((np.tanh(x @ g) @ w - e.own(Y)) ** 2))(ag.tensor(e.own(X)))


def s_checkpoint(p: Any, n: int) -> Any:
    return ((np.tanh(X @ p["g"]) @ p["w"] - Y) ** 2).mean()


# -- two losses, one backward after another ----------------------------------------------------------------------------
def in_turn(first: Any, second: Any) -> steps:
    """Two losses with a tape of their own, whose gradients add up; then the parameters have both."""

    def program(e: Rank) -> None:
        p = {name: ag.Parameter(START[name].copy(), name=name) for name in ("w", "m")}
        e._made.update({name: (value, ...) for name, value in p.items()})
        for of in (first, second):
            with ag.Tape() as tape:
                entered = {name: cc.cast(value, "dp", to=R) for name, value in p.items()}
                loss = of(e, entered["w"], entered["m"])
            tape.backward(loss)

    return steps(program)


def square(e: Rank, w: Any, m: Any) -> Any:
    return (e.own(X) @ w - e.own(Y)) ** 2


def entropy(e: Rank, w: Any, m: Any) -> Any:
    return nn.cross_entropy(e.own(X) @ m, e.own(K), reduction="none")


def s_in_turn(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean() + s_entropy(p, n)


def two_steps(of: Callable[[Rank, Any], Any], by_hand: Callable[[Any, Any], Any] | None = None) -> steps:
    """A step of an optimizer with rate 0, and a second one, whose gradient is returned."""

    def program(e: Rank) -> None:
        w = ag.Parameter(START["w"].copy(), name="w")
        e._made["w"] = w, ...
        optimizer = optim.SGD([w], lr=0.0)
        for _ in range(2):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = of(e, (e.labelled(X) @ cc.cast(w, "dp", to=R) - e.labelled(Y)) ** 2)
            tape.backward(loss)
            if by_hand is not None:
                by_hand(w, e)
            optimizer.step()

    return steps(program)


def s_square(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def divide(w: Any, e: Rank) -> None:
    w.grad = w.grad / e.size


def times_a_share(w: Any, e: Rank) -> None:
    w.grad = (1 / e.size) * w.grad


def multiply(w: Any, e: Rank) -> None:
    w.grad = e.size * w.grad


def clip(w: Any, e: Rank) -> None:
    optim.clip_grad_norm_([w], 1e9)


# -- pipelines ---------------------------------------------------------------------------------------------------------
def pipeline(loss: Callable[..., Any], scale: Callable[[Any, int, int], Any], m: int = 4, rows: int = 60,
             labelled: bool = True, **options: Any) -> Callable[[cc.Mesh], Any]:  # fmt: skip
    """Two stages along pp and rows along dp: ``step(x, y, scale=scale(size of dp, microbatches, rows of all))``."""

    def run(mesh: cc.Mesh) -> Any:
        dp = mesh.axis("dp")
        layers = nn.Sequential(
            nn.Linear(4, 4, bias=False, dtype=float), nn.Tanh(), nn.Linear(4, 3, bias=False, dtype=float))
        layers[0].weight.data, layers[2].weight.data = START["g"].copy(), START["m"].copy()
        model = Pipeline(layers, loss, microbatches=m, data="dp", **options)
        x: Any
        t: Any
        x, t = (numpy.array_split(a[:rows], int(dp.size))[int(dp.rank)] for a in (X, T if loss_is_square(loss) else K))
        if labelled:
            x, t = (cc.from_local(a, {"dp": Shard(0), "pp": V}) for a in (x, t))
        model.step(x, t, scale=scale(dp.size, m, rows))
        names = {"0.weight": "g", "2.weight": "m"}
        return {names[name.removeprefix("module.")]:
                (numpy.asarray(whole_of(p.grad.array,  # type: ignore[union-attr]
                                        p.layout, "gradients", name)), ...)
                for name, p in model.named_parameters()}  # fmt: skip

    return run


def loss_is_square(loss: Any) -> bool:
    return getattr(loss, "targets", "square") == "square"


def classes(f: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of classes."""
    def of(z: Any, t: Any) -> Any:
        return f(z, t)

    of.targets = "classes"  # type: ignore[attr-defined]
    return of


def s_pipeline(rows: int = 60) -> Any:
    return lambda p, n: ((np.tanh(X[:rows] @ p["g"]) @ p["m"] - T[:rows]) ** 2).mean()


def s_pipeline_rows(p: Any, n: int) -> Any:
    return 3 * s_pipeline()(p, n)


def s_pipeline_classes(p: Any, n: int) -> Any:
    return s_deep(p, n)


def piped(is_right: bool, loss: Any, scale: Any, serial: Any, reading: Any = None, **options: Any) -> Program:
    return Program(pipeline(loss, scale, **options), serial, is_right, lambda n: {"dp": n, "pp": 2}, (2, 3), reading)


def summed(z: Any, t: Any) -> Any:
    return ((z - t) ** 2).sum()


SUM, MEAN = nn.MSELoss(reduction="sum"), nn.MSELoss()
ENTROPY_SUM = classes(lambda z, t: nn.cross_entropy(z, t, reduction="sum"))
ENTROPY = classes(lambda z, t: nn.cross_entropy(z, t))
OF_SIZE = Reading("1 / 180 has the number of ranks in it, and the sum is by 180 / n", each_counts(s_pipeline()), (2, 3))

PROGRAMS: dict[str, Program] = {
    # DataParallel and ZeRO
    **{f"{text}: {name}": make(trained(of, labelled, *names, **options), serial)
       for text, options in (("DataParallel", {}), ("ZeRO 1", {"zero": 1}), ("ZeRO 2", {"zero": 2}),
                             ("ZeRO 3", {"zero": 3}))
       for name, make, of, labelled, names, serial in (
           ("labelled mse_loss", right, lambda e, z, t: total(nn.mse_loss(z, t[0])), True, ("m",), s_mse),
           ("sum by all", right, lambda e, z, t: total(((z - t[0]) ** 2).sum() / 180), False, ("m",), s_mse),
           ("averaged", right, lambda e, z, t: mean(nn.cross_entropy(z, t[1])), False, ("g", "m"), s_deep),
           ("1 / 60 times a sum", right,
            lambda e, z, t: (1 / 60) * total(nn.cross_entropy(z, t[1], reduction="sum")), False, ("m",), s_entropy),
           ("mse_loss", wrong, lambda e, z, t: total(nn.mse_loss(z, t[0])), False, ("m",), s_mse),
           ("size times labelled", wrong, lambda e, z, t: e.size * total(nn.cross_entropy(z, t[1])), True, ("m",),
            s_entropy),
           ("1 / size times labelled", wrong, lambda e, z, t: total((1 / e.size) * nn.mse_loss(z, t[0])), True,
            ("m",), s_mse),
           ("cross-entropy sum by own", wrong,
            lambda e, z, t: total(nn.cross_entropy(z, t[1], reduction="sum") / len(t[1])), False, ("g", "m"), s_deep),
           ("averaged sum by all", wrong,
            lambda e, z, t: mean(nn.cross_entropy(z, t[1], reduction="sum") / 60), False, ("m",), s_entropy),
       )},
    # checkpoints
    "checkpoint of the layers, mean": wrong(lambda e: total(checkpointed(e, lambda d: d.mean())), s_checkpoint),
    "checkpoint of the layers, sum by own": wrong(
        lambda e: total((1 / len(e.own(X))) * checkpointed(e, lambda d: d.sum())), s_checkpoint),
    "checkpoint of the layers, averaged, size times": wrong(
        lambda e: e.size * mean(checkpointed(e, lambda d: d.mean())), s_checkpoint),
    "checkpoint of the layers, by all": right(
        lambda e: total(checkpointed(e, lambda d: d.sum()) / 60), s_checkpoint),
    "checkpoint of the layers, averaged": right(lambda e: mean(checkpointed(e, lambda d: d.mean())), s_checkpoint),
    "checkpoint of the loss, mean": wrong(lambda e: total(checkpointed_loss(e, lambda d: d.mean())), s_checkpoint),
    "checkpoint of the loss, sum by own": wrong(
        lambda e: total(checkpointed_loss(e, lambda d: d.sum() / len(d))), s_checkpoint),
    "checkpoint of the loss, averaged sum by all": wrong(
        lambda e: mean(checkpointed_loss(e, lambda d: d.sum() / 60)), s_checkpoint),
    "checkpoint of the loss, 1 / all times a sum": right(
        lambda e: total(checkpointed_loss(e, lambda d: (1 / 60) * d.sum())), s_checkpoint),
    "checkpoint of the loss and the sum, mean": wrong(
        lambda e: checkpointed_loss(e, lambda d: total(d.mean())), s_checkpoint),
    "checkpoint of the loss and the sum, size times": wrong(
        lambda e: checkpointed_loss(e, lambda d: e.size * mean(d.mean())), s_checkpoint),
    "checkpoint of the loss and the sum, by all": right(
        lambda e: checkpointed_loss(e, lambda d: total(d.sum()) / 60), s_checkpoint),
    # two losses, one after another
    "two backwards, second of means": wrong(
        in_turn(lambda e, w, m: total(square(e, w, m).sum() / 60), lambda e, w, m: total(entropy(e, w, m).mean())),
        s_in_turn),
    "two backwards, first of means": wrong(
        in_turn(lambda e, w, m: total(square(e, w, m).mean()), lambda e, w, m: total(entropy(e, w, m).sum() / 60)),
        s_in_turn),
    "two backwards, second averaged by all": wrong(
        in_turn(lambda e, w, m: mean(square(e, w, m).mean()), lambda e, w, m: mean(entropy(e, w, m).sum() / 60)),
        s_in_turn),
    "two backwards, size times the second": wrong(
        in_turn(lambda e, w, m: mean(square(e, w, m).mean()), lambda e, w, m: e.size * mean(entropy(e, w, m).mean())),
        s_in_turn),
    "two backwards, by all and averaged": right(
        in_turn(lambda e, w, m: total(square(e, w, m).sum() / 60), lambda e, w, m: mean(entropy(e, w, m).mean())),
        s_in_turn),
    "two backwards, by all": right(
        in_turn(lambda e, w, m: (1 / 60) * total(square(e, w, m).sum()),
                lambda e, w, m: total(entropy(e, w, m).sum()) / 60), s_in_turn),
    # gradients by hand
    "gradients divided by the size": wrong(two_steps(lambda e, d: total(d.mean()), divide), s_square),
    "1 / size times the gradients": wrong(two_steps(lambda e, d: total(d.mean()), times_a_share), s_square),
    "size times the gradients": wrong(two_steps(lambda e, d: total(d.mean()), multiply), s_square),
    "gradients that are clipped": right(two_steps(lambda e, d: total(d.mean()), clip), s_square),
    "a second step": right(two_steps(lambda e, d: total(d.sum()) / 60), s_square),
    # pipelines
    "pipeline: mean by their number": piped(True, lambda z, t: total(((z - t) ** 2).mean()),
                                            lambda size, m, rows: 1 / m, s_pipeline(), m=5),
    "pipeline: MSELoss(sum), scale by all elements": piped(
        True, SUM, lambda size, m, rows: 1 / (3 * rows), s_pipeline()),
    "pipeline: MSELoss(sum), scale by all rows": piped(True, SUM, lambda size, m, rows: 1 / rows, s_pipeline_rows),
    "pipeline: cross-entropy sum, scale by all rows": piped(
        True, ENTROPY_SUM, lambda size, m, rows: 1 / rows, s_pipeline_classes),
    "pipeline: reduced sum, scale by all elements": piped(
        True, lambda z, t: total(summed(z, t)), lambda size, m, rows: 1 / (3 * rows), s_pipeline()),
    "pipeline: MSELoss(sum), scale by all elements, by the size": piped(
        False, SUM, lambda size, m, rows: 1 / (3 * rows) / size, s_pipeline(),
        reading=Reading("a weight: Python divides a float by an int without asking the size",
                        lambda p, n: s_pipeline()(p, n) / n)),
    "pipeline: MSELoss(sum), scale size times": piped(
        False, SUM, lambda size, m, rows: size * (1 / (3 * rows)), s_pipeline(), reading=OF_SIZE),
    "pipeline: cross-entropy sum, scale 1 / size times": piped(
        False, ENTROPY_SUM, lambda size, m, rows: (1 / size) * (1 / rows), s_pipeline_classes),
    "pipeline: size times a reduced sum": piped(
        False, lambda z, t: cc.current_mesh().axis("dp").size * total(summed(z, t)),
        lambda size, m, rows: 1 / (3 * rows), s_pipeline(), reading=OF_SIZE),
    "pipeline: MSELoss(mean)": piped(False, MEAN, lambda size, m, rows: 1.0, s_pipeline(), m=5),
    "pipeline: cross-entropy mean": piped(False, ENTROPY, lambda size, m, rows: 1.0, s_pipeline_classes, m=5),
    "pipeline: a reduced mean of each microbatch": piped(
        False, lambda z, t: total(((z - t) ** 2).mean()), lambda size, m, rows: 1.0, s_pipeline(), m=5),
    "pipeline: cross-entropy sum, by the rows of the microbatch": piped(
        False, classes(lambda z, t: nn.cross_entropy(z, t, reduction="sum") / z.global_shape[0]),
        lambda size, m, rows: 1.0, s_pipeline_classes, m=5),
    "pipeline: plain, sum of means by their number": piped(
        False, lambda z, t: total(((z - t) ** 2).mean()), lambda size, m, rows: 1 / m, s_pipeline(), m=5,
        labelled=False),
    "pipeline: plain, reduced sum by all": piped(
        True, lambda z, t: total(summed(z, t)), lambda size, m, rows: 1 / (3 * rows), s_pipeline(), labelled=False),
    "pipeline: plain, averaged means by their number": piped(
        True, lambda z, t: mean(((z - t) ** 2).mean()), lambda size, m, rows: 1 / m, s_pipeline(), m=5, labelled=False),
    "pipeline: plain, 1 / their number in the loss": piped(
        True, lambda z, t: (1 / 5) * mean(((z - t) ** 2).mean()), lambda size, m, rows: 1.0, s_pipeline(), m=5,
        labelled=False),
    "pipeline: plain, averaged means": piped(
        False, lambda z, t: mean(((z - t) ** 2).mean()), lambda size, m, rows: 1.0, s_pipeline(), m=5, labelled=False),
}  # fmt: skip
