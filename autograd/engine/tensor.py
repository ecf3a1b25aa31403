"""Tensor: an array, its layout, and its place on a tape.

The result of an operation is a Tensor. Users make leaves (`leaves`); a value that another rank is still sending is a
`Deferred` (`deferred`). Tensors are immutable: operations return new ones.

Operators and methods are operations under another name. The class takes them from the table of `ops.tensor_methods` at
their first use (`autograd.engine.first_use`).
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from ..arrays.capture import decided, refuse_value
from ..arrays.device import to_host
from ..arrays.plain import OF_MASKED, require_plain_array
from ..arrays.shape_only import Shaped, is_absent
from ..errors import (
    ArgumentError,
    LayoutError,
    NotDifferentiable,
    OptionError,
    SavedArrayError,
    TapeError,
    is_own_file,
    missing_attribute,
    short,
    typed,
    typed_errors,
)
from ..layouts.layout import Grid, Labelled, Layout, P, Shard, V
from ..layouts.messages import describe
from ..layouts.partition import global_shape, local_shape
from ..layouts.rank_values import rank_axes
from ..layouts.sizes import global_shape_of
from .first_use import at_first_use
from .locks import guarded, is_part
from .recording import FREE, OUTSIDE, UNRECORDED, Node, Recording, Step
from .state import state

__all__ = [
    "FROM_A_GRADIENT", "TENSORS", "WATCH", "Given", "Tensor", "interiors", "is_followed", "may_need_gradient",
    "place_off_tape", "relabel",
]  # fmt: skip

TENSORS: set[Any] = set()
"""Tensor and its subclasses. Dispatch looks up an operand's class here, in a tenth of the time of `isinstance`."""

FROM_A_GRADIENT = (
    "\n  or:  tape.backward(loss, record=True) inside the tape's block, if it was computed from a gradient such as "
    "w.grad; and w.zero_grad() before this backward"
)
"""What errors say of a value that depends on no leaf: it may have been computed from gradients."""

_SHOWN_BY_ELEMENTS = frozenset(map(np.dtype, ("float64", "int64", "bool", "complex128")))
"""The dtypes that the elements of an array show when they are printed."""


