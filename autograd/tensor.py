"""Tensor: an array, its layout, and its place on a tape.

An interior Tensor is the result of an operation; a `Leaf` is what the user made, a `Parameter` a leaf that is learned.
Tensors are immutable as far as the tape is concerned: operations return new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from . import tape as _tape
from .arrays import Shaped, as_array, is_absent, is_inexact, shape_only, to_host
from .errors import (
    AbsentError,
    CommunicationError,
    DtypeError,
    MeshError,
    NotDifferentiable,
    SavedArrayError,
    ShapeError,
    TapeError,
)
from .events import declarations
from .layout import C, D, Grid, I, Label, Layout, V, describe, resolve
from .sites import call_site
from .state import state

if TYPE_CHECKING:
    from .tape import Recording

__all__ = ["TENSORS", "Deferred", "Leaf", "Parameter", "Tensor", "constant", "tensor"]

_ops: Any = None  # the operations, which stand above this file; set when they are loaded


class Tensor:
    """A value: its array here, its layout over the mesh, and its place on a tape.

    Attributes
    ----------
    array : array
        This rank's part, for ringtape's own use: nothing guards it. A `Shaped` array where the value is absent.
    layout : Layout or None
        One label per mesh axis; None where no mesh is in play.
    tape, node : Recording or None, int
        Where it was recorded; None where nothing that it depends on is differentiated.
    """

    __slots__ = ("array", "layout", "node", "tape")
    __array_priority__ = 1000.0
    name = ""

    array: Any
    layout: Layout | None
    tape: Recording | None
    node: int

    def __init__(self, array: Any, layout: Layout | None = None, tape: Recording | None = None, node: int = -1):
        self.array = array
        self.layout = layout
        self.tape = tape
        self.node = node

    # -- what it is ------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this rank's part; the extent of a sharded dimension knows on which axes it differs."""
        shape = self.array.shape
        return shape if self.layout is None or not self.layout.special else self.layout.shape(shape)

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The shape of the whole value; LayoutError where it is Varying, so that there is no one value."""
        return self.array.shape if self.layout is None else self.layout.global_shape(self.array.shape)

    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: len(self.array.shape))
    size = property(lambda self: self.array.size)

    @property
    def requires_grad(self) -> bool:
        """Whether a tape follows it."""
        return self.tape is not None

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf; None for the result of an operation."""
        return None

    @property
    def absent(self) -> bool:
        """Whether another rank holds it (it is rooted there); in a dry run the same as in a real one."""
        return is_absent(self.array)

    @property
    def data(self) -> Any:
        """This rank's part as an array; read-only while a tape needs it, None where the value is absent."""
        return None if is_absent(self.array) else _tape.guarded(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise SavedArrayError("the array of an operation's result cannot be replaced; needed: a leaf")

    def numpy(self) -> np.ndarray:
        """This rank's part as a NumPy array (a view on the host, a copy from a device).

        Raises
        ------
        AbsentError
            Where this rank does not hold the value.
        """
        array = to_host(self.array)
        return _tape.guarded(self) if array is self.array else array

    @property
    def local(self) -> Any:
        """This rank's part as a plain array, for code that is none of ringtape's; read-only while a tape needs it.

        What is computed from it is not differentiated and has no layout. So on an active tape a value that the tape
        follows gives it up under ``no_grad`` only, and the way back, ``collectives.from_local``, names every axis.

        Raises
        ------
        TapeError
            A tape is recording, and follows this value.
        AbsentError
            Where this rank does not hold the value.

        Examples
        --------
        >>> import autograd as ag
        >>> w = ag.Parameter([1.0, 2.0])
        >>> with ag.Tape():
        ...     y = w * 2.0
        ...     with ag.no_grad():
        ...         print(y.local.max())
        4.0
        """
        if state.recording is not None and self.requires_grad:
            raise TapeError(
                f"{self.name or 'x'}.local, of {describe(self.array, self.array.shape, self.layout)}, on an active "
                "tape: what is computed from the plain array would miss in its gradient, and nothing would say so. "
                "Needed: no_grad, which says it\n  fix: with ag.no_grad(): around what uses it, or "
                "stop_gradient(x).local" + call_site()
            )
        if type(self.array) is Shaped:
            self.array._no_value()
        return _tape.guarded(self)

    def labelled(self, grid: Grid) -> Layout:
        """Its layout under a mesh; a leaf without labels is given them for good when a mesh first meets it."""
        return self.layout if self.layout is not None else grid.uniform(V)

    def backward(self, cotangent: Any = None, *, retain: bool = False) -> None:
        """The same as ``tape.backward(self)`` on the whole tape that recorded it."""
        if self.tape is None:
            raise TapeError(
                "backward of a value that depends on no leaf: nothing was recorded. Needed: a Parameter, or a tensor "
                "with requires_grad=True, used inside `with ag.Tape():`"
            )
        whole = _tape.Tape()
        whole.recording = self.tape
        whole.backward([self], None if cotangent is None else [cotangent], retain=retain)

    def __repr__(self) -> str:
        where = "" if self.layout is None else f", layout={self.layout!r}"
        if type(self.array) is Shaped:
            absent = "absent" if self.array.absent else "dry"
            return f"{type(self).__name__}({absent}, shape={self.array.shape}, dtype={self.array.dtype}{where})"
        body = np.array2string(to_host(self.array), separator=", ", prefix=type(self).__name__ + "(", threshold=20)
        return f"{type(self).__name__}({body}{where})"

    # -- plain Python protocols --------------------------------------------------------------------------------------
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if state.recording is not None and self.requires_grad:
            raise NotDifferentiable(
                f"{self.name or 'x'}, of {describe(self.array, self.array.shape, self.layout)}, was to become a plain "
                "array on an active tape: what is computed from it would miss in its gradient, and nothing would say "
                "so. Fix: autograd.numpy.array(x), which is differentiable, of lists too; or x.numpy() where no "
                "gradient is wanted" + call_site()
            )
        host = to_host(self.array)
        if copy is False and host is self.array:
            host = _tape.guarded(self)
        return np.array(host, dtype=dtype) if copy is not False else np.asarray(host, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
        return _ops.from_ufunc(ufunc, method, xs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return _ops.from_function(function, args, options)

    def __float__(self) -> float:
        return float(to_host(self.array))

    def __int__(self) -> int:
        return int(to_host(self.array))

    def __bool__(self) -> bool:
        return bool(to_host(self.array))

    def item(self) -> Any:
        """Its one number as a Python number."""
        return to_host(self.array).item()

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self.array)))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise SavedArrayError(
            f"assignment to elements of a Tensor of shape {self.array.shape}. Needed: a functional form, "
            f"because a tape "
            "may have saved the array. Fix: where(mask, new, x), or concatenate, or write to x.numpy().copy()"
        )

    __hash__ = object.__hash__

    # -- operators ---------------------------------------------------------------------------------------------------
    def __add__(self, other: Any) -> Any:
        return _ops.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return self if other.__class__ is int and other == 0 else _ops.add(other, self)  # sum([...]) begins with 0

    def __sub__(self, other: Any) -> Any:
        return _ops.subtract(self, other)

    def __rsub__(self, other: Any) -> Any:
        return _ops.subtract(other, self)

    def __mul__(self, other: Any) -> Any:
        return _ops.multiply(self, other)

    def __rmul__(self, other: Any) -> Any:
        return _ops.multiply(other, self)

    def __truediv__(self, other: Any) -> Any:
        return _ops.divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _ops.divide(other, self)

    def __matmul__(self, other: Any) -> Any:
        return _ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _ops.matmul(other, self)

    def __pow__(self, other: Any) -> Any:
        return _ops.power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return _ops.power(other, self)

    def __neg__(self) -> Any:
        return _ops.negative(self)

    def __abs__(self) -> Any:
        return _ops.absolute(self)

    def __eq__(self, other: Any) -> Any:
        return _ops.equal(self, other)

    def __ne__(self, other: Any) -> Any:
        return _ops.not_equal(self, other)

    def __lt__(self, other: Any) -> Any:
        return _ops.less(self, other)

    def __le__(self, other: Any) -> Any:
        return _ops.less_equal(self, other)

    def __gt__(self, other: Any) -> Any:
        return _ops.greater(self, other)

    def __ge__(self, other: Any) -> Any:
        return _ops.greater_equal(self, other)

    def __getitem__(self, key: Any) -> Any:
        return _ops.getitem(self, key)

    # -- methods that arrays have too, so that rules and programs read the same on both --------------------------------
    @property
    def T(self) -> Any:
        return _ops.transpose(self)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        return _ops.sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        return _ops.mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        return _ops.max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        return _ops.min(self, axis, keepdims)

    def reshape(self, *shape: Any) -> Any:
        return _ops.reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: Any) -> Any:
        return _ops.transpose(self, (axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes) or None)

    def swapaxes(self, a: int, b: int) -> Any:
        return _ops.swapaxes(self, a, b)

    def astype(self, dtype: Any) -> Any:
        return _ops.astype(self, dtype)

    def argmax(self, axis: int | None = None) -> Any:
        return _ops.argmax(self, axis)

    def copy(self) -> Tensor:
        """A leaf with a copy of the value, off the tape."""
        return Leaf(self.array.copy(), self.layout)


