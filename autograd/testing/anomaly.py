"""`detect_anomaly`: finds the operation that made the first NaN or infinity, and writes to arrays that a tape saved.

Nodes of a tape do not store call sites, which would make every operation slower. `detect_anomaly` stores them itself,
together with a checksum of each saved array. Programs that do not use it pay nothing.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..arrays.device import is_array, is_inexact, to_host
from ..arrays.shape_only import Shaped
from ..engine import events
from ..engine.deferred import Deferred
from ..engine.leaves import Leaf
from ..engine.pytree import flatten
from ..engine.recording import Recording, arrays_of, op_of, parents_of, result_of
from ..engine.state import state
from ..engine.sweep import Sweep
from ..engine.tensor import TENSORS
from ..errors import AnomalyError, SavedArrayError, find_site, short_site
from ..layouts.messages import describe

__all__ = ["detect_anomaly"]


class detect_anomaly:
    """Raise an error at the operation that makes the first NaN or infinity, or if a saved array is written to.

    Use it in a ``with`` statement. Inside the block an error is raised for

    - an operation whose result is not finite although its operands are, or that has a leaf with NaNs as operand;
    - an adjoint that makes a cotangent that is not finite;
    - a saved array that was modified before backward used it. Saved arrays are read-only, but views that were made
      before can still write to them. They are found by comparing checksums.

    It watches its own thread only: if ranks are threads, use it inside the program that each of them runs. A training
    step takes several times as long. Not checked are the tangents of forward mode, writes to arrays on a device, and
    results of nonblocking communication before their first use.

    Parameters
    ----------
    infinities : bool
        Whether to report infinities, if no operand is infinite already. NaNs are always reported.
    writes : bool
        Whether to check saved arrays for modifications.

    Raises
    ------
    AnomalyError
        A value is not finite. The message names the operation, its operands, the elements and the call site.
    SavedArrayError
        A saved array was modified. Raised by the backward sweep when it comes to the operation that saved the array;
        the message names the operation and its call site.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> w = ag.Parameter([1.0, 0.0])
    >>> with ag.detect_anomaly(), ag.Tape() as tape:
    ...     try:
    ...         loss = np.sum(np.sqrt(w))
    ...         tape.backward(loss)
    ...     except ag.AnomalyError as error:
    ...         print(str(error).splitlines()[0])
    the adjoint of sqrt made inf in the cotangent of x, f64[2]: 1 of 2 elements, first [1]
    """

    def __init__(self, *, infinities: bool = True, writes: bool = True):
        self._infinities = infinities
        self._writes = writes
        self._nodes: WeakKeyDictionary[Recording, _NodeFacts] = WeakKeyDictionary()
        self._last = ("", "")  # name and call site of the operation that ended last
        self._current_adjoint = ""  # for messages: the adjoint that is running
        self._exit = ExitStack()

    def __enter__(self) -> detect_anomaly:
        if state.recording is not None:  # nodes that are on the tape already have no call sites and checksums
            self._facts(state.recording).seen = len(state.recording.nodes)
        self._exit.enter_context(events.listening(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()
        self._nodes.clear()

    # -- events --------------------------------------------------------------------------------------------------------
    def __call__(self, phase: str, direction: str, name: str) -> None:
        if direction == "forward" and state.recording is not None:
            self._register_nodes(state.recording, *self._last)

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        """Receive an event that has facts: operands and result, or the node of a backward step."""
        if direction == "forward":
            if phase == "end" and not getattr(facts[0], "enters", False):  # an entry of parameters changes no value
                self._after_operation(name, *facts)
        elif direction == "backward" and isinstance(facts[0], tuple):  # a node, not a gradient bucket
            if phase == "begin":
                self._before_adjoint(*facts)
            else:
                self._after_adjoint(*facts)

    # -- forward -------------------------------------------------------------------------------------------------------
    def _after_operation(self, name: str, op: Any, xs: Sequence[Any], y: Any, options: Any = ()) -> None:
        site = short_site(*find_site())
        self._last = name, site
        if state.recording is not None:
            self._register_nodes(state.recording, name, site)
        outs: Sequence[Any] = y if isinstance(y, tuple | list) else (y,)
        if not hasattr(op, "operand_name"):  # a user's primitive, whose operands and results may be containers
            outs, xs = flatten(y)[0], flatten(tuple(xs))[0]
        for out in outs:
            found = self._non_finite(out)
            if not found:
                continue
            given = [self._non_finite(x) for x in xs]
            if "nan" in found and "nan" in "".join(given):
                i = next(i for i, g in enumerate(given) if "nan" in g)
                if isinstance(xs[i], Leaf) or xs[i].__class__ not in TENSORS:
                    raise AnomalyError(f"operand {_name(op, i)} of {_call(op, xs)} contains nan: "
                                       f"{_elements(_host(xs[i]), np.isnan)}{self._adjoint()}{_at(site)}")  # fmt: skip
            elif "nan" in found or not any(given):
                array = _host(out)
                kind = np.isnan if "nan" in found else np.isinf
                raise AnomalyError(
                    f"{_call(op, xs)} made {_first_value(array, kind)}: {_elements(array, kind)}"
                    f"{_operands_there(op, xs, array, kind)}{self._adjoint()}{_at(site)}"
                )

    def _adjoint(self) -> str:
        """Return the line of the message that names the adjoint that is running, or "" if none is."""
        # an error may have ended the last sweep inside an adjoint, so check that a sweep is on the stack
        frame = sys._getframe(1) if self._current_adjoint else None
        while frame is not None and frame.f_code is not Sweep.run.__code__:
            frame = frame.f_back
        return self._current_adjoint if frame is not None else ""

    def _non_finite(self, x: Any) -> str:
        """Return which values that are not finite x contains: "nan", "inf", "nan inf" or ""."""
        array = _host(x)
        if array is None or not is_inexact(array.dtype) or np.isfinite(array).all():
            return ""
        nan, inf = bool(np.isnan(array).any()), self._infinities and bool(np.isinf(array).any())
        return " ".join(word for word, there in (("nan", nan), ("inf", inf)) if there)

    # -- nodes of the tape ---------------------------------------------------------------------------------------------
    def _facts(self, recording: Recording) -> _NodeFacts:
        found = self._nodes.get(recording)
        if found is None:
            found = self._nodes[recording] = _NodeFacts()
        return found

    def _register_nodes(self, recording: Recording, name: str, site: str) -> None:
        """Store the call site and the checksums of all nodes that were appended since the last call."""
        facts, nodes = self._facts(recording), recording.nodes
        for place in range(min(facts.seen, len(nodes)), len(nodes)):
            node: Any = nodes[place]
            if node is not None:  # the node of a communication is appended after its end, others before
                saved = _checksums(node) if self._writes else {}
                facts.places[place] = (site if op_of(node).name == name else "", saved)
        facts.seen = len(nodes)

    # -- backward ------------------------------------------------------------------------------------------------------
    def _before_adjoint(self, node: Any, ct: Any, sweep: Sweep) -> None:
        """Check the saved arrays and the cotangent of a node."""
        recording = sweep.recording
        if state.recording is recording or state.recording is None:
            self._register_nodes(recording, *self._last)
        place = sweep.place
        site, saved = self._facts(recording).places.get(place, ("", {}))
        self._current_adjoint = f"\n  in the adjoint of {op_of(node).name}, {_recorded_at(site)}"
        if saved:
            now = _checksums(node)
            for at, checksum in saved.items():
                if now.get(at, checksum) != checksum:
                    of = "the result" if at == "y" else f"operand {_name(op_of(node), at)}"
                    x = result_of(node) if at == "y" else arrays_of(node)[at]
                    x = x[0] if isinstance(x, tuple) else x
                    raise SavedArrayError(
                        f"{of} of {op_of(node).name}, {describe(x, x.shape, None)}, was written "
                        "to after the tape had saved it, through a view made before that. Needed: an array that "
                        "nothing writes to until backward has used it. Fix: write to a copy, or after "
                        "tape.backward(...)"
                        f"{_was_recorded(op_of(node).name, site)}"
                    )
        if ct is not None and self._non_finite(ct):
            array = _host(ct)
            raise AnomalyError(
                f"the cotangent of {op_of(node).name}, given to backward or left by another tape, is not finite: "
                f"{_elements(array, lambda x: ~np.isfinite(x))}{_was_recorded(op_of(node).name, site)}"
            )

    def _after_adjoint(self, node: Any, ct: Any, sweep: Sweep) -> None:
        """Check the cotangents that the adjoint of a node has just added to."""
        op = op_of(node)
        self._current_adjoint = ""
        for i, place in enumerate(parents_of(node)):
            if place < 0:
                continue
            at = place - sweep.start
            g = sweep.cts[at] if 0 <= at < len(sweep.cts) else sweep.outside.get(place)
            if g is not None and self._non_finite(g):
                array = _host(g)
                kind = np.isnan if np.isnan(array).any() else np.isinf
                site = self._facts(sweep.recording).places.get(sweep.place, ("", {}))[0]
                shape = describe(array, array.shape, None)
                raise AnomalyError(
                    f"the adjoint of {op.name} made {_first_value(array, kind)} in the cotangent of {_name(op, i)}, "
                    f"{shape}: {_elements(array, kind)}{_was_recorded(op.name, site)}"
                )


class _NodeFacts:
    """Call sites and checksums of the nodes of one tape.

    Attributes
    ----------
    seen : int
        The number of nodes that have been registered.
    places : dict
        From the position of a node on the tape to (call site, checksums of its saved arrays).
    """

    def __init__(self) -> None:
        self.seen = 0
        self.places: dict[int, tuple[str, dict[Any, int]]] = {}


# -- arrays and parts of messages --------------------------------------------------------------------------------------


def _host(x: Any) -> Any:
    """Return a value as a host array, or None if it has no values to check."""
    if x.__class__ is Deferred and x._maker is not None:
        return None  # communication is pending; the value is checked at its first use
    array = x.array if x.__class__ in TENSORS else x
    if isinstance(array, float | complex):
        return np.asarray(array)
    return to_host(array) if is_array(array) and type(array) is not Shaped else None


def _checksums(node: Any) -> dict[Any, int]:
    """Return the checksums of the host arrays that a node saved: of operands by number, of the result as "y"."""
    found: dict[Any, int] = {}
    for at, x in (("y", result_of(node)), *enumerate(arrays_of(node))):
        for part in x if isinstance(x, tuple) else (x,):
            if type(part) is np.ndarray:
                data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                found[at] = zlib.crc32(data, found.get(at, 0))
    return found


def _name(op: Any, i: int) -> str:
    return op.operand_name(i) if hasattr(op, "operand_name") else f"operand {i}"


def _call(op: Any, xs: Sequence[Any]) -> str:
    shown = []
    for i, x in enumerate(xs):
        array, layout = (x.array, x.layout) if x.__class__ in TENSORS else (x, None)
        shown.append(f"{_name(op, i)}: {describe(array, np.shape(array), layout)}")
    return f"{op.name}({', '.join(shown)})"


def _first_value(array: Any, kind: Any) -> str:
    return str(array[tuple(np.argwhere(kind(array))[0])])


def _elements(array: Any, kind: Any) -> str:
    indices = np.argwhere(kind(array))
    return f"{len(indices)} of {array.size} elements, first {[int(n) for n in indices[0]]}"


def _operands_there(op: Any, xs: Sequence[Any], array: Any, kind: Any) -> str:
    """Show the values of operands of the result's shape at the first bad element of the result."""
    at = tuple(np.argwhere(kind(array))[0])
    shown = []
    for i, x in enumerate(xs):
        operand = _host(x)
        if operand is not None and operand.shape == array.shape:
            shown.append(f"{_name(op, i)} = {operand[at]!s}")
    return f"\n  operands there: {', '.join(shown)}" if shown else ""


def _at(site: str) -> str:
    return f"{_rank()}\n  at {site}"


def _was_recorded(name: str, site: str) -> str:
    return f"{_rank()}\n  {name} was {_recorded_at(site)}"


def _recorded_at(site: str) -> str:
    return f"recorded at {site}" if site else "recorded where detect_anomaly was not active"


def _rank() -> str:
    grid = state.grid
    if grid is None or all(n == 1 for n in grid.sizes):
        return ""
    return "\n  on rank " + ", ".join(f"{a}={n}" for a, n in zip(grid.names, grid.place, strict=True))
