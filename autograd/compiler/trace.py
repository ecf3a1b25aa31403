"""Trace: arrays that note the calls of NumPy that are made with them, while they are made.

A `Traced` stands for an array of NumPy: to code that asks for its class it is one. It holds the array with the values
of the run in which it is traced, so that code may decide on shapes and dtypes as usual. A truth value on which Python
decides becomes a guard. All else that would take a value out of the arrays (``float(x)``, ``numpy.asarray(x)``, a
function of NumPy that is not known here) raises `Refused`: no value is lost silently.

A view needs no rule: an operand is memory, an offset and strides.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..kernels import stands_for
from .build import is_available
from .machine import arguments_of
from .nodes import Buffer, Constant, Node, Operand, Place, Refused, steps_of
from .numbers import Number

__all__ = ["Trace", "Traced", "like", "operand_of", "owner_of", "real", "tracing", "without_collection"]

_KINDS = "fiubc"
_NUMBERS = (bool, int, float, complex)  # of Python
_MOST_GUARDS = 64
_BOOL = np.dtype(bool)
_any: Any = np  # whose functions are called with traced arrays
_clip_ufunc = _any._core.umath.clip


class Trace:
    """The nodes of the calls that are made with its arrays, in order.

    Attributes
    ----------
    nodes : list of Node
    quiet : set of str
        The floating-point errors that a function among those traced ignores.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.row = -1
        self.quiet: set[str] = set()
        self._constants: dict[int, tuple[Any, Buffer]] = {}  # by the id of their owner
        self._states: dict[int, tuple[Any, Buffer]] = {}
        self._memories: dict[int, Any] = {}  # of the copies of states

    # -- arrays ------------------------------------------------------------------------------------------------------
    def new(self, value: Any, kind: str = "temporary", array: Any = None, key: Any = None) -> Traced:
        """The array of a new piece of memory, whose present values are those of `value`, which nothing else uses."""
        is_scalar = isinstance(value, np.generic)
        if is_scalar:
            value = np.asarray(value)
        base = value if kind == "argument" else owner_of(value)  # in other steps it lies in other memory
        return Traced(self, value, Buffer(kind, base, array, key), is_scalar)

    def state(self, array: Any) -> Traced:
        """An array of the program, which steps read and may write, also by its other views."""
        owner = owner_of(array)
        found = self._states.get(id(owner))
        if found is None:
            if owner.__class__ is not np.ndarray or owner.dtype.kind not in _KINDS or owner.size == 0:
                raise Refused(f"an array of {owner.dtype}")
            base, self._memories[id(owner)] = like(owner)
            found = self._states[id(owner)] = owner, Buffer("state", base, owner)
        return Traced(self, self._copy_of(array, owner), found[1])

    def constant(self, x: Any) -> Any:
        """An array that the step does not write; the program may, between the steps."""
        found = self.operand(x)
        value = x if found.buffer.kind == "constant" else self._copy_of(x, owner_of(x))
        return Traced(self, value, found.buffer)

    def _copy_of(self, x: Any, owner: Any) -> Any:
        """The view of the copy of a state that `x` is of the state."""
        low = np.lib.array_utils.byte_bounds(owner)[0]
        return np.ndarray(x.shape, x.dtype, self._memories[id(owner)].data, x.ctypes.data - low, x.strides)

    def operand(self, x: Any) -> Any:
        """An argument of a call, as part of a node."""
        kind = type(x)
        if kind is Traced:
            if x._trace is not self:
                raise Refused("an array of another trace")
            return x._known or x._operand
        if kind is Number:
            return x
        if kind is np.ndarray:
            if x.dtype.kind not in _KINDS:
                raise Refused(f"an array of {x.dtype}")
            owner = owner_of(x)
            if owner.__class__ is not np.ndarray:
                raise Refused(f"memory of a {type(owner).__name__}")
            if id(owner) in self._states:
                return operand_of(self._copy_of(x, owner), self._states[id(owner)][1])
            found = self._constants.get(id(owner))
            if found is None:
                found = self._constants[id(owner)] = owner, Buffer("constant", owner, owner)
            return operand_of(x, found[1])
        if isinstance(x, np.generic):
            if x.dtype.kind not in _KINDS:
                raise Refused(f"a number of {x.dtype}")
            return Constant(x, x.dtype)
        if kind in _NUMBERS:
            return x
        raise Refused(f"a {kind.__name__} in a call of NumPy")

    def add(self, *args: Any, **words: Any) -> None:
        node = Node(*args, **words)
        node.row = self.row
        if stands_for.makers:
            now = np.geterr()
            if "ignore" in now.values():
                self.quiet.update(kind for kind, how in now.items() if how == "ignore")
        for out in node.outs:
            if out.buffer.kind in ("constant", "argument"):
                raise Refused("a write to a constant, or to an argument")
            for x in node.reads if node.kind != "add_at" else ():
                if x.buffer is out.buffer and x is not out and x.meets(out) and not x.is_at(out):
                    raise Refused("an array is written to a part of itself")
        self.nodes.append(node)

    def copied(self, value: Any, source: Any) -> Traced:
        """A new array `value`, whose elements are those of a traced array of its shape, cast to its dtype."""
        found = self.new(value)
        self.copy(found._operand, source)
        return found

    def copy(self, out: Operand, source: Any) -> None:
        """Note a copy of elements, cast to the dtype of `out`."""
        dtype = out.dtype if not hasattr(source, "dtype") else source.dtype
        self.add("ufunc", np.positive, (out,), (source,), (dtype, dtype))


def operand_of(x: Any, buffer: Buffer) -> Operand:
    """An array as an operand; `x` lies in the memory of the buffer."""
    if x.dtype.kind not in _KINDS or not x.dtype.isnative:
        raise Refused(f"an array of {x.dtype}")
    is_base = x is buffer.base
    offset = 0 if is_base or not x.size else x.ctypes.data - buffer.address
    found = Operand(buffer, offset, x.shape, steps_of(x), x.dtype)
    if not is_base and (found.low < -buffer.low or found.high > buffer.size - buffer.low):
        raise Refused("an array that does not lie in its memory")
    return found


