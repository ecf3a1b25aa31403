"""What makes a Tensor behave like a number and like an array: operators, NumPy's methods, Python's protocols.

Operators and methods are operations under another name, so they stand in a table: `ops.methods` has it and fills it in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Shaped, is_absent, to_host
from .describe import describe
from .errors import NotDifferentiable, SavedArrayError, TapeError
from .parts import global_shape, local_shape
from .saved import guarded
from .sites import call_site
from .state import state

__all__ = ["Methods"]

_later: Any = None  # what the table of `ops.methods` fills in


class Methods:
    """The base of Tensor: it knows that there are an array and a layout, and nothing of tapes."""

    __slots__ = ()
    __array_priority__ = 1000.0
    __hash__ = object.__hash__

    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = _later
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _later
    __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _later
    argmax = astype = max = mean = min = reshape = sum = swapaxes = transpose = T = _later
    _operations: Any = None  # the module of the operations

    def copy(self: Any) -> Any:
        """A leaf with a copy of the value, off the tape."""
        from .leaves import Leaf

        return Leaf(self.array.copy(), self.layout)

    @property
    def shape(self: Any) -> tuple[int, ...]:
        """The shape of this rank's part; the extent of a sharded dimension knows on which axes it differs."""
        shape = self.array.shape
        return shape if self.layout is None or not self.layout.special else local_shape(self.layout, shape)

    @property
    def global_shape(self: Any) -> tuple[int, ...]:
        """The shape of the whole value; LayoutError where it is Varying, so that there is no one value."""
        return self.array.shape if self.layout is None else global_shape(self.layout, self.array.shape)

    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: len(self.array.shape))
    size = property(lambda self: self.array.size)
    absent = property(lambda self: is_absent(self.array), doc="Whether another rank holds it (it is rooted there).")

    # -- its value as plain data -------------------------------------------------------------------------------
    @property
    def data(self: Any) -> Any:
        """This rank's part as an array; read-only while a tape needs it, None where the value is absent."""
        return None if is_absent(self.array) else guarded(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise SavedArrayError("the array of an operation's result cannot be replaced; needed: a leaf")

    def numpy(self: Any) -> np.ndarray:
        """This rank's part as a NumPy array (a view on the host, a copy from a device).

        Raises
        ------
        AbsentError
            Where this rank does not hold the value.
        """
        array = to_host(self.array)
        return guarded(self) if array is self.array else array

    @property
    def local(self: Any) -> Any:
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
        return guarded(self)

    def item(self: Any) -> Any:
        """Its one number as a Python number."""
        return to_host(self.array).item()

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        discrete = dtype is not None and np.dtype(dtype).kind in "biu"  # numpy.int64(x): indices have no derivative
        if state.recording is not None and self.requires_grad and not discrete:
            raise NotDifferentiable(
                f"{self.name or 'x'}, of {describe(self.array, self.array.shape, self.layout)}, was to become a plain "
                "array on an active tape: what is computed from it would miss in its gradient, and nothing would say "
                "so. Fix: autograd.numpy.array(x), which is differentiable, of lists too; or x.numpy() where no "
                "gradient is wanted" + call_site()
            )
        host = to_host(self.array)
        if copy is False and host is self.array:
            host = guarded(self)
        return np.array(host, dtype=dtype) if copy is not False else np.asarray(host, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
        return self._operations.from_ufunc(ufunc, method, xs, options)

    def __array_function__(self: Any, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self._operations.from_function(function, args, options)

    def __float__(self: Any) -> float:
        return float(to_host(self.array))

    def __int__(self: Any) -> int:
        return int(to_host(self.array))

    def __bool__(self: Any) -> bool:
        return bool(to_host(self.array))

    def __len__(self: Any) -> int:
        return len(self.array)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        raise SavedArrayError(
            f"assignment to elements of a Tensor of shape {self.array.shape}. Needed: a functional form, because a "
            "tape may have saved the array. Fix: where(mask, new, x), or concatenate, or write to x.numpy().copy()"
        )

    def __repr__(self: Any) -> str:
        kind = type(self).__name__
        where = "" if self.layout is None else f", layout={self.layout!r}"
        if type(self.array) is Shaped:
            absent = "absent" if self.array.absent else "dry"
            return f"{kind}({absent}, shape={self.array.shape}, dtype={self.array.dtype}{where})"
        body = np.array2string(to_host(self.array), separator=", ", prefix=f"{kind}(", threshold=20)
        return f"{kind}({body}{where})"
