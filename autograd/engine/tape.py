"""The tape: an interval of its thread's list of operations, replayed in reverse or forwards.

The list itself is a `Recording`, and one reverse replay of it is a `Sweep`. The outermost active `Tape` owns the list.
A tape that is opened inside is an interval of the same list, so that the outer tape can differentiate what an inner
sweep records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, overload

from ..doors import door
from ..errors import CommunicationError, RingtapeError, TapeError
from . import events
from .deferral import Rest
from .deferred import refuse_pending
from .events import listeners, spans
from .locks import refuse_write
from .objective import is_followed_leaf, place_in, place_of, seeds
from .recording import EFFECT, LEAF, MARK, OUTSIDE, Recording
from .state import state
from .sweep import Sweep, sweep_class
from .tensor import WATCH, Tensor

__all__ = ["Tape", "TapeRecording", "scope"]


_MOST_SHOWN = 12  # operations in a notebook


class TapeRecording(Recording):
    """The recording that an outermost tape owns."""

    __slots__ = ()

    def whole(self) -> Tape:
        return Tape(self)


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

    def __repr__(self) -> str:
        if self.recording is None:
            return "<Tape, not entered>"
        nodes = self.recording.nodes
        held = [node for node in nodes[self.start : self.end] if node is not None and node[0] is not LEAF]
        what = "recording" if self.end is None else "released" if not nodes else "recorded"
        return f"<Tape, {what}, {len(held)} operations>"

    def _repr_html_(self) -> str:
        """The same for notebooks, with the operations that it holds and how often."""
        from .. import notebook  # few programs show tapes so

        nodes = [] if self.recording is None else self.recording.nodes[self.start : self.end]
        counts = Counter(node[0].name for node in nodes if node is not None and node[0] is not LEAF)
        rows = counts.most_common(_MOST_SHOWN)
        if len(counts) > _MOST_SHOWN:
            rows.append(("others", sum(counts.values()) - sum(n for _, n in rows)))
        return notebook.sheet("Tape", repr(self)[7:-1], notebook.table(rows, ("operation", "times")) if rows else "")

    def __enter__(self) -> Tape:
        if self.recording is not None:
            raise TapeError("this tape was entered before; needed: a new Tape() for each block")
        self._outer = state.recording
        self.recording = TapeRecording() if self._outer is None else self._outer
        self.start = len(self.recording.nodes)
        state.recording = self.recording
        if spans:
            events.emit_span("begin", "forward")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.end = len(self.recording.nodes)
        state.recording = self._outer
        if spans:
            events.emit_span("end", "forward")
        if state.pending:
            mine = [x for x in state.pending if x.tape is self.recording and x.place >= self.start]
            refuse_pending(mine, "the tape's block ends", kind is not None)
        if kind is not None and self._outer is None:  # nobody will replay it: parameters can be written to again
            self.recording.abandon()
        if kind is ValueError:
            refuse_write(error)

    def open(self) -> Recording:
        """The list, while the tape's block is open. Raises TapeError otherwise."""
        if self.recording is None or self.end is not None:
            raise TapeError("this tape is not recording; needed: a call inside its with block")
        return self.recording

    def watch(self, x: Tensor) -> Tensor:
        """`x` as an argument of this tape: the same value at a new place."""
        recording = self.open()
        parent = x.node if x.tape is recording else recording.enter(x)
        recording.lock(x.array)
        place = recording.append((WATCH, None, (), (parent,), (x.layout,), None, None))
        return Tensor(x.array, x.layout, recording, place)

    # -- for the layers above ------------------------------------------------------------------------------------
    def mark(self, callback: Callable[[Sweep], None]) -> None:
        """Call `callback` in a sweep when all nodes recorded after this point are done."""
        self.open().append((MARK, None, (), (), (callback,), None, None))

    def effect(self, do: Callable[[], None], undo: Callable[[], None]) -> None:
        """Run `do` now, and `undo` when a sweep reaches this point. The node has no cotangent."""
        recording = self.open()
        with events.emitting("effect", "do", do):
            do()
        events.emit("end", "effect", "do", do)
        recording.append((EFFECT, None, (), (), (do, undo), None, None))

    def take(self, x: Any) -> Any:
        """Remove and return the cotangent that sweeps of other tapes have left for `x`; None if there is none."""
        return self.recording.pending.pop(x.node, None) if x.tape is self.recording else None

    def plan(self) -> Any:
        """All ranks' tapes as one graph of operations and communications, a `collectives.inspect.plan.Plan`.

        All ranks of the current mesh call it, after the forward pass and before `backward`, which releases the tape.
        After the mesh's block all ranks of the world call it, if the mesh had all of them. The plan of a tape that was
        recorded without a mesh is the graph of this process.

        ``print(plan)`` lists the communications and ``plan.problems`` those that do not match; one rank may save the
        graph: ``plan.write("plan.svg")``, or ``"plan.json"``.

        Raises
        ------
        MeshError
            No mesh is current, and the tape was recorded on one of some ranks of the world. Or `collectives`, which
            makes plans, is not imported.
        TapeError
            The tape was never entered, or `backward` has released it.

        Examples
        --------
        >>> import autograd as ag, collectives as cc
        >>> with cc.Mesh(dp=1):
        ...     x = ag.tensor([1.0, 2.0], {"dp": cc.V})
        ...     with ag.Tape() as tape:
        ...         y = cc.all_reduce(x, "dp", to=cc.R)
        ...     plan = tape.plan()
        >>> [c.name for c in plan.communications], plan.problems
        (['all_reduce'], [])
        """
        return state.distribution.plan(self)

    def show(self) -> None:
        """Print the operations of the tape: place, name, operands, layout, value and line.

        A value is shown where the tape keeps it. If `collectives.recording_operations` was active while the operations
        ran, all values and the program's lines are known, also after backward has released the tape. It does not
        communicate, and it shows this rank's parts.

        Raises
        ------
        TapeError
            The tape was never entered, or `backward` has released it and nothing has recorded it.

        Examples
        --------
        >>> import autograd as ag
        >>> w = ag.Parameter([1.0, 2.0], name="w")
        >>> with ag.Tape() as tape:
        ...     loss = (w * w).sum()
        >>> tape.show()
        place  operation    operands  value
            0  parameter w            f64[2] 1 2
            1  multiply     %0, %0
            2  sum          %1
        """
        print("\n".join(door("texts of tapes").lines_of(self)))

    def trace(
        self, outputs: Tensor | Sequence[Tensor] = (), cotangents: Any = None, *, retain: bool = False
    ) -> None:
        """Run `backward`, and print each operation with its value and its cotangent, on each rank.

        All ranks of the current mesh call it, and the first one prints: the operations by their place on the tape, and
        below each other the ranks; then the gradients of the leaves. Without a mesh it shows this process.

        Parameters
        ----------
        outputs, cotangents, retain
            As for `backward`.

        Raises
        ------
        LayoutError, TapeError
            As by `backward` and `show`.

        Examples
        --------
        >>> import autograd as ag, collectives as cc
        >>> def program():
        ...     with cc.Mesh(dp=2) as mesh:
        ...         w = ag.Parameter([1.0, 2.0], name="w")
        ...         x = ag.tensor([1.0, 1.0]) * (1 + mesh.axis("dp").rank)
        ...         with ag.Tape() as tape:
        ...             loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * x).sum(), "dp", to=cc.I)
        ...         tape.trace(loss)
        >>> _ = cc.run(program, ranks=2)
        place  operation    operands  layout   rank  value       cotangent
            0  parameter w            {dp: I}  0     f64[2] 1 2  {dp: I} f64[2] 3 3
                                               1     f64[2] 1 2  {dp: I} f64[2] 3 3
            1  cast I->R    %0        {dp: R}  0     f64[2] 1 2  {dp: P} f64[2] 1 1
                                               1     f64[2] 1 2  {dp: P} f64[2] 2 2
            2  multiply     %1, -     {dp: V}  0                 {dp: V} f64[2] 1 1
                                               1                 {dp: V} f64[2] 1 1
            3  sum          %2        {dp: V}  0                 {dp: V} f64[] 1
                                               1                 {dp: V} f64[] 1
            4  all_reduce   %3        {dp: I}  0     f64[] 9     {dp: I} f64[] 1
                                               1     f64[] 9     {dp: I} f64[] 1
        <BLANKLINE>
        gradient  layout   rank  value
               w  {dp: I}  0     f64[2] 3 3
                  {dp: I}  1     f64[2] 3 3
        """
        lines = door("texts of tapes").traced(self, outputs, cotangents, retain)
        if lines:
            print("\n".join(lines))

    # -- sweeps ----------------------------------------------------------------------------------------------------
    @overload
    def backward(
        self, outputs: Tensor | Sequence[Tensor] = (), cotangents: Any = None, *,
        wanted: Sequence[Tensor] | None = None, defer: Literal[False] = False, retain: bool = False,
        record: bool = False,
    ) -> list[Any] | None: ...  # fmt: skip
    @overload
    def backward(
        self, outputs: Tensor | Sequence[Tensor] = (), cotangents: Any = None, *,
        wanted: Sequence[Tensor] | None = None, defer: Literal[True], retain: bool = False, record: bool = False,
    ) -> Rest: ...  # fmt: skip
    def backward(
        self,
        outputs: Tensor | Sequence[Tensor] = (),
        cotangents: Any = None,
        *,
        wanted: Sequence[Tensor] | None = None,
        defer: bool = False,
        retain: bool = False,
        record: bool = False,
    ) -> list[Any] | Rest | None:
        """The reverse sweep: from the outputs' cotangents to the leaves' ``.grad``.

        Parameters
        ----------
        outputs, cotangents : Tensor, array or sequences of them
            One cotangent per output, of its shape, dtype and dual layout. An array is V, a number constant; neither is
            the cotangent of a Replicated output, which is Partial. Without
            cotangents the output is one number, I, P or Rooted. Without outputs the sweep starts from the cotangents
            that sweeps of other tapes left here.
        wanted : sequence of Tensor, optional
            Return the cotangents of these (None where there is none) and leave every ``.grad`` as it is.
        defer : bool
            Compute only the cotangents of `wanted`, and return a `Rest`: it has them, and a call of it computes the
            rest, such as the gradients of weights. All ranks must call it at the same place of their programs.
        retain, record : bool
            Keep the tape for another backward; record the sweep itself on the enclosing tape, which keeps the tape
            too. A later backward adds to the gradients that are there: call `zero_grad` before the second derivative.

        Raises
        ------
        ObjectiveError
            A complex output without a cotangent.
        LayoutError
            An objective that is V (no single number) or R (each rank would seed its copy); a cotangent that has not the
            dual layout of its output.
        TapeError
            A released tape, outputs that were not recorded here, or `wanted` names a value that has no gradient.

        Notes
        -----
        If a sweep fails, no ``.grad`` has changed. With ``retain=True`` it can be repeated.
        """
        recording = self.recording
        if recording is None:
            raise TapeError("backward of a tape that recorded nothing: it was never entered")
        if state.pending:
            _take_places(outputs, wanted)
        retain = retain or (record and state.recording is not None)  # what the sweep records reads the tape
        if outputs.__class__ is not Tensor:
            self._enter_leaves(outputs)
        start, size = self.start, len(recording.nodes)
        end = size if self.end is None else min(self.end, size)
        at = None if wanted is None else [place_of(x, recording) for x in wanted]
        sweep = (sweep_class() if listeners else Sweep)(
            recording, start, end, None if at is None or defer else dict.fromkeys(at), record
        )
        self._seed(sweep, outputs, cotangents, end)
        if defer:
            if record or start or end < size or state.recording is recording:
                raise TapeError(
                    "backward(defer=True) of a part of a recording, or with record=True; needed: a tape that is no "
                    "part of another one, after its block\n  fix: close the block of the tape first"
                )
            return Rest(sweep, at or [], retain)
        if recording.on_sweep and at is None and not record:
            self._begin(sweep)
        leaves = recording.inputs() if recording.scale and at is None else ()
        _replay(sweep, retain, is_whole=start == 0 and end == size)
        if at is None:
            if sweep.outside:
                sweep.settle()
            if sweep.later:
                sweep.finish()
            if leaves:
                state.distribution.note_gradients(leaves)
            return None
        found: Any = sweep.wanted
        return [found[place] if start <= place < end else sweep.outside.get(place) for place in at]

    def _seed(self, sweep: Sweep, outputs: Any, cotangents: Any, end: int) -> None:
        """Give a sweep the cotangents that it starts from. The ranks compare an objective."""
        recording = sweep.recording
        try:
            for place, ct in seeds(outputs, cotangents, recording, sweep.start, end):
                sweep.seed(place, ct)
        except RingtapeError as error:
            given = outputs if isinstance(outputs, list | tuple) else (outputs,)
            events.refuse("backward", self, given, (), error=error)
            raise
        if cotangents is None and not (distribution := state.distribution).is_alone:
            try:
                distribution.compare_objective(outputs, recording)
            except CommunicationError:  # the ranks can no longer do the same, as after a death
                recording.abandon()
                raise
        if recording.pending:
            sweep.take_pending()

    def _begin(self, sweep: Sweep) -> None:
        """Tell those that follow sweeps of the recording, such as entries, that one begins."""
        recording = sweep.recording
        try:
            for begin in reversed(recording.on_sweep):
                begin(sweep)
        except CommunicationError:  # as above
            recording.abandon()
            raise

    def _enter_leaves(self, outputs: Any) -> None:
        """Give leaves among the outputs a place: operations that change nothing, as a reshape, return their operand."""
        recording = self.recording
        count = len(recording.nodes)
        if self.end is None or self.end <= count:  # else they are released
            for y in outputs if isinstance(outputs, list | tuple) else (outputs,):
                if y.__class__ is not Tensor and is_followed_leaf(y):
                    recording.enter(y)
        if self.end == count:
            self.end = len(recording.nodes)

    def forward(
        self, inputs: Sequence[Tensor], tangents: Sequence[Any], outputs: Sequence[Tensor], *, record: bool = False
    ) -> list[Any]:
        """Forward mode: replay the list forwards, from the tangents of `inputs` to those of `outputs`."""
        recording, start = self.recording, self.start
        self._enter_leaves(inputs)
        end = len(recording.nodes) if self.end is None else self.end
        carried: list[Any] = []
        given = {place_in(x, recording): t for x, t in zip(inputs, tangents, strict=True)}
        active = state.recording
        inside, state.in_rules = state.in_rules, True
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
            state.recording, state.in_rules = active, inside
        places = [place_in(y, recording) for y in outputs]
        return [carried[p - start] if start <= p < end else given.get(p) if p > OUTSIDE else None for p in places]


