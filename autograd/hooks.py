"""What the layers above hang on a tape: marks and effects, which are places without a cotangent, and named scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from . import events
from .errors import MeshError, TapeError
from .state import state

if TYPE_CHECKING:
    from .tape import Node, Recording, Sweep

__all__ = ["EFFECT", "MARK", "Hooks", "scope"]


class _Mark:
    """Called back in a sweep when everything recorded after it is done."""

    name = "mark"
    communicates = True  # so that it is reached although nothing has its cotangent

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        node[4][0](sweep)

    def push(self, node: Node, tangents: Any, start: int, *context: Any) -> Any:
        return None


class _Effect:
    """`do` ran when it was recorded; its adjoint is `undo`, and forward mode does it again."""

    name = "effect"
    communicates = True

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        events.emit("begin", "effect", "undo")
        node[4][1]()
        events.emit("end", "effect", "undo")

    def push(self, node: Node, tangents: Any, start: int, *context: Any) -> Any:
        node[4][0]()


MARK, EFFECT = _Mark(), _Effect()


class Hooks:
    """The base of Tape: what of it only the layers above call."""

    __slots__ = ()

    def open(self: Any) -> Recording:
        """The list, while the tape's block is open; TapeError else."""
        if self.recording is None or self.end is not None:
            raise TapeError("this tape is not recording; needed: a call inside its with block")
        return self.recording

    def mark(self, callback: Callable[[Sweep], None]) -> None:
        """Have `callback` called in a sweep once everything recorded after this point is done."""
        self.open().append((MARK, None, (), (), (callback,), None, None))

    def effect(self, do: Callable[[], None], undo: Callable[[], None]) -> None:
        """Run `do` now and `undo` when a sweep comes back to this point: a node without a cotangent."""
        recording = self.open()
        events.emit("begin", "effect", "do")
        do()
        events.emit("end", "effect", "do")
        recording.append((EFFECT, None, (), (), (do, undo), None, None))

    def take(self: Any, x: Any) -> Any:
        """Take (and remove) the cotangent that other tapes' sweeps have left here for `x`; None if there is none."""
        return self.recording.pending.pop(x.node, None) if x.tape is self.recording else None

    def plan(self) -> Any:
        """All ranks' tapes as one graph: operations, communications, who owns what; see `collectives.plan.Plan`.

        All ranks of the current mesh call it, before backward has released the tape.
        """
        if state.mesh is None:
            raise MeshError("tape.plan() was called and no mesh is current. Fix: call it inside `with cc.Mesh(...):`")
        return state.mesh.plan(self)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name a part of the program: listeners hear its begin and end, forward and in every sweep that goes through it.

    Examples
    --------
    >>> import autograd as ag
    >>> w, heard = ag.Parameter([1.0]), []
    >>> with ag.Tape() as tape:
    ...     with ag.scope("layer"):
    ...         y = (w * w).sum()
    >>> with ag.events.listening(lambda phase, way, what: heard.append((phase, what)) if what == "layer" else None):
    ...     tape.backward(y)
    >>> heard
    [('begin', 'layer'), ('end', 'layer')]
    """
    recording = state.recording
    events.emit("begin", "forward", name)
    if recording is not None:  # a sweep comes here last, when everything after it is done
        recording.append((MARK, None, (), (), (lambda sweep: events.emit("end", "backward", name),), None, None))
    try:
        yield
    finally:
        do, undo = (partial(events.emit, "end", "forward", name), partial(events.emit, "begin", "backward", name))
        do()
        if recording is not None and state.recording is recording:
            recording.append((EFFECT, None, (), (), (do, undo), None, None))
