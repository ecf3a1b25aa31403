"""`Trainer(capture=True)`: the bits of a trainer that is not captured, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CaptureError, OptionError
from parallel import Column, Row, Trainer
from parallel.data.settings import Zero

ROWS = numpy.random.default_rng(0).standard_normal((10, 12, 5)).astype("float32")
LABELS = numpy.random.default_rng(1).integers(0, 4, (10, 12))


def model() -> nn.Sequential:
    key = random.Key(0)
    return nn.Sequential(
        nn.Linear(5, 8, key=key.fold("up")), nn.Tanh(), nn.Linear(8, 8, key=key.fold("down")),
        nn.Linear(8, 4, key=key.fold("out")),
    )  # fmt: skip


def trained(sizes: dict[str, int], capture: bool, *, changes: Callable[[Any, int], None] | None = None,
            count: Any = None, **options: Any) -> Any:  # fmt: skip
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


def test_layers_that_draw_are_refused() -> None:
    def dropping() -> nn.Sequential:
        return nn.Sequential(nn.Linear(5, 4, key=random.Key(0)), nn.Dropout(0.5))

    trainer = Trainer(dropping, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(), capture=True,
                      optimizer=lambda parameters: optim.SGD(parameters, lr=0.1))  # fmt: skip
    with pytest.raises(CaptureError, match="draws random numbers"):
        trainer.step(ROWS[0], LABELS[0])
