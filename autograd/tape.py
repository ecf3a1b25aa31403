"""The tape: an interval of its thread's flat list of operations, replayed in reverse.

A `Recording` is the flat list (a Wengert list). The outermost active `Tape` owns it; a tape opened inside is an
interval of the same list, so that what an inner sweep records is the outer tape's to differentiate. A node is a plain
tuple

    (op, y, xs, parents, options, shapes, signature)

op         the primitive: its `pull` is one step of the reverse sweep, its `push` one of forward mode
y, xs      the output's and the operands' arrays, None where the rules do not need them
parents    the operands' places in the list, -1 for an operand that nothing depends on
options    what else the rules need, positional
shapes     the operands' shapes where they were broadcast, else None
signature  the labels (see `primitive.Signature`), None without a mesh

Nodes hold arrays, never Tensors: there are no cycles, and what is dropped is freed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from . import events
from .arrays import Shaped, as_array, is_absent, is_inexact, shape_only
from .arrays import guarded as read_only
from .errors import (
    CommunicationError,
    DtypeError,
    LayoutError,
    MeshError,
    SavedArrayError,
    ShapeError,
    TapeError,
)
from .events import listeners
from .layout import C, D, P, R, Rooted, Shard, V, describe, require_one_number
from .sites import call_site
from .state import state

if TYPE_CHECKING:
    from .tensor import Leaf, Tensor

__all__ = ["Recording", "Tape", "no_grad", "scope"]

Node = tuple[Any, ...]


class Recording:
    """A thread's flat list of nodes, and the arrays that it keeps read-only."""

    __slots__ = ("__weakref__", "communicates", "held", "lanes", "leaves", "locked", "nodes", "pending", "thread")

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.leaves: dict[int, int] = {}
        self.locked: list[Any] = []
        self.held: list[Any] = []
        self.pending: dict[int, Any] = {}  # cotangents that sweeps of other tapes left for this one
        self.communicates = False
        self.lanes: dict[Any, list[int]] = {}  # places of started communications, by channel, in order
        self.thread = threading.get_ident()

    def enter(self, x: Tensor) -> int:
        """The place of an operand that this list did not make: a leaf, a value of another list, or -1 for neither."""
        if x.tape is None:
            if not x.requires_grad:
                self.lock(x.array)
                return -1
            place = self.leaves.get(id(x))
            if place is None:
                place = self.append((LEAF, None, (x,), (), (), None, None))
                self.leaves[id(x)] = place
                self.hold((x,))
            return place
        other = x.tape
        if other.thread != self.thread:
            raise TapeError(
                "an operand was recorded by another thread (on threads: another rank). Needed: values of this rank; "
                "a value goes from rank to rank by a collective" + call_site()
            )
        if other.released(x.node):
            raise TapeError(
                f"an operand of shape {x.array.shape} belongs to a tape that backward has released. Fix: "
                "stop_gradient(x) to use its value only, or backward(..., retain=True)" + call_site()
            )
        key = id(other), x.node
        place = self.leaves.get(key)  # type: ignore[call-overload]
        if place is None:
            place = self.append((IMPORT, None, (), (), (other, x.node), None, None))
            self.leaves[key] = place  # type: ignore[index]
        return place

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def released(self, place: int) -> bool:
        """Whether a sweep has been there and given up what the node held."""
        return place >= len(self.nodes) or self.nodes[place] is None

    def hold(self, leaves: Sequence[Any]) -> None:
        """Make leaves' arrays read-only until the list is released.

        A Parameter owns its array and counts for itself.
        """
        add = self.held.append
        for leaf in leaves:
            if leaf.uses:
                leaf.uses += 1
                add(leaf)
            elif leaf.owns and leaf.array.__class__ is ndarray:
                leaf.array.setflags(False)  # type: ignore[call-arg]  # a keyword would double its price
                leaf.uses = 1
                add(leaf)
            else:
                self.lock(leaf.array)

    def lock(self, array: Any) -> None:
        """Make an array read-only until the list is released (until the last of several lists is)."""
        if array.__class__ is ndarray or isinstance(array, ndarray):  # an np.memmap, too
            with _locking:
                count = _locked.get(id(array))
                if count is not None:
                    _locked[id(array)] = count + 1
                elif array.flags.writeable:
                    array.setflags(write=False)
                    _locked[id(array)] = 1
                else:
                    return
            self.locked.append(array)

    def release(self) -> None:
        """Give the arrays back."""
        for leaf in self.held:
            uses = leaf.uses = leaf.uses - 1
            if not uses:
                leaf.array.setflags(True)
        self.held = []
        locked, self.locked = self.locked, []
        for array in locked:
            with _locking:
                count = _locked.pop(id(array), 1)
                if count > 1:
                    _locked[id(array)] = count - 1
                elif array.base is None or type(array.base) is not np.ndarray or array.base.flags.writeable:
                    array.setflags(write=True)

    def __del__(self) -> None:
        if self.locked or self.held:
            self.release()