FREE = -2
"""The place of a value that was made while a tape recorded, and depends on nothing that it follows."""

_new = object.__new__


def interior(array: Any, layout: Layout | None, tape: Recording | None, node: int) -> Tensor:
    """A Tensor, made for half the price of calling the class."""
    x = _new(Tensor)
    x.array = array
    x.layout = layout
    x.tape = tape
    x.node = node
    return x


class Leaf(Tensor):
    """A Tensor that the user made. With `requires_grad`, backward adds its gradient to `grad`."""

    __slots__ = ("_grad", "_requires_grad", "name", "uses")

    def __init__(self, array: Any, layout: Layout | None = None, requires_grad: bool = False, name: str = ""):
        if layout is not None and layout.rooted and layout.absent_beyond(()):
            array = Shaped(array.shape, array.dtype, f"its layout {layout!r} roots it on another rank")
        elif state.dry:
            array = shape_only(array)
        super().__init__(array, layout)
        self._requires_grad = False
        self._grad: Any = None  # a Tensor, or the bare array while nobody has asked for it
        self.uses = 0  # how many tapes hold it, where it owns its array (see Recording.hold)
        self.name = name
        self.requires_grad = requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether a tape follows it."""
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
        return None if is_absent(self.array) else _tape.guarded(self)

    @data.setter
    def data(self, value: Any) -> None:
        value = as_array(value, self.array.dtype)
        if value.shape != self.array.shape:
            raise ShapeError(f"a value of shape {value.shape} was given for a leaf of shape {self.array.shape}")
        if self.uses:
            _tape.step_check(self)
        self.array = shape_only(value) if state.dry else value.copy() if self.owns else value

    def labelled(self, grid: Grid) -> Layout:
        if self.layout is None:
            if state.dry and type(self.array) is not Shaped:
                raise AbsentError(
                    f"{self.name or 'a leaf'} of shape {self.array.shape} was made outside the dry run, which would "
                    "label it for good by a mesh that does not exist. Needed: leaves of its own. Fix: make the model "
                    "and the data inside the with block" + call_site()
                )
            self.layout = grid.uniform(self._default)
        return self.layout

    _default: Label = V
    owns = False  # whether its array is nobody else's

    def zero_grad(self) -> None:
        """Forget the gradient."""
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


class Deferred(Tensor):
    """A value that another rank is still sending: a communication was started, and the first use waits for it.

    It is a Tensor like any other; its array is filled, and its place on the tape taken, when either is first asked for.
    Layout, shape and dtype can be looked at without waiting. The `maker` knows how: it has

    - ``finish()``, which waits and returns (array, layout, node),
    - ``test()``, True once that would return at once,
    - ``what`` and ``site``: the call, and where in the user's program it was made,
    - ``mesh`` and ``place``: its mesh, and where on the tape it was started.
    """

    __slots__ = ("_maker", "_outline", "mesh", "place", "site", "what")

    def __init__(self, maker: Any, outline: Any, layout: Layout | None, tape: Recording | None):
        _layout_slot.__set__(self, layout)
        self.tape = tape
        self._maker = maker
        self._outline = outline  # a Shaped: what is known of the array before it is here; None if nothing is
        self.what, self.site, self.mesh, self.place = maker.what, maker.site, maker.mesh, maker.place
        state.pending = [*state.pending, self]

    def wait(self) -> Tensor:
        """Wait until the value is here, and return it: this same object."""
        if self._maker is not None:
            array, layout, node = self._maker.finish()
            _array_slot.__set__(self, array)
            _layout_slot.__set__(self, layout)
            _node_slot.__set__(self, node)
            if node < 0:
                self.tape = None  # what came has no derivative, or was not recorded
            self.drop()
        return self

    def test(self) -> bool:
        """True once `wait` would return at once. Makes progress, never blocks."""
        return self._maker is None or self._maker.test()

    def drop(self) -> None:
        """Take it off the list of what is still to be waited for."""
        self._maker = None
        state.pending = [x for x in state.pending if x is not self]

    def _found(self, slot: Any) -> Any:
        if self._maker is not None:
            self.wait()
        try:
            return slot.__get__(self)
        except AttributeError:
            raise CommunicationError(
                f"{self.what}, started at {self.site}, was given up by an error and has no value"
            ) from None

    array = property(lambda self: self._found(_array_slot))
    node = property(lambda self: self._found(_node_slot))

    @property
    def layout(self) -> Layout | None:  # type: ignore[override]
        layout = _layout_slot.__get__(self)
        return self._found(_layout_slot) if layout is None else layout

    @property
    def shape(self) -> tuple[int, ...]:
        if self._maker is None or self._outline is None:
            return super().shape
        shape, layout = self._outline.shape, self.layout
        return shape if layout is None or not layout.special else layout.shape(shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype if self._maker is None or self._outline is None else self._outline.dtype

    def __repr__(self) -> str:
        return super().__repr__() if self._maker is None else f"Deferred({self.what}, started at {self.site})"


_array_slot: Any = Tensor.__dict__["array"]
_layout_slot: Any = Tensor.__dict__["layout"]
_node_slot: Any = Tensor.__dict__["node"]


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
        What errors and checkpoints call it; modules fill it in.
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
        if not state.dry:  # where only the shape is taken
            array = array.copy() if is_inexact(array.dtype) or requires_grad is False else array
        super().__init__(array, _layout(array, layout, I, global_shape), requires_grad, name)


class Constant(Leaf):
    """A leaf that is the same on every rank and has no cotangent; `constant` makes it."""

    __slots__ = ()
    _default = C


TENSORS: frozenset[Any] = frozenset((Tensor, Leaf, Parameter, Constant, Deferred))
_tape._tensor_type = Tensor


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

    Examples
    --------
    >>> import autograd as ag
    >>> ag.tensor([1.0, 2.0], requires_grad=True)
    Leaf([1., 2.])
    """
    drawn = None
    if array.__class__ in TENSORS:
        drawn, array = array.layout, array.array
    array = as_array(array, None if dtype is None else np.dtype(dtype))
    x = Leaf(array, _layout(array, layout, V, global_shape), requires_grad, name)
    if state.grid is not None and drawn is not None and drawn.drawn and drawn.grid is state.grid and not requires_grad:
        x.layout = _still_drawn(drawn, x.labelled(state.grid), () if layout is None else layout)
    if layout is not None:
        for hear in declarations:
            hear("tensor", x)
    return x


