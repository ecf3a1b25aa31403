"""The arguments of the public functions, and the decorator that makes a public function from a collective.

    @user_function
    def all_reduce(x, axis, to=R, *, algorithm=None):
        check_to(to, (R, I), "all_reduce")
        x, on = operand(x, axis, "all_reduce")
        return Use(summing, x, on.call(to=to))

The body checks the arguments and returns the collective, its operand and its `Call`. The public function runs the
collective, and caches the preparation with the mesh: a later call with the same arguments, and an operand of the same
layout, shape and dtype, finds it with one lookup. The nonblocking form is made from the same body (`nonblocking`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from autograd.arrays.device import is_array
from autograd.arrays.shape_only import Shaped
from autograd.engine import events
from autograd.engine.leaves import tensor
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS, Given, Tensor
from autograd.errors import (
    UNTYPED,
    ArgumentError,
    LayoutError,
    MeshError,
    RingtapeError,
    ShapeError,
    instead_of,
    is_of_library,
    refused,
)
from autograd.layouts.layout import Label, Shard
from autograd.layouts.rank_values import EVERY_AXIS, plain, rank_axes, require_same_number

from ..checks import modes
from ..declaration.call import Call, keep
from ..declaration.collective import Collective
from ..mesh import Axis, current_mesh
from ..transports.protocol import Communicator

__all__ = [
    "AxisName", "Use", "accumulated", "addends", "as_typed", "check_other", "check_rank", "check_to", "converted",
    "group_of", "operand", "sample", "sizes_of", "to_tensor", "user_function",
]  # fmt: skip

AxisName = str | Sequence[str]
Arguments = ParamSpec("Arguments")


class Use(NamedTuple):
    """A collective with its operand and call, which the arguments of a public function select.

    `repeats` is False if the ranks had to communicate to determine the call. It is then not cached.
    """

    collective: Collective
    x: Tensor
    call: Call
    repeats: bool = True


def user_function(resolve: Callable[Arguments, Use | Tensor]) -> Callable[Arguments, Tensor]:
    """Make the public function from `resolve`, which turns the arguments into a `Use` (or a result, if nothing runs).

    The first two arguments are the operand and the axis. The function has the name, signature and docstring of
    `resolve`, which is its ``__wrapped__``.
    """

    resolve.__annotations__["return"] = "Tensor"  # what a user gets; `wraps` and `inspect.signature` read it

    @wraps(resolve)
    def function(x: Any, axis: Any = None, *args: Any, **options: Any) -> Tensor:
        mesh: Any = state.distribution
        key: Any = None
        if x.__class__ in TENSORS:
            array = x.array
            key = (resolve, axis, x.layout, array.__class__, array.shape, array.dtype)
            if args or options:
                parts: list[Any] = [*key]
                for value in args:
                    parts += value, value.__class__
                for name, value in options.items():
                    value = _outline(value) if name == "like" else value
                    parts += name, value, value.__class__
                key = tuple(parts)
            try:
                known = mesh.prepared.get(key)
            except TypeError:
                key, known = _found_without_lists(mesh.prepared, key)
            except AttributeError:  # there is no mesh, and `resolve` says so
                known = None
            if known is not None:
                return known.apply_counted(x) if known.sums and modes.limit else known.apply(x)
        try:
            use = _resolved(resolve, x, axis, args, options)
            if use.__class__ is not Use:
                return use  # the result: nothing runs
            known = use.collective.prepared(use.x, use.call)
        except RingtapeError as error:
            events.refuse(resolve.__name__, resolve, (x,), (), error=error)
            raise
        if key is not None and use.repeats and use.x is x and _can_be_kept(key):
            keep(mesh.prepared, key, known)
        return known.apply_counted(use.x) if known.sums and modes.limit else known.apply(use.x)

    return function  # type: ignore[return-value]  # its arguments are those of `resolve`


def _resolved(resolve: Callable[..., Any], x: Any, axis: Any, args: Any, options: Any) -> Any:
    """The result of `resolve` for the arguments of a call; a builtin error that they cause is a typed one."""
    try:
        return resolve(x, axis, *args, **options)
    except UNTYPED as error:
        raise as_typed(error, resolve, (x, axis, *args), options) from error.__cause__


def as_typed(error: Exception, resolve: Callable[..., Any], args: Any, options: Any) -> Exception:
    """A builtin error of a call, which its arguments have caused, as a typed one; the program's own as it is."""
    declared, name = signature(resolve), resolve.__name__
    try:
        declared.bind(*args, **options)
    except TypeError as mismatch:
        if "op" in options and "op" not in declared.parameters:
            return ArgumentError(_other_operation(name, options["op"]))
        return ArgumentError(f"{name}: {mismatch}; needed: {name}{_shown(declared)}")
    return refused(error, name, args, options) if is_of_library(error) else error


def _other_operation(name: str, op: Any) -> str:
    """The text of the error for ``op=``, which other libraries have."""
    given = str(op).rpartition(".")[2].upper()  # a name, or ReduceOp.AVG
    kind = next((kind for kind in ("AVG", "MEAN", "MAX", "MIN", "PROD") if given.startswith(kind)), "SUM")
    kind = {"MEAN": "AVG", "PROD": "PRODUCT"}.get(kind, kind)
    return f"{name}: op={op!r} was given; {name} adds\n  fix: {instead_of('collectives', kind)}"


