"""A row of the tables, a rank's view that the programs use, and what running one of them tells."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.errors import GradientWarning, ReplicaWarning, RingtapeError
from autograd.whole import whole_of
from collectives import R, Shard
from parallel import DataParallel

from ..meshes import START, K, Ranks, X, Y, mean, total

__all__ = [
    "K", "Outcome", "Program", "Rank", "Reading", "START", "X", "Y", "difference", "each_counts", "mean", "outcome",
    "ratios", "right", "steps", "total", "wrong",
]  # fmt: skip

Gradients = dict[str, Any]
Serial = Callable[[Any, int], Any]


def each_counts(serial: Serial) -> Serial:
    """The loss that counts n times: a sum over the ranks, each with a whole of its own."""
    return lambda p, n: n * serial(p, n)


class Reading(NamedTuple):
    """What else a wrong program may mean: with this loss of one process the same program, and its tape, is right.

    So nothing can be told of it. `at` are the numbers of ranks for which this is so.
    """

    why: str
    serial: Callable[[Any, int], Any]
    at: tuple[int, ...] = (2, 3, 4, 5)


class Program(NamedTuple):
    """A whole program: ``run(mesh)`` on each rank returns its gradients with their parts of the whole.

    Attributes
    ----------
    serial : the loss of one process, a function of the whole parameters and the number of ranks
    is_right : whether the gradients are those of `serial`
    axes : the mesh for n ranks of dp
    ranks : the numbers of ranks for which this program is what it is
    reading : why nothing is told of a wrong program
    """

    run: Callable[[cc.Mesh], Gradients]
    serial: Callable[[Any, int], Any]
    is_right: bool
    axes: Callable[[int], Mapping[str, int]] = lambda n: {"dp": n}
    ranks: tuple[int, ...] = (2, 3, 4, 5)
    reading: Reading | None = None

    def reason(self, n: int) -> str:
        """Why nothing can be told on n ranks, or ""."""
        return self.reading.why if self.reading is not None and n in self.reading.at else ""


class Rank(Ranks):
    """One rank's parameters, rows and models."""

    def __init__(self, mesh: cc.Mesh):
        super().__init__(mesh)
        self.size = self.dp.size
        self._models: list[nn.Module] = []

    def model(self, *names: str, **options: Any) -> DataParallel:
        """Linear layers with the parameters of these names, with Tanh between them, each on all ranks."""
        layers: list[nn.Module] = []
        for name in names or ("m",):
            layer = nn.Linear(START[name].shape[0], START[name].shape[1], bias=False, dtype=float)
            layer.weight.data = START[name].copy()
            layers += [layer, nn.Tanh()]
        self._models.append(nn.Sequential(*layers[:-1]))
        self._names = names or ("m",)
        return DataParallel(self._models[-1], options.pop("axis", "dp"), **options)

    def labelled(self, *arrays: Any) -> Any:
        """This rank's rows of arrays as Shards."""
        layout = {"dp": Shard(0)} | {axis: R for axis in self.mesh.names if axis != "dp"}
        made = [cc.from_local(numpy.ascontiguousarray(self.own(a)), layout) for a in arrays]
        return made[0] if len(made) == 1 else made

    def gradients(self) -> Gradients:
        found = super().gradients()
        for model in self._models:
            for name, (_, p) in zip(self._names, model.named_parameters(), strict=True):
                if p.grad is not None:
                    found[name] = numpy.asarray(whole_of(p.grad.array, p.layout, "gradients", name)), ...
        return found


def of_loss(loss: Callable[[Rank], Any]) -> Callable[[cc.Mesh], Gradients]:
    """The program of one loss and one backward."""

    def run(mesh: cc.Mesh) -> Gradients:
        e = Rank(mesh)
        with ag.Tape() as tape:
            value = loss(e)
        tape.backward(value)
        return e.gradients()

    return run


class steps:
    """Marks a function of a `Rank` that runs its own tapes."""

    def __init__(self, f: Callable[[Rank], Any]):
        self.f = f

    def __call__(self, mesh: cc.Mesh) -> Gradients:
        e = Rank(mesh)
        self.f(e)
        return e.gradients()


def _program(of: Any, serial: Any, is_right: bool, **words: Any) -> Program:
    return Program(of if isinstance(of, steps) else of_loss(of), serial, is_right, **words)


def right(of: Any, serial: Any, **words: Any) -> Program:
    """A right program, of a loss or of `steps`."""
    return _program(of, serial, True, **words)


def wrong(of: Any, serial: Any, **words: Any) -> Program:
    """A wrong program, of a loss or of `steps`."""
    return _program(of, serial, False, **words)


class Outcome(NamedTuple):
    """What was told, as texts that begin with the class, and the gradients of the last rank, if there are any."""

    told: list[str]
    gradients: Gradients | None


def outcome(row: Program, n: int, setting: str = "warn") -> Outcome:
    axes = row.axes(n)
    found: Gradients | None = None
    told: list[str] = []

    def main() -> Any:
        with cc.Mesh(**axes) as mesh:
            return row.run(mesh)

    cc.check(scale=setting)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = cc.run(main, math.prod(axes.values()))[-1]
            except RingtapeError as error:
                told.append(f"{type(error).__name__}: {error}")
    finally:
        cc.check(scale="warn")
    mine = [each for each in caught if issubclass(each.category, GradientWarning | ReplicaWarning)]
    return Outcome(told + [f"{each.category.__name__}: {each.message}" for each in mine], found)


def serial_gradients(serial: Callable[[Any, int], Any], n: int) -> Gradients:
    p = {name: ag.Parameter(value.copy(), name=name) for name, value in START.items()}
    with ag.Tape() as tape:
        value = serial(p, n)
    tape.backward(value)
    return {name: numpy.zeros(each.shape) if each.grad is None else each.grad.numpy() for name, each in p.items()}


def ratios(serial: Callable[[Any, int], Any], n: int, found: Gradients) -> dict[str, Any]:
    """The gradients divided by those of one process, entry by entry."""
    wanted = serial_gradients(serial, n)
    with numpy.errstate(all="ignore"):
        return {name: numpy.ravel(g / wanted[name][part]) for name, (g, part) in found.items()}


def difference(serial: Callable[[Any, int], Any], n: int, found: Gradients) -> float:
    """The largest difference of the gradients from those of one process, relative to the largest entry."""
    wanted, worst = serial_gradients(serial, n), 0.0
    for name, (g, part) in found.items():
        worst = max(worst, float(numpy.abs(g - wanted[name][part]).max() / max(numpy.abs(wanted[name]).max(), 1e-9)))
    return worst
