"""Leaves: the Tensors that users make, and their gradients.

A `Leaf` is this rank's part of a value, a `Parameter` is a leaf that is learned, and a `Constant` is a leaf that is the
same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index
from sys import getrefcount
from typing import Any

import numpy as np
from numpy import ndarray

from ..arrays.device import as_array, is_inexact
from ..arrays.shape_only import Shaped, is_absent, shape_only
from ..errors import AbsentError, ArgumentError, DtypeError, LayoutError, MeshError, ShapeError, call_site
from ..layouts.layout import C, D, Grid, I, Label, Layout, Shard, V
from ..layouts.messages import describe
from ..layouts.partition import parts
from .events import declarations
from .recording import LEAF, Recording
from .saved_arrays import guarded, step_check
from .state import state
from .tape import Sweep, Tape
from .tensor import TENSORS, Tensor

__all__ = ["Constant", "Leaf", "Parameter", "constant", "resolve", "tensor"]


class Leaf(Tensor):
    """A Tensor that the user made. With `requires_grad`, backward adds its gradient to `grad`."""

    __slots__ = ("_grad", "_requires_grad", "name", "uses")

    def __init__(self, array: Any, layout: Layout | None = None, requires_grad: bool = False, name: str = ""):
        if layout is not None and layout.rooted and layout.absent_beyond(()):
            array = Shaped(array.shape, array.dtype, f"its layout {layout!r} roots it on another rank")
        elif state.dry:
            array = shape_only(array)
        elif array.__class__ is ndarray and not array.shape:
            array = array[()]  # operations on NumPy's scalars take an eighth of the time
        super().__init__(array, layout)
        self._requires_grad = False
        self._grad: Any = None  # a Tensor, or a bare array until `grad` is read
        self.uses = 0  # the number of tapes that need it, if it owns its array (see `Recording.hold`)
        self.name = name
        self.requires_grad = requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether tapes record the operations on it."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not is_inexact(self.array.dtype):
            raise DtypeError(
                f"requires_grad=True was given for dtype {self.array.dtype}, which has no derivative. "
                "Needed: a floating or complex dtype. Fix: x.astype(float)"
            )
        self._requires_grad = bool(value)

    @property
    def grad(self) -> Tensor | None:
        """The gradient, summed over all backward passes since `zero_grad`; of the dual layout."""
        g = self._grad
        if g is not None and g.__class__ not in TENSORS:
            g = self._grad = Tensor(g, None if self.layout is None else self.layout.dual)
        return g

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._grad = value

    @property
    def data(self) -> Any:
        """This rank's part as an array; read-only while a tape needs it, None where the value is absent."""
        return None if is_absent(self.array) else guarded(self)

    @data.setter
    def data(self, value: Any) -> None:
        value = as_array(value, self.array.dtype)
        if value.shape != self.array.shape:
            raise ShapeError(f"a value of shape {value.shape} was given for a leaf of shape {self.array.shape}")
        if self.uses:
            step_check(self)
        value = value.copy() if self.owns and not state.dry else value
        self.array = shape_only(value) if state.dry else value if value.shape else value[()]

    def enter_mesh(self) -> None:
        if state.grid is not None:
            self.labelled(state.grid)

    def labelled(self, grid: Grid) -> Layout:
        if self.layout is None:
            if state.dry and type(self.array) is not Shaped:
                raise AbsentError(
                    f"{self.name or 'a leaf'} of shape {self.array.shape} was made outside the dry run, which would "
                    "give it permanent labels of a mesh that does not exist. Needed: leaves made in the dry run. Fix: "
                    "make the model and the data inside the with block" + call_site()
                )
            self.layout = grid.uniform(self._default)
        return self.layout

    _default: Label = V
    owns = False  # whether no other object refers to its array

    def zero_grad(self) -> None:
        """Remove the gradient."""
        self._grad = None

    def accumulate(self, ct: Any) -> None:
        """Add a cotangent to `grad`, which owns its array."""
        dtype = self.array.dtype
        if self._grad is None and ct.__class__ is ndarray and ct.dtype is dtype:
            self._grad = ct if ct.base is None and getrefcount(ct) <= _OWNED else ct.copy()
            return
        if ct.__class__ in TENSORS:  # from a recorded sweep
            self._grad = ct if self._grad is None else self.grad + ct
            return
        if ct.dtype is not dtype and ct.dtype != dtype:
            ct = ct.astype(dtype)
        if self._grad is None:
            self._grad = ct if getattr(ct, "base", None) is None and getrefcount(ct) <= _OWNED else ct.copy()
        elif isinstance(ct, np.generic):
            known: Any = self.grad
            self._grad = Tensor(known.array + ct, known.layout)
        else:
            known = self.grad
            known.array += ct


