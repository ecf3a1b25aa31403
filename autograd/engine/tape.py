"""The tape: an interval of its thread's list of operations, replayed in reverse or forwards.

The list itself is a `Recording`. The outermost active `Tape` owns it; a tape that is opened inside is an interval of
the same list, so that what an inner sweep records can be differentiated by the outer tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import MeshError, TapeError
from . import events
from .deferred import refuse_pending
from .events import listeners
from .recording import EFFECT, IMPORT, LEAF, MARK, Node, Recording
from .saved_arrays import refuse_write
from .seeds import seeds
from .state import state
from .tensor import WATCH, Tensor

__all__ = ["Sweep", "Tape", "scope"]


class Sweep:
    """One reverse replay of an interval: the cotangents by place, and those that leave the interval."""

    __slots__ = ("cts", "left", "outside", "record", "recording", "start", "wanted")

    def __init__(self, recording: Recording, start: int, end: int, wanted: dict[int, Any] | None, record: bool):
        self.recording = recording
        self.start = start
        self.cts: list[Any] = [None] * (end - start)  # of the places that are still to come, from `start` on
        self.left: list[Node | None] = []  # the nodes that are still to come
        self.outside: dict[int, Any] = {}
        self.wanted = wanted  # places whose cotangents are asked for; leaves keep theirs to themselves then
        self.record = record  # whether cotangents are Tensors, else bare arrays

    @property
    def place(self) -> int:
        """The place of the node at hand."""
        return self.start + len(self.cts)

    def add(self, place: int, ct: Any) -> None:
        """Add a cotangent at a place of the list, inside the interval or before it."""
        i = place - self.start
        if i >= 0:
            known = self.cts[i]
            self.cts[i] = ct if known is None else known + ct
        elif place >= 0:
            known = self.outside.get(place)
            self.outside[place] = ct if known is None else known + ct

    def given(self, count: int) -> list[Any]:
        """The cotangents of the last `count` places, whose nodes have no step of their own in this sweep."""
        found = self.cts[-count:]
        if self.wanted is None:
            del self.cts[-count:], self.left[-count:]
        return found

    def run(self, left: list[Node | None], release: bool) -> None:
        """Replay `left`, which is taken apart, from its end; if it is a copy, `release` the recording's nodes."""
        self.left = left
        next_ct, next_node, cts = self.cts.pop, left.pop, self.cts
        if not (release or self.wanted is not None or state.poke is not None or listeners):
            while cts:
                ct = next_ct()
                node = next_node()
                if node is not None and (ct is not None or node[0].communicates):
                    node[0].pull(node, ct, self)
            return
        while cts:
            ct, node = next_ct(), next_node()
            if node is None:
                continue
            op = node[0]
            if self.wanted is not None and self.place in self.wanted:
                self.wanted[self.place] = ct
            if ct is not None or op.communicates:
                events.emit("begin", "backward", op.name, node, ct, self)
                op.pull(node, ct, self)
                events.emit("end", "backward", op.name, node, ct, self)
                if state.poke is not None:
                    state.poke()
            if release and op is not LEAF and op is not IMPORT:  # those are places that later tapes may name again
                self.recording.nodes[self.place] = None


