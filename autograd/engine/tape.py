"""The tape: an interval of its thread's list of operations, replayed in reverse or forwards.

The list itself is a `Recording`. The outermost active `Tape` owns it. A tape that is opened inside is an interval of
the same list, so that the outer tape can differentiate what an inner sweep records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn, overload

import numpy as np

from .. import notebook
from ..arrays.device import as_array, require_one_device
from ..arrays.shape_only import Shaped, shape_only
from ..errors import DtypeError, LayoutError, MeshError, ShapeError, TapeError, call_site
from ..layouts.inference import axes_in
from ..layouts.layout import C, I, P, R, V, is_copy_for_part, may_relabel
from ..layouts.messages import describe, own_part, require_one_number
from ..layouts.rank_values import LocalCount, plain, rank_axes
from . import events
from .deferral import split
from .deferred import refuse_pending
from .events import listeners, objectives, spans
from .promotion import dtype_to_round_to
from .recording import EFFECT, IMPORT, LEAF, MARK, OUTSIDE, UNRECORDED, Node, Recording
from .saved_arrays import refuse_write
from .state import state
from .tensor import FROM_A_GRADIENT, WATCH, Tensor, relabel

__all__ = ["Rest", "Sweep", "Tape", "scope"]


_NOTHING = object()
_MOST_SHOWN = 12  # operations in a notebook


class Sweep:
    """One reverse replay of an interval: cotangents by place, and those of places before the interval."""

    __slots__ = (
        "begun", "changed", "cts", "fresh", "general", "into", "later", "left", "outside", "record", "recording",
        "start", "stops", "wanted",
    )  # fmt: skip

    def __init__(self, recording: Recording, start: int, end: int, wanted: dict[int, Any] | None, record: bool):
        self.recording = recording
        self.start = start
        self.cts: list[Any] = [None] * (end - start)  # of the places that are not done yet, from `start` on
        self.left: list[Node | None] = []  # the nodes that are not done yet
        self.outside: dict[int, Any] = {}
        self.wanted = wanted  # places whose cotangents are returned; leaves then get no gradient
        self.record = record  # whether cotangents are Tensors, else bare arrays
        # Whether each step is a `checked_pull`: for Tensors, and from the first cotangent of 16 bits on. It is a seed,
        # or comes from the adjoint of a cast.
        self.general = record
        self.fresh: list[Any] = []  # the leaves whose gradient is of this sweep alone
        self.later: dict[int, tuple[Any, Any]] = {}  # by id: leaves, and what is added at the end; None for a fresh one
        self.changed: list[tuple[dict[int, Any], int, Any]] = []  # pending cotangents before: dictionary, place, value
        # Of the layers above: what their functions of `Recording.on_sweep` have begun; by place, an operand and the
        # array for its only cotangent; functions that are called once the node at a place is done.
        self.begun: dict[Any, Any] | None = None
        self.into: dict[int, tuple[int, Any]] | None = None
        self.stops: list[tuple[int, Callable[[], None]]] | None = None

    @property
    def place(self) -> int:
        """The place of the current node."""
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

    def give(self, leaf: Any, ct: Any) -> None:
        """Add a cotangent to the gradient of a leaf."""
        leaf.accumulate(ct, self)

    def keep(self, leaf: Any, ct: Any) -> bool:
        """Keep a cotangent for `finish`, if the leaf had a gradient before this sweep. False if it had none."""
        while self.fresh:
            x = self.fresh.pop()
            self.later[id(x)] = x, None
        _, kept = self.later.get(id(leaf), (None, _NOTHING))
        if kept is None:
            return False
        self.later[id(leaf)] = leaf, ct if kept is _NOTHING else kept + ct
        return True

    def finish(self) -> None:
        """Add to the gradients that leaves had before this sweep."""
        for leaf, ct in self.later.values():
            if ct is not None:
                leaf.accumulate(ct)

    def undo(self) -> None:
        """Restore gradients and pending cotangents as they were before this sweep, which failed."""
        for leaf in [*self.fresh, *(leaf for leaf, ct in self.later.values() if ct is None)]:
            leaf.zero_grad()
        for pending, place, value in reversed(self.changed):
            if value is None:
                pending.pop(place, None)
            else:
                pending[place] = value

    def given(self, count: int) -> list[Any]:
        """Take the cotangents of the last `count` places, whose nodes need no step in this sweep."""
        found = self.cts[-count:]
        if self.wanted is None:
            del self.cts[-count:], self.left[-count:]
        return found

    def stop_at(self, calls: list[tuple[int, Callable[[], None]]]) -> None:
        """Call functions, each once the node at its place is done: all cotangents for earlier places have arrived."""
        self.stops = sorted([*(self.stops or ()), *calls], key=lambda stop: stop[0])

    def _pull_into(self, node: Node, ct: Any, i: int, out: Any) -> Node:
        """Write the cotangent of the i-th operand to `out`; return the node without that operand, or `node` itself."""
        op, y, arrays, parents, options, shapes, signature = node
        is_plain = shapes is None and not options and (signature is None or signature.checked)
        if not is_plain or ct.__class__ is not np.ndarray or not op.write_adjoint[i](out, ct, *arrays):
            return node
        self.add(parents[i], out)
        return op, y, arrays, (*parents[:i], -1, *parents[i + 1 :]), options, shapes, signature

    def run(self, left: list[Node | None], release: bool) -> None:
        """Replay `left` from its end, which empties it; if it is a copy, `release` the recording's nodes."""
        self.left = left
        next_ct, next_node, cts = self.cts.pop, left.pop, self.cts
        stops, into = self.stops, self.into
        if not (release or self.wanted is not None or state.poke is not None or listeners or stops):
            while cts:
                ct = next_ct()
                node = next_node()
                if node is not None and (ct is not None or node[0].communicates):
                    node[0].pull(node, ct, self)
            return
        while cts:
            while stops and len(cts) + self.start <= stops[-1][0]:
                stops.pop()[1]()
            ct, node = next_ct(), next_node()
            if node is None:
                continue
            op = node[0]
            if self.wanted is not None and self.place in self.wanted:
                self.wanted[self.place] = ct
            if ct is not None or op.communicates:
                events.emit("begin", "backward", op.name, node, ct, self)
                if into and ct is not None and len(cts) + self.start in into:
                    node = self._pull_into(node, ct, *into[len(cts) + self.start])
                op.pull(node, ct, self)
                events.emit("end", "backward", op.name, node, ct, self)
                if state.poke is not None:
                    state.poke()
            if release and op is not LEAF and op is not IMPORT:  # later tapes may refer to these places again
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

    planner: ClassVar[Callable[[Any], Any] | None] = None
    """For the layer above: makes the plan of a tape without a mesh."""

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
        self.recording = Recording(Tape) if self._outer is None else self._outer
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
        events.emit("begin", "effect", "do")
        do()
        events.emit("end", "effect", "do")
        recording.append((EFFECT, None, (), (), (do, undo), None, None))

    def take(self, x: Any) -> Any:
        """Remove and return the cotangent that sweeps of other tapes have left for `x`; None if there is none."""
        return self.recording.pending.pop(x.node, None) if x.tape is self.recording else None

    def plan(self) -> Any:
        """All ranks' tapes as one graph of operations and communications, a `collectives.inspect.plan.Plan`.

        All ranks of the current mesh call it, after the forward pass and before `backward`, which releases the tape.
        Without a mesh it is the graph of this process.

        ``print(plan)`` lists the communications and ``plan.problems`` those that do not match; one rank may save the
        graph: ``plan.write("plan.svg")``, or ``"plan.json"``.

        Raises
        ------
        MeshError
            No mesh is current, and the tape was recorded on one. Or `collectives`, which makes plans, is not imported.
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
        if state.mesh is not None:
            return state.mesh.plan(self)
        if Tape.planner is None:
            raise MeshError("tape.plan() was called without collectives\n  fix: import collectives" + call_site())
        return Tape.planner(self)

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
        if state.pending:  # a value that is still being sent takes its place on the tape now
            for x in (*(outputs if isinstance(outputs, list | tuple) else (outputs,)), *(wanted or ())):
                getattr(x, "node", None)
        retain = retain or (record and state.recording is not None)  # what the sweep records reads the tape
        if outputs.__class__ is not Tensor:
            self._enter_leaves(outputs)
        nodes, start = recording.nodes, self.start
        end = len(nodes) if self.end is None else min(self.end, len(nodes))
        at: Any = None
        places: dict[int, Any] | None = None
        if wanted is not None:
            at = [_place_of(x, recording) for x in wanted]
            places = None if defer else dict.fromkeys(at)
        sweep = Sweep(recording, start, end, places, record)
        for place, ct in _seeds(outputs, cotangents, recording, start, end):
            if place < end:
                sweep.add(place, ct if record else ct.array)
                if ct.array.dtype.itemsize == 2:  # a call for each sweep is left out
                    sweep.general = sweep.general or dtype_to_round_to(ct) is not None
            else:  # a leaf that entered after this interval
                known = sweep.outside.get(place)
                given = ct if record else ct.array
                sweep.outside[place] = given if known is None else known + given
        if cotangents is None and (mesh := state.mesh) is not None and not mesh.is_alone:
            for see in objectives:
                see(outputs, recording)
        if recording.pending:
            for place in [p for p in recording.pending if start <= p < end]:
                left = recording.pending.pop(place)
                sweep.changed.append((recording.pending, place, left))
                sweep.add(place, left)
                sweep.general = sweep.general or dtype_to_round_to(left) is not None
        if defer:
            if record or start or end < len(nodes) or state.recording is recording:
                raise TapeError(
                    "backward(defer=True) of a part of a recording, or with record=True; needed: a tape that is no "
                    "part of another one, after its block\n  fix: close the block of the tape first" + call_site()
                )
            return Rest(sweep, at or [], retain)
        if recording.on_sweep and places is None and not record:
            for begin in reversed(recording.on_sweep):
                begin(sweep)
        active = state.recording
        done = not retain and start == 0 and end == len(nodes)
        over = done and active is not recording and not record  # then nothing more is recorded on it
        inside = False
        if record:  # rules compute with Tensors
            inside, state.in_rules = state.in_rules, True
        else:
            state.recording = None
        if spans:
            events.emit_span("begin", "backward")
        try:
            sweep.run(nodes if over else nodes[start:end], release=not retain and not over)
        except BaseException:
            sweep.undo()
            raise
        finally:
            state.recording = active
            if record:
                state.in_rules = inside
            if spans:
                events.emit_span("end", "backward")
        if done:
            recording.release()
        if places is not None:
            return [places[place] if start <= place < end else sweep.outside.get(place) for place in at]
        for place, ct in sweep.outside.items():
            node = nodes[place]
            if node is not None and (node[0] is LEAF or node[0] is IMPORT):
                node[0].pull(node, ct, sweep)  # a leaf belongs to no tape, an import to another one
            else:
                recording.leave(place, ct)
        if sweep.later:
            sweep.finish()
        return None

    def _enter_leaves(self, outputs: Any) -> None:
        """Give leaves among the outputs a place: operations that change nothing, as a reshape, return their operand."""
        recording = self.recording
        count = len(recording.nodes)
        for y in outputs if isinstance(outputs, list | tuple) else (outputs,):
            if _is_followed_leaf(y) and (self.end is None or self.end <= count):  # else it is released
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
        given = {_place_in(x, recording): t for x, t in zip(inputs, tangents, strict=True)}
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
        places = [_place_in(y, recording) for y in outputs]
        return [carried[p - start] if start <= p < end else given.get(p) if p > OUTSIDE else None for p in places]


class Rest:
    """What is left of a backward pass with ``defer=True``. A call of it adds to the gradients of the leaves.

    The values whose cotangents were wanted get no gradient.

    Attributes
    ----------
    cotangents : list
        The cotangents of the wanted values as arrays, None where there is none.

    Raises
    ------
    TapeError
        At a second call.

    Notes
    -----
    The first part of the pass computes the cotangents of all values on the way from the outputs to the wanted ones.
    The arrays that only they needed are then released. The second part computes the cotangents of their other
    operands. A checkpoint, and an operation with a fused kernel, are done as a whole in the first part.

    Examples
    --------
    >>> import autograd as ag
    >>> w, x = ag.Parameter([2.0, 3.0]), ag.tensor([1.0, 4.0], requires_grad=True)
    >>> with ag.Tape() as tape:
    ...     y = (x * w).sum()
    >>> rest = tape.backward(y, wanted=[x], defer=True)
    >>> rest.cotangents, w.grad
    ([array([2., 3.])], None)
    >>> rest()
    >>> w.grad.numpy()
    array([1., 4.])
    """

    __slots__ = ("_general", "_kept", "_nodes", "_recording", "_retain", "_size", "cotangents")

    def __init__(self, sweep: Sweep, wanted: Sequence[int], retain: bool):
        recording = sweep.recording
        first, second, self._kept = split(recording.nodes, 0, wanted)
        self._recording, self._retain, self._size = recording, retain, len(second)
        _run_alone(sweep, first)
        self._general = sweep.general
        self.cotangents: list[Any] = [self._kept.get(place) for place in wanted]
        for place in wanted:
            if place >= 0 and second[place] is None:
                self._kept.pop(place, None)
        if not retain:  # the arrays of nodes that are done are released
            recording.nodes[:] = second
            second = recording.nodes
        self._nodes: list[Node | None] | None = second

    def __call__(self) -> None:
        nodes, kept = self._nodes, self._kept
        if nodes is None or len(nodes) != self._size:
            raise TapeError(
                "the rest of a deferred backward pass was run before, or its tape has been released; needed: one call"
                + call_site()
            )
        self._nodes = None
        sweep = Sweep(self._recording, 0, self._size, None, False)
        sweep.general = self._general
        while kept:
            place, ct = kept.popitem()
            sweep.cts[place] = ct
        ct = None
        _run_alone(sweep, nodes)
        if not self._retain:
            self._recording.release()


def _run_alone(sweep: Sweep, nodes: list[Node | None]) -> None:
    """Run a part of a deferred sweep, which empties `nodes`; if it fails, no gradient has changed."""
    active, state.recording = state.recording, None
    if spans:
        events.emit_span("begin", "backward")
    try:
        sweep.run(nodes, release=False)
    except BaseException:
        sweep.undo()
        raise
    finally:
        state.recording = active
        if spans:
            events.emit_span("end", "backward")
    if sweep.later:
        sweep.finish()


def _is_followed_leaf(x: Any) -> bool:
    return x.__class__ is not Tensor and isinstance(x, Tensor) and x.tape is None and x._requires_grad


def _place_in(x: Tensor, recording: Recording) -> int:
    """The place of a value of a recording, or of a leaf that has entered it; else `OUTSIDE`."""
    if x.tape is recording:
        return int(x.node)
    return recording.leaves.get(id(x), OUTSIDE) if _is_followed_leaf(x) else OUTSIDE


def _place_of(x: Any, recording: Recording) -> int:
    """The place of a value whose cotangent is wanted; negative where it has none in this recording."""
    if x.tape is recording:
        return int(x.node)
    if x.tape is not None:
        return recording.leaves.get((id(x.tape), x.node), OUTSIDE)
    if x.__class__ is not Tensor and not x._requires_grad:
        raise TapeError(
            f"the cotangent of {x.name or 'a leaf'} was wanted, {describe(x.array, x.array.shape, x.layout)}, which is "
            "a constant: it has no gradient, not a gradient of zero. Needed: a value of this tape, or a leaf with "
            "requires_grad=True. Fix: ag.Parameter(w), or ag.tensor(w, requires_grad=True)" + call_site()
        )
    return recording.leaves.get(id(x), OUTSIDE)


# -- the start of a sweep --------------------------------------------------------------------------------------------
_OFF_TAPE = OUTSIDE, UNRECORDED
_ONE: dict[type, Any] = {kind: kind(1) for kind in (np.float64, np.float32)}


def _seeds(outputs: Any, cotangents: Any, recording: Any, start: int, end: int) -> list[tuple[int, Tensor]]:
    """The places and cotangents that a sweep starts from; TapeError if an output is not in the interval."""
    if cotangents is None and outputs.__class__ is Tensor and outputs.array.__class__ in _ONE:  # the usual case
        y, layout = outputs, outputs.layout
        if start <= y.node < end and recording.nodes[y.node] is not None and y.tape is recording and (
            layout is None or layout.one_number
        ):
            return [(y.node, Tensor(_ONE[y.array.__class__], None if layout is None else layout.dual))]
    if not isinstance(outputs, list | tuple):
        outputs = (outputs,)
        cotangents = None if cotangents is None else (cotangents,)
    if cotangents is None:
        cotangents = (None,) * len(outputs)
    elif len(cotangents) != len(outputs):
        raise ShapeError(f"{len(cotangents)} cotangents were given for {len(outputs)} outputs")
    found: list[tuple[int, Tensor]] = []
    for y, ct in zip(outputs, cotangents, strict=True):
        ct = _seed(y, ct)
        if y.__class__ is not Tensor and _is_followed_leaf(y):
            place = _place_in(y, recording)
            if place < 0 or recording.released(place):
                _refuse_output(recording, y)
            if ct is not None:
                found.append((place, ct))
            continue
        if y.tape is None and recording.communicates and (
            y.node not in _OFF_TAPE or y.__class__ is not Tensor
        ):
            if y.__class__ is Tensor and y.layout is not None and all(label is I for label in y.layout.labels):
                _refuse_output(recording, y)  # the same on all ranks, so it depends on no leaf on any of them
            continue  # this rank's part depends on no leaf, but its communications must run
        if y.tape is not recording or not start <= y.node < end or recording.nodes[y.node] is None:
            _refuse_output(recording, y)
        if ct is not None:
            found.append((y.node, ct))
    return found


def _seed(y: Tensor, ct: Any) -> Tensor | None:
    """The cotangent of an output, as a Tensor of the dual layout; None where this rank holds no value."""
    if isinstance(ct, Tensor) and isinstance(y, Tensor) and y.layout is not None:  # what fits needs no further check
        a, b, dual = y.array, ct.array, y.layout.dual
        if (
            ct.layout is dual and not dual.has_copies and a.__class__ is b.__class__ is np.ndarray
            and a.shape == b.shape and a.dtype is b.dtype and a.dtype.kind in "fcV"
        ):  # fmt: skip
            return ct
    if not isinstance(y, Tensor):
        raise TapeError(
            f"backward needs Tensors; {type(y).__name__} was given\n  fix: give backward the result of operations on "
            "Tensors; if only some ranks have a loss, as the last stage of a pipeline, every rank gives the one global "
            "number: cc.broadcast(loss, axis, root, to=I), or cc.all_reduce(loss, axis, to=I) with 0.0 on the others"
            + call_site()
        )
    array = y.array
    if array.dtype.kind not in "fcV":
        raise DtypeError(f"backward of a value of dtype {array.dtype}; needed: a floating or complex dtype")
    if ct is None:
        if isinstance(array, np.generic) and (y.layout is None or y.layout.one_number):
            return Tensor(type(array)(1), None if y.layout is None else y.layout.dual)
        if array.shape and array.size != 1:
            raise ShapeError(
                f"backward of a value of shape {array.shape} without a cotangent; needed: one number, or cotangents= "
                f"of that shape. Fix: sum it" + call_site()
            )
        require_one_number(y.layout, array.shape, state.unstated)
        if type(array) is Shaped:
            return None if array.absent else Tensor(array, None if y.layout is None else y.layout.dual)
        one = type(array)(1) if isinstance(array, np.generic) else np.ones_like(array)
        return Tensor(one, None if y.layout is None else y.layout.dual)
    given = ct if isinstance(ct, Tensor) else None
    value = given.array if given is not None else as_array(ct, None)
    number = isinstance(ct, int | float | complex | np.generic | LocalCount)
    if value.__class__ is not array.__class__ and not isinstance(array, np.generic | np.ndarray | Shaped):
        if number and not array.shape:
            value = np.full_like(array, plain(ct))
        elif not number:
            require_one_device("backward", output=y, cotangent=ct)
    elif given is None and value.__class__ is not array.__class__:
        require_one_device("backward", output=y, cotangent=value)
    if value.shape != array.shape:
        if value.shape == () and number:
            value = array if type(array) is Shaped else np.full_like(array, plain(ct))
        else:
            raise ShapeError(
                f"a cotangent of shape {value.shape} was given for an output of shape {array.shape}" + call_site()
            )
    if value.dtype.kind == "c" and array.dtype.kind != "c":
        raise DtypeError(
            f"a cotangent of dtype {value.dtype} was given for an output of dtype {array.dtype}; needed: a real one. "
            "Fix: np.real(cotangent)" + call_site()
        )
    value = value if value.dtype == array.dtype else value.astype(array.dtype)
    if type(array) is Shaped and not array.absent:
        value = shape_only(value)
    if y.layout is None:
        return given if given is not None and given.array is value else Tensor(value)
    dual = y.layout.dual
    have = given.layout if given is not None else None
    differs = axes_in(dual.grid, rank_axes(ct)) if number else ()
    for k, axis in enumerate(() if have is dual else dual.grid.names):
        if number:
            label = V if axis in differs else C
        else:
            label = V if have is None else have.labels[k]
        if dual.labels[k] is P and label is not P:  # ranks with equal copies would count p times
            raise LayoutError(
                f"backward(output: {describe(array, array.shape, y.layout)}, cotangent: "
                f"{describe(value, value.shape, have)})\n  axis {axis!r}: the output is Replicated, so its cotangent "
                f"is Partial, a sum over the {dual.grid.sizes[k]} ranks; the cotangent given is "
                f"{'a plain array, which is Varying' if have is None and not number else label.word}\n  fix: "
                f"cast(output, {axis!r}, to=I), and the cotangent Invariant, if all ranks hold the same cotangent\n  "
                f"or:  ag.tensor(cotangent, layout={{{axis!r}: P}}), if the ranks hold addends" + call_site()
            )
        if not number and is_copy_for_part(label, dual.labels[k]):
            raise LayoutError(own_part(
                f"a cotangent {describe(value, value.shape, have)} was given for an output "
                f"{describe(array, array.shape, y.layout)}", value.shape, axis, label, dual.labels[k],
            ))  # fmt: skip
        if not may_relabel(label, dual.labels[k]):
            raise LayoutError(
                f"backward(output: {describe(array, array.shape, y.layout)}, cotangent: "
                f"{describe(value, value.shape, have)})\n  axis {axis!r}: the cotangent is {label.word}; the output is "
                f"{y.layout.labels[k].word}, so it must be {dual.labels[k].word}\n  fix: ag.tensor(cotangent, layout="
                f"{{{axis!r}: {dual.labels[k]!r}}}), if the ranks hold values of that layout" + call_site()
            )
    if (type(array) is Shaped and array.absent) or (type(value) is Shaped and value.absent):
        return None
    if max(dual.grid.sizes) > 1 and (given is None or given.tape is None):  # copies of one cotangent must be equal
        same = dual.grid.layout([label if label is R or label is I else V for label in dual.labels])
        events.compare("the cotangent in backward", same, plain(ct) if number else value)
    if given is not None and given.tape is not None:
        return relabel(given, dual)
    return given if given is not None and given.layout is dual and given.array is value else Tensor(value, dual)


def _refuse_output(recording: Recording, y: Tensor) -> NoReturn:
    """Raise a TapeError with the reason why `y` is not an output of this tape."""
    if y.tape is None and (
        y.node == UNRECORDED or (y.__class__ is Tensor and y.node == OUTSIDE and recording.communicates)
    ):
        raise TapeError(
            f"backward of a value of shape {y.array.shape} that was computed outside the tape's block, so it "
            "was not recorded. Fix: compute it inside `with Tape():`" + call_site()
        )
    if y.tape is None and not _is_followed_leaf(y):
        raise TapeError(
            f"backward of a value of shape {y.array.shape} that depends on no leaf: nothing was recorded. Needed: "
            "a Parameter, or a tensor with requires_grad=True, used inside the tape's block\n  fix: compute all of it "
            "inside the block, from a Parameter" + FROM_A_GRADIENT
            + call_site()
        )
    if y.tape is None or (y.tape is recording and recording.released(y.node)):
        raise TapeError(
            "second backward on a tape that the first one released. Needed: an unreleased tape. "
            "Fix: backward(..., retain=True) the first time" + call_site()
        )
    raise TapeError("backward of a value that another tape recorded; needed: an output of this one" + call_site())


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