def real(x: Any) -> Any:
    """A value with the arrays of NumPy in the place of traced ones."""
    kind = type(x)
    if kind is Traced:
        return x._value[()] if x._is_scalar else x._value
    if kind is Number:
        return x.value
    if kind is tuple:
        return tuple(map(real, x))
    if kind is list:
        return list(map(real, x))
    if kind is dict:
        return {key: real(value) for key, value in x.items()}
    return x


def in_memory(x: Any) -> Any:
    """The array that has the elements of a traced array or number; another value as it is."""
    return x._value if type(x) is Traced else real(x)


def is_traced(x: Any) -> bool:
    """Whether a value is a traced array or number, or a container with one."""
    kind = type(x)
    if kind is tuple or kind is list:
        return any(map(is_traced, x))
    if kind is slice:
        return is_traced((x.start, x.stop, x.step))
    return kind is Traced or kind is Number


def owner_of(x: Any) -> Any:
    """The array in whose memory an array lies."""
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    return x


def like(x: Any) -> tuple[Any, Any]:
    """A copy of an array with the same strides, and its memory, as bytes from the lowest one on."""
    low, high = np.lib.array_utils.byte_bounds(x)
    memory = np.empty(high - low, np.uint8)
    found: Any = np.ndarray(x.shape, x.dtype, memory.data, x.ctypes.data - low, x.strides)
    found[...] = x
    return found, memory


def _in_place(name: str) -> Any:
    """``x += y`` and the like: of a number it makes another one."""
    write = getattr(NDArrayOperatorsMixin, f"__i{name}__")

    def operator(self: Any, other: Any) -> Any:
        return getattr(self, f"__{name}__")(other) if self._is_scalar else write(self, other)

    return operator