def _shown(declared: Any) -> str:
    """A signature without annotations."""
    plain = [p.replace(annotation=p.empty) for p in declared.parameters.values()]
    return str(declared.replace(parameters=plain, return_annotation=declared.empty))


def _outline(value: Any) -> Any:
    """The facts of a ``like=`` argument that the key of the cache contains: layout, kind of array, shape and dtype."""
    if value.__class__ not in TENSORS:
        return value
    return value.layout, value.array.__class__, tuple(value.array.shape), value.array.dtype


def _found_without_lists(prepared: dict[Any, Any], key: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """A key with tuples in the place of lists, and what is known of its call, if it can be hashed now."""
    key = tuple([tuple(k) if k.__class__ is list else k for k in key])
    try:
        return key, prepared.get(key)
    except TypeError:
        return key, None


def _is_hashable(key: tuple[Any, ...]) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _can_be_kept(key: tuple[Any, ...]) -> bool:
    """Whether equal keys mean equal calls. That is not so for a leaf without a layout, or a Shard argument."""
    is_exact = not any(isinstance(k, Shard) for k in key)
    return is_exact and key[2] is not None and key[3] is not Shaped and _is_hashable(key)


def to_tensor(x: Any, name: str) -> Tensor:
    """The operand as a Tensor under the current mesh; a plain array is V."""
    mesh = current_mesh()
    if x is None:
        raise ShapeError(f"{name} was given None; needed: an array or Tensor on every rank")
    if x.__class__ not in TENSORS:
        leaf = tensor(plain(x))
        x = Given(leaf.array, leaf.labelled(mesh.grid))
    if x.layout is None:
        x.layout = x.labelled(mesh.grid)
    elif x.layout.grid is not mesh.grid:
        raise LayoutError(f"{name}: x has layout {x.layout!r} of another mesh; the current one is {mesh!r}")
    return x


def operand(x: Any, axis: AxisName, name: str) -> tuple[Tensor, Axis]:
    """The operand as a Tensor under the current mesh, and the axis."""
    on = current_mesh().axis(axis)
    return to_tensor(x, name), on


def addends(x: Any, axis: AxisName, collective: Collective) -> tuple[Tensor, Axis]:
    """The operand of a sum or a product over the ranks, in the dtype of `accumulated`, and the axis."""
    x, on = operand(x, axis, collective.name)
    if x.array.dtype.kind in "biu":
        collective.check(x, on)  # its errors name the variable that holds `x`
        x = accumulated(x)
    return x, on


def accumulated(x: Tensor) -> Tensor:
    """A value in the dtype in which sums and products of it are computed, on one rank, too.

    As by ``numpy.sum``, that is int64 or uint64 for booleans and smaller integers. Floats keep their dtype.
    """
    wide = _WIDE.get(x.array.dtype)
    return x if wide is None else converted(x, wide)


_WIDE = {np.dtype(char): np.dtype(np.uint64 if char in "BHIL" else np.int64) for char in "?bBhHiIlL"}
_WIDE = {narrow: wide for narrow, wide in _WIDE.items() if narrow.itemsize < 8}


def converted(x: Tensor, dtype: Any) -> Tensor:
    """A value without a derivative in another dtype, with its labels."""
    return Tensor(x.array.astype(dtype), x.layout)


def check_rank(rank: Any, on: Axis, name: str, what: str) -> None:
    """Raise MeshError if `rank` is not the number of a rank of the axis, LayoutError for a root that differs on it."""
    if not isinstance(rank, int | np.integer) or isinstance(rank, bool) or not 0 <= rank < on.group.size:
        raise MeshError(
            f"{name}: {what}={rank!r} was given; axis {'*'.join(on.names)!r} has ranks 0 to {on.size - 1}; needed: "
            "one of them"
        )
    if what == "root" and rank.__class__ is not int and rank_axes(rank) & {*on.names, EVERY_AXIS}:
        require_same_number(rank, f"{name}: root")


def check_other(rank: Any, on: Axis, name: str, what: str) -> None:
    """Raise MeshError if `rank` is not the number of another rank of the axis."""
    check_rank(rank, on, name, what)
    if rank == on.group.index:
        raise MeshError(f"{name}: {what}={rank} is this rank itself; needed: another rank")


def check_to(to: Label, allowed: tuple[Label, ...], name: str) -> None:
    """Raise LayoutError if the result cannot have the label `to`."""
    if not isinstance(to, Label) or to not in allowed:
        raise LayoutError(f"{name}: to={to!r} was given; needed: to={' or to='.join(map(repr, allowed))}")


def group_of(on: Axis, algorithm: str | None, name: str) -> Communicator:
    """The ranks along the axis, with the given algorithm, which the adjoint uses too."""
    return on.group if algorithm is None else on.using(algorithm, name)


def sizes_of(on: Axis) -> list[int]:
    """The sizes of the mesh axes in `on`, the outer one first."""
    mesh = current_mesh()
    return [mesh.sizes[mesh.grid.axis(a)] for a in on.names]


def sample(like: Any) -> Any:
    """An empty array on the device of `like`; None for the host."""
    array = like.array if like.__class__ in TENSORS else like
    if array is None or isinstance(array, np.ndarray | np.generic | Shaped) or not is_array(array):
        return None
    return np.empty_like(array, shape=(0,))