@at_first_use
class Tensor(Labelled):
    """A value: its array on this rank, its layout over the mesh, and its place on a tape."""

    __slots__ = ("array", "layout", "node", "tape")
    __array_priority__ = 1000.0
    __hash__ = object.__hash__
    name = ""
    _requires_grad = False  # of leaves: whether tapes record the operations on it
    _space: Any = None  # of the box of a user's object: its vector space

    array: Any  # this rank's part, not guarded against writes; a `Shaped` where the value is absent
    layout: Layout | None  # one label per mesh axis; None without a mesh
    tape: Recording | None  # where it was recorded; None if it depends on nothing that requires a gradient
    node: int

    def __init__(self, array: Any, layout: Layout | None = None, tape: Recording | None = None, node: int = OUTSIDE):
        if layout.__class__ is not Layout:  # an array with a layout is a result, which operations have checked
            if layout is not None or not hasattr(array, "dtype"):
                raise ArgumentError(
                    f"{type(self).__name__}({short(array)}, {short(layout)}) was given; needed: an array, and its "
                    "Layout\n  fix: autograd.tensor(x, layout={axis: label}), which takes numbers and lists, too"
                )
            if array.__class__ is not ndarray and isinstance(array, ndarray):
                require_plain_array(array)
        self.array = array
        self.layout = layout
        self.tape = tape
        self.node = node

    def __init_subclass__(cls) -> None:
        TENSORS.add(cls)

    _from_ufunc: Callable[..., Any]  # `ops.numpy_protocol`, as the following from `ops.tensor_methods`
    _from_function: Callable[..., Any]

    if TYPE_CHECKING:  # a test compares the names and parameters
        T: Tensor
        mT: Tensor
        real: Tensor
        imag: Tensor
        device: str
        itemsize: int
        nbytes: int

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]: ...
        def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rlshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __rrshift__(self, other: Any) -> Tensor: ...
        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]  # elementwise, as NumPy's
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]  # elementwise, as NumPy's
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...
        def __round__(self, decimals: int = 0) -> Tensor: ...
        def __index__(self) -> int: ...
        def __array_namespace__(self, /, *, api_version: str | None = None) -> Any: ...
        def __dlpack__(
            self, /, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
        ) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]: ...

        def all(self, axis: Any = None, out: None = None, keepdims: bool = False, **words: Any) -> Tensor: ...
        def any(self, axis: Any = None, out: None = None, keepdims: bool = False, **words: Any) -> Tensor: ...
        def argmax(
            self, axis: int | None = None, out: None = None, *, keepdims: bool = False, **words: Any
        ) -> Tensor: ...
        def argmin(
            self, axis: int | None = None, out: None = None, *, keepdims: bool = False, **words: Any
        ) -> Tensor: ...
        def argpartition(self, kth: Any, axis: int | None = -1, kind: str = ..., order: None = None) -> Tensor: ...
        def argsort(
            self, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: bool | None = None
        ) -> Tensor: ...
        def astype(
            self, dtype: Any, order: str = "K", casting: str = ..., subok: bool = True, copy: bool = True
        ) -> Tensor: ...
        def choose(self, choices: Any, out: None = None, mode: str = "raise") -> Tensor: ...
        def chunk(self, chunks: int, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]: ...
        def clip(
            self, a_min: Any = ..., a_max: Any = ..., *, min: Any = None, max: Any = None, out: None = None
        ) -> Tensor: ...
        def clone(self) -> Tensor: ...
        def compress(self, condition: Any, *args: Any, **words: Any) -> Tensor: ...
        def conj(self) -> Tensor: ...
        def conjugate(self) -> Tensor: ...
        def contiguous(self) -> Tensor: ...
        def copy(self) -> Tensor: ...
        def cpu(self) -> Tensor: ...
        def cuda(self, device: int | str | None = None) -> Tensor: ...
        def cumprod(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Tensor: ...
        def cumsum(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Tensor: ...
        def detach(self) -> Tensor: ...
        def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor: ...
        def dim(self) -> int: ...
        def dot(self, b: Any, out: None = None) -> Tensor: ...
        def flatten(self, start_dim: Any = 0, end_dim: Any = -1, *, order: str = "C") -> Tensor: ...
        def masked_fill(self, mask: Any, value: Any) -> Tensor: ...
        def max(self, axis: Any = None, out: None = None, keepdims: bool = False, **words: Any) -> Tensor: ...
        def mean(
            self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, **words: Any
        ) -> Tensor: ...
        def min(self, axis: Any = None, out: None = None, keepdims: bool = False, **words: Any) -> Tensor: ...
        def nonzero(self) -> tuple[np.ndarray, ...]: ...
        def numel(self) -> int: ...
        def permute(self, *dims: Any) -> Tensor: ...
        def prod(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor: ...
        def ptp(self, axis: Any = None, keepdims: bool = False) -> Tensor: ...
        def ravel(self, order: str = "C") -> Tensor: ...
        def repeat(self, repeats: Any, axis: int | None = None) -> Tensor: ...
        def reshape(self, *given: Any, order: str = "C", copy: Any = None) -> Tensor: ...
        def round(self, decimals: int = 0) -> Tensor: ...
        def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Any: ...
        def split(self, split_size: Any, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]: ...
        def squeeze(self, axis: Any = None, *, dim: Any = None) -> Tensor: ...
        def std(
            self, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
            mean: Any = None, correction: Any = None,
        ) -> Tensor: ...  # fmt: skip
        def sum(
            self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, **words: Any
        ) -> Tensor: ...
        def swapaxes(self, axis1: Any = None, axis2: Any = None, *, dim0: Any = None, dim1: Any = None) -> Tensor: ...
        def take(self, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise") -> Tensor: ...
        def to(
            self, *args: Any, dtype: Any = None, device: str | None = None, non_blocking: bool = False,
            copy: bool = False,
        ) -> Tensor: ...  # fmt: skip
        def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor: ...
        def tolist(self) -> Any: ...
        def trace(
            self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None
        ) -> Tensor: ...
        def transpose(self, *axes: Any, dim0: Any = None, dim1: Any = None) -> Tensor: ...
        def unsqueeze(self, dim: int | None = None, *, axis: int | None = None) -> Tensor: ...
        def var(
            self, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
            mean: Any = None, correction: Any = None,
        ) -> Tensor: ...  # fmt: skip
        def view(self, *given: Any) -> Tensor: ...

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it."""
        return self.tape is not None

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf; None for the result of an operation."""
        return None

    def zero_grad(self) -> None:
        """Refused: only a leaf accumulates a gradient.

        Raises
        ------
        TapeError
            Always; `Leaf.zero_grad` removes a gradient.
        """
        raise TapeError(
            "zero_grad of the result of an operation, which has no gradient of its own; needed: a Parameter. An update "
            "like w = w - lr * w.grad makes w the name of a result\n"
            "  fix: w.data = w.numpy() - lr * w.grad.numpy()"
        )

    def labelled(self, grid: Grid) -> Layout:
        """Its layout under a mesh. A leaf without labels gets permanent labels when it first enters a mesh."""
        return self.layout if self.layout is not None else grid.uniform(V)

    def enter_mesh(self) -> None:
        """Take labels under the current mesh, if there is one. Only leaves do, once."""

    def backward(self, cotangent: Any = None, *, retain: bool = False) -> None:
        """The same as ``tape.backward(self)`` on the whole tape that recorded it."""
        if self.tape is None:
            if self.node == UNRECORDED:
                raise TapeError(
                    "backward of a value that no tape recorded\n  fix: with ag.Tape() as tape: around the forward pass"
                )
            raise TapeError(
                "backward of a value that depends on no leaf: nothing was recorded. Needed: a Parameter, or a tensor "
                "with requires_grad=True, used inside `with ag.Tape():`\n  fix: with ag.Tape() as tape: around the "
                "forward pass, which begins with a Parameter" + FROM_A_GRADIENT
            )
        self.tape.whole().backward([self], None if cotangent is None else [cotangent], retain=retain)

    # -- shape and dtype ---------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this rank's part. The extent of a sharded dimension is a `LocalCount`."""
        shape = self.array.shape
        return shape if self.layout is None or not self.layout.special else local_shape(self.layout, shape)

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The shape of the whole value; LayoutError if it is Varying, which is not one value."""
        if self.layout is None:
            return self.array.shape
        return global_shape_of(global_shape(self.layout, self.array.shape))

    @property
    def size(self) -> int:
        """The number of elements of this rank's part: a `LocalCount` where a dimension is sharded."""
        size: int = self.array.size
        return size if self.layout is None or not self.layout.special else math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.array.shape)

    @property
    def absent(self) -> bool:
        """Whether another rank holds it (it is rooted there)."""
        return is_absent(self.array)

    # -- its value as plain data -------------------------------------------------------------------------------
    @property
    def data(self) -> Any:
        """This rank's part as an array: read-only while a tape needs it, None where the value is absent.

        Raises
        ------
        TapeError, LayoutError
            As `numpy` does.
        """
        if state.recording is not None and self.requires_grad:
            self._refuse_exit("{x}.data", "stop_gradient({x}).data")
        if state.recorder is not None:
            refuse_value("data")
        if self.layout is not None and P in self.layout.labels:
            self._refuse_addend("data")
        return None if is_absent(self.array) else guarded(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise SavedArrayError("the array of an operation's result cannot be replaced; needed: a leaf")

    def numpy(self) -> np.ndarray:
        """This rank's part as a NumPy array (a view on the host, a copy from a device).

        Raises
        ------
        TapeError
            A tape is recording, and follows this value: no gradient would flow through the array.
        LayoutError
            It is Partial: this rank holds an addend of the value. `local` is the addend.
        AbsentError
            Where this rank does not hold the value.

        Examples
        --------
        >>> import autograd as ag
        >>> w = ag.Parameter([1.0, 2.0])
        >>> with ag.Tape():
        ...     y = w * 2.0
        ...     print(ag.stop_gradient(y).numpy())
        [2. 4.]
        >>> float(y.numpy().sum())
        6.0
        """
        if state.recording is not None and self.requires_grad:
            self._refuse_exit("{x}.numpy()", "stop_gradient({x}).numpy()")
        array = self._whole("numpy")
        return guarded(self) if array is self.array else array

    @property
    def local(self) -> Any:
        """This rank's part or addend as a plain array, for other libraries; read-only while a tape needs it.

        Results computed from it are not differentiated and have no layout. So it is refused on an active tape that
        follows the value, except under ``no_grad``. ``collectives.from_local`` converts an array to a Tensor.

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
            is_addend = self.layout is not None and P in self.layout.labels  # which stop_gradient does not take
            fix = "with ag.no_grad(): around its use" + ("" if is_addend else ", or stop_gradient({x}).local")
            self._refuse_exit("{x}.local", fix, False)
        if state.recorder is not None:
            refuse_value("local")
        if type(self.array) is Shaped:
            self.array._no_value()
        return guarded(self)

    def item(self) -> Any:
        """Its one number as a Python number. No gradient flows through it, also on an active tape.

        Raises
        ------
        LayoutError
            It is Partial: this rank holds an addend of the value.
        """
        return self._whole("item").item()

    def _whole(self, caller: str) -> np.ndarray:
        """Its array on the host, for plain data of the value."""
        if state.recorder is not None:
            refuse_value(caller)
        self._refuse_addend(caller)
        return to_host(self.array)

    def _refuse_addend(self, caller: str) -> None:
        """Raise LayoutError if this rank holds an addend, which is not the value."""
        if self.layout is not None and P in self.layout.labels:
            from ..layouts.names import name_of  # loaded when it is told
            from ..layouts.texts import addend

            raise LayoutError(addend(caller, self, name_of(self)))

    def _refuse_exit(self, call: str, fix: str, only_followed: bool = True) -> None:
        """Raise TapeError for a conversion to plain data, on an active tape that can still differentiate the value."""
        if only_followed and not is_followed(self):
            return
        from ..layouts.names import name_of  # loaded when it is told

        name = name_of(self)
        sent = f"\n  or:  {name} itself, to send it: cc.send({name}, ...)" if "numpy" in call and self.ndim else ""
        shown = describe(self.array, self.array.shape, self.layout)
        raise TapeError(_exit(call.format(x=name), name, shown, fix.format(x=name)) + sent)

    # An array of `generic` is none of the operands in the types of NumPy's operators: a checker takes the reflected one
    @typed_errors
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[np.generic]]:
        discrete = dtype is not None and np.dtype(dtype).kind in "biu"  # numpy.int64(x): indices have no derivative
        if state.recording is not None and self.requires_grad and not discrete:
            if _is_read_by_masked_arrays():
                raise NotDifferentiable(
                    f"{self.name or 'a Tensor'}, of {describe(self.array, self.array.shape, self.layout)}, was to "
                    "become a part of a masked array x on an active tape: numpy.ma would use its values alone; needed: "
                    "plain arrays\n"
                    f"  fix: {OF_MASKED}"
                )
            raise NotDifferentiable(
                f"{self.name or 'x'}, of {describe(self.array, self.array.shape, self.layout)}, was to become a plain "
                "array on an active tape: computations on it would be silently missing from the gradient. "
                "Fix: autograd.numpy.array(x), which is differentiable, of lists too; or stop_gradient(x).numpy() "
                "where no gradient is wanted"
            )
        host = self._whole("numpy.asarray")
        if copy is False and host is self.array:
            host = guarded(self)
        if copy is False and dtype is not None and host.dtype != dtype:
            raise OptionError(f"copy=False of a {host.dtype} array as {np.dtype(dtype)}: the conversion needs a copy")
        return np.array(host, dtype=dtype) if copy is not False else np.asarray(host, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
        return self._from_ufunc(ufunc, method, xs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self._from_function(function, args, options)

    def __float__(self) -> float:
        array = self._whole("float")
        if state.recording is not None and self.requires_grad:
            self._refuse_exit("float({x})", "{x}.item()")
        return float(_converted(float, array))

    def __int__(self) -> int:
        array = self._whole("int")
        if state.recording is not None and self.requires_grad:
            self._refuse_exit("int({x})", "int({x}.item())")
        return int(_converted(int, array))

    def __bool__(self) -> bool:
        if state.recorder is not None and isinstance(self.array, np.ndarray | np.generic) and self.array.size == 1:
            self._refuse_addend("bool")
            return bool(decided(bool, self.array))
        return bool(_converted(bool, self._whole("bool")))

    def __complex__(self) -> complex:
        array = self._whole("complex")
        if state.recording is not None and self.requires_grad:
            self._refuse_exit("complex({x})", "{x}.item()")
        return complex(_converted(complex, array))

    @typed_errors
    def __format__(self, spec: str) -> str:
        if not spec or self.array.shape:
            return super().__format__(spec)
        text = format(self.item(), spec)
        return text if state.recording is None or not is_followed(self) else Text.of(text, self, spec)

    if not TYPE_CHECKING:  # it would give every name a type

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # NumPy asks every operand for its protocols
                raise AttributeError(name)
            raise missing_attribute("Tensor", name, self)

    def __len__(self) -> int:
        """The extent of the first dimension, unless it is sharded: Python would turn the local count into a plain int.

        Raises
        ------
        LayoutError
            The first dimension is sharded. ``x.shape[0]`` is the local extent, which remembers that it is one.
        """
        if self.layout is not None and self.layout.special and rank_axes(self.shape[:1]):
            shown = f"{self.name or 'x'}: {describe(self.array, self.array.shape, self.layout)}"
            raise LayoutError(
                f"len({shown}): the first dimension is sharded, and len would give a plain number, which does not "
                "remember that it is the extent of this rank's part\n  fix: x.global_shape[0] (of the whole), or "
                "x.shape[0] (of this part; range and slices take it)"
            )
        return int(_converted(len, self.array))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(_converted(len, self.array)))

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Itself if it was recorded, since a copy on no tape would lose its gradient; Tensors are immutable."""
        return self if self.tape is not None else Tensor(deepcopy(self.array, memo), self.layout, None, self.node)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise SavedArrayError(
            f"assignment to elements of a Tensor of shape {self.array.shape}. Needed: a functional form, because a "
            "tape may have saved the array. Fix: where(mask, new, x), or concatenate, or write to x.numpy().copy(); "
            "for a buffer made by zeros or ones of autograd.numpy, numpy.zeros or numpy.ones"
        )

    def __repr__(self) -> str:
        """Its class, this rank's elements, and what they do not show: name, dtype, layout, shape of the whole value."""
        if state.recorder is not None:
            refuse_value("print or repr")
        kind, array = self._shown_class(), self.array
        facts = f", name={self.name!r}" if self.name else ""
        if type(array) is Shaped:
            facts += f", shape={array.shape}, dtype={array.dtype}"
        elif array.dtype not in _SHOWN_BY_ELEMENTS:
            facts += f", dtype={array.dtype}"
        if self.layout is not None:
            facts += f", layout={self.layout!r}"
            if self.layout.special and V not in self.layout.labels and all(
                label.is_agreed for label in self.layout.labels if isinstance(label, Shard)
            ):
                facts += f", global_shape={tuple(map(int, self.global_shape))}"
        if type(array) is Shaped:
            return f"{kind}({'absent' if array.absent else 'dry'}{facts})"
        is_addend = self.layout is not None and P in self.layout.labels
        start = f"{kind}(" + ("this rank's addend: " if is_addend else "")
        return f"{start}{np.array2string(to_host(array), separator=', ', prefix=start, threshold=20)}{facts})"

    def _shown_class(self) -> str:
        return type(self).__name__

    def _grad_text(self) -> str:
        """The text for the gradient of a leaf in a notebook."""
        return "None"

    def _repr_html_(self) -> str:
        """The same for notebooks: a table of its properties, and some elements."""
        from .. import notebook  # few programs show values so

        if state.recorder is not None:
            refuse_value("print or repr")
        array, layout = self.array, self.layout
        shape = tuple(map(int, array.shape))
        rows: list[tuple[object, ...]] = [("dtype", array.dtype)]
        if layout is None:
            rows.append(("shape", shape))
        else:
            is_one = V not in layout.labels and all(x.is_agreed for x in layout.labels if isinstance(x, Shard))
            rows += [("shape on this rank", shape), ("layout", repr(layout))]
            rows += [("global shape", tuple(map(int, self.global_shape)))] if is_one else []
        if self.device != "cpu":
            rows.append(("device", self.device))
        if self.requires_grad:
            rows.append(("gradient", "flows through it") if self.tape is not None else ("grad", self._grad_text()))
        if type(array) is Shaped:
            values = "held by another rank" if array.absent else "no values: a dry run"
        else:
            with np.printoptions(edgeitems=3, threshold=40, linewidth=100):
                values = np.array2string(to_host(array), separator=", ")
        addend = "this rank's addend" if layout is not None and P in layout.labels else ""
        title = self._shown_class() + (f" {self.name}" if self.name else "")
        return notebook.sheet(title, addend, notebook.table(rows), self._holdings_html(), notebook.code(values))

    def _holdings_html(self) -> str:
        """A table of which rank holds which part, for a value that is divided over several ranks."""
        layout = self.layout
        if layout is None or not (layout.special or layout.rooted) or max(layout.grid.sizes) == 1:
            return ""
        from .. import notebook
        from ..layouts.holdings import holdings

        found = holdings(layout, self.array.shape)
        rows = [(", ".join(map(str, ranks)), text) for ranks, text in found[:_MOST_SHOWN]]
        rows += [("others", f"{len(found) - _MOST_SHOWN} more parts")] * (len(found) > _MOST_SHOWN)
        return notebook.table(rows, ("ranks", "hold"))


def _is_read_by_masked_arrays() -> bool:
    """Whether NumPy's masked arrays ask for the values of a Tensor, as in ``masked * tensor``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("numpy.ma.")


def _converted(kind: Any, array: Any) -> Any:
    """``kind(array)``, with a RingtapeError where NumPy refuses the conversion."""
    try:
        return kind(array)
    except (TypeError, ValueError, OverflowError) as error:
        raise typed(error, f"{kind.__name__} of a Tensor of shape {array.shape}: {error}") from error


TENSORS.add(Tensor)
_MOST_SHOWN = 16  # parts in a notebook


class Given(Tensor):
    """An operand that was given as a plain array, list or number, with the labels that this implies.

    One operation uses it. Its class tells a plain array from a Tensor in error messages, and a plain number from a
    constant Tensor where the ranks compare numbers. Of a copied array it has the original as `given`, by which messages
    name it.
    """

    __slots__ = ("given",)
    given: Any


_new = object.__new__


def interiors(arrays: Iterable[Any], layouts: Iterable[Layout], tape: Recording, first: int) -> list[Tensor]:
    """Make Tensors in half the time of calling the class. Their places follow one another from `first` on."""
    found = []
    for node, (array, layout) in enumerate(zip(arrays, layouts), first):  # noqa: B905  `strict` costs a tenth
        x = _new(Tensor)
        x.array = array
        x.layout = layout
        x.tape = tape
        x.node = node
        found.append(x)
    return found


class _Watch(Step):
    """The identity, recorded as a node: an argument of a transform, or a relabelled value."""

    name = "watch"

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        (parent,), (layout,) = node[3], node[4]
        if parent >= 0:
            sweep.add(parent, relabel(ct, layout.dual) if sweep.record and layout is not None else ct)

    def push(self, node: Node, tangents: list[Any], start: int, *context: Any) -> Any:
        (parent,) = node[3]
        return tangents[parent - start] if parent >= start else None


WATCH = _Watch()


def _exit(call: str, name: str, shown: str, fix: str) -> str:
    """The message for a conversion to plain data of a value that the active tape follows."""
    return (
        f"{call}, where {name} is {shown}, which the active tape follows: no gradient flows through plain data, so the "
        "gradient of what is computed from it would be silently wrong. Needed: operations on the Tensor, such as those "
        f"of autograd.numpy (np.exp for math.exp)\n  fix: {fix}, if the value is meant without its gradient   "
        "(to print it: print, or a format such as f\"{x:.3f}\")"
    )


_FIXES = {"float": "{x}.item()", "int": "round({x}.item())"}


class Text(str):
    """The text of a number that an active tape follows. While it is active, it is no number again: see `_exit`.

    Where it becomes a part of a longer text, or is copied or pickled, it is a plain string.
    """

    __slots__ = ("_recording", "_shown")
    _recording: Any
    _shown: tuple[str, str, str]

    @classmethod
    def of(cls, text: str, x: Tensor, spec: str) -> Text:
        made = cls(text)
        made._recording = weakref.ref(state.recording)
        made._shown = x.name or "x", describe(x.array, x.array.shape, x.layout), spec
        return made

    def _plain(self, kind: str) -> str:
        if state.recording is not None and state.recording is self._recording():
            name, shown, spec = self._shown
            raise TapeError(_exit(f'{kind}(f"{{{name}:{spec}}}")', name, shown, _FIXES[kind].format(x=name)))
        return str(self)

    def __float__(self) -> float:
        return float(self._plain("float"))

    def __int__(self) -> int:
        return int(self._plain("int"))

    def __reduce__(self) -> Any:
        return str, (str(self),)


def is_followed(x: Tensor) -> bool:
    """Whether a tape is active, and a sweep from `x` can reach an input, as far as this rank knows.

    A communication of data is recorded, too. A value that was received may depend on inputs of the sender.
    """
    if state.recording is None or not x.requires_grad:
        return False
    recording = x.tape
    if recording is None:
        return True
    seen: set[int] = set()
    left = [x.node]
    while left:
        at = left.pop()
        if at in seen or recording.released(at):
            continue
        seen.add(at)
        node: Any = recording.nodes[at]
        parents = node[3]
        if not parents or (node[0] is WATCH and parents[0] < 0):  # a leaf, an import, an argument, or a receive
            return True
        left += [parent for parent in parents if parent >= 0]
    return False


def may_need_gradient(x: Tensor) -> bool:
    """Whether `x` is recorded, requires a gradient, or was computed from such a value while nothing was recorded."""
    return x.tape is not None or x._requires_grad or x.node == UNRECORDED


def place_off_tape(array: Any, operands: Sequence[Any], letters: Sequence[str] | None = None) -> int:
    """The place of a result that no tape follows: data on a tape that records, else where it was computed.

    It is UNRECORDED where a gradient would flow to an operand, if a tape recorded: outside of `no_grad`, and not for an
    operand whose letter in the declaration is S. A result in the memory of a value that a tape follows (of
    `stop_gradient`, or a view made under `no_grad`) is read-only until that tape is released.
    """
    for x in operands:
        if x.__class__ in TENSORS and (x.tape is not None or x._requires_grad or x.node == UNRECORDED):
            break
    else:
        return OUTSIDE if state.recording is None else FREE
    for x in operands:
        if x.__class__ in TENSORS and x.tape is not None and not x.tape.released(x.node) and is_part(array, x.array):
            x.tape.lock(array)
    if state.recording is not None:
        return FREE
    if state.no_grad or array.dtype.kind not in "fcV":
        return OUTSIDE
    if letters is not None and "S" in letters:
        followed = [x for x, letter in zip(operands, letters, strict=True) if letter != "S"]
        return place_off_tape(array, followed)
    return UNRECORDED


def relabel(x: Tensor, layout: Any) -> Tensor:
    """`x` with another layout that needs no communication; recorded as the identity."""
    if x.layout is layout:
        return x
    if x.tape is None:
        return Tensor(x.array, layout, None, x.node)
    return Tensor(x.array, layout, x.tape, x.tape.append((WATCH, None, (), (x.node,), (x.layout,), None, None)))