class Tape:
    """Records the operations of a ``with`` block, to be differentiated by `backward`.

    Operations on a Tensor that depends on a leaf with ``requires_grad`` are recorded; communications always are.
    Opened inside another tape, it is an interval of that tape's list.

    Examples
    --------
    >>> import autograd as ag
    >>> w = ag.Parameter([1.0, 2.0])
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss)
    >>> w.grad.numpy()
    array([2., 4.])
    """

    __slots__ = ("_outer", "end", "recording", "start")

    def __init__(self, recording: Any = None) -> None:
        self.recording: Recording = recording
        self.start = 0
        self.end: int | None = None
        self._outer: Recording | None = None

    def __enter__(self) -> Tape:
        if self.recording is not None:
            raise TapeError("this tape was entered before; needed: a new Tape() for each block")
        self._outer = state.recording
        self.recording = Recording(Tape) if self._outer is None else self._outer
        self.start = len(self.recording.nodes)
        state.recording = self.recording
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.end = len(self.recording.nodes)
        state.recording = self._outer
        if state.pending:
            mine = [x for x in state.pending if x.tape is self.recording and x.place >= self.start]
            refuse_pending(mine, "the tape's block ends", kind is not None)
        if kind is ValueError:
            refuse_write(error)

    def open(self) -> Recording:
        """The list, while the tape's block is open; TapeError else."""
        if self.recording is None or self.end is not None:
            raise TapeError("this tape is not recording; needed: a call inside its with block")
        return self.recording

    def watch(self, x: Tensor) -> Tensor:
        """`x` as an argument of this tape: the same value under a place of its own."""
        recording = self.open()
        parent = x.node if x.tape is recording else recording.enter(x)
        recording.lock(x.array)
        place = recording.append((WATCH, None, (), (parent,), (x.layout,), None, None))
        return Tensor(x.array, x.layout, recording, place)

    # -- for the layers above ------------------------------------------------------------------------------------
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

    def take(self, x: Any) -> Any:
        """Take (and remove) the cotangent that other tapes' sweeps have left here for `x`; None if there is none."""
        return self.recording.pending.pop(x.node, None) if x.tape is self.recording else None

    def plan(self) -> Any:
        """All ranks' tapes as one graph: operations, communications, who owns what; see `collectives.inspect.plan`.

        All ranks of the current mesh call it, before backward has released the tape.
        """
        if state.mesh is None:
            raise MeshError("tape.plan() was called and no mesh is current. Fix: call it inside `with cc.Mesh(...):`")
        return state.mesh.plan(self)

    # -- sweeps ----------------------------------------------------------------------------------------------------
    def backward(
        self,
        outputs: Tensor | Sequence[Tensor] = (),
        cotangents: Any = None,
        *,
        wanted: Sequence[Tensor] | None = None,
        retain: bool = False,
        record: bool = False,
    ) -> list[Any] | None:
        """The reverse sweep: from the outputs' cotangents to the leaves' ``.grad``.

        Parameters
        ----------
        outputs, cotangents : Tensor, array or sequences of them
            A cotangent per output, of its shape and dtype and of the dual layout; an array is V, a number constant.
            Without them one number, I, P or Rooted. No outputs: carry on what other tapes' sweeps left here.
        wanted : sequence of Tensor, optional
            Return the cotangents of these (None where there is none) and leave every ``.grad`` as it is.
        retain, record : bool
            Keep the tape for another backward; record the sweep itself on the enclosing tape.

        Raises
        ------
        LayoutError
            An objective that is V (no single number) or R (each rank would seed its copy).
        TapeError
            A released tape, or outputs that were not recorded here.
        """
        recording = self.recording
        if recording is None:
            raise TapeError("backward of a tape that recorded nothing: it was never entered")
        if state.pending:  # a value still on its way is used here, and takes its place on the tape now
            for x in (*(outputs if isinstance(outputs, list | tuple) else (outputs,)), *(wanted or ())):
                getattr(x, "node", None)
        nodes, start = recording.nodes, self.start
        end = len(nodes) if self.end is None else min(self.end, len(nodes))
        places = None if wanted is None else {x.node: None for x in wanted}
        sweep = Sweep(recording, start, end, places, record)
        for place, ct in seeds(outputs, cotangents, recording, start, end):
            sweep.add(place, ct if record else ct.array)
        for place in [p for p in recording.pending if start <= p < end]:
            sweep.add(place, recording.pending.pop(place))
        active = state.recording
        done = not retain and start == 0 and end == len(nodes)
        over = done and active is not recording and not record  # nothing can be recorded there any more
        if not record:
            state.recording = None
        try:
            sweep.run(nodes if over else nodes[start:end], release=not retain and not over)
        finally:
            state.recording = active
        if done:
            recording.release()
        if wanted is not None:
            assert places is not None
            return [places[x.node] for x in wanted]
        for place, ct in sweep.outside.items():
            node = nodes[place]
            if node is not None and (node[0] is LEAF or node[0] is IMPORT):
                node[0].pull(node, ct, sweep)  # a leaf belongs to no tape, an import to the other one
            else:
                recording.leave(place, ct)
        return None

    def forward(
        self, inputs: Sequence[Tensor], tangents: Sequence[Any], outputs: Sequence[Tensor], *, record: bool = False
    ) -> list[Any]:
        """Forward mode: replay the list forwards, carrying tangents from `inputs` to `outputs`."""
        recording, start = self.recording, self.start
        end = len(recording.nodes) if self.end is None else self.end
        carried: list[Any] = []
        given = {x.node: t for x, t in zip(inputs, tangents, strict=True)}
        active = state.recording
        if not record:
            state.recording = None
        try:
            for place in range(start, end):
                if recording.released(place):
                    raise TapeError("forward mode over a released tape; needed: retain=True")
                node: Any = recording.nodes[place]
                known = place in given
                carried.append(given[place] if known else node[0].push(node, carried, start, record, recording, place))
        finally:
            state.recording = active
        return [carried[y.node - start] if y.tape is recording and y.node >= start else None for y in outputs]


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