_locking = threading.Lock()  # ranks that are threads may save one array
_locked: dict[int, int] = {}  # how many lists keep an array read-only, by its id; they hold it, so the id stays its own


class _Leaf:
    """The node of a leaf: its cotangent goes to `.grad`."""

    name = "leaf"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        if sweep.wanted is None:
            (leaf,) = node[2]
            leaf.accumulate(ct)

    def push(self, node: Node, tangents: Any, start: int, *context: Any) -> Any:
        return None


class _Import:
    """The node of a value of another tape: its cotangent waits there for that tape's sweep."""

    name = "import"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        if sweep.wanted is None:
            other, place = node[4]
            known = other.pending.get(place)
            other.pending[place] = ct if known is None else known + ct

    def push(self, node: Node, tangents: Any, start: int, *context: Any) -> Any:
        return None


class _Watch:
    """The node that stands for an argument inside a transform: the identity, under a place of its own."""

    name = "watch"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        (parent,), (layout,) = node[3], node[4]
        if parent >= 0:
            sweep.add(parent, relabel(ct, layout.dual) if sweep.record and layout is not None else ct)

    def push(self, node: Node, tangents: Any, start: int, *context: Any) -> Any:
        (parent,) = node[3]
        return tangents[parent - start] if parent >= start else None


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


LEAF, IMPORT, WATCH, MARK, EFFECT = _Leaf(), _Import(), _Watch(), _Mark(), _Effect()


