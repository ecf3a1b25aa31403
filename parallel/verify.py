"""`verify`: comparison of all gradients of a distributed model with those of the same model on one rank, in float64.

A falling loss does not show that gradients are right: models train with a missing sum, a sum too many or a wrong
divisor. `verify` runs the model once more on rank 0 alone, outside the mesh, on the whole batch and in float64. Each
rank compares the part that it holds. A gradient passes if

    norm(distributed - serial) <= tolerance * max(norm(serial), 1e-6 * norm(all serial gradients))

A parameter that is unused (its gradient is None) must be unused in both runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import collectives as cc
from autograd import random
from autograd.arrays.device import to_host
from autograd.engine.leaves import Leaf, Parameter
from autograd.engine.state import no_grad, outside_mesh, state
from autograd.engine.tape import Tape
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import (
    ArgumentError,
    LayoutError,
    MeshError,
    OptionError,
    RingtapeError,
    ShapeError,
    TapeError,
    short,
)
from autograd.layouts.layout import C, D, I, P, R, Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import require_agreed
from autograd.nn import Module
from autograd.ops.indexing import SEQUENCES
from autograd.whole import place_in_whole
from collectives import Mesh, World, current_mesh
from collectives.world import replaced_world

from .data.data_parallel import DataParallel

__all__ = ["Compared", "Report", "VerifyError", "compare_with_serial", "verify"]

_FLOOR = 1e-6
"""Smallest scale of a difference, relative to the norm of all gradients; for gradients that are almost zero."""
_NOT_HELD = -1
_TOLERANCES = {"f": 1e-5, "d": 1e-12, "F": 1e-5, "D": 1e-12}


class VerifyError(RingtapeError):
    """Gradients differ from the serial ones. The message contains the report."""


@dataclass(frozen=True)
class Compared:
    """The gradient of one parameter compared with the serial one.

    Attributes
    ----------
    name : str
    norm, serial_norm : float or None
        Norms of the distributed and of the serial gradient; None if the parameter is unused.
    difference : float
        ``norm(distributed - serial) / max(norm(serial), 1e-6 * norm(all))``, the largest over the copies. Infinite if
        only one of the gradients is None, or a value is not finite.
    parts : tuple of (float, float)
        For a sharded parameter, (norm, serial norm) of each part, in order of rank.
    """

    name: str
    norm: float | None
    serial_norm: float | None
    difference: float
    parts: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Report:
    """The result of `verify`, the same on every rank. ``print(report)`` shows a table.

    Attributes
    ----------
    gradients : tuple of Compared
        One entry per parameter.
    loss, serial_loss : float
    tolerance : float
    ranks : int
    sizes : tuple of (str, int)
        The axes of the mesh and their sizes.
    """

    gradients: tuple[Compared, ...]
    loss: float
    serial_loss: float
    tolerance: float
    ranks: int
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def largest(self) -> float:
        """The largest relative difference of any gradient."""
        return max((g.difference for g in self.gradients), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether every gradient is within the tolerance."""
        return self.largest <= self.tolerance

    def require(self) -> Report:
        """Return the report if it passed.

        Raises
        ------
        VerifyError
            A gradient is not within the tolerance.
        """
        if not self.passed:
            raise VerifyError(f"gradients differ from those of one rank\n{self}")
        return self

    def __str__(self) -> str:
        width = max([len(g.name) for g in self.gradients] + [len("gradient of")])
        ours = f"norm, {self.ranks} ranks"
        lines = [f"{'gradient of':{width}}  {ours:>16}  {'norm, serial':>16}  relative difference"]
        for g in self.gradients:
            factor = factor_of(g, self.sizes)
            wrong = "" if g.difference <= self.tolerance else f"  <-- differs{f': {factor}' if factor else ''}"
            lines.append(f"{g.name:{width}}  {_norm(g.norm)}  {_norm(g.serial_norm)}  {g.difference:19.1e}{wrong}")
            for k, (norm, serial) in enumerate(g.parts):
                lines.append(f"{f'  part {k}':{width}}  {_norm(norm)}  {_norm(serial)}")
        lines.append(f"loss {self.loss:.12g}, serial {self.serial_loss:.12g}")
        said = "passed" if self.passed else "FAILED"
        lines.append(f"largest relative difference {self.largest:.1e}, tolerance {self.tolerance:.0e}: {said}")
        return "\n".join(lines)


