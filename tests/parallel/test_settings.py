"""Settings as objects: equal to the same settings one by one, and refused together with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import OptionError
from parallel import Axes, Bucketing, DataParallel, Pipeline, Trainer, Zero
from parallel.data.settings import stage_of


def layers() -> nn.Sequential:
    key = random.Key(0)
    a, b = key.fold("a"), key.fold("b")
    return nn.Sequential(nn.Linear(3, 4, key=a, dtype=float), nn.Linear(4, 2, key=b, dtype=float))


def gradients_of(model: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.numpy().tolist() for p in model.parameters()]


def summed(y: Any, targets: Any) -> Any:
    return cc.all_reduce(((y - targets) ** 2).sum(), "dp", to=cc.I)


def data_parallel(**given: Any) -> Any:
    """The settings that a model has, and the gradients of its parts on this rank."""
    with cc.Mesh(hosts=2, dp=2) as mesh:
        model = DataParallel(layers(), given.pop("axis", ("hosts", "dp")), **given)
        rank = int(mesh.ranks.rank)
        x = cc.from_local(np.full((1, 3), 1.0 + rank), {"hosts": cc.V, "dp": cc.V})
        with ag.Tape() as tape:
            loss = cc.all_reduce(model(x).sum(), ("hosts", "dp"), to=cc.I)
        tape.backward(loss)
        grads = gradients_of(model)
        return model.zero, model.replicate, {**model._buckets}, grads, len(model.kept_buffers())


def trainer(**given: Any) -> Any:
    made = Trainer(
        layers, nn.MSELoss(reduction="sum"), cc.Mesh(rows=2, pp=2),
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.1), **given,
    )  # fmt: skip
    x = np.arange(12.0).reshape(4, 3)
    return made.zero, made._batches.rows, made._batches.stages, [made.step(x, x[:, :2]) for _ in range(2)]


def pipeline(**given: Any) -> Any:
    with cc.Mesh(dp=2, pp=2):
        model = Pipeline(layers(), summed, microbatches=1, data="dp", **given)
        loss = model.step(np.ones((2, 3)), np.zeros((2, 2)))
        return loss, gradients_of(model)


class Same(NamedTuple):
    """Two ways to say the same."""

    run: Callable[..., Any]
    apart: dict[str, Any]
    together: dict[str, Any]


SAME = {
    "buckets": Same(
        data_parallel,
        {"bucket_bytes": 64, "first_bucket_bytes": 32, "buffers": 2},
        {"bucketing": Bucketing(64, 32, buffers=2)},
    ),
    "no settings": Same(data_parallel, {}, {"bucketing": Bucketing(), "zero": Zero()}),
    "ZeRO": Same(data_parallel, {"zero": 2}, {"zero": Zero(2)}),
    "ZeRO inside of hosts": Same(
        data_parallel,
        {"axis": "dp", "zero": 1, "replicate": "hosts"},
        {"axis": "dp", "zero": Zero(1, replicate="hosts")},
    ),
    "axes of a trainer": Same(trainer, {"batch": "rows"}, {"axes": Axes(batch="rows")}),
    "ZeRO and buckets of a trainer": Same(
        trainer,
        {"batch": ["rows"], "zero": 2, "bucket_bytes": 0},
        {"axes": Axes(["rows"]), "zero": Zero(2), "bucketing": Bucketing(0)},
    ),
    "ZeRO of a pipeline": Same(pipeline, {"zero": 1}, {"zero": Zero(1)}),
    "no ZeRO of a pipeline": Same(pipeline, {}, {"zero": Zero(0)}),
}


@pytest.mark.parametrize("name", SAME)
def test_an_object_says_the_same_as_its_parts(name: str) -> None:
    run, apart, together = SAME[name]
    assert cc.run(lambda: run(**apart), 4) == cc.run(lambda: run(**together), 4)


class Wrong(NamedTuple):
    """A call that is refused, and what its error says."""

    call: Callable[[], Any]
    says: str


def model(**given: Any) -> Any:
    return DataParallel(layers(), "dp", **given)


WRONG = {
    "buckets twice": Wrong(
        lambda: model(bucketing=Bucketing(64), buffers=2, bucket_bytes=0),
        r"DataParallel: bucketing=Bucketing\(bucket_bytes=64, .* and bucket_bytes=0, buffers=2 were given; needed: one "
        r"of the two\n  fix: bucketing=Bucketing\(bucket_bytes=0, buffers=2\)",
    ),
    "buckets as a number": Wrong(lambda: model(bucketing=64), "bucketing=64 was given; needed: a Bucketing"),
    "a negative size": Wrong(lambda: Bucketing(-1), "Bucketing: bucket_bytes=-1 was given; needed: an int of at least"),
    "no buffer": Wrong(lambda: Bucketing(buffers=0), "Bucketing: buffers=0 was given; needed: an int of at least 1"),
    "a negative size alone": Wrong(lambda: model(bucket_bytes=-1), "DataParallel: bucket_bytes=-1 was given"),
    "replicate twice": Wrong(
        lambda: model(zero=Zero(2, "hosts"), replicate="hosts"),
        r"DataParallel: zero=Zero\(stage=2, replicate='hosts'\) and replicate='hosts' were given; needed: one of the "
        r"two\n  fix: zero=Zero\(2, replicate='hosts'\)",
    ),
    "replicate without a stage": Wrong(lambda: Zero(replicate="hosts"), "Zero: replicate='hosts' was given with"),
    "replicate alone": Wrong(lambda: model(replicate="hosts"), "replicate='hosts' was given with zero=0"),
    "a stage of a float": Wrong(lambda: Zero(np.float64(1)), r"Zero: stage=np.float64\(1.0\) was given"),
    "an array as a name": Wrong(lambda: Zero(1, np.zeros(2)), "needed: the name of an axis, or a tuple of names"),
    "divided and repeated": Wrong(lambda: model(zero=Zero(2, ("hosts", "dp"))), "axis 'dp' was given in axis='dp' and"),
    "a stage of 4": Wrong(lambda: Zero(4), "Zero: stage=4 was given; needed: 0, 1, 2 or 3"),
    "zero=4": Wrong(lambda: model(zero=4), "DataParallel: zero=4 was given; needed: 0, 1, 2 or 3"),
    "axes twice": Wrong(
        lambda: trainer(axes=Axes("rows"), batch="rows", stages="pp"),
        r"Trainer: axes=Axes\(batch='rows', .* and batch='rows' were given; needed: one of the two\n  fix: "
        r"axes=Axes\(batch='rows'\)",
    ),
    "axes as a text": Wrong(lambda: trainer(axes="rows"), "Trainer: axes='rows' was given; needed: an Axes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mixtures_and_wrong_values_are_refused(name: str) -> None:
    call, says = WRONG[name]
    with pytest.raises(OptionError, match=says) as refused:
        cc.run(call, 4) if "axes" in name else call()
    # not that of the text from which Python makes the __init__ of a dataclass
    assert "\n  at test_settings.py:" in str(refused.value)


@pytest.mark.parametrize("made", [Bucketing(), Zero(3), Axes()])
def test_settings_are_immutable_values(made: Any) -> None:
    field = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, field, 1)
    assert made == type(made)(**{f.name: getattr(made, f.name) for f in dataclasses.fields(made)})
    assert [stage_of(x) for x in (0, 3, Zero(), Zero(2), Zero(np.int64(2)))] == [0, 3, 0, 2, 2]