class Traced(NDArrayOperatorsMixin):
    """An array in a trace. Its class, to all who ask, is `numpy.ndarray`, or that of one of NumPy's numbers."""

    __slots__ = ("_buffer", "_is_scalar", "_known", "_trace", "_value")
    __class__ = property(lambda self: self.dtype.type if self._is_scalar else np.ndarray)

    def __init__(self, trace: Trace, value: Any, buffer: Buffer, is_scalar: bool = False):
        self._trace, self._value, self._buffer, self._is_scalar = trace, value, buffer, is_scalar
        self._known: Operand | None = None

    @property
    def _operand(self) -> Operand:
        """Its place, by which nodes know it."""
        if self._known is None:
            self._known = operand_of(self._value, self._buffer)
        return self._known

    def _on(self, value: Any) -> Traced:
        """A view, which is in the same memory; of a number, which has none to share, a copy."""
        if self._is_scalar:
            return self._trace.copied(value.copy(), operand_of(value, self._buffer))
        return Traced(self._trace, value, self._buffer)

    # -- what a step may know ----------------------------------------------------------------------------------------
    shape = property(lambda self: self._value.shape)
    dtype = property(lambda self: self._value.dtype)
    ndim = property(lambda self: self._value.ndim)
    size = property(lambda self: self._value.size)
    nbytes = property(lambda self: self._value.nbytes)
    itemsize = property(lambda self: self._value.itemsize)
    strides = property(lambda self: self._value.strides)
    flags = property(lambda self: self._value.flags)
    base = property(lambda self: self._value.base)
    T = property(lambda self: self.transpose())
    real = property(lambda self: self._on(self._value.real) if self.dtype.kind == "c" else self)
    imag = property(lambda self: self._on(self._value.imag) if self.dtype.kind == "c" else self._refuse())

    def __len__(self) -> int:
        return len(self._value)

    def __iter__(self) -> Iterator[Traced]:
        return iter([self[i] for i in range(len(self._value))])

    def __repr__(self) -> str:
        return f"Traced({self.dtype}{list(self.shape)})"

    __hash__ = object.__hash__

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Refused("a value that leaves the arrays")

    def __rpow__(self, other: Any) -> Any:
        return self._refuse() if self._is_scalar else np.power(other, self)

    __iadd__, __isub__, __imul__, __itruediv__, __ipow__ = map(_in_place, ("add", "sub", "mul", "truediv", "pow"))

    def _divided(self, *_: Any) -> Any:
        raise Refused("a quotient and a rest")

    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _divided  # type: ignore[assignment]

    __float__ = __int__ = __index__ = __complex__ = __array__ = __array_interface__ = __array_struct__ = _refuse
    item = tolist = tobytes = dump = dumps = nonzero = sort = partition = put = choose = _refuse
    setflags = resize = byteswap = compress = _refuse
    __reduce__ = __reduce_ex__ = _refuse

    def __bool__(self) -> bool:
        found = bool(self._value)
        trace = self._trace
        if sum(node.kind == "guard" for node in trace.nodes) >= _MOST_GUARDS:
            raise Refused("many decisions on values")
        trace.add("guard", "bool", (), (trace.operand(self),), value=found)
        return found

    # -- calls of NumPy ----------------------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **words: Any) -> Any:
        trace = self._trace
        outs = () if out is None else out
        for x in outs:
            if type(x) is not Traced:
                raise Refused(f"{ufunc.__name__} writes to an array that is not traced")
        if method == "__call__":
            return _call(trace, ufunc, inputs, outs, words)
        if method == "reduce":
            return _reduce(trace, ufunc, inputs, outs, **words)
        if method == "at" and ufunc is np.add and not words:
            _scatter("add_at", *inputs)
            return None
        raise Refused(f"{ufunc.__name__}.{method}")

    def __array_function__(self, function: Any, types: Any, args: Any, words: Any) -> Any:
        known = _FUNCTIONS.get(function)
        if known is None:
            raise Refused(f"numpy.{function.__name__}")
        return known(self._trace, *args, **words)

    # -- methods of an array -----------------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> Traced:
        if _is_advanced(key):
            return _gather(self, key)
        found = self._value[key]
        if isinstance(found, np.ndarray):
            return self._on(found)
        part = self._value[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        return Traced(self._trace, part, self._buffer, True).copied_number()

    def copied_number(self) -> Traced:
        """A number of its own, as NumPy makes one of an element."""
        found = self._trace.copied(self._value.copy(), self._trace.operand(self))
        return Traced(self._trace, found._value, found._buffer, True)

    def __setitem__(self, key: Any, value: Any) -> None:
        if getattr(key, "dtype", None) is _BOOL and key.shape == self.shape and key.ndim:
            _assign_where(self, key, value)
            return
        if _is_advanced(key):
            _scatter("scatter", self, key, value)
            return
        key = key if isinstance(key, tuple) else (key,)
        part = self._on(self._value[key if any(k is ... for k in key) else (*key, ...)])
        if type(value) is Traced and value.dtype == self.dtype:
            if part._operand.is_at(self._trace.operand(value)):
                return  # the end of `a[k] += b`
        _assign(part, value)

    def astype(
        self, dtype: Any, order: Any = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Traced:
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return self._copied(self._value.astype(dtype, order, casting))

    def copy(self, order: Any = "C") -> Traced:
        return self._copied(self._value.copy(order))

    def _copied(self, value: Any) -> Traced:
        found = self._trace.copied(value, self._trace.operand(self))
        found._is_scalar = self._is_scalar  # a copy of a number is a number
        return found

    def __copy__(self) -> Traced:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Traced:
        return self.copy("K")

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Traced:
        if order != "C" or copy is not None:
            raise Refused("a reshape with options")
        found = self._value.reshape(*shape)
        if owner_of(found) is owner_of(self._value) and np.may_share_memory(found, self._value) or not found.size:
            return self._on(found)
        return self.copy().reshape(*shape)

    def ravel(self, order: Any = "C") -> Traced:
        return self.reshape(-1, order=order)

    def flatten(self, order: Any = "C") -> Traced:
        return self.copy(order).reshape(-1) if order == "C" else self._refuse()

    def transpose(self, *axes: Any) -> Traced:
        return self if self._is_scalar else self._on(self._value.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> Traced:
        return self._on(self._value.swapaxes(a, b))

    def squeeze(self, axis: Any = None) -> Traced:
        return self if self._is_scalar else self._on(self._value.squeeze(axis))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Traced:
        return self._on(self._value.diagonal(offset, axis1, axis2))

    def view(self, *args: Any) -> Traced:
        if args == (np.ndarray,):
            args = ()
        is_pairs = bool(args) and np.dtype(args[0]).kind + self.dtype.kind in ("fc", "cf")
        if args and (len(args) > 1 or np.dtype(args[0]).itemsize != self.itemsize and not is_pairs):
            raise Refused("a view of another size")
        return self._on(self._value.view(*args))

    def __pow__(self, other: Any) -> Any:
        """As of an ndarray, for which some powers are other functions."""
        if self._is_scalar:
            raise Refused("a power of a number, which is another function than that of an array")
        if other.__class__ in (int, float) and self.dtype.kind in "fc":
            function = {2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal}.get(other)
            if function is not None:
                return function(self)
        return np.power(self, other)

    def conj(self) -> Any:
        return np.conjugate(self) if self.dtype.kind == "c" else self

    conjugate = conj

    def fill(self, value: Any) -> None:
        _assign(self, value)

    def dot(self, other: Any, out: Any = None) -> Any:
        return _product(self._trace, np.dot, self, other, out)

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Traced:
        if out is not None or mode != "raise":
            raise Refused("take with options")
        x = self if axis is not None else self.reshape(-1)
        axis = 0 if axis is None else axis % x.ndim
        indices = _as_index(self._trace, indices)
        return _gather(x, (*[slice(None)] * axis, indices), x._value.take(real(indices), axis))

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        return _any.add.reduce(self, axis, dtype, out, keepdims, **words)

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        return _any.multiply.reduce(self, axis, dtype, out, keepdims, **words)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        return _any.maximum.reduce(self, axis, None, out, keepdims, **words)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        return _any.minimum.reduce(self, axis, None, out, keepdims, **words)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        return _any.logical_or.reduce(self, axis, bool, out, keepdims, **words)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        return _any.logical_and.reduce(self, axis, bool, out, keepdims, **words)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        if self.dtype.kind == "b" and dtype is None:  # sums of these numbers are exact
            return self.astype(np.float64).mean(axis, None, out, keepdims)
        if dtype is not None or out is not None or self.dtype.char not in "fdFD":
            raise Refused("a mean of another dtype")
        total = _any.add.reduce(self, axis, None, None, keepdims)
        return np.divide(total, self.size // max(total.size, 1), out=total)

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        return _clip(self._trace, self, min, max, out)

    def repeat(self, repeats: Any, axis: Any = None) -> Traced:
        if not isinstance(repeats, int | np.integer) or axis is None:
            raise Refused("repeat of several numbers")
        axis %= self.ndim
        shape = (*self.shape[: axis + 1], int(repeats), *self.shape[axis + 1 :])
        x = self._value[(*[slice(None)] * (axis + 1), None)]
        whole = self._on(np.broadcast_to(x, shape)).copy()
        return whole.reshape((*self.shape[:axis], self.shape[axis] * int(repeats), *self.shape[axis + 1 :]))

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
        return call_whole(self._trace, np.argsort, (self, axis, kind, order), {"stable": stable})

    def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Any:
        return call_whole(self._trace, np.searchsorted, (self, v, side, sorter), {})

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return call_whole(self._trace, np.cumsum, (self, axis, dtype), {"out": out})

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return call_whole(self._trace, np.cumprod, (self, axis, dtype), {"out": out})

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
        return call_whole(self._trace, np.trace, (self, offset, axis1, axis2, dtype), {"out": out})

    def var(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        shift = np.subtract(self, self.mean(axis, dtype, out, True))
        total = np.square(shift, out=shift).sum(axis, keepdims=keepdims)
        return np.divide(total, max(self.size // max(total.size, 1) - ddof, 0), out=total)

    def std(self, *args: Any, **words: Any) -> Any:
        return np.sqrt(self.var(*args, **words))

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Traced:
        return _argument(self, "argmax", axis, out, keepdims)

    def argmin(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Traced:
        return _argument(self, "argmin", axis, out, keepdims)


# -- ufuncs ------------------------------------------------------------------------------------------------------------
def _call(trace: Trace, ufunc: Any, inputs: Sequence[Any], outs: tuple[Any, ...], words: dict[str, Any]) -> Any:
    if words:
        words = {key: x for key, x in words.items() if key != "subok"}
    if ufunc.nout != 1 or words.pop("where", True) is not True or words.keys() - {"casting", "order", "dtype"}:
        raise Refused(f"{ufunc.__name__} with options or several results")
    if ufunc is np.matmul and not words:
        return _product(trace, ufunc, *inputs, *(outs or (None,)))
    if ufunc.signature is not None and ufunc is not np.vecdot:
        raise Refused(ufunc.__name__)
    given = [trace.operand(x) for x in inputs]
    values = [x._value if type(x) is Traced and not x._is_scalar else real(x) for x in inputs]
    # What decides on the loop: the dtype of an operand, or the class of a number of Python.
    kinds = tuple([_BOOL if type(x) is bool else type(x) if type(x) in _NUMBERS else x.dtype for x in values])
    more = (words.get("casting", "same_kind"), words.get("dtype")) if words else ()
    loop = _dtypes_of(ufunc, kinds, outs[0]._value.dtype if outs else None, *more)
    if outs:
        y = outs[0]
        ufunc(*values, out=(y._value,), **words)
    else:
        y = trace.new(ufunc(*values, **words))
    if ufunc.signature is None:
        ins = [Constant(of.type(x), of) if x.__class__ in _NUMBERS else x for x, of in zip(given, loop, strict=False)]
        trace.add("ufunc", ufunc, (y._operand,), tuple(ins), loop)
    else:
        _add_product(trace, ufunc, inputs[0], inputs[1], y)
    return y


@lru_cache(1024)  # a step has some ten of them, each at many nodes
def _dtypes_of(
    ufunc: Any, kinds: tuple[Any, ...], out: Any, casting: str = "same_kind", dtype: Any = None
) -> tuple[Any, ...]:
    """The dtypes of the loop by which NumPy computes a ufunc: of its operands, and of its result."""
    more = {} if dtype is None else {"signature": (*[None] * ufunc.nin, np.dtype(dtype))}
    try:
        found: tuple[Any, ...] = ufunc.resolve_dtypes((*kinds, out), casting=casting, **more)
    except TypeError as error:
        raise Refused(f"{ufunc.__name__}: {error}") from error
    if any(of.kind not in _KINDS for of in found):
        raise Refused(f"{ufunc.__name__} of {found[0]}")
    return found


def _reduce(
    trace: Trace, ufunc: Any, inputs: Sequence[Any], outs: tuple[Any, ...], axis: Any = 0, dtype: Any = None,
    keepdims: bool = False, initial: Any = np._NoValue, where: Any = True,
) -> Any:  # fmt: skip
    x, *rest = inputs
    if rest:
        axis = rest[0]
    if len(rest) > 1:
        raise Refused(f"{ufunc.__name__}.reduce with options")
    if (
        ufunc.__name__ not in ("add", "multiply", "maximum", "minimum", "logical_and", "logical_or")
        or where is not True
    ):
        raise Refused(f"{ufunc.__name__}.reduce")
    if initial is not np._NoValue and initial is not None or type(x) is not Traced or x.dtype.char == "e":
        raise Refused(f"{ufunc.__name__}.reduce with options")
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted(int(a) % x.ndim for a in axes)) if x.ndim else ()
    value = ufunc.reduce(x._value, axis=axis, dtype=dtype, keepdims=keepdims, out=outs[0]._value if outs else None)
    y = outs[0] if outs else trace.new(value)
    if y.dtype != x.dtype:
        if ufunc.__name__.startswith("logical"):
            x = np.not_equal(x, 0)
        elif x.dtype.kind == "f" or y.dtype.kind == "f":
            raise Refused(f"{ufunc.__name__}.reduce of {x.dtype} to {y.dtype}")
        else:
            x = x.astype(y.dtype)
    full = y._value if keepdims else np.expand_dims(y._value, axes)
    trace.add(
        "reduce", ufunc, (operand_of(full, y._buffer),), (trace.operand(x),), (x.dtype, y.dtype), axes=axes
    )  # fmt: skip
    return y


def _product(trace: Trace, function: Any, a: Any, b: Any, out: Any = None) -> Any:
    """`numpy.dot` or `numpy.matmul`."""
    if isinstance(out, tuple):
        (out,) = out
    xs = trace.operand(a), trace.operand(b)
    if any(x.__class__ is not Operand for x in xs) or xs[0].dtype != xs[1].dtype or xs[0].dtype.char not in "fdFD":
        raise Refused("a product of other dtypes")
    if out is not None and type(out) is not Traced:
        raise Refused("a product that writes to an array that is not traced")
    value = function(real(a), real(b), **({} if out is None else {"out": out._value}))
    if not xs[0].shape or not xs[1].shape:
        raise Refused("a product with a number")
    if out is None and function is np.matmul and len(xs[1].shape) > 1 and xs[0].shape[-1] == 1 and len(xs[0].shape) > 1:
        outer = real(a) * real(b) + value.dtype.type(0)  # a sum begins with 0, which makes -0 to 0
        if outer.tobytes() == value.tobytes() and outer.strides == value.strides:
            return np.add(np.multiply(a, b), value.dtype.type(0))
    y = trace.new(value) if out is None else out
    _add_product(trace, function, a, b, y)
    return y


def _add_product(trace: Trace, function: Any, a: Any, b: Any, y: Traced) -> None:
    """Note a product. NumPy chooses a function of its BLAS by the strides, those along extents of 1 too."""
    xs = trace.operand(a), trace.operand(b)
    if any(x.__class__ is not Operand or x.dtype != y.dtype for x in xs):
        raise Refused("a product of other dtypes")
    values = in_memory(a), in_memory(b)
    trace.add(
        "product", function, (y._operand,), xs, (y.dtype,) * 3,
        strides=(values[0].strides, values[1].strides, y._value.strides),
        is_same=values[0].ctypes.data == values[1].ctypes.data,
    )  # fmt: skip


def _assign(x: Traced, value: Any) -> None:
    """Write to all elements of an array."""
    trace = x._trace
    given = trace.operand(value) if type(value) is not list else trace.operand(np.asarray(value))
    out = x._operand
    if given.__class__ is Operand:
        values = np.broadcast_to(in_memory(value), x.shape)
        given = operand_of(values, given.buffer) if type(value) is Traced else trace.operand(values)
        if given.meets(out) and not given.is_at(out):
            raise Refused("an array is written to a part of itself")
    elif given.__class__ is Constant:
        given = Constant(given.value.astype(x.dtype), x.dtype)
    elif given.__class__ is not Number:
        given = Constant(x.dtype.type(given), x.dtype)
    x._value[...] = real(value)
    if given.__class__ is Number:
        trace.add("ufunc", np.positive, (out,), (given,), (x.dtype, x.dtype))
    else:
        trace.copy(out, given)


def _assign_where(x: Traced, mask: Any, value: Any) -> None:
    """Write a number to the elements of an array at which a mask is true."""
    trace = x._trace
    if value.__class__ not in _NUMBERS and not isinstance(value, np.generic):
        raise Refused("values at the places of a mask")
    if mask.dtype != bool or mask.shape != x.shape:
        raise Refused("a mask of another form")
    out = x._operand
    x._value[real(mask)] = value
    number = Constant(np.asarray(value).astype(x.dtype)[()], x.dtype)
    trace.add("ufunc", np.where, (out,), (trace.operand(mask), number, out), (np.dtype(bool), *(x.dtype,) * 3))


def _argument(x: Traced, name: str, axis: Any, out: Any, keepdims: bool) -> Traced:
    if axis is None:
        return _argument(x.reshape(-1), name, 0, out, keepdims)
    if out is not None or keepdims:
        raise Refused(f"{name} with options")
    axis %= x.ndim
    value = getattr(x._value, name)(axis)
    y = x._trace.new(value)
    full = np.expand_dims(y._value, axis)
    x._trace.add(
        "reduce", getattr(np, name), (operand_of(full, y._buffer),), (x._trace.operand(x),), (x.dtype, y.dtype),
        axes=(axis,),
    )  # fmt: skip
    return y


# -- indices -----------------------------------------------------------------------------------------------------------
def _is_advanced(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(isinstance(k, np.ndarray | list) or type(k) is Traced for k in parts)


def _as_index(trace: Trace, k: Any) -> Any:
    found = np.asarray(k) if isinstance(k, list | int) else k
    if found.dtype.kind not in "iu":
        raise Refused(f"an index of {found.dtype}")
    return found


class _Places:
    """Where the elements lie that an index with arrays names.

    Attributes
    ----------
    shape : tuple of int
        Of the result.
    whole : ndarray
        The indexed array; its dimensions with arrays are named by `axes`.
    strides : tuple of int
        Of the rest of the array, along the dimensions of the result.
    indices : list of (Operand, int, int)
        Of each array: the operand, of the shape of the result, the stride along its dimension, and the extent.
    """

    def __init__(self, x: Traced, key: Any):
        trace = x._trace
        arrays: dict[int, Any] = {}
        basic = _whole_key(key, x.ndim)
        for dim, k in enumerate(basic):  # a dimension of the view with the basic parts alone
            if isinstance(k, np.ndarray | list) or type(k) is Traced:
                arrays[dim], basic[dim] = _as_index(trace, k), slice(None)
            elif isinstance(k, int | np.integer) and not isinstance(k, bool):
                raise Refused("a number beside an array in an index")
        self.whole = x._value[tuple(basic)]
        self.axes = list(arrays)
        joint = np.broadcast_shapes(*(k.shape for k in arrays.values()))
        is_adjacent = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        front = self.axes[0] if is_adjacent else 0
        rest = [d for d in range(self.whole.ndim) if d not in arrays]
        before, after = rest[:front], rest[front:]
        self.shape = (*(self.whole.shape[d] for d in before), *joint, *(self.whole.shape[d] for d in after))
        steps = self.whole.strides
        self.strides = (*(steps[d] for d in before), *(0,) * len(joint), *(steps[d] for d in after))
        self.indices = []
        self.arrays = []
        for d, k in arrays.items():
            value = np.broadcast_to(in_memory(k), joint)
            self.arrays.append(
                operand_of(value, trace.operand(k).buffer) if type(k) is Traced else trace.operand(value)
            )
            value = value[(*(None,) * len(before), ..., *(None,) * len(after))]
            value = np.broadcast_to(value, self.shape)
            of = operand_of(value, trace.operand(k).buffer) if type(k) is Traced else trace.operand(value)
            self.indices.append((of, int(steps[d]), int(self.whole.shape[d])))
        offset = self.whole.ctypes.data - x._buffer.base.ctypes.data if self.whole.size else 0
        self.place = Operand(x._buffer, offset, self.shape, self.strides, x.dtype)
        self.all = operand_of(self.whole, x._buffer)
        self.words = {
            "pairs": tuple((step, n) for _, step, n in self.indices), "place": self.place,
            "arrays": dict(zip(self.axes, self.arrays, strict=True)),
        }  # fmt: skip


def _whole_key(key: Any, ndim: int) -> list[Any]:
    """The parts of an index, one for each dimension and each new one, without an ellipsis."""
    parts = list(key) if isinstance(key, tuple) else [key]
    rest = [slice(None)] * (ndim - sum(k is not None and k is not ... for k in parts))
    at = next((i for i, k in enumerate(parts) if k is ...), len(parts))
    return [*parts[:at], *rest, *parts[at + 1 :]]


def _gather(x: Traced, key: Any, found: Any = None) -> Traced:
    """Elements at an index with arrays; `found` has them in another order of memory than indexing does."""
    places = _Places(x, key)
    if found is None:
        found = x._value[real(key)]
    is_scalar = not isinstance(found, np.ndarray)
    if is_scalar or found.shape != places.shape:
        found = np.asarray(found).reshape(places.shape)
    if np.may_share_memory(found, x._value):
        raise Refused("a view at a computed place")
    y = x._trace.new(found)
    y._is_scalar = is_scalar
    x._trace.add("gather", "take", (operand_of(found, y._buffer),),
                 (places.all, *(of for of, _, _ in places.indices)), (x.dtype,), **places.words)  # fmt: skip
    return y


def _scatter(kind: str, x: Any, key: Any, value: Any) -> None:
    if type(x) is not Traced:
        raise Refused("indices of a constant that is written")
    trace = x._trace
    places = _Places(x, key)
    given = trace.operand(value)
    if given.__class__ is Operand:
        values = np.broadcast_to(in_memory(value), places.shape)
        given = operand_of(values, given.buffer)
        if given.dtype != x.dtype:
            raise Refused("values of another dtype")
        if given.meets(places.all):
            raise Refused("an array is written to a part of itself")
    elif given.__class__ is Number:
        raise Refused("a number that may change from step to step")
    else:
        given = Constant(x.dtype.type(getattr(given, "value", given)), x.dtype)
    if kind == "add_at":
        np.add.at(x._value, real(key), real(value))
    else:
        x._value[real(key)] = real(value)
    trace.add(kind, kind, (places.all,), (given, *(of for of, _, _ in places.indices)), (x.dtype,), **places.words)


# -- functions of NumPy ------------------------------------------------------------------------------------------------
def _where(trace: Trace, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        raise Refused("where without values")
    value = np.where(real(condition), real(x), real(y))
    ins = []
    for k, each in enumerate((condition, x, y)):
        given = trace.operand(each)
        of = np.dtype(bool) if k == 0 else value.dtype
        if given.__class__ in _NUMBERS:
            given = Constant(of.type(given), of)
        ins.append(given)
    found = trace.new(value)
    of = np.dtype(bool), value.dtype, value.dtype, value.dtype
    trace.add("ufunc", np.where, (operand_of(value, found._buffer),), tuple(ins), of)
    return found


def _concatenate(trace: Trace, arrays: Any, axis: Any = 0, out: Any = None, dtype: Any = None, **_: Any) -> Any:
    if out is not None or axis is None or dtype is not None:
        raise Refused("concatenate with options")
    arrays = list(arrays)
    value = np.concatenate([real(x) for x in arrays], axis)
    found, start = trace.new(value), 0
    for x in arrays:
        n = x.shape[axis]
        part = [slice(None)] * value.ndim
        part[axis] = slice(start, start + n)
        start += n
        trace.copy(operand_of(value[tuple(part)], found._buffer), trace.operand(x))
    return found


def _stack(trace: Trace, arrays: Any, axis: int = 0, out: Any = None, **words: Any) -> Any:
    arrays = list(arrays)
    axis %= arrays[0].ndim + 1
    key = (*[slice(None)] * axis, None)
    return _concatenate(trace, [x[key] for x in arrays], axis, out, **words)


def _roll(trace: Trace, a: Any, shift: Any, axis: Any = None) -> Any:
    if type(a) is not Traced:
        raise Refused("roll of another array")
    if isinstance(axis, tuple | list):
        shifts = shift if isinstance(shift, tuple | list) else (shift,) * len(axis)
        for n, each in zip(shifts, axis, strict=True):
            a = _roll(trace, a, n, each)
        return a
    if isinstance(shift, tuple | list):
        shift = sum(shift)
    if axis is None:
        return _roll(trace, a.reshape(-1), shift, 0).reshape(a.shape)
    axis %= a.ndim
    n = a.shape[axis]
    if not n or not shift % n:
        return a.copy("K")
    k = n - shift % n
    before = [slice(None)] * axis
    found = trace.new(np.empty_like(a._value))
    found[(*before, slice(None, n - k))] = a[(*before, slice(k, None))]
    found[(*before, slice(n - k, None))] = a[(*before, slice(None, k))]
    return found


def _filled(value: Any) -> Callable[..., Any]:
    def make(trace: Trace, x: Any, dtype: Any = None, order: Any = "K", subok: bool = True, shape: Any = None) -> Any:
        found = trace.new(np.full_like(real(x), value, dtype, order, shape=shape))
        _assign(found, value)
        return found

    return make


def _made(value: Any) -> Callable[..., Any]:
    def make(trace: Trace, shape: Any, dtype: Any = float, order: Any = "C", device: Any = None) -> Any:
        found = trace.new(np.full(shape, value, dtype, order))
        _assign(found, value)
        return found

    return make


def _full(trace: Trace, shape: Any, value: Any, dtype: Any = None, order: Any = "C", device: Any = None) -> Any:
    found = trace.new(np.full(shape, real(value), dtype, order))
    _assign(found, value)
    return found


def _full_like(trace: Trace, x: Any, value: Any, dtype: Any = None, **words: Any) -> Any:
    found = trace.new(np.full_like(real(x), real(value), dtype, **words))
    _assign(found, value)
    return found


def _array(trace: Trace, x: Any, dtype: Any = None, **words: Any) -> Any:
    """`numpy.array` with `like`: of a traced array, a `Number` or a constant."""
    if type(x) is Traced:
        return x.astype(x.dtype if dtype is None else dtype)
    if type(x) is Number:
        found = trace.new(np.asarray(x.value, dtype))
        _assign(found, x)
        return found
    if is_traced(x):
        raise Refused("an array of traced parts")
    return np.array(x, dtype, **words)


def _as_array(trace: Trace, x: Any, dtype: Any = None, order: Any = None, **_: Any) -> Any:
    if type(x) is Traced and (dtype is None or np.dtype(dtype) == x.dtype):
        return x if order != "C" or x.flags.c_contiguous else x.copy()
    return _array(trace, x, dtype)


def _copyto(trace: Trace, x: Any, value: Any, casting: str = "same_kind", where: Any = True) -> None:
    if type(x) is not Traced:
        raise Refused("copyto to an array that is not traced")
    if where is not True:
        mask = where if type(where) is Traced else np.asarray(where)
        _assign_where(x, mask if mask.shape == x.shape else np.broadcast_to(mask, x.shape), value)
        return
    _assign(x, value)


def _clip(trace: Trace, a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **words: Any) -> Any:
    a_min, a_max = words.pop("min", a_min), words.pop("max", a_max)
    if words:
        raise Refused("clip with options")
    if a_min is None or a_max is None:
        if a_min is None and a_max is None:
            raise Refused("clip without limits")
        function, limit = (np.minimum, a_max) if a_min is None else (np.maximum, a_min)
        return function(a, limit) if out is None else function(a, limit, out=out)
    return _clip_ufunc(a, a_min, a_max) if out is None else _clip_ufunc(a, a_min, a_max, out=out)


def _rounded(trace: Trace, x: Any, decimals: int = 0, out: Any = None) -> Any:
    """`numpy.round`."""
    if x.dtype.kind != "f" or decimals or out is not None:
        raise Refused("round to decimals, or of integers")
    return np.rint(x)


def _finite(trace: Trace, x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`numpy.nan_to_num`."""
    if x.dtype.kind != "f" or not copy:
        raise Refused("nan_to_num in place, or of integers")
    limits, of = np.finfo(x.dtype), x.dtype.type
    y = np.where(np.isnan(x), of(nan), x)
    y = np.where(np.isposinf(x), of(limits.max if posinf is None else posinf), y)
    return np.where(np.isneginf(x), of(limits.min if neginf is None else neginf), y)


def _infinite(is_negative: bool) -> Callable[..., Any]:
    """`numpy.isneginf` or `numpy.isposinf`."""

    def make(trace: Trace, x: Any, out: Any = None) -> Any:
        if out is not None or x.dtype.kind != "f":
            raise Refused("isneginf or isposinf with options, or of integers")
        sign = np.signbit(x)
        return np.logical_and(np.isinf(x), sign if is_negative else np.logical_not(sign))

    return make


def _view_of(function: Any) -> Callable[..., Any]:
    """A function that makes a view of its first argument."""

    def make(trace: Trace, x: Any, *args: Any, **words: Any) -> Any:
        found = function(x._value, *args, **words)
        if not isinstance(found, np.ndarray) or found.size and not np.may_share_memory(found, x._value):
            raise Refused(function.__name__)
        return x._on(found)

    return make


def _views_of(function: Any) -> Callable[..., Any]:
    def make(trace: Trace, x: Any, *args: Any, **words: Any) -> Any:
        return [x._on(part) for part in function(x._value, *args, **words)]

    return make


def _method(name: str) -> Callable[..., Any]:
    def make(trace: Trace, x: Any, *args: Any, **words: Any) -> Any:
        if type(x) is not Traced:
            raise Refused(name)
        words = {key: value for key, value in words.items() if value is not np._NoValue}
        return getattr(x, name)(*args, **words)

    return make


def _known(function: Any) -> Callable[..., Any]:
    """A function that asks for shapes, dtypes or memory alone."""

    def make(trace: Trace, *args: Any, **words: Any) -> Any:
        return function(*real(args), **words)

    return make


def _called(function: Any) -> Callable[..., Any]:
    """A function of NumPy that is called as a whole: it writes to no argument and returns new arrays.

    Their shapes and dtypes depend on those of the arguments alone, or on arguments that are no arrays.
    """

    def make(trace: Trace, *args: Any, **words: Any) -> Any:
        return call_whole(trace, function, args, words)

    return make


def call_whole(trace: Trace, function: Any, args: Any, words: dict[str, Any]) -> Any:
    """Note the call of a function that writes to no argument and returns new arrays; return its traced result."""
    ins: list[Any] = []

    def placed(x: Any) -> Any:
        if x.__class__ in (tuple, list):
            return x.__class__(map(placed, x))
        if type(x) is Traced or isinstance(x, np.ndarray):
            ins.append(trace.operand(x))
            return Place(len(ins) - 1, type(x) is Traced and x._is_scalar)
        if is_traced(x):
            raise Refused("a number that may change from step to step")
        return x

    if words.get("out") is not None:
        raise Refused(f"{function.__name__} with out=")
    given = placed(args), {key: placed(x) for key, x in words.items()}
    values, named = real(args), real(words)
    found = function(*values, **named)
    parts = found if isinstance(found, tuple) else (found,)
    outs = []
    for part in parts:
        if not isinstance(part, np.ndarray | np.generic):
            raise Refused(f"{function.__name__} returns a {type(part).__name__}")
        if isinstance(part, np.ndarray):
            part = part.copy("K")
        outs.append(trace.new(part))
    trace.add("call", function, tuple(y._operand for y in outs), tuple(ins), given=given)
    if not isinstance(found, tuple):
        return outs[0]
    return type(found)(*outs) if hasattr(found, "_fields") else tuple(outs)


def _triangle(is_lower: bool) -> Callable[..., Any]:
    """`numpy.tril` or `numpy.triu`."""

    def make(trace: Trace, m: Any, k: int = 0) -> Any:
        n, columns = m.shape[-2:]
        mask = np.tri(n, columns, k if is_lower else k - 1, bool)
        mask, zero = np.broadcast_to(mask, m.shape), m.dtype.type(0)
        return _where(trace, mask, m, zero) if is_lower else _where(trace, mask, zero, m)

    return make


def _along(trace: Trace, x: Any, indices: Any, axis: Any) -> Any:
    if axis is None or type(x) is not Traced:
        raise Refused("indices along no axis")
    axis %= x.ndim
    return tuple(
        indices if d == axis else np.arange(n).reshape((-1,) + (1,) * (x.ndim - 1 - d)) for d, n in enumerate(x.shape)
    )


_WHOLE = (
    np.linalg.cholesky, np.linalg.det, np.linalg.eigh, np.linalg.eigvalsh, np.linalg.inv, np.linalg.matrix_power,
    np.linalg.norm, np.linalg.pinv, np.linalg.qr, np.linalg.slogdet, np.linalg.solve, np.linalg.svd,
    np.argpartition, np.argsort, np.convolve, np.correlate, np.cumprod, np.cumsum, np.diff, np.digitize, np.einsum,
    *(getattr(np.fft, name) for name in np.fft.__all__ if name.endswith(("fft", "fft2", "fftn", "shift"))),
    np.inner, np.interp, np.kron, np.lexsort, np.partition, np.searchsorted, np.sort, np.tensordot, np.trace,
)

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where, np.concatenate: _concatenate, np.stack: _stack, np.roll: _roll, np.copyto: _copyto,
    np.zeros_like: _filled(0), np.ones_like: _filled(1), np.full_like: _full_like,
    np.empty_like: lambda trace, x, dtype=None, order="K", subok=True, shape=None: trace.new(
        np.zeros_like(real(x), dtype, order, shape=shape)),
    np.zeros: _made(0), np.ones: _made(1), np.full: _full, np.array: _array, np.asarray: _as_array, np.clip: _clip,
    np.empty: lambda trace, shape, dtype=float, order="C", device=None: trace.new(np.zeros(shape, dtype, order)),
    np.ascontiguousarray: lambda trace, x, dtype=None: _as_array(trace, x, dtype, "C"),
    np.mean: lambda trace, x, axis=None, dtype=None, out=None, keepdims=False: x.mean(
        axis, dtype, out, keepdims is not np._NoValue and bool(keepdims)),
    np.dot: lambda trace, a, b, out=None: _product(trace, np.dot, a, b, out),
    np.take_along_axis: lambda trace, x, indices, axis=-1: x[_along(trace, x, indices, axis)],
    np.put_along_axis: lambda trace, x, indices, values, axis: x.__setitem__(_along(trace, x, indices, axis), values),
    np.split: _views_of(np.split), np.array_split: _views_of(np.array_split),
    **{f: _view_of(f) for f in (np.broadcast_to, np.moveaxis, np.rollaxis, np.expand_dims, np.squeeze, np.swapaxes,
                                np.transpose, np.flip, np.flipud, np.fliplr, np.diagonal, np.rot90)},
    **{getattr(np, name): _method(name) for name in (
        "sum", "prod", "max", "min", "any", "all", "reshape", "ravel", "take", "repeat", "argmax", "argmin", "std",
        "var")},
    np.tril: _triangle(True), np.triu: _triangle(False),
    **{f: _called(f) for f in _WHOLE},
    np.isneginf: _infinite(True), np.isposinf: _infinite(False), np.round: _rounded, np.nan_to_num: _finite,
    np.real: lambda trace, x: x.real, np.imag: lambda trace, x: x.imag,
    np.copy: lambda trace, x, order="K", subok=False: x.copy(order),
    **{f: _known(f) for f in (np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.may_share_memory,
                              np.shares_memory, np.broadcast_shapes, np.iscomplexobj, np.isrealobj)},
}  # fmt: skip


@contextmanager
def without_collection() -> Iterator[None]:
    """A block in which Python looks for no cycles: a third of the time of a trace, whose objects nearly all stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """A block in which functions are run on traced arrays. Their floating-point errors are not told."""
    before = stands_for.whole, stands_for.has_loops

    def whole(function: Any, *args: Any) -> Any:
        if not any(map(is_traced, args)) or isinstance(function, np.ufunc):
            return function(*args)
        return call_whole(trace, function, args, {})

    stands_for.makers.append(_Loop)
    stands_for.whole, stands_for.has_loops = whole, is_available()
    try:
        with np.errstate(all="call", call=_unheard):
            yield
    finally:
        stands_for.makers.pop()
        stands_for.whole, stands_for.has_loops = before


def _unheard(kind: str, flag: int) -> None:
    """Hear of a floating-point error; that of the recorded run was told."""


class _Loop:
    """A compiled loop of `autograd.kernels` that takes traced arrays, too."""

    def __init__(self, loop: Any):
        self.loop = loop

    def __call__(self, *args: Any) -> Any:
        trace = next((x._trace for x in args if type(x) is Traced), None)
        if trace is None:
            return self.loop(*args)
        kinds = arguments_of(self.loop)
        ins: list[Any] = []
        outs: list[Any] = []
        for x, (dtype, ndim, is_written) in zip(args, kinds, strict=True):
            if x.dtype != dtype or x.ndim != ndim or not x.flags.c_contiguous:
                raise Refused("other arguments of a compiled loop")
            (outs if is_written else ins).append(trace.operand(x))
        found = self.loop(*map(real, args))
        trace.add("loop", self.loop, tuple(outs), tuple(ins), order=tuple(kind[2] for kind in kinds),
                  refuses=found is not None)  # fmt: skip
        return found