class Sweep:
    """One reverse replay: the cotangents by place, and where those go that leave the interval."""

    __slots__ = ("cts", "outside", "record", "recording", "start", "taken", "wanted")

    def __init__(self, recording: Recording, start: int, end: int, wanted: dict[int, Any] | None, record: bool):
        self.recording = recording
        self.cts: list[Any] = [None] * (end - start)
        self.start = start
        self.outside: dict[int, Any] = {}
        self.wanted = wanted
        self.record = record
        self.taken: list[Node | None] | None = None  # the list, where this sweep takes it apart

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
        cts = self.cts
        found = cts[-count:]
        if self.taken is not None:
            del cts[-count:], self.taken[-count:]
        elif self.wanted is None:
            cts[-count:] = [None] * count
        return found

    def run_whole(self, nodes: list[Node | None]) -> None:
        """Replay a list that ends with this sweep, taking it apart: the same as `run`, for less."""
        cts, self.taken = self.cts, nodes
        while cts:
            ct, node = cts.pop(), nodes.pop()
            if node is not None:
                op = node[0]
                if ct is not None or op.communicates:
                    op.pull(node, ct, self)

    def run(self, nodes: list[Node | None], release: bool) -> None:
        """Replay the interval from its end to its start; communications run even without a cotangent."""
        cts, wanted, poke = self.cts, self.wanted, state.poke
        place = self.start + len(cts)
        while cts:
            place -= 1
            ct = cts.pop()
            node = nodes[place]
            if node is None:
                continue
            op = node[0]
            if wanted is not None and place in wanted:
                wanted[place] = ct
            if ct is not None or op.communicates:
                if listeners:
                    events.emit("begin", "backward", op.name, node, ct, self)
                    op.pull(node, ct, self)
                    events.emit("end", "backward", op.name, node, ct, self)
                else:
                    op.pull(node, ct, self)
                if poke is not None:
                    poke()
            if release and op is not LEAF and op is not IMPORT:  # those are places that later tapes may name again
                nodes[place] = None


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

    def __init__(self) -> None:
        self.recording: Recording = None  # type: ignore[assignment]
        self.start = 0
        self.end: int | None = None
        self._outer: Recording | None = None

    def __enter__(self) -> Tape:
        if self.recording is not None:
            raise TapeError("this tape was entered before; needed: a new Tape() for each block")
        self._outer = state.recording
        self.recording = Recording() if self._outer is None else self._outer
        self.start = len(self.recording.nodes)
        state.recording = self.recording
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.end = len(self.recording.nodes)
        state.recording = self._outer
        if state.pending:
            recording, start = self.recording, self.start
            mine = [x for x in state.pending if x.tape is recording and x.place >= start]
            refuse_pending(mine, "the tape's block ends", kind is not None)
        if kind is ValueError and "read-only" in str(error):
            raise SavedArrayError(
                "an array that a tape needs for its backward pass was written to inside the tape's block. Needed: "
                "an array that nothing has saved. Fix: write to a copy, or after tape.backward(...), which releases it"
            ) from error

    # -- hooks for the layers above --------------------------------------------------------------------------------
    def mark(self, callback: Callable[[Sweep], None]) -> None:
        """Have `callback` called in a sweep once everything recorded after this point is done."""
        self._open().append((MARK, None, (), (), (callback,), None, None))

    def effect(self, do: Callable[[], None], undo: Callable[[], None]) -> None:
        """Run `do` now and `undo` when a sweep comes back to this point: a node without a cotangent."""
        recording = self._open()
        events.emit("begin", "effect", "do")
        do()
        events.emit("end", "effect", "do")
        recording.append((EFFECT, None, (), (), (do, undo), None, None))

    def _open(self) -> Recording:
        if self.recording is None or self.end is not None:
            raise TapeError("this tape is not recording; needed: a call inside its with block")
        return self.recording

    def plan(self) -> Any:
        """All ranks' tapes as one graph: operations, communications, who owns what; see `collectives.plan.Plan`.

        All ranks of the current mesh call it, before backward has released the tape.
        """
        if state.mesh is None:
            raise MeshError("tape.plan() was called and no mesh is current. Fix: call it inside `with cc.Mesh(...):`")
        return state.mesh.plan(self)

    def take(self, x: Tensor) -> Any:
        """Take (and remove) the cotangent that other tapes' sweeps have left here for `x`; None if there is none."""
        return self.recording.pending.pop(x.node, None) if x.tape is self.recording else None

    def watch(self, x: Tensor) -> Tensor:
        """`x` as an argument of this tape: the same value under a place of its own."""
        recording = self._open()
        parent = x.node if x.tape is recording else recording.enter(x) if x.tape is not None or x.requires_grad else -1
        recording.lock(x.array)
        place = recording.append((WATCH, None, (), (parent,), (x.layout,), None, None))
        return type_of_tensor()(x.array, x.layout, recording, place)

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
        outputs : Tensor or sequence of Tensor
            Without `cotangents`, one number: under a mesh I, P or Rooted on every axis. None at all where only
            cotangents that other tapes left here are to be carried on.
        cotangents : array or sequence of arrays, optional
            One per output, of its shape and dtype and of the dual layout. A plain array is V, a number constant.
        wanted : sequence of Tensor, optional
            Return the cotangents of these (None where there is none) and leave every ``.grad`` as it is.
        retain : bool
            Keep the tape for another backward.
        record : bool
            Record the sweep itself on the enclosing tape, so that its results can be differentiated.

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
        nodes = recording.nodes
        if not isinstance(outputs, list | tuple):
            outputs = (outputs,)  # type: ignore[assignment]
            cotangents = None if cotangents is None else (cotangents,)
        if state.pending:  # a value still on its way is used here, and takes its place on the tape now
            for x in outputs if wanted is None else (*outputs, *wanted):
                getattr(x, "node", None)
        end = len(nodes) if self.end is None else min(self.end, len(nodes))
        if cotangents is None:
            cotangents = (None,) * len(outputs)
        elif len(cotangents) != len(outputs):
            raise ShapeError(f"{len(cotangents)} cotangents were given for {len(outputs)} outputs")
        places = None if wanted is None else {x.node: None for x in wanted}
        sweep = Sweep(recording, self.start, end, places, record)
        for y, ct in zip(outputs, cotangents, strict=True):
            ct = seed(y, ct)
            if y.tape is None and recording.communicates and (y.node != _OUTSIDE or y.__class__ is not _tensor_type):
                continue  # this rank's part does not depend on a leaf, but its communications must run
            if y.tape is not recording or not self.start <= y.node < end or nodes[y.node] is None:
                self._refuse(y)
            if ct is not None:
                sweep.add(y.node, ct if record else ct.array)
        if recording.pending:
            for place in [p for p in recording.pending if self.start <= p < end]:
                sweep.add(place, recording.pending.pop(place))
        active = state.recording
        whole = not retain and self.start == 0 and end == len(nodes)
        over = whole and active is not recording  # nothing can be recorded there any more
        if not record:
            state.recording = None
        try:
            if over and wanted is None and state.poke is None and not listeners:
                sweep.run_whole(nodes)
            else:
                sweep.run(nodes, release=not retain)
        finally:
            state.recording = active
        if whole:
            recording.release()
        if wanted is not None:
            assert places is not None
            return [places[x.node] for x in wanted]
        for place, ct in sweep.outside.items():
            node = nodes[place]
            if node is not None and (node[0] is LEAF or node[0] is IMPORT):
                node[0].pull(node, ct, sweep)  # a leaf belongs to no tape, an import to the other one
            else:
                known = recording.pending.get(place)
                recording.pending[place] = ct if known is None else known + ct
        return None

    def _refuse(self, y: Tensor) -> None:
        """Say why `y` is no output of this tape."""
        if y.tape is None and y.__class__ is _tensor_type and y.node == _OUTSIDE and self.recording.communicates:
            raise TapeError(
                f"backward of a value of shape {y.array.shape} that was made outside the tape's block, so that nothing "
                "of it was recorded. Fix: compute it inside `with Tape():`" + call_site()
            )
        if y.tape is None:
            raise TapeError(
                f"backward of a value of shape {y.array.shape} that depends on no leaf: nothing was recorded. Needed: "
                "a Parameter, or a tensor with requires_grad=True, used inside the tape's block" + call_site()
            )
        if y.tape is self.recording and y.tape.released(y.node):
            raise TapeError(
                "second backward on a tape that the first one released. Needed: an unreleased tape. "
                "Fix: backward(..., retain=True) the first time" + call_site()
            )
        raise TapeError("backward of a value that another tape recorded; needed: an output of this one" + call_site())

    def forward(
        self, inputs: Sequence[Tensor], tangents: Sequence[Any], outputs: Sequence[Tensor], *, record: bool = False
    ) -> list[Any]:
        """Forward mode: replay the list forwards, carrying tangents from `inputs` to `outputs`."""
        recording = self.recording
        end = len(recording.nodes) if self.end is None else self.end
        carried: list[Any] = [None] * (end - self.start)
        given = {x.node: t for x, t in zip(inputs, tangents, strict=True)}
        active = state.recording
        if not record:
            state.recording = None
        try:
            for i in range(end - self.start):
                place = i + self.start
                if recording.released(place):
                    raise TapeError("forward mode over a released tape; needed: retain=True")
                node: Any = recording.nodes[place]
                if place in given:
                    carried[i] = given[place]
                else:
                    carried[i] = node[0].push(node, carried, self.start, record, recording, place)
        finally:
            state.recording = active
        return [carried[y.node - self.start] if y.tape is recording and y.node >= self.start else None for y in outputs]


