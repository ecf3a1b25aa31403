"""Programs with natural mistakes, as users write them. `tests/parallel/test_wrong_programs.py` runs them all.

Each program trains the same small network on the same seven rows, and has one mistake. It returns the gradients that it
found (or a parameter after some steps). `serial` computes them without ranks. A program is *refused* if it raises an
error of ringtape on a rank, and *exact* if its gradients are those of the serial program after all.

Programs that run to their end with wrong gradients are in `silent`, each with the reason why only a comparison with the
serial program can see the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, P, R, Rooted, Shard, V

from ...proofs.cases import Case

__all__ = [
    "I", "P", "PROGRAMS", "R", "Rooted", "SHAPES", "Shard", "T", "V", "X", "ag", "cc", "draw", "entered",
    "exact", "gradients", "model", "np", "numpy", "parameters", "refused", "row_slice", "serial", "sharded",
    "squares",
]  # fmt: skip

SHAPES = {"W1": (4, 6), "b1": (6,), "W2": (6, 3), "b2": (3,)}


def draw(name: str, *shape: int) -> Any:
    """The same numbers on every rank."""
    return numpy.random.default_rng(list(name.encode())).standard_normal(shape)


X, T = draw("rows", 7, 4), draw("targets", 7, 3)


def squares(y: Any, t: Any) -> Any:
    """The sum of the squared errors of the rows that the ranks hold."""
    return ((y - t) ** 2).sum()


PROGRAMS: dict[str, Case] = {}


def refused(error: str, *says: str, alone: bool | None = None, **axes: int) -> Any:
    """Decorator: a program that an error refuses. A LayoutError comes on a single rank too, if not told otherwise."""

    def register(run: Any) -> Any:
        on_one = error == "LayoutError" if alone is None else alone
        assert run.__name__ not in PROGRAMS, run.__name__
        PROGRAMS[run.__name__] = Case(run, None, None, says, error, axes or {"dp": 3}, on_one)
        return run

    return register


def exact(**axes: int) -> Any:
    """Decorator: a program whose gradients are right, although it looks like a mistake."""

    def register(run: Any) -> Any:
        assert run.__name__ not in PROGRAMS, run.__name__
        PROGRAMS[run.__name__] = Case(None, run, serial, axes=axes or {"dp": 3})
        return run

    return register


# -- the network, and its parts on a rank ------------------------------------------------------------------------------
def model(p: dict[str, Any], x: Any) -> Any:
    return np.tanh(x @ p["W1"] + p["b1"]) @ p["W2"] + p["b2"]


def parameters() -> dict[str, Any]:
    """The parameters, the same on every rank: Invariant."""
    return {name: ag.Parameter(draw(name, *shape), name=name) for name, shape in SHAPES.items()}


def entered(p: dict[str, Any], axis: str = "dp") -> dict[str, Any]:
    """The parameters as they are used with data that are divided along an axis."""
    return {name: cc.cast(value, axis, to=R) for name, value in p.items()}


def row_slice(mesh: cc.Mesh, axis: str = "dp", n: int = 7) -> slice:
    """This rank's rows, by numpy.array_split: 3, 2 and 2 of 7 on three ranks."""
    on = mesh.axis(axis)
    part = numpy.array_split(numpy.arange(n), on.size)[int(on.rank)]
    return slice(int(part[0]), int(part[-1]) + 1)


def sharded(mesh: cc.Mesh, axis: str = "dp") -> tuple[Any, Any]:
    """Rows and targets as the README makes them: this rank's part of arrays that every rank has."""
    labels = dict.fromkeys(mesh.names, R)
    return tuple(cc.shard(ag.tensor(a, layout=labels), axis) for a in (X, T))


def gradients(p: dict[str, Any]) -> dict[str, Any]:
    """The gradients of parameters that every rank has in full."""
    return {name: value.grad.numpy() for name, value in p.items()}


def serial(loss: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """The gradients of a loss on one process, without ranks; by default of the mean squared error."""
    loss = loss or (lambda p: ((model(p, X) - T) ** 2).sum() / 7)
    return ag.grad(loss)({name: draw(name, *shape) for name, shape in SHAPES.items()})
