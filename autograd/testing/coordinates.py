"""Distributed values, and functions of them, in coordinates that are the same on all ranks.

The pairing ``<ct, x>`` is the sum over the ranks of local dot products, counted once along Invariant axes. So along a
mesh axis a value has one set of coordinates if it is R or I, whose copies move together, and one set per rank
otherwise. `Coordinates.spread` gives each rank its part, and `Coordinates.collect` is its adjoint under the pairing: it
adds the addends of the cotangent of a Replicated value, and takes one of the copies of an Invariant one. The checks
compute with coordinates alone, so all ranks compare the same numbers and come to the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..arrays.device import is_array, is_inexact, to_host
from ..arrays.shape_only import is_absent
from ..engine.leaves import tensor
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import AbsentError, DtypeError, LayoutError, ReplicaMismatch, RingtapeError, ShapeError
from ..layouts.layout import C, D, I, Layout, R
from ..transforms import jvp, vjp
from .report import GradientMismatch

__all__ = ["Coordinates", "Function", "OnAllRanks", "from_any_rank", "plain_arrays_named", "raw"]

Function = Callable[..., Any]


def raw(x: Any) -> Any:
    """Return the array of a Tensor, and anything else unchanged."""
    return x.array if x.__class__ in TENSORS else x


def _host(x: Any) -> Any:
    """Return the array of a value on the host, or None where the value is on another rank."""
    x = raw(x)
    return None if is_absent(x) else to_host(x) if is_array(x) else np.asarray(x)


def _gathered(part: Any) -> list[Any]:
    """The arrays of all ranks of the mesh, in order."""
    if state.mesh is None or state.mesh.is_alone:
        return [part]
    found: list[Any] = state.mesh.arrays_of_all(part, state.mesh.names, "values in a check of derivatives")
    return found


def from_any_rank(fault: str) -> str:
    """Return, on all ranks, the fault of the first rank that has one, so that no rank goes on alone; "" for none."""
    faults = [str(text) for text in _gathered(np.array(fault))]
    rank = next((r for r, text in enumerate(faults) if text), None)
    return "" if rank is None else faults[rank] + (f"\n  on rank {rank}" if len(faults) > 1 else "")


@contextmanager
def plain_arrays_named(args: Sequence[Any], name: str) -> Iterator[None]:
    """Under a mesh, let a LayoutError in the block say which arguments of the check `name` were plain arrays."""
    try:
        yield
    except LayoutError as error:
        plain = [f"argument {i}" for i, x in enumerate(args) if x.__class__ not in TENSORS]
        if state.grid is not None and plain:
            text = (
                f"\n  {name}: {', '.join(plain)}: a plain array, which is Varying: a separate value on each rank\n"
                f"  fix: {name}(f, ag.Parameter(w), ...), which is Invariant, if it is the same on all ranks\n"
                f"  or:  {name}(f, ag.tensor(w, layout={{{state.grid.names[0]!r}: R}}), ...), or with the label that f "
                "needs"
            )
            error.extend(text)
        raise


class Coordinates:
    """The coordinates of the values that have the layout and the shapes of `x`; without a mesh, their arrays.

    If a value has several sets of coordinates, of one shape, the first index says which; if their shapes differ, they
    are flattened and concatenated.
    """

    def __init__(self, x: Any, layout: Layout | None):
        self._layout, self._local = layout, raw(x)
        self._groups: list[list[list[int]]] = [[[0]]]  # for each set its copies, and of each copy the addends: ranks
        self._mine: int | None = 0  # the set of which this rank has a part
        self._shapes: list[tuple[int, ...]] = []
        if layout is None:
            return
        found: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
        for rank, place in enumerate(np.ndindex(*layout.grid.sizes)):
            at = list(zip(place, layout.labels, strict=True))
            own = tuple(i for i, label in at if label is not R and label not in _COPIED)
            copy = tuple(i for i, label in at if label in _COPIED)
            found.setdefault(own, {}).setdefault(copy, []).append(rank)
        parts = _gathered(_host(x))
        mine = sum(i * int(np.prod(layout.grid.sizes[k + 1 :])) for k, i in enumerate(layout.grid.place))
        groups = [list(copies.values()) for copies in found.values()]
        self._groups = [g for g in groups if parts[g[0][0]] is not None]  # those of a Rooted value are absent elsewhere
        self._shapes = [parts[g[0][0]].shape for g in self._groups]
        self._mine = next((k for k, g in enumerate(self._groups) if any(mine in copy for copy in g)), None)

    @property
    def title(self) -> str:
        """The layout of the values, and what the first index counts, for messages."""
        if self._layout is None:
            return ""
        if len(self._groups) == 1:
            return f" {self._layout}"
        rows = "first index" if len(set(self._shapes)) == 1 else "flattened, in order of"
        axes = [repr(name) for name, label in self._layout.items() if label is not R and label not in _COPIED]
        return f" {self._layout} ({rows}: the ranks along {', '.join(axes)})"

    def spread(self, whole: np.ndarray) -> Any:
        """Return this rank's part of the value with these coordinates: a Tensor, or without a mesh the array."""
        if self._layout is None:
            return whole
        if self._mine is None:
            return Tensor(self._local, self._layout)
        part = whole
        if len(self._groups) > 1 and len(set(self._shapes)) == 1:
            part = whole[self._mine]
        elif len(self._groups) > 1:
            counts = [int(np.prod(shape)) for shape in self._shapes]
            start = sum(counts[: self._mine])
            part = whole[start : start + counts[self._mine]].reshape(self._shapes[self._mine])
        part = np.array(part)
        return Tensor(part if part.shape else part[()], self._layout)

    def collect(self, x: Any, what: str = "") -> np.ndarray:
        """Return the coordinates of a value, of which every rank has its part `x`.

        Raises
        ------
        GradientMismatch
            `what` is given, and the copies of an Invariant value differ.
        """
        if self._layout is None:
            return np.asarray(_host(x))
        parts, found = _gathered(_host(x)), []
        for group in self._groups:
            copies = [np.asarray(sum(parts[r] for r in copy)) if len(copy) > 1 else parts[copy[0]] for copy in group]
            found.append(copies[0])
            for ranks, other in zip(group[1:], copies[1:], strict=True) if what else ():
                _require_equal(GradientMismatch, what, group[0][0], copies[0], ranks[0], other)
        return self._joined(found)

    def of(self, x: Any, what: str) -> np.ndarray:
        """Return the coordinates of which `spread` makes `x`.

        Raises
        ------
        ReplicaMismatch
            The copies of a Replicated or Invariant value differ.
        """
        if self._layout is None:
            return np.asarray(_host(x))
        parts = _gathered(_host(x))
        for group in self._groups:
            first, *others = [r for copy in group for r in copy]
            for r in others:
                _require_equal(ReplicaMismatch, what, first, parts[first], r, parts[r])
        return self._joined([parts[group[0][0]] for group in self._groups])

    def _joined(self, found: list[np.ndarray]) -> np.ndarray:
        if len(found) == 1:
            return np.asarray(found[0])
        if len({part.shape for part in found}) == 1:
            return np.stack(found)
        return np.concatenate([part.ravel() for part in found])