def refuse_pending(mine: Sequence[Any], when: str, failed: bool) -> None:
    """Forget values that were started and never waited for; CommunicationError that names them, unless `failed`.

    They are not waited for, so this cannot hang. Where an error is on its way already it must not be hidden.
    """
    for x in mine:
        x.drop()
    if mine and not failed:
        lines = [f"  {x.what} started at {x.site}" for x in mine]
        raise CommunicationError(
            f"{when}, and {len(mine)} communication{'s were' if len(mine) > 1 else ' was'} started and never waited "
            "for\n" + "\n".join(lines) + "\n  needed: a use of its result, or handle.wait(), before that\n"
            "  fix: handle.wait() where the value is needed, or leave the call out on every rank"
        )


def seed(y: Tensor, ct: Any) -> Tensor | None:
    """The cotangent to start from, as a Tensor of the dual layout; None where this rank holds no value."""
    if not isinstance(y, type_of_tensor()):
        raise TapeError(f"backward needs Tensors; {type(y).__name__} was given")
    array = y.array
    if not is_inexact(array.dtype):
        raise DtypeError(f"backward of a value of dtype {array.dtype}; needed: a floating or complex dtype")
    if ct is None:
        if isinstance(array, np.generic) and (y.layout is None or y.layout.one_number):
            return type_of_tensor()(type(array)(1), None if y.layout is None else y.layout.dual)
        if array.shape and array.size != 1:
            raise ShapeError(
                f"backward of a value of shape {array.shape} without a cotangent; needed: one number, or cotangents= "
                f"of that shape. Fix: sum it" + call_site()
            )
        require_one_number(y.layout, array.shape)
        if type(array) is Shaped:
            return None if array.absent else type_of_tensor()(array, None if y.layout is None else y.layout.dual)
        one = type(array)(1) if isinstance(array, np.generic) else np.ones_like(array)
        return type_of_tensor()(one, None if y.layout is None else y.layout.dual)
    given = ct if isinstance(ct, type_of_tensor()) else None
    value = given.array if given is not None else as_array(ct, None)
    if value.shape != array.shape:
        if value.shape == () and isinstance(ct, int | float | complex):
            value = array if type(array) is Shaped else np.full(array.shape, ct, array.dtype)
        else:
            raise ShapeError(f"a cotangent of shape {value.shape} was given for an output of shape {array.shape}")
    value = value if value.dtype == array.dtype else value.astype(array.dtype)
    if type(array) is Shaped and not array.absent:
        value = shape_only(value)
    if y.layout is None:
        return given if given is not None and given.array is value else type_of_tensor()(value)
    dual = y.layout.dual
    have = given.layout if given is not None else None
    for k, axis in enumerate(dual.grid.names):
        label = C if isinstance(ct, int | float | complex) else V if have is None else have.labels[k]
        if not may_relabel(label, dual.labels[k]):
            raise LayoutError(
                f"backward(output: {describe(array, array.shape, y.layout)}, cotangent: "
                f"{describe(value, value.shape, have)})\n  axis {axis!r}: the cotangent is {label.word}; the output is "
                f"{y.layout.labels[k].word}, so it must be {dual.labels[k].word}\n  fix: ag.tensor(cotangent, layout="
                f"{{{axis!r}: {dual.labels[k]!r}}}), if that is what the ranks hold" + call_site()
            )
    if is_absent(array) or is_absent(value):
        return None
    if given is None or given.layout is not dual or given.array is not value:
        return type_of_tensor()(value, dual) if given is None or given.tape is None else relabel(given, dual)
    return given


