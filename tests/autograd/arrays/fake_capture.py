"""Capture of the simulated device's work: operations, kernels and copies are recorded, not done, and then replayed.

As on a GPU, arrays that are made during a capture have no values until a replay (here NaN), and whatever would wait for
the device or copy between it and the host is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

_IN_PLACE = ("copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis")
_NEEDS_VALUES = ("nonzero", "unique", "flatnonzero", "argwhere", "extract", "array_equal", "allclose")


class _State(threading.local):
    work: list[Callable[[], Any]] | None = None


_state = _State()


def refuse(what: str) -> None:
    """Raise the error of a device that is asked for something that cannot be captured."""
    if _state.work is not None:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


@contextmanager
def _not_recording() -> Iterator[None]:
    work, _state.work = _state.work, None
    try:
        with numpy.errstate(all="ignore"):
            yield
    finally:
        _state.work = work


def record(work: Callable[[], Any]) -> bool:
    """Record work in a capture, and return whether there is one."""
    if _state.work is None:
        return False
    _state.work.append(work)
    return True


def capture(function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """Record the work of a function."""
    assert _state.work is None, "a capture in a capture"
    work: list[Callable[[], Any]] = []
    _state.work = work
    try:
        result = function()
    finally:
        _state.work = None

    def replay() -> None:
        with numpy.errstate(all="ignore"):
            for each in work:
                each()

    return result, replay


def _arrays(x: Any, kind: type) -> Iterator[Any]:
    if isinstance(x, kind):
        yield x
    elif isinstance(x, tuple | list):
        for item in x:
            yield from _arrays(item, kind)
    elif isinstance(x, dict):
        yield from _arrays(list(x.values()), kind)


def _poison(values: numpy.ndarray) -> None:
    values.fill(numpy.nan if values.dtype.kind in "fc" else numpy.zeros((), values.dtype))


def recorded(kind: type, name: str) -> None:
    """Let a method of arrays be recorded in a capture."""
    true = getattr(kind, name)

    def method(self: Any, *args: Any, **options: Any) -> Any:
        if _state.work is None:
            return true(self, *args, **options)
        function = getattr(args[0], "__name__", "") if name in ("__array_ufunc__", "__array_function__") else name
        if function in _NEEDS_VALUES or (function == "where" and len(args[2]) == 1):
            refuse(function)
        key = args[0] if name in ("__getitem__", "__setitem__") else None
        if any(numpy.ndarray is type(k) or (isinstance(k, kind) and k.dtype == bool and name == "__getitem__")
               for k in (key if isinstance(key, tuple) else (key,))):  # fmt: skip
            refuse("an index on the host, or one whose number of elements depends on values")

        def do() -> Any:
            return true(self, *args, **options)

        out = options.get("out")
        is_at = name == "__array_ufunc__" and args[1] == "at"
        if out is not None or is_at or function in ("__setitem__", "fill") or function in _IN_PLACE:
            record(do)
            return out[0] if isinstance(out, tuple) else out
        with _not_recording():
            result = do()
        if result is NotImplemented or function in ("empty", "empty_like"):
            return result
        memory = [x._values for x in _arrays((self, args, options), kind)]
        made = [x for x in _arrays(result, kind) if not any(numpy.may_share_memory(x._values, m) for m in memory)]
        if made:
            for x in made:
                _poison(x._values)

            def again() -> None:
                found = list(_arrays(do(), kind))
                for mine, new in zip(_arrays(result, kind), found, strict=True):
                    mine._values[...] = new._values

            record(again)
        return result

    method.__name__ = name
    setattr(kind, name, method)
