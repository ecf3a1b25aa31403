"""verify: every gradient of a distributed model beside that of the same model on one rank, in float64.

A loss that falls proves nothing: a forgotten sum, one sum too many or a wrong divisor all train. This compares. Rank 0
runs the model once more, outside the mesh and alone, on the whole batch and in float64, and each rank compares what it
holds. A gradient passes if

    norm(distributed - serial) <= tolerance * max(norm(serial), 1e-6 * norm(all serial gradients))

and a parameter that is unused (its gradient is None) must be unused in both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import collectives as cc
from autograd import random
from autograd.arrays.device import to_host
from autograd.engine.parameter import Leaf, Parameter
from autograd.engine.state import no_grad, state
from autograd.engine.tape import Tape
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import LayoutError, MeshError, RingtapeError, ShapeError, TapeError
from autograd.layouts.layout import C, D, I, P, R, Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import global_shape
from autograd.nn import Module
from collectives import Mesh, current_mesh

from .data.data_parallel import DataParallel

__all__ = ["Compared", "Report", "VerifyError", "verify"]

_FLOOR = 1e-6  # of the norm of all gradients: what a gradient that ought to vanish may be off by, relative to tolerance
_TOLERANCES = {"f": 1e-5, "d": 1e-12, "F": 1e-5, "D": 1e-12}


class VerifyError(RingtapeError):
    """Gradients that differ from the serial ones; the text is the report."""


@dataclass(frozen=True)
class Compared:
    """One parameter's gradient beside the serial one.

    Attributes
    ----------
    name : str
    norm, serial_norm : float or None
        None where the parameter is unused.
    difference : float
        ``norm(distributed - serial) / max(norm(serial), 1e-6 * norm(all))``, the worst of the copies; infinite where
        one is None and the other is not, or a number is not finite.
    parts : tuple of (float, float)
        For a sharded parameter, (norm, serial norm) of every part, in order of rank.
    """

    name: str
    norm: float | None
    serial_norm: float | None
    difference: float
    parts: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Report:
    """What `verify` found, the same on every rank. ``print(report)`` shows a table."""

    gradients: tuple[Compared, ...]
    loss: float
    serial_loss: float
    tolerance: float
    ranks: int

    @property
    def largest(self) -> float:
        """The largest relative difference of a gradient."""
        return max((g.difference for g in self.gradients), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether every gradient is within the tolerance."""
        return self.largest <= self.tolerance

    def require(self) -> Report:
        """The report itself if it passed.

        Raises
        ------
        VerifyError
            If it did not.
        """
        if not self.passed:
            raise VerifyError(f"gradients differ from those of one rank\n{self}")
        return self

    def __str__(self) -> str:
        width = max([len(g.name) for g in self.gradients] + [len("gradient of")])
        ours = f"norm, {self.ranks} ranks"
        lines = [f"{'gradient of':{width}}  {ours:>16}  {'norm, serial':>16}  relative difference"]
        for g in self.gradients:
            wrong = "" if g.difference <= self.tolerance else "  <-- differs"
            lines.append(f"{g.name:{width}}  {_norm(g.norm)}  {_norm(g.serial_norm)}  {g.difference:19.1e}{wrong}")
            for k, (norm, serial) in enumerate(g.parts):
                lines.append(f"{f'  part {k}':{width}}  {_norm(norm)}  {_norm(serial)}")
        lines.append(f"loss {self.loss:.12g}, serial {self.serial_loss:.12g}")
        said = "passed" if self.passed else "FAILED"
        lines.append(f"largest relative difference {self.largest:.1e}, tolerance {self.tolerance:.0e}: {said}")
        return "\n".join(lines)


def _norm(value: float | None) -> str:
    return f"{'unused' if value is None else format(value, '.9e'):>16}"