def _require_equal(
    kind: type[RingtapeError], what: str, first: int, x: np.ndarray, rank: int, y: np.ndarray
) -> None:
    """Raise an error unless two ranks have equal copies, up to rounding."""
    tolerance = 1e4 * float(np.finfo(x.dtype).eps) * float(np.max(np.abs(x), initial=0.0))
    if x.shape != y.shape or not np.allclose(x, y, rtol=0, atol=tolerance, equal_nan=True):
        raise kind(
            f"{what} differs between ranks {first} and {rank}: {x.ravel()[:4]!s} and {y.ravel()[:4]!s}; needed: equal "
            "copies, which its label states"
        )


_COPIED = (I, C, D)


class OnAllRanks:
    """A function under test as a function of coordinates, see `Coordinates`; without a mesh, of its arrays.

    Attributes
    ----------
    f : callable
        The function, of Tensors with labels, or without a mesh of arrays.
    arguments : list of Coordinates
    result : Coordinates
        Of its cotangents. Set by the first call.
    """

    result: Coordinates

    def __init__(self, f: Function, arguments: Sequence[Coordinates]):
        self.f, self.arguments = f, arguments

    @classmethod
    def at(cls, f: Function, args: Sequence[Any], name: str) -> tuple[OnAllRanks, list[np.ndarray]]:
        """Return a function that is to be tested, and the coordinates of its arguments.

        Raises
        ------
        ShapeError
            There are no arguments.
        DtypeError
            An argument is not floating or complex.
        AbsentError
            In a dry run, which has no values.
        """
        if not args:
            raise ShapeError(f"{name}: no arguments were given; needed: the arrays at which to differentiate")
        if state.dry:
            raise AbsentError(f"{name}: a dry run has no values to compare. Fix: call it outside of the dry run")
        given = [x if x.__class__ in TENSORS else x if is_array(x) else np.asarray(x) for x in args]
        for i, x in enumerate(given):
            if not is_inexact(raw(x).dtype):
                raise DtypeError(f"{name}: argument {i} has dtype {raw(x).dtype}; needed: a floating or complex dtype")
        made = [Coordinates(x, _layout(x)) for x in given]
        return cls(f, made), [c.of(x, f"argument {i}") for i, (c, x) in enumerate(zip(made, given, strict=True))]

    def __call__(self, *xs: np.ndarray) -> np.ndarray:
        """Return the coordinates of the result."""
        return self._collected(self.f(*self.spread(xs)))

    def value(self, xs: Sequence[np.ndarray]) -> np.ndarray:
        """Call the function, and compare the copies of an Invariant result."""
        return self._collected(self.f(*self.spread(xs)), "the result")

    def spread(self, xs: Sequence[np.ndarray]) -> list[Any]:
        """Return the arguments of `f` on this rank."""
        return [c.spread(x) for c, x in zip(self.arguments, xs, strict=True)]

    def _collected(self, y: Any, what: str = "") -> np.ndarray:
        if isinstance(raw(y), tuple | list):
            raise ShapeError(f"the function returned {len(y)} values; needed: one array. Fix: concatenate them")
        array = raw(y) if is_array(raw(y)) or is_absent(raw(y)) else np.asarray(raw(y))
        if not is_inexact(array.dtype):
            raise DtypeError(f"the function returned dtype {array.dtype}; needed: a floating or complex dtype")
        if "result" not in self.__dict__:
            layout = _layout(y)
            self.result = Coordinates(y, None if layout is None else layout.dual)
        return self.result.collect(y, what)

    def gradients(self, xs: Sequence[np.ndarray], ct: np.ndarray) -> list[np.ndarray]:
        """Return the cotangents of all arguments by reverse mode, given the cotangent of the result.

        Raises
        ------
        GradientMismatch
            A cotangent has not the shape and dtype of its argument, or its copies differ.
        """
        given = self.spread(xs)
        found = vjp(self.f, *given)[1](self.result.spread(ct))
        gs = [found] if len(xs) == 1 else list(found)
        fault = ""
        for i, (x, g) in enumerate(zip(map(raw, given), map(raw, gs), strict=True)):
            if (g.shape != x.shape or g.dtype != x.dtype) and not fault:
                fault = (f"reverse mode, argument {i}: the gradient is {g.dtype}{list(g.shape)}; needed: {x.dtype}"
                         f"{list(x.shape)}, as the argument")  # fmt: skip
        if fault := from_any_rank(fault):
            raise GradientMismatch(fault)
        return [c.collect(g, f"reverse mode: the gradient of argument {i}")
                for i, (c, g) in enumerate(zip(self.arguments, gs, strict=True))]  # fmt: skip

    def tangent(self, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray], what: str = "") -> np.ndarray:
        """Return the tangent of the result by forward mode; with `what`, compare the copies of an Invariant one."""
        return self.result.collect(jvp(self.f, tuple(self.spread(xs)), tuple(self.spread(dxs)))[1], what)

    def tangent_function(self, dxs: Sequence[np.ndarray]) -> OnAllRanks:
        """Return the function from the arguments to the tangent of the result, for fixed tangents."""

        def tangent(*zs: Any) -> Any:
            # the check may have widened the arguments
            return jvp(self.f, zs, self.spread([dx.astype(z.dtype) for dx, z in zip(dxs, zs, strict=True)]))[1]

        return OnAllRanks(tangent, self.arguments)

    def gradient_functions(self, ct: np.ndarray) -> list[OnAllRanks]:
        """Return, for each argument, the function from the arguments to its gradient, for a fixed cotangent.

        The checks of all of them move the arguments to the same points, and one reverse sweep gives all gradients at a
        point: those of arrays are kept. Under a mesh the sweeps communicate, so that all ranks make each of them.
        """
        kept: dict[Any, tuple[Any, ...]] = {}

        def swept(zs: tuple[Any, ...]) -> tuple[Any, ...]:
            found = vjp(self.f, *zs)[1](self.result.spread(ct))
            return (found,) if len(zs) == 1 else tuple(found)

        def gradients(zs: tuple[Any, ...]) -> tuple[Any, ...]:
            if len(zs) == 1 or state.grid is not None or not all(z.__class__ is np.ndarray for z in zs):
                return swept(zs)
            point = tuple((z.dtype, z.tobytes()) for z in zs)
            if point not in kept:
                kept[point] = swept(zs)
            return kept[point]

        return [OnAllRanks(lambda *zs, i=i: gradients(zs)[i], self.arguments) for i in range(len(self.arguments))]


def _layout(x: Any) -> Layout | None:
    """The layout of a value, a plain array being Varying; None without a mesh."""
    if state.grid is None:
        return None
    layout: Layout = (x if x.__class__ in TENSORS else tensor(x)).labelled(state.grid)
    return layout
