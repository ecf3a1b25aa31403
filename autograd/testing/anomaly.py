"""Finds what went wrong silently: the first NaN or infinity, and writes to arrays that a tape has saved.

Nodes know nothing of the program's lines, which would cost every operation. Under `detect_anomaly` they are noted
beside the tape, with a digest of every array that a node saved; outside it nothing is paid.
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
from ..engine.parameter import Leaf
from ..engine.pytree import flatten
from ..engine.recording import Recording
from ..engine.state import state
from ..engine.tape import Sweep
from ..engine.tensor import TENSORS
from ..errors import AnomalyError, SavedArrayError, find_site, short_site
from ..layouts.messages import describe

__all__ = ["detect_anomaly"]


class detect_anomaly:
    """Find the operation that made the first NaN or infinity, and writes to saved arrays; a ``with`` block.

    - Forward: an operation whose result is not finite though its operands were, or into which a NaN came with a leaf.
    - Backward: an operation whose adjoint made a cotangent that is not finite, and where it was recorded.
    - Writes that read-only flags cannot see, through views made before the tape saved the array: each saved array's
      digest is taken when it is saved, and compared when the sweep comes to use it.

    It hears its own thread. Where ranks are threads, open it inside the program that each of them runs. Steps take
    several times as long. Tangents of forward mode, arrays on a device (for writes) and values that are still on their
    way are not looked at.

    Parameters
    ----------
    infinities : bool
        Whether infinities count, where no operand was infinite already; NaNs always do.
    writes : bool
        Whether saved arrays are watched.

    Raises
    ------
    AnomalyError
        Where the value is made, with operation, operands, element and the line of the program.
    SavedArrayError
        In the sweep that would use an array that was written to, with the operation and the line that saved it.

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
        self._notes: WeakKeyDictionary[Recording, _Notes] = WeakKeyDictionary()
        self._last = ("", "")  # the operation that ended last, and its line
        self._pulling = ""  # whose adjoint is running, where a sweep is itself recorded
        self._exit = ExitStack()

    def __enter__(self) -> detect_anomaly:
        if state.recording is not None:  # what is on the tape already stays without lines and digests
            self._of(state.recording).seen = len(state.recording.nodes)
        self._exit.enter_context(events.listening(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()
        self._notes.clear()

    # -- what it hears -------------------------------------------------------------------------------------------------
    def __call__(self, phase: str, direction: str, name: str) -> None:
        if direction == "forward" and state.recording is not None:
            self._note(state.recording, *self._last)

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        """The same as a call, of an event that comes with what it is about."""
        if direction == "forward":
            self._forward(name, *facts)
        elif phase == "begin":
            self._before(*facts)
        else:
            self._after(*facts)

    # -- forward -------------------------------------------------------------------------------------------------------
    def _forward(self, name: str, op: Any, xs: Sequence[Any], y: Any, options: Any = ()) -> None:
        site = short_site(*find_site())
        self._last = name, site
        if state.recording is not None:
            self._note(state.recording, name, site)
        outs: Sequence[Any] = y if isinstance(y, tuple | list) else (y,)
        if not hasattr(op, "operand_name"):  # a program's own, which takes and gives values in containers
            outs, xs = flatten(y)[0], flatten(tuple(xs))[0]
        for out in outs:
            found = self._bad(out)
            if not found:
                continue
            given = [self._bad(x) for x in xs]
            if "nan" in found and "nan" in "".join(given):
                i = next(i for i, g in enumerate(given) if "nan" in g)
                if isinstance(xs[i], Leaf) or xs[i].__class__ not in TENSORS:
                    raise AnomalyError(f"a nan came into {_called(op, xs)} with {_name(op, i)}: "
                                       f"{_places(_host(xs[i]), np.isnan)}{self._inside()}{_where(site)}")  # fmt: skip
            elif "nan" in found or not any(given):
                array = _host(out)
                kind = np.isnan if "nan" in found else np.isinf
                raise AnomalyError(
                    f"{_called(op, xs)} made {_word(array, kind)}: {_places(array, kind)}"
                    f"{_there(op, xs, array, kind)}{self._inside()}{_where(site)}"
                )

    def _inside(self) -> str:
        """Whose adjoint is running, if a sweep is: one that an error ended must not be named for what comes later."""
        frame = sys._getframe(1) if self._pulling else None
        while frame is not None and frame.f_code is not Sweep.run.__code__:
            frame = frame.f_back
        return self._pulling if frame is not None else ""

    def _bad(self, x: Any) -> str:
        """What is not finite in a value: "nan", "inf", both or nothing."""
        array = _host(x)
        if array is None or not is_inexact(array.dtype) or np.isfinite(array).all():
            return ""
        nan, inf = bool(np.isnan(array).any()), self._infinities and bool(np.isinf(array).any())
        return " ".join(word for word, there in (("nan", nan), ("inf", inf)) if there)

    # -- what the tape saved -------------------------------------------------------------------------------------------
    def _of(self, recording: Recording) -> _Notes:
        found = self._notes.get(recording)
        if found is None:
            found = self._notes[recording] = _Notes()
        return found

    def _note(self, recording: Recording, name: str, site: str) -> None:
        """Note the line and the digests of the nodes that were appended since the last look."""
        notes, nodes = self._of(recording), recording.nodes
        for place in range(min(notes.seen, len(nodes)), len(nodes)):
            node: Any = nodes[place]
            if node is not None:  # communications take their place after they have ended, others before
                saved = _digests(node) if self._writes else {}
                notes.places[place] = (site if node[0].name == name else "", saved)
        notes.seen = len(nodes)

    # -- backward ------------------------------------------------------------------------------------------------------
    def _before(self, node: Any, ct: Any, sweep: Sweep) -> None:
        recording = sweep.recording
        if state.recording is recording or state.recording is None:
            self._note(recording, *self._last)
        place = sweep.place
        site, saved = self._of(recording).places.get(place, ("", {}))
        self._pulling = f"\n  in the adjoint of {node[0].name}, {_known(site)}"
        if saved:
            now = _digests(node)
            for at, digest in saved.items():
                if now.get(at, digest) != digest:
                    raise SavedArrayError(
                        f"{_saved_name(node[0], at)} of {node[0].name}, {_shown(node, at)}, was written to after the "
                        "tape had saved it, through a view made before that. Needed: an array that nothing writes to "
                        "until backward has used it. Fix: write to a copy, or after tape.backward(...)"
                        f"{_recorded(node[0].name, site)}"
                    )
        if ct is not None and self._bad(ct):
            array = _host(ct)
            raise AnomalyError(
                f"the cotangent of {node[0].name}, given to backward or left by another tape, is not finite: "
                f"{_places(array, lambda x: ~np.isfinite(x))}{_recorded(node[0].name, site)}"
            )

    def _after(self, node: Any, ct: Any, sweep: Sweep) -> None:
        """The cotangents that a node's adjoint has just added to."""
        op = node[0]
        self._pulling = ""
        for i, place in enumerate(node[3]):
            if place < 0:
                continue
            at = place - sweep.start
            g = sweep.cts[at] if 0 <= at < len(sweep.cts) else sweep.outside.get(place)
            if g is not None and self._bad(g):
                array = _host(g)
                kind = np.isnan if np.isnan(array).any() else np.isinf
                site = self._of(sweep.recording).places.get(sweep.place, ("", {}))[0]
                shape = describe(array, array.shape, None)
                raise AnomalyError(
                    f"the adjoint of {op.name} made {_word(array, kind)} in the cotangent of {_name(op, i)}, {shape}: "
                    f"{_places(array, kind)}{_recorded(op.name, site)}"
                )


class _Notes:
    """What is known of one tape's nodes: by place, the line that recorded it and the digests of what it saved."""

    def __init__(self) -> None:
        self.seen = 0
        self.places: dict[int, tuple[str, dict[Any, int]]] = {}


# -- what it says ----------------------------------------------------------------------------------------------------


def _host(x: Any) -> Any:
    """A value as a host array; None where there is none to look at."""
    if x.__class__ is Deferred and x._maker is not None:
        return None  # still on its way; its first use looks at it
    array = x.array if x.__class__ in TENSORS else x
    if isinstance(array, float | complex):
        return np.asarray(array)
    if not is_array(array) or type(array) is Shaped:
        return None
    return to_host(array)


def _digests(node: Any) -> dict[Any, int]:
    """A checksum of every host array that a node holds, by where it stands: operands by number, the output as "y"."""
    found: dict[Any, int] = {}
    for at, x in (("y", node[1]), *enumerate(node[2])):
        parts = x if isinstance(x, tuple) else (x,)
        digest = 0
        for part in parts:
            if type(part) is np.ndarray:
                digest = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, digest)
        if any(type(part) is np.ndarray for part in parts):
            found[at] = digest
    return found


def _name(op: Any, i: int) -> str:
    return op.operand_name(i) if hasattr(op, "operand_name") else f"operand {i}"


def _saved_name(op: Any, at: Any) -> str:
    return "the result" if at == "y" else f"operand {_name(op, at)}"


def _shown(node: Any, at: Any) -> str:
    x = node[1] if at == "y" else node[2][at]
    x = x[0] if isinstance(x, tuple) else x
    return describe(x, x.shape, None)


def _called(op: Any, xs: Sequence[Any]) -> str:
    shown = []
    for i, x in enumerate(xs):
        array, layout = (x.array, x.layout) if x.__class__ in TENSORS else (x, None)
        shown.append(f"{_name(op, i)}: {describe(array, np.shape(array), layout)}")
    return f"{op.name}({', '.join(shown)})"


def _word(array: Any, kind: Any) -> str:
    return str(array[tuple(np.argwhere(kind(array))[0])])


def _places(array: Any, kind: Any) -> str:
    bad = np.argwhere(kind(array))
    return f"{len(bad)} of {array.size} elements, first {[int(n) for n in bad[0]]}"


def _there(op: Any, xs: Sequence[Any], array: Any, kind: Any) -> str:
    """What the operands were at the first bad element, where they have one there."""
    at = tuple(np.argwhere(kind(array))[0])
    said = []
    for i, x in enumerate(xs):
        found = _host(x)
        if found is not None and found.shape == array.shape:
            said.append(f"{_name(op, i)} = {found[at]!s}")
    return f"\n  there {', '.join(said)}" if said else ""


def _where(site: str) -> str:
    return f"{_rank()}\n  at {site}"


def _recorded(name: str, site: str) -> str:
    return f"{_rank()}\n  {name} was {_known(site)}"


def _known(site: str) -> str:
    return f"recorded at {site}" if site else "recorded where detect_anomaly did not see it"


def _rank() -> str:
    grid = state.grid
    if grid is None or all(n == 1 for n in grid.sizes):
        return ""
    return "\n  on rank " + ", ".join(f"{a}={n}" for a, n in zip(grid.names, grid.place, strict=True))
