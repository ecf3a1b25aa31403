"""Table: lowered calls as rows of inner loops, which one compiled loop walks. It needs the extra ``fast``.

For a small array a call of NumPy takes longer than its arithmetic: it parses its arguments, finds the loop for their
dtypes, and makes an iterator. All of this is the same in each replay, so it is done once. A row has the address of the
inner loop, as NumPy gives it to compilers, and those of the data; `kernels.walk` makes the calls one after another.

Inner loops check nothing. So a call is a row only if its arrays are aligned, have the loop's own dtypes, and lie apart,
except that the output of an elementwise function may be one of its inputs. A row is proved before it is used: it must
have the bits of its call. Calls that are no rows stay calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import kernels
from .lowering import Lowering, Update, make

__all__ = ["Table"]

_CAPSULE = b"numpy_1.24_ufunc_call_info"
"""The form in which NumPy gives a loop. Another version of the form has another name, and is refused."""

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Info(ctypes.Structure):
    """The content of a capsule, as `numpy.ufunc._get_strided_loop` describes it."""

    _fields_ = (("loop", ctypes.c_int64), ("context", ctypes.c_int64), ("auxiliary", ctypes.c_int64),
                ("requires_python", ctypes.c_bool), ("has_no_errors", ctypes.c_bool))  # fmt: skip


class _NoRow(Exception):
    """A call is no row of a table."""


class Table:
    """Rows for the calls of a `Lowering`.

    Attributes
    ----------
    rows : dict
        By the id of a call, or of an `Update`: its rows. There are none for a call that the rows before make, too.
    """

    def __init__(self, lowering: Lowering, inputs: Sequence[Any]):
        self.rows: dict[int, list[Any]] = {}
        self._walker = kernels.walker()
        self._block = lowering.gradients.block
        self._kept: list[Any] = []  # the owners of the addresses in rows
        self._forms: dict[Any, bool | None] = {}  # by shapes, strides and dtypes of a product
        if self._walker is None:
            return
        for at, own in lowering.inputs:
            np.copyto(own, inputs[at])
        with np.errstate(all="ignore"):
            for calls, update in _groups(lowering):
                if update is None:
                    self._add([id(call) for call in calls], calls, [_fused(calls), calls])
                else:
                    before = [x.copy() for x in update.written]
                    self._add([id(update)], calls, [update.passes, calls], update.written)
                    _restore(update.written, before)

    def _add(
        self, keys: Sequence[int], calls: Sequence[Any], forms: Sequence[Any], written: Sequence[Any] = ()
    ) -> None:  # fmt: skip
        """Make calls, and keep the rows of the first of their forms, each a list of calls, that has the same bits."""
        known = [self._rows_of(form) for form in forms]
        changed = _once([*written, *(x for _, outputs in known for x in outputs)])
        before = [x.copy() for x in changed]
        for function, args, out, _ in calls:
            make(function, args, out)
        after = {id(x): x.copy() for x in changed}
        for rows, outputs in known:
            if rows:
                _restore(changed, before)
                walk, *numbers = self.walk(rows)
                walk(*numbers, id(self._block))
                if all(x.tobytes() == after[id(x)].tobytes() for x in (*written, *outputs)):
                    self.rows |= {keys[0]: rows, **dict.fromkeys(keys[1:], [])}
                    break
        _restore(changed, after.values())

    def walk(self, rows: Sequence[Any]) -> tuple[Any, int, int, int, int]:
        """The function that walks rows, and its first arguments: address and length of the table, and of its moves.

        Its last argument is the id of the array of all gradients, which is new in each step: a pointer to a gradient
        is an offset.
        """
        table = np.array(rows, self._walker.ROW)
        start, size = self._block.ctypes.data, self._block.nbytes
        pointers = table["pointers"]
        places = [(k, i) for k, i in np.ndindex(pointers.shape) if start <= pointers[k, i] < start + size]
        moves = np.zeros((len(places), 2), np.int64)
        for move, (k, i) in zip(moves, places, strict=True):
            move[:] = pointers[k, i:].ctypes.data, pointers[k, i] - start
            pointers[k, i] = 0
        self._kept += [table, moves]
        return self._walker.walk, table.ctypes.data, len(table), moves.ctypes.data, len(moves)

    # -- rows --------------------------------------------------------------------------------------------------------
    def _rows_of(self, calls: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The rows of calls, and the arrays that they write; none if one of them has none."""
        found: list[Any] = []
        written: list[Any] = []
        try:
            for function, args, out, _ in calls:
                rows, outputs = self._rows(function, args if out is None else (*args, out))
                found += rows
                written += outputs
        except (_NoRow, AttributeError, TypeError, ValueError):
            return [], []
        return found, written

    def _rows(self, function: Any, xs: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """The rows of a call, and the arrays that it writes."""
        arrays = [np.array(x) if isinstance(x, np.generic) else x for x in xs]
        if not all(isinstance(x, np.ndarray) for x in arrays):
            raise _NoRow
        if isinstance(function, np.ufunc):
            return [self._elementwise(function, arrays)], arrays[-1:]
        of = getattr(function, "__self__", None)
        if isinstance(of, np.ndarray) and function.__name__ == "dot":
            return self._dot(of, *arrays), arrays[-1:]
        kinds = self._walker.arguments_of(function)
        if kinds is None or len(kinds) != len(arrays):
            raise _NoRow
        return [self._loop(function, kinds, arrays)], [x for x, kind in zip(arrays, kinds, strict=True) if kind[2]]

    def _elementwise(self, ufunc: Any, arrays: list[Any]) -> Any:
        *given, out = arrays
        _check(out, given, may_be_one=True)
        shape, strides = _merged([np.broadcast_to(x, out.shape) for x in arrays])
        is_usual = ufunc.signature is None and ufunc.nout == 1 and ufunc.nin == len(given) < 3
        if not is_usual or len(shape) > 2:
            raise _NoRow
        row = self._of_ufunc(ufunc, arrays, strides[0])
        row["dims"][0], row["strides"][: len(arrays)] = shape[0], strides[0]
        if len(shape) == 2:
            row["count"], row["steps"][: len(arrays)] = shape[1], strides[1]
        return row

    def _dot(self, a: Any, b: Any, out: Any) -> list[Any]:
        """The rows of `ndarray.dot`."""
        _check(out, [a, b])
        if not (1 <= a.ndim <= 2 and 1 <= b.ndim <= 2) or a.dtype.char not in "fd":
            raise _NoRow
        form = tuple((x.shape, x.strides, x.dtype) for x in (a, b, out))
        if form not in self._forms:
            kept, self._kept = self._kept, []
            self._forms[form] = self._form_of_dot(a, b, out)
            self._kept = kept
        return self._product(a, b, out, self._forms[form])

    def _form_of_dot(self, a: Any, b: Any, out: Any) -> bool | None:
        """Whether `_product` copies; None if it has other bits than `ndarray.dot`.

        In which order numbers are added depends on shapes, so random numbers show whether it is the same. Small
        matrices are multiplied faster if the second is no transpose.
        """
        random = np.random.default_rng(0)
        x, y, found = _like(a, random), _like(b, random), np.empty_like(out)
        needed = x.dot(y)
        is_small = a.ndim == b.ndim == 2 and len(a) >= 16 and b.T.flags.c_contiguous and b.nbytes <= 1 << 15
        for copies in (True, False) if is_small else (False,):
            walk, *numbers = self.walk(self._product(x, y, found, copies))
            walk(*numbers, 0)
            if found.tobytes() == needed.tobytes():
                return copies
        return None

    def _product(self, a: Any, b: Any, out: Any, copies: bool | None) -> list[Any]:
        """Rows that multiply by the loop of `matmul`, which calls the functions of the BLAS that `dot` calls."""
        if copies is None:
            raise _NoRow
        rows = []
        if copies:
            transpose, own = kernels.loop("transpose", b.dtype), np.empty(b.shape, b.dtype)
            rows.append(self._loop(transpose, self._walker.arguments_of(transpose), [b.T, own]))
            b = own
        a, b = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
        c = out.reshape(len(a), b.shape[1])
        strides = [0, 0, 0, *a.strides, *b.strides, *c.strides]
        row = self._of_ufunc(np.matmul, [a, b, c], [0, 0, 0])
        row["dims"][:4], row["strides"][: len(strides)] = (1, *a.shape, b.shape[1]), strides
        row["checks"] = 0  # as `dot`
        return [*rows, row]

    def _loop(self, loop: Any, kinds: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """The row of a compiled loop of `kernels`. Its arrays may overlap: the call runs the same code."""
        row = self._new(arrays)
        for k, (x, (dtype, ndim, is_written)) in enumerate(zip(arrays, kinds, strict=True)):
            is_usual = x.flags.c_contiguous and x.flags.aligned and x.size and (x.flags.writeable or not is_written)
            if not is_usual or x.dtype != dtype or x.ndim != ndim:
                raise _NoRow
            row["dims"][2 * k : 2 * k + ndim] = x.shape
        adapter, row["auxiliary"] = self._walker.adapted(loop)
        row["loop"] = adapter.address
        self._kept += [adapter, loop]
        return row

    def _of_ufunc(self, ufunc: Any, arrays: Sequence[Any], strides: Sequence[int]) -> Any:
        """A row with the loop of a ufunc for arrays of these dtypes."""
        given = tuple(x.dtype for x in arrays)
        dtypes, capsule = ufunc._resolve_dtypes_and_context(given)
        if dtypes != given:
            raise _NoRow
        ufunc._get_strided_loop(capsule, fixed_strides=tuple(strides))
        info = _Info.from_address(_pointer_in(capsule, _CAPSULE))
        if info.requires_python:
            raise _NoRow
        self._kept.append(capsule)  # which owns what the addresses are of
        row = self._new(arrays)
        row["loop"], row["context"], row["auxiliary"] = info.loop, info.context, info.auxiliary or 0
        row["checks"] = not info.has_no_errors
        return row

    def _new(self, arrays: Sequence[Any]) -> Any:
        self._kept += arrays
        row = np.zeros((), self._walker.ROW)
        row["count"], row["pointers"][: len(arrays)] = 1, [x.ctypes.data for x in arrays]
        return row


def _groups(lowering: Lowering) -> list[tuple[list[Any], Update | None]]:
    """The calls of a lowering, a bias and the ReLU after it together, others one by one; and updates."""
    found: list[tuple[list[Any], Update | None]] = []
    for calls, update in lowering.in_order():
        if update is not None or not calls:
            found.append((calls, update))
            continue
        for call in calls:
            if found and len(found[-1][0]) == 1 and _fused([*found[-1][0], call]):
                found[-1][0].append(call)
            else:
                found.append(([call], None))
    return found


def _fused(calls: Sequence[Any]) -> list[Any]:
    """A call of a compiled loop in place, for a bias, a bias and the ReLU after it, or the adjoint of a ReLU."""
    form = [(function, len(args)) for function, args, _, _ in calls]
    if form[:1] == [(np.add, 3)]:
        x, b, out = calls[0][1]
        if form[1:] == [] and x is out:
            return [(kernels.loop("bias", x.dtype), (x, b), None, False)]
        if form[1:] == [(np.maximum, 2)]:
            _, (z, zero), y, _ = calls[1]
            is_relu = x is out is z and zero.ndim == 0 and zero == 0 and _removes_sign(x.dtype)
            return [(kernels.loop("bias_relu", x.dtype), (x, b), None, False)] if is_relu and _is_one(x, y) else []
    if form == [(kernels.loop("relu_backward", np.dtype(np.float32)), 3)]:
        ct, y, out = calls[0][1]
        return [(kernels.loop("relu_backward_in_place", ct.dtype), (ct, y), None, False)] if _is_one(ct, out) else []
    return []


def _is_one(x: Any, y: Any) -> bool:
    """Whether two arrays are the same elements."""
    return (x.ctypes.data, x.shape, x.strides) == (y.ctypes.data, y.shape, y.strides)


def _removes_sign(dtype: Any) -> bool:
    """Whether the maximum of -0 and 0 is 0, as in the compiled loop. It depends on the processor."""
    zero = np.zeros((), dtype)
    return not any(np.signbit(np.maximum(np.full(n, -0.0, dtype), zero)).any() for n in range(1, 65))


def _like(x: Any, random: Any) -> Any:
    """Random numbers in an array that lies in memory as another one."""
    size = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)) // x.itemsize
    return np.ndarray(x.shape, x.dtype, random.standard_normal(size).astype(x.dtype), 0, x.strides)