def factor_of(g: Compared, sizes: Sequence[tuple[str, int]]) -> str:
    """Name the factor, if a gradient is the serial one times a power of a number of ranks or another whole number.

    Examples
    --------
    >>> factor_of(Compared("w", 8.0, 2.0, 3.0), [("dp", 4)])
    "4 times too large: the size of axis 'dp'"
    """
    if not g.norm or not g.serial_norm:
        return ""
    ratio = g.norm / g.serial_norm
    if abs(g.difference - abs(ratio - 1)) > _SAME_FACTOR * max(ratio, 1.0):  # it has another direction
        return ""
    factor, word = (ratio, "large") if ratio > 1 else (1 / ratio, "small")
    every = (*sizes, *((("the mesh", math.prod(n for _, n in sizes)),) if len(sizes) > 1 else ()))
    for power, of in ((1.0, "the size"), (2.0, "the square of the size"), (0.5, "the root of the size")):
        for name, n in every:
            if n > 1 and abs(factor - n**power) <= _SAME_FACTOR * factor:
                where = name if name == "the mesh" else f"axis {name!r}"
                return f"{factor:.4g} times too {word}: {of} of {where}"
    if round(factor) > 1 and abs(factor - round(factor)) <= _SAME_FACTOR * factor:
        return f"{round(factor)} times too {word}: is it the number of microbatches?"
    return ""


_SAME_FACTOR = 1e-4


def _norm(value: float | None) -> str:
    return f"{'unused' if value is None else format(value, '.9e'):>16}"


