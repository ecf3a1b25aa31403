"""The GPT of the examples, divided by a plan, and its training with and without a mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.whole import whole_of
from collectives import I, Shard
from examples.gpt import Config, Loss, gpt
from parallel import Column, DataParallel, Row, Sequence, Vocabulary, parallelize

HEAD = 4
CONFIG = Config(vocabulary=13, width=6 * HEAD, heads=6, layers=2, dropout=0.3)
ROWS, TOKENS, STEPS = 4, 7, 3
_draw = np.random.default_rng(1).integers
X, Y = _draw(0, CONFIG.vocabulary, (ROWS, TOKENS)), _draw(0, CONFIG.vocabulary, (ROWS, TOKENS))


def plan(sequence: bool = False) -> dict[str, Any]:
    """Any number of ranks up to 6: each has whole heads, and the vocabulary is divided unevenly."""
    to = Shard(1) if sequence else I
    found: dict[str, Any] = {
        "0.table": Vocabulary("tp", to=to), "*.qkv": Column("tp", blocks=3, unit=HEAD),
        "*.proj": Row("tp", to=to, unit=HEAD), "*.up": Column("tp"), "*.down": Row("tp", to=to),
        "*.out": Vocabulary("tp"),
    }  # fmt: skip
    return {**found, "*.norm*": Sequence("tp")} if sequence else found


def make_model(config: Config = CONFIG, dtype: Any = float) -> nn.Sequential:
    return gpt(config, random.Key(4), dtype)


def divided_model(sequence: bool = False, config: Config = CONFIG, dtype: Any = float) -> nn.Sequential:
    return parallelize(make_model(config, dtype), plan(sequence))


def divided_loss() -> Loss:
    return parallelize(Loss(), {"rows": Vocabulary("tp")})


def with_checkpoints(model: nn.Sequential) -> nn.Sequential:
    """Each block computed again in backward."""
    for block in model.layers[1:-1]:
        block.forward = ag.checkpoint(block.forward)  # type: ignore[method-assign]
    return model


class Run(NamedTuple):
    losses: list[float]
    gradients: dict[str, Any]
    """Of the first step, whole."""
    parameters: dict[str, Any]
    """After the last step, whole."""


def whole_gradients(model: nn.Module) -> dict[str, Any]:
    return {
        name: None if p.grad is None else whole_of(p.grad.array, p.layout, "test", name)
        for name, p in model.named_parameters()
    }


def train(model: nn.Module, loss_of: Any, part: Callable[[Any], Any], total: Callable[[Any], Any]) -> Run:
    """`STEPS` steps of AdamW with clipping, with dropout."""
    optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    random.seed(7)
    losses: list[float] = []
    first: dict[str, Any] = {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = total(loss_of(model(part(X)), part(Y)) / X.size)
        tape.backward(loss)
        losses.append(float(loss))
        first = first or whole_gradients(model)
        optim.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return Run(losses, first, model.state_dict())


@cache
def serial() -> Run:
    return train(make_model(), Loss(), lambda a: a, lambda loss: loss)


def program_of(sequence: bool, sizes: dict[str, int], prepare: Any = None, entry: Any = "dp", **data: Any) -> Any:
    """The training on a mesh with the axis "tp", and perhaps "dp"."""

    def program() -> Run:
        with cc.Mesh(**sizes) as mesh:
            model: Any = divided_model(sequence)
            model = model if prepare is None else prepare(model)
            if "dp" not in mesh.names:
                part = lambda a: cc.from_local(a, {"tp": I})
                return train(model, divided_loss(), part, lambda loss: loss)
            on = mesh.axis("dp")

            def part(a: Any) -> Any:
                return cc.from_local(np.array_split(a, on.size)[int(on.rank)], {"dp": Shard(0), "tp": I})

            model = DataParallel(model, entry, **data)
            return train(model, divided_loss(), part, lambda loss: cc.all_reduce(loss, "dp", to=I))

    return program


def assert_equal(ours: Run, theirs: Run | None = None) -> None:
    """Loss, first gradients and last parameters are those of the serial training."""
    theirs = serial() if theirs is None else theirs
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=0, atol=1e-11)
    for mine, expected, tolerance in (
        (ours.gradients, theirs.gradients, 1e-10), (ours.parameters, theirs.parameters, 1e-8),
    ):  # fmt: skip
        assert list(mine) == list(expected)
        for name, g in expected.items():
            difference = np.linalg.norm(mine[name].reshape(g.shape) - g)
            assert difference <= tolerance * np.linalg.norm(g), f"{name}: {difference}"
