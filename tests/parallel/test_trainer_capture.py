"""`Trainer(capture=True)`: the bits of a trainer that is not captured, or a refusal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CaptureError, OptionError
from parallel import Column, Row, Trainer
from parallel.data.settings import Zero
from parallel.expert.side_losses import add_side_loss

from . import trainer_programs as programs

ROWS = numpy.random.default_rng(0).standard_normal((10, 12, 5)).astype("float32")
LABELS = numpy.random.default_rng(1).integers(0, 4, (10, 12))


def model() -> nn.Sequential:
    key = random.Key(0)
    return nn.Sequential(
        nn.Linear(5, 8, key=key.fold("up")), nn.Tanh(), nn.Linear(8, 8, key=key.fold("down")),
        nn.Linear(8, 4, key=key.fold("out")),
    )  # fmt: skip


def trained(sizes: dict[str, int], capture: bool, *, changes: Callable[[Any, int], None] | None = None,
            count: Any = None, model: Callable[[], nn.Sequential] = model, **options: Any) -> Any:  # fmt: skip
    options.setdefault("optimizer", lambda parameters: optim.Adam(parameters, lr=0.01))
    trainer = Trainer(
        model, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(**sizes), {"0": Column("tp"), "2": Row("tp")},
        capture=capture, **options,
    )  # fmt: skip
    found = []
    for i, (x, y) in enumerate(zip(ROWS, LABELS, strict=True)):
        if changes is not None:
            changes(trainer, i)
        n = None if count is None else count(i)
        found.append((trainer.step(x, y, n), trainer.norm, trainer.steps, trainer.last_loss))
    with trainer._on_mesh():
        left = {name: p.local.tobytes() for name, p in trainer.parameters.items()}
    return found, left, trainer


def program(sizes: dict[str, int], **options: Any) -> Any:
    losses, left, _ = trained(sizes, False, **options)
    others, found, trainer = trained(sizes, True, **options)
    assert others == losses
    assert found == left
    return trainer._captured.replays


MESHES: dict[str, tuple[int, dict[str, int]]] = {
    "one": (1, {}), "dp": (2, {"dp": 2}), "three": (3, {"dp": 3}), "tp": (2, {"tp": 2}),
    "both": (4, {"dp": 2, "tp": 2}),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "microbatches": {"microbatches": 2}, "clip": {"clip": 0.1}, "zero": {"zero": 2},
    "ZeRO 3 of microbatches, clipped": {"zero": Zero(3), "microbatches": 3, "clip": 0.2},
    "SGD": {"optimizer": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9)},
    "counts": {"count": lambda i: 12 + i},
    "a rate that falls": {"changes": lambda t, i: vars(t.optimizer).update(lr=0.1 / (1 + i))},
    "a schedule": {"optimizer": lambda ps: optim.AdamW(ps, lr=optim.schedules.cosine_annealing_lr(0.1, 20))},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mesh", MESHES)
def test_bits(mesh: str, options: str) -> None:
    ranks, sizes = MESHES[mesh]
    replays = cc.run(lambda: program(sizes, **OPTIONS[options]), ranks)
    assert min(replays) == max(replays) >= 6


def test_state_is_saved_and_loaded() -> None:
    def changes(trainer: Any, i: int) -> None:
        if i == 3:
            trainer.kept = trainer.state_dict()
        if i == 7:
            trainer.load_state_dict(trainer.kept)

    losses, left, _ = trained({}, False, changes=changes)
    others, found, trainer = trained({}, True, changes=changes)
    assert (others, found) == (losses, left)
    assert trainer._captured.replays >= 4
    assert trainer.evaluate(ROWS[0], LABELS[0]) > 0


def test_another_shape_is_recorded_too() -> None:
    def run(capture: bool) -> Any:
        trainer = Trainer(model, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(), capture=capture,
                          optimizer=lambda parameters: optim.SGD(parameters, lr=0.1))  # fmt: skip
        return [trainer.step(x[:n], y[:n]) for x, y, n in zip(ROWS, LABELS, [12, 12, 12, 12, 5] * 2, strict=True)]

    assert run(True) == run(False)


def test_refusals() -> None:
    with pytest.raises(OptionError, match="capture=1 was given"):
        trained({}, 1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="bits='same'.*\n  fix: capture=False, or bits=None"):
        trained({}, True, bits="same")

    def with_stages() -> None:
        with pytest.raises(OptionError, match="2 stages.*\n  fix: capture=False, or a mesh without 'pp'"):
            trained({"pp": 2}, True)

    cc.run(with_stages, 2)


class Twice(nn.Module):
    """Dropout by functions, and by a layer that is computed again in the backward pass; and noise."""

    def __init__(self) -> None:
        self.inner = nn.Sequential(nn.Linear(8, 8, key=random.Key(1)), nn.Dropout(0.4), nn.Tanh())

    def forward(self, x: Any) -> Any:
        x = nn.dropout(x, 0.3, self.training) + 0.1 * random.normal(random.next_key("noise"), x, dtype="float32")
        return nn.dropout(ag.checkpoint(self.inner)(x), 0.2, self.training)


class Encoder(nn.Module):
    """A layer of a transformer with dropout in four places, for sequences of one token."""

    def __init__(self) -> None:
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, key=random.Key(2))

    def forward(self, x: Any) -> Any:
        return self.layer(x[:, None])[:, 0]


def dropping() -> nn.Sequential:
    key = random.Key(0)
    return nn.Sequential(
        nn.Linear(5, 8, key=key.fold("up")), nn.Dropout(0.5), nn.Linear(8, 8, key=key.fold("down")), Twice(),
        Encoder(), nn.Linear(8, 4, key=key.fold("out")),
    )  # fmt: skip


DRAWS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "microbatches": ({}, {"microbatches": 3, "clip": 0.1}), "three": ({"dp": 3}, {"zero": 2}), "tp": ({"tp": 2}, {}),
    "a stage of one rank": ({"pp": 1}, {"seed": 5}), "ZeRO 3": ({"dp": 2}, {"zero": 3, "microbatches": 2}),
}  # fmt: skip


@pytest.mark.parametrize("case", DRAWS)
def test_dropout(case: str) -> None:
    """Each step, microbatch and layer has masks of its own, which are those of a trainer that is not captured."""
    sizes, options = DRAWS[case]

    def compared() -> tuple[int, list[float]]:
        losses, left, _ = trained(sizes, False, model=dropping, **options)
        others, found, trainer = trained(sizes, True, model=dropping, **options)
        assert others == losses
        assert found == left
        return trainer._captured.replays, [loss for loss, *_ in losses]

    replays, losses = zip(*cc.run(compared, math.prod(sizes.values())), strict=True)
    assert min(replays) >= 6
    assert len(set(losses[0])) == len(losses[0])


# Random programs of a trainer, each at a seam with another part: dropout, ranks without a row and LAMB; a vocabulary in
# parts and an axis of one stage; recomputation, sums of tokens and ZeRO 2; zigzag order.
SEEDS = [4, 15, 18, 36]
OTHERS = {7: "MixtureOfExperts, whose routing depends on values,.*\n  fix: the step itself, without capture",
          5: "numpy made plain data of a value"}  # fmt: skip


def steps_of(p: programs.Program, capture: bool) -> Any:
    trainer = Trainer(p.model, p.loss(), cc.Mesh.fit(**p.sizes), copy.copy(p.plan), capture=capture,
                      optimizer=programs.OPTIMIZERS[p.optimizer], **p.options)  # fmt: skip
    found = [(trainer.step(*p.batch(i)), trainer.norm) for i in range(8)]
    with trainer._on_mesh():
        left = {name: q.local.tobytes() for name, q in trainer.parameters.items()}
    return found, left, trainer._captured.replays if capture else 0


def drawn(seed: int) -> programs.Program:
    p = programs.drawn(seed)
    p.options.pop("schedule", None)
    p.options["microbatches"] = min(p.options["microbatches"], 2)
    return p


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed: int) -> None:
    p = drawn(seed)
    plain = cc.run(lambda: steps_of(p, False), p.ranks)
    captured = cc.run(lambda: steps_of(p, True), p.ranks)
    for (losses, left, _), (others, found, replays) in zip(plain, captured, strict=True):
        assert (others, found) == (losses, left)
        assert replays >= 4


@pytest.mark.parametrize("seed", OTHERS)
def test_random_programs_that_are_refused(seed: int) -> None:
    p = drawn(seed)
    with pytest.raises(CaptureError, match=OTHERS[seed]):
        cc.run(lambda: steps_of(p, True), p.ranks)


def test_dropout_goes_on_from_a_saved_step() -> None:
    def changes(trainer: Any, i: int) -> None:
        if i == 3:
            trainer.kept = trainer.state_dict()
        if i == 7:
            trainer.load_state_dict(trainer.kept)
            random.seed(9)  # the thread's keys are not those of the layers

    losses, left, _ = trained({}, False, changes=changes, model=dropping)
    others, found, trainer = trained({}, True, changes=changes, model=dropping)
    assert (others, found) == (losses, left)
    assert trainer._captured.replays >= 4


@pytest.mark.parametrize("sizes", [{}, {"dp": 2}])
def test_another_clip_and_another_optimizer_count(sizes: dict[str, int]) -> None:
    def changes(trainer: Any, i: int) -> None:
        if i == 5:
            trainer.clip = 0.01
        if i == 8:
            trainer.optimizer = optim.SGD(list(trainer.parameters.values()), lr=0.001)

    def compared() -> int:
        losses, left, _ = trained(sizes, False, changes=changes, clip=10.0)
        others, found, trainer = trained(sizes, True, changes=changes, clip=10.0)
        assert (others, found) == (losses, left)
        return int(trainer._captured.replays)

    assert min(cc.run(compared, max(1, *sizes.values()) if sizes else 1)) >= 2


def test_a_side_loss_is_added() -> None:
    class Balanced(nn.Module):
        def forward(self, x: Any) -> Any:
            add_side_loss((x * x).sum() * 0.1)
            return x

    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Linear(5, 4, key=random.Key(0)), Balanced())

    def compared() -> tuple[int, float]:
        losses, left, _ = trained({"dp": 2}, False, model=layers, microbatches=2)
        others, found, trainer = trained({"dp": 2}, True, model=layers, microbatches=2)
        assert (others, found) == (losses, left)
        return trainer._captured.replays, losses[0][0]

    replays, losses = zip(*cc.run(compared, 2), strict=True)
    assert min(replays) >= 6
    without = trained({}, False, model=lambda: nn.Sequential(*layers().layers[:1]))[0]
    assert losses[0] > without[0][0]
