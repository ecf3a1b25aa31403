"""Read-only views of arrays that a tape still needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import SavedArrayError

__all__ = ["Guarded", "guarded"]


class Guarded(np.ndarray):
    """The view that `Tensor.data` returns while a tape needs the array: writing to it raises `SavedArrayError`.

    Its memory is exported read-only, so that neither a flag nor a base nor a view of it can be written to.
    """

    def _write(self, name: str) -> None:
        if not self.flags.writeable:
            raise SavedArrayError(
                f"{name} on an array of shape {self.shape} that a tape still needs for its backward pass. "
                "Needed: an array that nothing has saved. Fix: write to a copy, or after tape.backward(...), "
                "which releases it"
            )

    def __setitem__(self, key: Any, value: Any) -> None:
        self._write("assignment")
        super().__setitem__(key, value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        for target in out or ():
            if isinstance(target, Guarded):
                target._write(f"{ufunc.__name__} with out=")
        if method == "at" and isinstance(inputs[0], Guarded):
            inputs[0]._write(f"{ufunc.__name__}.at")
        plain = [x.view(np.ndarray) if isinstance(x, Guarded) else x for x in inputs]
        if out:
            options["out"] = tuple(x.view(np.ndarray) if isinstance(x, Guarded) else x for x in out)
        result = getattr(ufunc, method)(*plain, **options)
        return out[0] if out and len(out) == 1 else result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().__array_function__(function, types, args, kwargs)
        except ValueError as error:  # copyto, put, place, fill_diagonal, out=: raise SavedArrayError instead
            if "read-only" in str(error) or "not writeable" in str(error):
                self._write(function.__name__)
            raise

    def setflags(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("write", args[:1] == (True,)):
            self._write("setflags(write=True)")
        super().setflags(*args, **kwargs)


def _refusing(name: str) -> Any:
    plain = getattr(np.ndarray, name)

    def method(self: Guarded, *args: Any, **kwargs: Any) -> Any:
        if name != "byteswap" or kwargs.get("inplace", args[:1] == (True,)):
            self._write(name)
        return plain(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in ("fill", "sort", "partition", "put", "resize", "setfield", "byteswap"):
    setattr(Guarded, _name, _refusing(_name))


def guarded(array: np.ndarray) -> Guarded:
    """A read-only view of an array."""
    try:
        seen = np.asarray(array.data.toreadonly())
    except (ValueError, TypeError, BufferError):  # a dtype that the buffer protocol does not know
        seen = array.view()
    view = seen.view(Guarded)
    view.flags.writeable = False
    return view