def verify(
    model: Module,
    loss: Callable[..., Tensor],
    *batch: Any,
    serial: Module | None = None,
    tolerance: float | None = None,
) -> Report:
    """Compare every gradient of a distributed model with that of one rank, outside the mesh, in float64.

    Called by all ranks, inside the mesh. Gradients that the parameters have, and the random state, stay as they are.

    Parameters
    ----------
    model : Module
        As it is trained: bare, or in a `DataParallel`.
    loss : callable
        ``loss(model, *batch)`` returns one number, under the mesh P (this rank's addend; `verify` takes the sum) or I.
        The serial run calls it without a mesh, so that it must not communicate; and it divides by the *global* count,
        which ``x.global_shape`` knows in both.
    *batch : Tensor or anything
        This rank's part, as in training. Tensors are I, R, or Shard on every axis: the labels say how to make the
        whole. Anything else is handed on.
    serial : Module, optional
        The same model for one rank, with parameters of the same names and whole shapes, which it is given in float64.
        Without it `verify` makes a copy, which is enough where the model itself does not communicate.
    tolerance : float, optional
        1e-12 where all parameters are float64, else 1e-5.

    Returns
    -------
    Report
        Nothing is raised where gradients differ; that is what ``verify(...).require()`` is for.

    Raises
    ------
    LayoutError
        A parameter or a batch of which no one rank's whole can be made (V or P on an axis of two or more ranks).
    ShapeError
        A `serial` whose parameters are others.
    TapeError
        Called while a tape is recording.

    Notes
    -----
    One float64 run of the whole batch on rank 0, during which the others wait, and one broadcast of every gradient.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import nn
    >>> from parallel import DataParallel
    >>> from parallel.verify import verify
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         model = DataParallel(nn.Linear(3, 1, dtype=float), "dp")
    ...         x = cc.shard(ag.tensor(numpy.arange(15.0).reshape(5, 3), layout={"dp": cc.R}), "dp")
    ...         return verify(model, lambda model, x: (model(x) ** 2).sum() / x.global_shape[0], x).passed
    >>> cc.run(program, ranks=2)
    [True, True]
    """
    mesh = current_mesh()
    if state.recording is not None:
        raise TapeError("verify was called while a tape is recording; needed: a call outside of every tape's block")
    parameters = list(model.named_parameters())
    for _, p in parameters:
        p.layout = p.labelled(mesh.grid)
    with no_grad():
        whole = tuple(_whole(x, f"batch[{i}]", mesh) if x.__class__ in TENSORS else x for i, x in enumerate(batch))
        twin = _give(serial, parameters, mesh) if serial is not None else _serial_copy(model, mesh, {})
    names = [name for name, _ in twin.named_parameters()]
    if names != [name for name, _ in parameters]:
        raise ShapeError(f"the serial model has parameters {names}; needed: {[name for name, _ in parameters]}")
    if tolerance is None:
        tolerance = max((_TOLERANCES.get(p.array.dtype.char, 1e-5) for _, p in parameters), default=1e-12)

    before = random.get_state()
    try:
        total, gradients = _distributed(model, [p for _, p in parameters], loss, batch)
        random.set_state(before)
        alone = _serial(twin, loss, whole) if mesh.ranks.rank == 0 else None
    finally:
        random.set_state(before)
    said = None if alone is None else [alone[0], [g is not None for g in alone[1]]]
    serial_total, serial_used = json.loads(mesh.ranks.exchange(json.dumps(said).encode())[0])

    mine = np.zeros((len(parameters), 4))  # used; squared norms: of this rank's gradient, of the serial one, difference
    for i, ((_, p), g) in enumerate(zip(parameters, gradients, strict=True)):
        theirs = None
        if serial_used[i]:
            theirs = _part(_told(p, None if alone is None else alone[1][i], mesh), p)
        ours = None if g is None else to_host(g)
        difference = 0.0 if ours is None or theirs is None else _square(ours - theirs)
        mine[i] = ours is not None, _square(ours), _square(theirs), difference
    table = np.array([np.frombuffer(row).reshape(-1, 4) for row in mesh.ranks.exchange(mine.tobytes())])

    copies = [_copies(p, mesh) for _, p in parameters]
    everything = math.sqrt(sum(table[copies[i][0], i, 2].sum() for i in range(len(parameters))))
    compared = [
        _compare(name, table[:, i], copies[i], serial_used[i], everything) for i, (name, _) in enumerate(parameters)
    ]
    return Report(tuple(compared), total, serial_total, tolerance, mesh.ranks.size)


def _distributed(model: Module, parameters: list[Parameter], loss: Any, batch: Any) -> tuple[float, list[Any]]:
    """The loss and this rank's gradients; what was in ``.grad`` before is put back."""
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        with Tape() as tape:
            y = loss(model, *batch)
            partial = tuple(a for a, label in y.layout.items() if label is P) if y.layout is not None else ()
            if partial:
                y = cc.all_reduce(y, partial, to=I)
        tape.backward(y)
        return float(y.item()), [None if p.grad is None else p.grad.array for p in parameters]
    finally:
        for p, g in zip(parameters, before, strict=True):
            p.grad = g


def _serial(model: Module, loss: Any, batch: Any) -> tuple[float, list[Any]]:
    """The loss and the gradients of one rank outside the mesh."""
    with _outside_mesh(), Tape() as tape:
        try:
            y = loss(model, *batch)
        except MeshError as error:
            error.add_note(
                "raised in verify's serial run, which has no mesh: the loss may not communicate (return this rank's "
                "addend, verify sums it), and a model that does needs serial=, the same model for one rank"
            )
            raise
        tape.backward(y)
    return float(y.item()), [None if p.grad is None else p.grad.array for p in model.parameters()]


@contextmanager
def _outside_mesh() -> Iterator[None]:
    before = state.mesh, state.grid
    state.mesh = state.grid = None
    try:
        yield
    finally:
        state.mesh, state.grid = before


# -- wholes and parts -------------------------------------------------------------------------------------------------


def _double(array: Any) -> Any:
    """In double precision on the host; integers and booleans as they are."""
    host = to_host(array)
    return host.astype(np.result_type(host, np.float64)) if host.dtype.kind in "fc" else host


