"""A user's program: modules, losses, optimizers, transforms, a custom operation, and training on several ranks.

`test_program.py` runs it. mypy checks it with the library, with the flags of ``--strict`` (pyproject.toml), and
``assert_type`` states what a type checker sees.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import numpy
from numpy.typing import NDArray

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from autograd.extend import op
from collectives import I, R, Shard
from parallel import DataParallel, verify


@dataclass
class Settings:
    """What the program can be called with."""

    width: int = 8
    steps: int = 6
    lr: float = 0.05
    ranks: int = 2


# -- operations on Tensors -------------------------------------------------------------------------------------------


def operations(x: ag.Tensor, a: NDArray[numpy.float64]) -> ag.Tensor:
    """Operators, methods and functions of Tensors give Tensors, also where the other operand is an array."""
    assert_type(x @ x.T, ag.Tensor)
    assert_type(np.tanh(x @ x.T), ag.Tensor)
    assert_type(a @ x + 2.0 * x - x / 3, ag.Tensor)
    assert_type(x[0] ** 2, ag.Tensor)
    assert_type(x.reshape(-1).sum(), ag.Tensor)
    assert_type(np.where(x > 0, x, 0.1 * x), ag.Tensor)
    assert_type(np.maximum(0.0, x), ag.Tensor)
    assert_type(np.concatenate([x, x], axis=1), ag.Tensor)
    assert_type(np.stack([x, x]).mean(axis=0), ag.Tensor)
    assert_type(np.split(x, 2), list[ag.Tensor])
    assert_type(np.einsum("ij,kj->ik", x, x), ag.Tensor)
    assert_type(np.linalg.inv(x @ x.T), ag.Tensor)
    assert_type(np.fft.rfft(x), ag.Tensor)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.ndim, int)
    assert_type(x.device, str)
    assert_type(x.detach().clone(), ag.Tensor)
    assert_type(x.split(1), tuple[ag.Tensor, ...])
    assert_type([row.max() for row in x], list[ag.Tensor])
    whole: ag.Tensor = np.sum(np.linalg.norm(x, axis=1)) + np.log1p(np.exp(x)).mean()
    print(f"{whole:.4f} {float(whole):.2f} {x.dtype} {x.numpy().max()}")
    return whole


def constants(n: int) -> NDArray[numpy.float64]:
    """The names that are NumPy's have NumPy's types."""
    table = np.zeros((n, n), dtype=np.float64)
    table[0] = np.float64(np.pi)
    assert_type(np.arange(n).shape, tuple[int])
    return table + np.eye(n)


# -- a model ---------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A block with a skip connection and a gate of its own."""

    def __init__(self, width: int, gate: float = 0.5) -> None:
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)
        self.gate = ag.Parameter(numpy.full(width, gate))

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        y = self.inner(self.norm(x))
        assert_type(y, ag.Tensor)
        return x + self.gate * y