def _take_places(outputs: Any, wanted: Sequence[Tensor] | None) -> None:
    """Have values that are still being sent take their places on the tape."""
    for x in (*(outputs if isinstance(outputs, list | tuple) else (outputs,)), *(wanted or ())):
        getattr(x, "node", None)


def _replay(sweep: Sweep, retain: bool, is_whole: bool) -> None:
    """Run a sweep over a recording, all of it or an interval. If it fails, no gradient has changed."""
    recording, active, record = sweep.recording, state.recording, sweep.record
    done = is_whole and not retain
    over = done and active is not recording and not record  # then nothing more is recorded on it
    nodes = recording.nodes if over else recording.nodes[sweep.start : sweep.place]
    inside = False
    if record:  # rules compute with Tensors
        inside, state.in_rules = state.in_rules, True
    else:
        state.recording = None
    if spans:
        events.emit_span("begin", "backward")
    try:
        sweep.run(nodes, release=not retain and not over)
    except BaseException:
        sweep.undo()
        if done:
            recording.abandon()
        raise
    finally:
        state.recording = active
        if record:
            state.in_rules = inside
        if spans:
            events.emit_span("end", "backward")
    if done:
        recording.release()


# -- names for parts of a program ------------------------------------------------------------------------------------
@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name a part of the program: listeners get its begin and end, forward and in every sweep through it.

    Examples
    --------
    >>> import autograd as ag
    >>> w, seen = ag.Parameter([1.0]), []
    >>> with ag.Tape() as tape:
    ...     with ag.scope("layer"):
    ...         y = (w * w).sum()
    >>> with ag.events.listening(lambda phase, way, what: seen.append((phase, what)) if what == "layer" else None):
    ...     tape.backward(y)
    >>> seen
    [('begin', 'layer'), ('end', 'layer')]
    """
    recording = state.recording
    events.emit("begin", "forward", name)
    if recording is not None:  # a sweep reaches this node after all nodes of the scope
        recording.append((MARK, None, (), (), (lambda sweep: events.emit("end", "backward", name),), None, None))
    try:
        yield
    finally:
        do, undo = (partial(events.emit, "end", "forward", name), partial(events.emit, "begin", "backward", name))
        do()
        if recording is not None and state.recording is recording:
            recording.append((EFFECT, None, (), (), (do, undo), None, None))