def _once(arrays: Sequence[Any]) -> list[Any]:
    return list({id(x): x for x in arrays}.values())


def _restore(arrays: Sequence[Any], values: Iterable[Any]) -> None:
    for x, value in zip(arrays, values, strict=True):
        np.copyto(x, value)


def _check(out: Any, given: Sequence[Any], may_be_one: bool = False) -> None:
    """Refuse arrays that an inner loop does not take as they are."""
    if not out.flags.writeable or not all(x.flags.aligned and x.size for x in (out, *given)):
        raise _NoRow
    for x in given:
        if np.may_share_memory(x, out) and not (may_be_one and _is_one(x, out)):
            raise _NoRow


def _merged(arrays: Sequence[Any]) -> tuple[list[int], list[list[int]]]:
    """The lengths of loops over arrays of one shape, the inner one first, and the strides of each array in them."""
    shape, strides = [1], [[x.itemsize for x in arrays]]
    for dim in reversed(range(arrays[0].ndim)):
        n, steps = arrays[0].shape[dim], [x.strides[dim] for x in arrays]
        if shape[-1] == 1:
            shape[-1], strides[-1] = n, steps if n > 1 else strides[-1]
        elif n > 1 and steps == [shape[-1] * step for step in strides[-1]]:
            shape[-1] *= n
        elif n > 1:
            shape.append(n)
            strides.append(steps)
    return shape, strides