def verify(
    model: Module,
    loss: Callable[..., Tensor],
    *batch: Any,
    serial: Module | None = None,
    tolerance: float | None = None,
) -> Report:
    """Compare all gradients of a distributed model with those of the same model on one rank, in float64.

    All ranks call it, inside the mesh. The gradients of the parameters and the random state are not changed.

    Parameters
    ----------
    model : Module
        The model as it is trained, with or without `DataParallel`.
    loss : callable
        ``loss(model, *batch)`` returns one number. On the mesh it is P (this rank's addend, which `verify` sums) or I.
        The serial run calls `loss` in a world of one rank and without a mesh, so it must not communicate. It divides by
        the global count, which is ``x.global_shape[0]`` in both runs.
    *batch : Tensor or any object
        This rank's part of the batch, as in training. Tensors are I, R or Shard on each axis, so that the whole batch
        can be assembled. Other objects are passed on unchanged.
    serial : Module, optional
        The same model for one rank. Its parameters have the same names, with the shapes of the whole values; they are
        set to the model's values in float64. By default `verify` copies the model, which is possible if the model does
        not communicate.
    tolerance : float, optional
        By default 1e-12 if all parameters are float64, else 1e-5.

    Returns
    -------
    Report
        `verify` does not raise if gradients differ: call ``verify(...).require()`` for that.

    Raises
    ------
    LayoutError
        A parameter or a Tensor of the batch is V or P on an axis of two or more ranks, so that its whole value is not
        known. Or a parameter is a Shard whose extents the ranks have not agreed on.
    ShapeError
        The parameters of `serial` have other names or shapes.
    TapeError
        A tape is recording.

    Notes
    -----
    Costs one float64 run of the whole batch on rank 0, during which the other ranks wait, and one broadcast of each
    gradient.

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
    _check(model, model if serial is None else serial, loss, tolerance)
    parameters = list(model.named_parameters())
    for name, p in parameters:
        p.layout = p.labelled(mesh.grid)
        require_agreed(p.layout, p.array.shape, f"verify, parameter {name}")
    with no_grad():
        whole = tuple(_whole(x, f"batch[{i}]", mesh) if x.__class__ in TENSORS else x for i, x in enumerate(batch))
        serial = _serial_copy(model, mesh, {}) if serial is None else _set_parameters(serial, parameters, mesh)
    names = [name for name, _ in serial.named_parameters()]
    if names != [name for name, _ in parameters]:
        raise ShapeError(f"the serial model has parameters {names}; needed: {[name for name, _ in parameters]}")
    if tolerance is None:
        tolerance = max((_TOLERANCES.get(p.array.dtype.char, 1e-5) for _, p in parameters), default=1e-12)

    before = random.get_state()
    try:
        total, gradients = _distributed(model, [p for _, p in parameters], loss, batch)
        random.set_state(before)
        on_root = _serial(serial, loss, whole) if mesh.ranks.rank == 0 else None
    finally:
        random.set_state(before)
    return compare_with_serial(dict(parameters), gradients, total, on_root, names, tolerance, mesh)


def _check(model: Any, serial: Any, loss: Any, tolerance: Any) -> None:
    for what, given in (("model", model), ("serial", serial)):
        if not isinstance(given, Module):
            raise ArgumentError(f"verify: {what} is {type(given).__name__}; needed: a Module")
    if not callable(loss):
        raise ArgumentError(f"verify: loss is {type(loss).__name__}; needed: a function of the model")
    if tolerance is not None and not (isinstance(tolerance, int | float) and tolerance >= 0):
        raise OptionError(f"verify: tolerance={tolerance!r} was given; needed: a number of at least 0")
    if state.recording is not None:
        raise TapeError("verify was called while a tape is recording; needed: a call outside of every tape's block")


def compare_with_serial(
    parameters: Mapping[str, Parameter], gradients: Sequence[Any], loss: float, serial: tuple[float, list[Any]] | None,
    names: Sequence[str], tolerance: float, mesh: Mesh,
) -> Report:
    """Compare the gradients that the ranks hold with those of one rank. All ranks of the mesh call it.

    Parameters
    ----------
    parameters : mapping from name to Parameter
        Those of this rank. The ranks may hold different ones, as the stages of a model, and parts of them.
    gradients : sequence of array or None
        Their gradients.
    loss : float
    serial : tuple of (float, list of array or None), on rank 0
        The loss and the gradients of the run on one rank, in the order of `names`. None on other ranks.
    names : sequence of str
        The parameters of the whole model.
    tolerance : float
    mesh : Mesh

    Returns
    -------
    Report
        The same on every rank.
    """
    message = None
    if serial is not None:
        about = [None if g is None else (g.shape, np.result_type(g, np.float64).str) for g in serial[1]]
        message = [serial[0], about]
    serial_loss, about = json.loads(mesh.ranks.exchange(json.dumps(message).encode())[0])
    found = dict(zip(parameters, gradients, strict=True))

    # per parameter: whether it is held and used; squared norms of this rank's gradient, of the serial one, of their
    # difference; a number of the copy that this rank holds a part of
    rows = np.zeros((len(names), 5))
    for i, name in enumerate(names):
        p = parameters.get(name)
        expected = None
        if about[i] is not None:
            shape, dtype = about[i]
            given = None if serial is None else serial[1][i]
            flat = np.empty(math.prod(shape), dtype) if given is None else np.ascontiguousarray(given, dtype)
            expected = mesh.ranks.broadcast(flat.reshape(-1), 0)
        if p is None:
            rows[i, 0] = _NOT_HELD
            continue
        assert p.layout is not None
        if expected is not None:
            whole, box = place_in_whole(p.array.shape, p.layout)
            expected = expected.reshape(whole)[box]
        got = None if found[name] is None else to_host(found[name])
        difference = 0.0 if got is None or expected is None else _square(got - expected)
        rows[i] = got is not None, _square(got), _square(expected), difference, _copy_of(p, mesh)
    table = np.array([np.frombuffer(row).reshape(-1, 5) for row in mesh.ranks.exchange(rows.tobytes())])
    copies = [_copies(table[:, i]) for i in range(len(names))]
    total_norm = math.sqrt(sum(table[each[0], i, 2].sum() for i, each in enumerate(copies) if each))
    compared = [
        _compare(name, table[:, i], copies[i], about[i] is not None, total_norm) for i, name in enumerate(names)
    ]
    sizes = tuple(zip(mesh.names, map(int, mesh.sizes), strict=True))
    return Report(tuple(compared), loss, serial_loss, tolerance, int(mesh.ranks.size), sizes)


def _distributed(model: Module, parameters: list[Parameter], loss: Any, batch: Any) -> tuple[float, list[Any]]:
    """Return the loss and this rank's gradients, and restore the gradients that the parameters had."""
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        with Tape() as tape:
            tape.recording.scale = False  # the report is to say what is wrong
            y = loss(model, *batch)
            if y.__class__ not in TENSORS:
                raise ArgumentError(f"verify: loss returned {short(y)}; needed: a Tensor of one number")
            partial = tuple(a for a, label in y.layout.items() if label is P) if y.layout is not None else ()
            if partial:
                y = cc.all_reduce(y, partial, to=I)
        tape.backward(y)
        return float(y.item()), [None if p.grad is None else p.grad.array for p in parameters]
    finally:
        for p, g in zip(parameters, before, strict=True):
            p.grad = g