class Classifier(nn.Module):
    """Residual blocks, and a head. It returns the logits and the features."""

    def __init__(self, inputs: int, classes: int, width: int, depth: int = 2) -> None:
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList([Residual(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def features(self, x: ag.Tensor | numpy.ndarray) -> ag.Tensor:
        h = nn.relu(self.embed(x))
        for block in self.blocks:
            h = block(h)
        return h

    def forward(self, x: ag.Tensor | numpy.ndarray, scale: float = 1.0) -> tuple[ag.Tensor, ag.Tensor]:
        h = self.features(x)
        return self.head(h) * scale, h


def data(n: int = 12, seed: int = 0) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Rows of two features, and their class."""
    rng = numpy.random.default_rng(seed)
    rows = rng.standard_normal((n, 2))
    return rows, (rows[:, 0] > rows[:, 1]).astype(numpy.int64)


def batches(rows: numpy.ndarray, labels: numpy.ndarray, size: int) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """Successive parts of the rows."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size], labels[start : start + size]


def train(settings: Settings) -> list[float]:
    """Train on one process, with a schedule and clipping; save and load the model."""
    rows, labels = data()
    model = Classifier(2, 2, settings.width)
    assert_type(model(rows, scale=2.0), tuple[ag.Tensor, ag.Tensor])
    optimizer = optim.AdamW(model.parameters(), lr=optim.schedules.cosine_annealing_lr(settings.lr, settings.steps))
    losses: list[float] = []
    for _ in range(settings.steps):
        for x, y in batches(rows, labels, 6):
            with ag.Tape() as tape:
                logits, _ = model(x)
                loss = nn.cross_entropy(logits, y)
                assert_type(loss, ag.Tensor)
            tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        nn.save(model, Path(folder) / "model.npz")
        nn.load(model.eval(), Path(folder) / "model.npz")
    return losses


def by_hand(w: ag.Parameter, x: numpy.ndarray, lr: float = 0.1) -> float:
    """An update of a parameter without an optimizer."""
    with ag.Tape() as tape:
        loss = nn.mse_loss(x @ w, numpy.ones(len(x)))
    tape.backward(loss)
    assert_type(w.grad, ag.Tensor | None)
    if w.grad is not None:
        w.data = w.data - lr * w.grad.numpy()
    w.zero_grad()
    return float(loss)


# -- transforms and an operation of one's own --------------------------------------------------------------------------

cube = op("cube (example)", "N", lambda x: x**3, (lambda ct, y, x: 3 * ct * x**2,), saves="0", operands="x")
"""An operation that is declared with its adjoint."""


def energy(x: ag.Tensor) -> ag.Tensor:
    """A function of a vector."""
    y = cube(x)
    assert_type(y, ag.Tensor)
    return np.sum(y * np.cos(x))


def transforms(x: numpy.ndarray) -> Any:
    """Gradients, Jacobians and products of a function."""
    gradient: Callable[..., Any] = ag.grad(energy)
    value, again = ag.value_and_grad(energy)(x)
    numpy.testing.assert_allclose(gradient(x), again)
    curvature = ag.hessian(energy)(x)
    numpy.testing.assert_allclose(ag.hvp(energy, (x,), (x,))[1], curvature @ x)
    _, tangent = ag.jvp(energy, (x,), (x,))
    numpy.testing.assert_allclose(tangent, again @ x)
    ag.testing.check_grads(energy, x)
    return value


# -- several ranks -----------------------------------------------------------------------------------------------------


def loss_of(model: nn.Module, x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
    """The mean of the squared errors over the rows of all ranks."""
    errors = model(x) - y
    total = cc.all_reduce((errors * errors).sum(), "dp", to=I)
    assert_type(total / 2.0, ag.Tensor)
    return total / x.global_shape[0]


def distributed(settings: Settings) -> list[float]:
    """Data-parallel training; every rank of `run` calls it."""
    rows, labels = data()
    with cc.Mesh(dp=settings.ranks) as mesh:
        part = slice(mesh.axis("dp").rank, None, settings.ranks)
        x = cc.from_local(rows[part], {"dp": Shard(0)})
        y = cc.from_local(labels[part, None].astype(float), {"dp": Shard(0)})
        model = DataParallel(nn.Sequential(nn.Linear(2, settings.width), nn.Tanh(), nn.Linear(settings.width, 1)), "dp")
        assert_type(model(x), ag.Tensor)
        assert_type(cc.all_gather(x, "dp"), ag.Tensor)
        w = ag.Parameter(numpy.ones(2))
        assert_type(x @ cc.cast(w, "dp", to=R), ag.Tensor)
        optimizer: optim.Optimizer = optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9)
        losses: list[float] = []
        for _ in range(settings.steps):
            with ag.Tape() as tape:
                loss = loss_of(model, x, y)
            tape.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
        return losses


def main(settings: Settings) -> tuple[list[float], list[list[float]]]:
    """Run all parts, and return the losses of both trainings."""
    x = ag.Parameter(numpy.array([[1.0, 2.0], [0.5, -1.0]]))
    operations(x, constants(2))
    transforms(numpy.array([0.5, -1.0, 2.0]))
    first = by_hand(ag.Parameter([0.0, 0.0]), data()[0])
    losses = train(settings)
    return [first, *losses], cc.run(lambda: distributed(settings), settings.ranks)


if __name__ == "__main__":
    print(main(Settings()), verify.__name__, cc.__version__)