class Parameter(Leaf):
    """A leaf that is learned: it requires a gradient, and without labels it is Invariant.

    Parameters
    ----------
    array : array_like
        This rank's part.
    layout : mapping from axis to label, optional
        An axis not named is I.
    global_shape : sequence of int, optional
        The whole value's shape, where parts follow numpy's array_split rule.
    name : str
        Its name in errors and checkpoints. Modules set it.
    """

    __slots__ = ()
    _default = I
    owns = True

    def __init__(
        self,
        array: Any,
        layout: Mapping[str, Label] | None = None,
        *,
        global_shape: Sequence[int] | None = None,
        name: str = "",
        requires_grad: bool = True,
    ):
        array = as_array(array.array if array.__class__ in TENSORS else array)
        if not state.dry:  # a dry world uses only the shape
            array = array.copy() if is_inexact(array.dtype) or requires_grad is False else array
        super().__init__(array, _layout(array, layout, I, global_shape), requires_grad, name)


class Constant(Leaf):
    """A leaf that is the same on every rank and has no cotangent; see `constant`."""

    __slots__ = ()
    _default = C


def _layout(array: Any, layout: Any, default: Label, global_shape: Any) -> Layout | None:
    grid = state.grid
    if grid is None:
        if isinstance(layout, Layout):
            return layout
        if layout is not None or global_shape is not None:
            raise MeshError(f"layout={layout!r} was given without a mesh. Fix: with cc.Mesh(...): around it")
        return None
    return resolve(layout, default, array.shape, grid, global_shape)


def tensor(
    array: Any,
    layout: Mapping[str, Label] | None = None,
    *,
    requires_grad: bool = False,
    global_shape: Sequence[int] | None = None,
    dtype: Any = None,
    name: str = "",
) -> Leaf:
    """A leaf: this rank's part of a value, with its layout.

    Parameters
    ----------
    array : array_like
        This rank's part. An array is adopted, not copied; it is read-only while a tape needs it.
    layout : mapping from axis to label, optional
        An axis not named is V, or D if `array` was drawn the same on all ranks (see `random`).
    requires_grad : bool
        Whether backward adds a gradient to ``.grad``. Under a mesh, the same on every rank of a group.
    global_shape : sequence of int, optional
        The whole value's shape; parts then follow numpy's array_split rule, and uneven ones are legal.

    Raises
    ------
    DtypeError
        `requires_grad` with an integer or boolean dtype.
    ShapeError
        A part that does not fit `global_shape`, or a Shard of a dimension that does not exist.
    LayoutError
        `array` is a Partial Tensor, and no label is given for that axis.

    Examples
    --------
    >>> import autograd as ag
    >>> ag.tensor([1.0, 2.0], requires_grad=True)
    Leaf([1., 2.])
    """
    drawn = None
    if not isinstance(requires_grad, bool | np.bool_ | int):
        raise ArgumentError(f"tensor: requires_grad={requires_grad!r} was given; needed: True or False" + call_site())
    if global_shape is not None:
        _check_shape(global_shape)
    if array.__class__ in TENSORS:
        _refuse_lost_sum(array, layout)
        drawn, array = array.layout, array.array
    array = as_array(array, None if dtype is None else np.dtype(dtype))
    x = Leaf(array, _layout(array, layout, V, global_shape), requires_grad, name)
    if state.grid is not None and drawn is not None and drawn.drawn and drawn.grid is state.grid and not requires_grad:
        x.layout = _still_drawn(drawn, x.labelled(state.grid), () if layout is None else layout)
    if layout is not None:
        for declare in declarations:
            declare("tensor", x)
    return x


def _check_shape(shape: Any) -> None:
    try:
        extents = [index(n) for n in shape]
    except TypeError as error:
        raise ArgumentError(f"global_shape={shape!r} was given; needed: integers" + call_site()) from error
    if any(n < 0 for n in extents):
        raise ShapeError(f"global_shape={shape!r} was given; needed: extents of at least 0" + call_site())