def _whole(x: Tensor, what: str, mesh: Mesh) -> Leaf:
    """The value that the ranks hold together, in double precision and without labels."""
    layout = x.labelled(mesh.grid)
    full = Tensor(x.array, layout)
    for axis, size, label in reversed(list(zip(mesh.names, mesh.sizes, layout.labels, strict=True))):  # inner first
        if isinstance(label, Shard):
            full = cc.all_gather(full, axis, dim=label.dim)
        elif size > 1 and not any(label is same for same in (R, I, C, D)):
            raise LayoutError(
                f"verify({what}: {describe(x.array, x.array.shape, layout)})\n  axis {axis!r}: it is {label.word}, "
                "which does not say what one rank would hold\n"
                f"  fix: layout={{{axis!r}: Shard(dim)}}, or R if the copies are equal"
            )
    with _outside_mesh():
        array = _double(full.array)
        return Parameter(array, name=x.name) if isinstance(x, Parameter) else Leaf(array)


def _serial_copy(x: Any, mesh: Mesh, seen: dict[int, Any]) -> Any:
    """A module's copy for one rank: wrappers taken off, parameters whole and in double precision, ties kept."""
    if id(x) in seen:
        return seen[id(x)]
    if isinstance(x, DataParallel):
        copy = _serial_copy(x.module, mesh, seen)
    elif isinstance(x, Leaf):
        copy = _whole(x, x.name or "a tensor of the model", mesh)
        copy.requires_grad = x.requires_grad
    elif isinstance(x, Module):
        copy = seen[id(x)] = object.__new__(type(x))
        vars(copy).update((name, _serial_copy(value, mesh, seen)) for name, value in vars(x).items())
    elif type(x) in (list, tuple):
        copy = type(x)(_serial_copy(item, mesh, seen) for item in x)
    elif type(x) is dict:
        copy = {key: _serial_copy(value, mesh, seen) for key, value in x.items()}
    else:
        copy = _double(x) if type(x) is np.ndarray else x
    seen[id(x)] = copy
    return copy


def _give(serial: Module, parameters: list[tuple[str, Parameter]], mesh: Mesh) -> Module:
    """The user's serial model, given the values of the distributed one."""
    theirs = dict(serial.named_parameters())
    for name, p in parameters:
        value = _whole(p, name, mesh)
        if name in theirs:
            if theirs[name].array.shape != value.array.shape:
                raise ShapeError(f"serial: {name} has shape {theirs[name].array.shape}; needed: {value.array.shape}")
            theirs[name].array = value.array
            theirs[name].layout = theirs[name].grad = None
    return serial


def _told(p: Parameter, gradient: Any, mesh: Mesh) -> np.ndarray:
    """Rank 0's serial gradient of a parameter, on every rank."""
    assert p.layout is not None
    shape = global_shape(p.layout, p.array.shape)
    dtype = np.result_type(p.array.dtype, np.float64)
    flat = np.empty(math.prod(shape), dtype) if gradient is None else np.ascontiguousarray(gradient, dtype).reshape(-1)
    return mesh.ranks.broadcast(flat, 0).reshape(shape)


def _part(whole: np.ndarray, p: Parameter) -> np.ndarray:
    """What this rank holds of a whole value laid out as `p` is."""
    assert p.layout is not None
    starts = [0] * whole.ndim
    for label in p.layout.labels:
        if isinstance(label, Shard):
            starts[label.dim] += label.offset or 0
    return whole[tuple(slice(start, start + n) for start, n in zip(starts, p.array.shape, strict=True))]


def _square(x: Any) -> float:
    return 0.0 if x is None else float(np.vdot(x, x).real)


def _copies(p: Parameter, mesh: Mesh) -> list[list[int]]:
    """The ranks that hold one whole value of `p` together, in order; one list for each copy."""
    assert p.layout is not None
    held: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.ranks.size):
        place = np.unravel_index(rank, mesh.sizes)
        copy = tuple(int(i) for i, label in zip(place, p.layout.labels, strict=True) if not isinstance(label, Shard))
        held.setdefault(copy, []).append(rank)
    return list(held.values())


def _compare(name: str, rows: np.ndarray, copies: list[list[int]], serial_used: bool, everything: float) -> Compared:
    used = rows[:, 0] != 0
    norm = math.sqrt(rows[copies[0], 1].sum()) if used.any() else None
    serial = math.sqrt(rows[copies[0], 2].sum()) if serial_used else None
    if serial is None and not used.any():
        return Compared(name, None, None, 0.0)
    parts = tuple((math.sqrt(rows[r, 1]), math.sqrt(rows[r, 2])) for r in copies[0]) if len(copies[0]) > 1 else ()
    if serial is None or not used.all():
        return Compared(name, norm, serial, math.inf, parts)
    off = max(math.sqrt(rows[copy, 3].sum()) for copy in copies)
    scale = max(serial, _FLOOR * everything)
    difference = off / scale if off and scale else 0.0 if off == 0 else math.inf
    return Compared(name, norm, serial, difference if math.isfinite(difference) else math.inf, parts)