def may_relabel(have: Any, need: Any) -> bool:
    """The free relabels a sweep may use: V->P, R->V, Shard<->V, Rooted<->V; a constant serves where copies do."""
    if have is need or have == need or ((have is C or have is D) and need is not P):
        return True
    varying = have is V or have is R or type(have) in (Shard, Rooted)
    return varying and (need is V or type(need) in (Shard, Rooted) or (need is P and have is not R))


def relabel(x: Tensor, layout: Any) -> Tensor:
    """`x` under a layout that it may freely take; recorded as the identity that it is."""
    if x.layout is layout:
        return x
    if x.tape is None:
        return type_of_tensor()(x.array, layout)
    place = x.tape.append((WATCH, None, (), (x.node,), (x.layout,), None, None))
    return type_of_tensor()(x.array, layout, x.tape, place)


_tensor_type: Any = None
_OUTSIDE = -1  # the place of a value that was made while nothing recorded; a leaf's, too


def type_of_tensor() -> Any:
    """The class Tensor, which stands above this file."""
    return _tensor_type


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside the block, communications included: on every rank of a group or on none."""
    before, state.recording = state.recording, None
    try:
        yield
    finally:
        state.recording = before


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


def guarded(x: Tensor) -> Any:
    """What the user may see of an array: itself, or a view that refuses writes while a tape needs it."""
    array, tape = x.array, x.tape
    if type(array) is not np.ndarray:
        return array
    live = tape is not None and not tape.released(x.node)
    if not live and array.flags.writeable:
        return array
    return read_only(array)


def step_check(leaf: Leaf) -> None:
    """Refuse to update a parameter in place while a tape needs its value."""
    if type(leaf.array) is np.ndarray and not leaf.array.flags.writeable:
        raise SavedArrayError(
            f"the optimizer was to update {leaf.name or 'a parameter'} of shape {leaf.array.shape}, which a tape still "
            "needs for its backward pass. Needed: a released tape. Fix: call step() after tape.backward(...) without "
            "retain=True"
        )