def _refuse_lost_sum(x: Tensor, labelled_axes: Any) -> None:
    """Raise LayoutError if `x` is Partial on an axis for which no other label is given: its sum would be forgotten."""
    for axis, label in () if x.layout is None else x.layout.items():
        if label.letter == "P" and axis not in (labelled_axes or ()):
            raise LayoutError(
                f"tensor({describe(x.array, x.array.shape, x.layout)})\n  axis {axis!r}: the value is Partial, an "
                f"addend of a sum that was not taken; a new leaf would be Varying\n  fix: all_reduce(x, {axis!r}), or "
                f"layout={{{axis!r}: P}} for a leaf that is an addend again" + call_site()
            )


def _still_drawn(drawn: Layout, layout: Layout, labelled_axes: Any) -> Layout:
    """The layout of a leaf made of a draw: still Drawn on the axes for which no other label was given."""
    pairs = zip(layout.grid.names, drawn.labels, layout.labels, strict=True)
    return layout.grid.layout([D if d is D and name not in labelled_axes else label for name, d, label in pairs])


def constant(array: Any, dtype: Any = None) -> Leaf:
    """An array that is the same on every rank and has no cotangent. It mixes with every layout, like a number.

    Examples
    --------
    >>> import autograd as ag
    >>> ag.constant([1.0, 2.0]).requires_grad
    False
    """
    array = array.array if array.__class__ in TENSORS else array
    x = Constant(as_array(array, dtype), None if state.grid is None else state.grid.uniform(C))
    for declare in declarations:
        declare("constant", x)
    return x


def resolve(
    given: Mapping[str, Label] | Layout | None,
    default: Label,
    shape: tuple[int, ...],
    grid: Grid,
    global_shape: Sequence[int] | None = None,
) -> Layout:
    """A user's labels as a Layout: other axes get `default`, every Shard its extent and offset.

    Without `global_shape` the parts of a sharded dimension are assumed to be equal on all ranks.
    """
    if isinstance(given, Layout) and given.grid is grid and global_shape is None:
        return given
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise LayoutError(f"layout={given!r} was given; needed: a mapping from axis to label, like {{'dp': R}}")
    for axis, label in given.items():
        grid.axis(axis)
        if not isinstance(label, Label):
            raise LayoutError(
                f"axis {axis!r}: {label!r} was given; needed: one of R, I, V, P, Shard(dim), Rooted(root)"
            )
    labels = [given.get(name, default) for name in grid.names]
    outer: dict[int, int] = {} if global_shape is None else dict(enumerate(int(n) for n in global_shape))
    if global_shape is not None and len(tuple(global_shape)) != len(shape):
        raise ShapeError(f"global_shape={tuple(global_shape)} was given for a part of shape {shape}: ranks differ")
    for i, label in enumerate(labels):
        if not isinstance(label, Shard):
            continue
        dim = label.dim + len(shape) if label.dim < 0 else label.dim
        if not 0 <= dim < len(shape):
            raise ShapeError(f"axis {grid.names[i]!r}: Shard({label.dim}) was given for an array of shape {shape}")
        inner = math.prod(
            s for j, s in enumerate(grid.sizes) if j > i and isinstance(labels[j], Shard) and _same_dim(labels[j], dim)
        )
        extent = outer.get(dim, shape[dim] * grid.sizes[i] * inner)
        extents, offsets = parts(extent, grid.sizes[i])
        outer[dim] = extents[grid.place[i]]
        labels[i] = Shard(dim, extent, offsets[grid.place[i]])
    for dim, n in outer.items():
        if n != shape[dim]:
            raise ShapeError(
                f"dimension {dim}: this rank's part has {shape[dim]}, but by the array_split rule of "
                f"global_shape={None if global_shape is None else tuple(global_shape)} it must have {n}"
            )
    return grid.layout(labels)


def _same_dim(label: Label, dim: int) -> bool:
    return isinstance(label, Shard) and label.dim == dim


class _Probe:
    """Measures `getrefcount` in `accumulate` for a cotangent that nothing else refers to."""

    count = 0

    def accumulate(self, ct: Any) -> None:
        self.count = getrefcount(ct)


def _owned_count() -> int:
    probe = _Probe()
    sweep = Sweep(Recording(Tape), 0, 1, None, False)
    sweep.cts[0] = np.zeros(1)
    sweep.run([(LEAF, None, (probe,), (), (), None, None)], release=False)
    return probe.count


_OWNED = _owned_count()