def _serial(model: Module, loss: Any, batch: Any) -> tuple[float, list[Any]]:
    """Return the loss and the gradients of a run on one rank, in a world of one rank and outside the mesh."""
    alone = World("threads", ranks=1).communicator  # so that a factor `cc.world().size` is 1 in the serial run
    with replaced_world(alone), outside_mesh(), Tape() as tape:
        try:
            y = loss(model, *batch)
            if y.__class__ not in TENSORS:
                raise ArgumentError(f"verify: loss returned {short(y)}; needed: a Tensor of one number")
        except MeshError as error:
            raise MeshError(
                "verify: the serial run, on one rank and without a mesh, has called a function that needs a mesh. "
                "Needed: a loss that does not communicate (return this rank's addend; verify sums it), and for a model "
                "that communicates serial=, the same model for one rank\n"
                f"  {type(error).__name__} there: {error}"
            ) from error
        tape.backward(y)
    return float(y.item()), [None if p.grad is None else p.grad.array for p in model.parameters()]


# -- wholes and parts -------------------------------------------------------------------------------------------------


def _double(array: Any) -> Any:
    """Convert to double precision on the host; integers and booleans keep their dtype."""
    host = to_host(array)
    return host.astype(np.result_type(host, np.float64)) if host.dtype.kind in "fc" else host


def _whole(x: Tensor, what: str, mesh: Mesh) -> Leaf:
    """Return the value that the ranks hold together, in double precision and without a layout."""
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
    with outside_mesh():
        array = _double(full.array)
        return Parameter(array, name=x.name) if isinstance(x, Parameter) else Leaf(array)


def _serial_copy(x: Any, mesh: Mesh, seen: dict[int, Any]) -> Any:
    """Copy a module for one rank: without `DataParallel`, parameters whole and in double precision, tied ones tied."""
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
    elif type(x) in SEQUENCES:
        copy = type(x)(_serial_copy(item, mesh, seen) for item in x)
    elif type(x) is dict:
        copy = {key: _serial_copy(value, mesh, seen) for key, value in x.items()}
    else:
        copy = _double(x) if type(x) is np.ndarray else x
    seen[id(x)] = copy
    return copy


def _set_parameters(serial: Module, parameters: list[tuple[str, Parameter]], mesh: Mesh) -> Module:
    """Set the parameters of the user's serial model to the values of the distributed one, and return the model."""
    theirs = dict(serial.named_parameters())
    for name, p in parameters:
        value = _whole(p, name, mesh)
        if name in theirs:
            if theirs[name].array.shape != value.array.shape:
                raise ShapeError(f"serial: {name} has shape {theirs[name].array.shape}; needed: {value.array.shape}")
            theirs[name].array = value.array
            theirs[name].layout = theirs[name].grad = None
    return serial


def _square(x: Any) -> float:
    return 0.0 if x is None else float(np.vdot(x, x).real)


def _copy_of(p: Parameter, mesh: Mesh) -> int:
    """A number that the ranks with the parts of one copy of the value of `p` have in common."""
    assert p.layout is not None
    place = [0 if isinstance(label, Shard) else int(at) for at, label in zip(mesh.place, p.layout.labels, strict=True)]
    return int(np.ravel_multi_index(place, mesh.sizes))


def _copies(rows: np.ndarray) -> list[list[int]]:
    """Return for each copy of a parameter the ranks that hold its parts, in order."""
    held: dict[int, list[int]] = {}
    for rank, row in enumerate(rows):
        if row[0] != _NOT_HELD:
            held.setdefault(int(row[4]), []).append(rank)
    return list(held.values())


def _compare(name: str, rows: np.ndarray, copies: list[list[int]], serial_used: bool, total_norm: float) -> Compared:
    """Compare one parameter. `rows` has the flag and the squared norms of each rank."""
    if not copies:  # no rank has it
        return Compared(name, None, math.sqrt(total_norm) if serial_used else None, math.inf)
    used = rows[[rank for copy in copies for rank in copy], 0] == 1
    norm = math.sqrt(rows[copies[0], 1].sum()) if used.any() else None
    serial = math.sqrt(rows[copies[0], 2].sum()) if serial_used else None
    if serial is None and not used.any():
        return Compared(name, None, None, 0.0)
    parts = tuple((math.sqrt(rows[r, 1]), math.sqrt(rows[r, 2])) for r in copies[0]) if len(copies[0]) > 1 else ()
    if serial is None or not used.all():
        return Compared(name, norm, serial, math.inf, parts)
    absolute = max(math.sqrt(rows[copy, 3].sum()) for copy in copies)
    scale = max(serial, _FLOOR * total_norm)
    difference = absolute / scale if absolute and scale else 0.0 if absolute == 0 else math.inf
    return Compared(name, norm, serial, difference if math.isfinite(difference) else math.inf, parts)
