"""Memory: the values of all that a step can change, taken before it runs and given back, and compared by their bits.

With it a captured step is proved while it is used: the replay runs, the memory of before is given back, the step itself
runs, and what both have left must be equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from ..engine.leaves import Leaf
from ..engine.tensor import TENSORS
from ..errors import CaptureError
from ..optim.base import Optimizer
from ..random.keys import get_state, set_state
from .reach import Reach

__all__ = ["Memory", "Watch", "bits"]

_OWN = ("autograd.optim", "autograd.nn", "autograd.random", "autograd.data", "parallel.")  # whose objects have state
_LARGE_BYTES = 1 << 26
"""An array of the program from this size on, such as a data set, is neither copied nor compared in flight."""
_LEAF = ("array", "_grad", "_requires_grad", "layout", "pending", "used", "uses")


class Memory:
    """The values of what a step can reach: arrays, containers, attributes, closures, optimizers, the random state.

    Parameters
    ----------
    reach : Reach
        Of the step. Objects of ringtape that have state, such as optimizers, are followed to all that they hold.
    """

    def __init__(self, reach: Reach):
        self._undo: list[Callable[[], Any]] = []
        self._keys = get_state()
        self._seen: dict[int, Any] = {}
        self._found = set(map(id, reach.objects))
        self._large = {id(x) for x in reach.arrays.values() if is_large(x)}
        waiting = deque([*reach.objects, *reach.leaves.values()])
        while waiting:
            x = waiting.popleft()
            if id(x) not in self._seen:
                self._seen[id(x)] = x
                waiting.extend(self._take(x))
        for place in reach.places:  # globals that the step assigns
            if place.holder.__class__ is dict:
                for name, value in zip(place.keys(), place.values(), strict=False):
                    if name in place.holder:
                        self._undo.append(_assignment(place.holder, name, value))

    def give_back(self) -> None:
        """Make everything what it was."""
        for undo in self._undo:
            undo()
        set_state(self._keys)

    def _take(self, x: Any) -> Iterable[Any]:
        """Keep the values of an object, and return what it holds."""
        if isinstance(x, np.ndarray):
            if id(x) not in self._large:
                self._undo.append(_contents(x, x.copy()))
        elif isinstance(x, Leaf):
            return self._attributes(x, _LEAF)
        elif isinstance(x, dict):
            kept = dict(x)
            self._undo.append(_refilled(x, x.update, kept))
            return [*kept.values(), *self._dictionary(x)]
        elif isinstance(x, list | deque):
            items = list(x)
            self._undo.append(_refilled(x, x.extend, items))
            return items
        elif isinstance(x, set):
            members = set(x)
            self._undo.append(_refilled(x, x.update, members))
        elif isinstance(x, tuple | frozenset):
            return x
        elif isinstance(x, np.random.Generator):
            generator, numbers = x.bit_generator, x.bit_generator.state
            self._undo.append(lambda: setattr(generator, "state", numbers))
        elif isinstance(x, FunctionType):
            self._cells(x.__closure__ or ())
        elif not isinstance(x, type | ModuleType) and (id(x) in self._found or type(x).__module__.startswith(_OWN)):
            return self._dictionary(x)
        return ()

    def _dictionary(self, x: Any) -> Iterable[Any]:
        """The attributes of an object."""
        d = getattr(x, "__dict__", None)
        if not isinstance(d, dict):
            return ()
        kept = dict(d)

        def undo() -> None:
            if d.keys() != kept.keys() or any(d[name] is not kept[name] for name in kept):
                d.clear()
                d.update(kept)

        self._undo.append(undo)
        return kept.values()

    def _attributes(self, x: Any, names: Iterable[str]) -> Iterable[Any]:
        kept = {name: getattr(x, name) for name in names}

        def undo() -> None:
            for name, value in kept.items():
                setattr(x, name, value)

        self._undo.append(undo)
        return [kept.get("array"), getattr(kept.get("_grad"), "array", kept.get("_grad"))]

    def _cells(self, cells: Iterable[CellType]) -> None:
        for cell in cells:
            with contextlib.suppress(ValueError):  # an empty one
                self._undo.append(_filled(cell, cell.cell_contents))


def _refilled(x: Any, fill: Callable[[Any], Any], items: Any) -> Callable[[], None]:
    def undo() -> None:
        x.clear()
        fill(items)

    return undo


def _assignment(d: dict[str, Any], name: str, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if d.get(name) is not value:
            d[name] = value

    return undo


def _filled(cell: CellType, value: Any) -> Callable[[], None]:
    def undo() -> None:
        cell.cell_contents = value

    return undo


def _contents(x: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> Callable[[], None]:
    def undo() -> None:
        if x.flags.writeable and x.tobytes() != kept.tobytes():
            x[...] = kept

    return undo


def is_large(x: Any) -> bool:
    """Whether an array is so large that a copy of it might not fit into memory."""
    return isinstance(x, np.ndarray) and x.nbytes >= _LARGE_BYTES


class Watch:
    """The arrays that a step reaches, which only recorded calls may write while it is recorded.

    Parameters
    ----------
    reach : Reach
    """

    def __init__(self, reach: Reach):
        self._reach = reach
        self._large = {path: _sum_of(x) for path, x in reach.arrays.items() if is_large(x)}
        self._known = dict(self._digests())
        self._gradients: dict[int, tuple[Leaf, int]] = {}

    def _digests(self) -> Iterator[tuple[str, int]]:
        for path, leaf in self._reach.leaves.items():
            yield path, _sum_of(leaf.array)
        for path, x in self._reach.arrays.items():
            if path not in self._large:
                yield path, _sum_of(x)

    def end(self) -> None:
        """As `look`, for large arrays too, which no recorded call writes."""
        self.look()
        for path, digest in self._large.items():
            if digest != _sum_of(self._reach.arrays[path]):
                self._refuse(path)

    def look(self) -> None:
        """Raise CaptureError if an array, or a gradient, is not what the last recorded call left."""
        for path, digest in self._digests():
            if digest != self._known[path]:
                self._refuse(path)
        for leaf, digest in self._gradients.values():
            if _sum_of(leaf._grad) != digest:
                self._refuse(f"the gradient of {leaf.name or 'a leaf'}")

    def note(self) -> None:
        """A recorded call has changed arrays."""
        self._known = dict(self._digests())
        self._gradients = {}

    def note_gradient(self, leaf: Leaf) -> None:
        """A recorded call has added to the gradient of a leaf."""
        self._gradients[id(leaf)] = leaf, _sum_of(leaf._grad)

    def _refuse(self, path: str) -> NoReturn:
        raise CaptureError(
            f"capture: the step writes to {path} by NumPy, which is not recorded, so a replay would not repeat it\n"
            "  fix: an optimizer of autograd.optim for parameters; operations of autograd, whose result is returned, "
            "for other arrays; or call the step itself"
        )


def _sum_of(x: Any) -> int:
    x = getattr(x, "array", x)
    return zlib.crc32(np.ascontiguousarray(x).data) if isinstance(x, np.ndarray | np.generic) and x.size else 0


def bits(reach: Reach, results: Iterable[Any], is_whole: bool = True) -> dict[str, Any]:
    """By path, a digest or the value of each result, leaf, gradient and array, and of the state of optimizers.

    Where `is_whole` is false, of results, leaves and gradients alone, for which a rank needs no other one.
    """
    found: dict[str, Any] = {}
    for i, x in enumerate(results):
        found[f"result {i}"] = _number(x)
    for path, leaf in reach.leaves.items():
        found[path] = _bits(leaf.array)
        found[f"{path}.grad"] = _bits(getattr(leaf._grad, "array", leaf._grad))
    if not is_whole:
        return found
    for path, x in reach.arrays.items():
        if not is_large(x):
            found[path] = _bits(x)
    for k, place in enumerate(reach.places):  # of which a step may have made other arrays
        for i, x in enumerate(place.values()):
            if isinstance(x, np.ndarray) and not is_large(x):
                found[f"{place.path}, value {i} of place {k}"] = _bits(x)
    for x in reach.objects:
        if isinstance(x, Optimizer):
            found |= _flat(f"{type(x).__name__}.state_dict()", x.state_dict())
    return found


def _flat(path: str, x: Any) -> dict[str, Any]:
    if isinstance(x, dict):
        return {k: v for key, value in x.items() for k, v in _flat(f"{path}[{key!r}]", value).items()}
    if isinstance(x, list | tuple):
        return {k: v for i, value in enumerate(x) for k, v in _flat(f"{path}[{i}]", value).items()}
    return {path: _bits(x)}


def _number(x: Any) -> Any:
    """As `_bits`, but one number may be Python's in the step, and a Tensor in its replay, as a norm is."""
    array = x.array if x.__class__ in TENSORS else x
    return repr(array.item()) if isinstance(array, np.ndarray | np.generic) and array.ndim == 0 else _bits(x)


def _bits(x: Any) -> Any:
    x = x.array if x.__class__ in TENSORS else x
    if isinstance(x, np.ndarray | np.generic):
        data = np.ascontiguousarray(x)
        return data.dtype.str, data.shape, hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()
    return repr(x) if isinstance(x, bool | int | float | complex | str | type(None)) else type(x).__name__