def _still_drawn(drawn: Layout, layout: Layout, said: Any) -> Layout:
    """A draw made into a leaf is one still, on the axes for which no other label was given."""
    pairs = zip(layout.grid.names, drawn.labels, layout.labels, strict=True)
    return layout.grid.layout([D if d is D and name not in said else label for name, d, label in pairs])


def constant(array: Any, dtype: Any = None) -> Leaf:
    """An array that is the same on every rank and has no cotangent: it mixes with every layout, as a number does.

    Examples
    --------
    >>> import autograd as ag
    >>> ag.constant([1.0, 2.0]).requires_grad
    False
    """
    array = array.array if array.__class__ in TENSORS else array
    x = Constant(as_array(array, dtype), None if state.grid is None else state.grid.uniform(C))
    for hear in declarations:
        hear("constant", x)
    return x


def use_operations(module: Any) -> None:
    """Give Tensors the operations behind their operators; they stand above this file."""
    global _ops
    _ops = module
    for operator, operation in (
        ("add", module.add), ("sub", module.subtract), ("mul", module.multiply), ("truediv", module.divide),
        ("matmul", module.matmul),
    ):  # fmt: skip
        setattr(Tensor, f"__{operator}__", operation.call)  # no frame between the operator and the operation


class _Probe:
    """Measures what `getrefcount` says in `accumulate` of a cotangent that nobody else holds."""

    count = 0

    def accumulate(self, ct: Any) -> None:
        self.count = getrefcount(ct)


def _owned_count() -> int:
    probe = _Probe()
    sweep = _tape.Sweep(_tape.Recording(), 0, 1, None, False)
    sweep.cts[0] = np.zeros(1)
    sweep.run([(_tape.LEAF, None, (probe,), (), (), None, None)], release=True)
    return probe.count


_OWNED = _owned_count()
