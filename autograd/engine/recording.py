"""Recording: a thread's flat list of operations (a Wengert list), and the nodes that belong to no operation.

A node is a tuple ``(op, y, xs, parents, options, shapes, signature)``:

op         its `pull` is one step of the reverse sweep, its `push` one step of forward mode: a `Step`, or a primitive
y, xs      the arrays of the output and of the operands, None where no rule reads them
parents    the places of the operands in the list, negative for an operand that needs no cotangent
options    the other arguments of the rules, positional
shapes     the operands' shapes if they were broadcast, else None; of a message between ranks, its number
signature  the layouts (see `primitive.Signature`), None without a mesh

Nodes hold arrays, never Tensors, so there are no reference cycles and a dropped tape is freed at once. The one
exception is a leaf, which its own node holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NoReturn

from numpy import ndarray

from ..errors import TapeError
from ..layouts.layout import I
from ..layouts.messages import describe
from . import events
from .locks import Locks

__all__ = [
    "COPIED_BYTES", "EFFECT", "FREE", "IMPORT", "LEAF", "MARK", "OUTSIDE", "UNRECORDED", "Node", "Recording", "Step",
    "arrays_of", "copying", "op_of", "options_of", "parents_of", "result_of", "shapes_of", "signature_of", "unshared",
    "with_options", "with_shapes",
]  # fmt: skip

Node = tuple[Any, ...]

OUTSIDE = -1
"""The place of a leaf, and of a value that was computed while nothing was recorded."""
FREE = -2
"""The place of a value that was computed under a tape but depends on nothing that requires a gradient."""
UNRECORDED = -3
"""The place of a value that was computed from one that requires a gradient while nothing was recorded."""


op_of = itemgetter(0)
"""The operation of a node, or its `Step`. These accessors are C functions: they cost a quarter of a Python call."""
result_of = itemgetter(1)
"""The array of a node's output."""
arrays_of = itemgetter(2)
"""The arrays of a node's operands."""
parents_of = itemgetter(3)
"""The places of a node's operands."""
options_of = itemgetter(4)
"""The other arguments of a node's rules; what a `Step` keeps."""
shapes_of = itemgetter(5)
"""The shapes of a node's operands, if they were broadcast."""
signature_of = itemgetter(6)
"""The layouts of a node."""


def with_options(node: Node, options: Any) -> Node:
    """The node with other options."""
    return (*node[:4], options, *node[5:])


def with_shapes(node: Node, shapes: Any) -> Node:
    """The node with other shapes; of a message between ranks, with its number."""
    return (*node[:5], shapes, node[6])


class Step:
    """The interface of a node's first entry, for nodes that are no operation.

    With `communicates` a sweep calls `pull` even where no cotangent arrived. `sweep` is a `tape.Sweep`. `reads` is
    None, or a function of the node: the places, besides the node's parents, to whose cotangents `pull` adds.
    `separable` tells whether `pull` leaves out a parent whose place is replaced by -1 (see `deferral`).
    """

    name = "step"
    communicates = False
    reads: Any = None
    separable = False

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        """One step of the reverse sweep: add to the cotangents of the node's parents."""

    def push(self, node: Node, tangents: list[Any], start: int, *context: Any) -> Any:
        """One step of forward mode: the tangent of this node. ``tangents[i]`` belongs to place ``start + i``."""


class _Leaf(Step):
    """A leaf: its cotangent is added to its ``.grad``."""

    name = "leaf"
    enters = True  # whether the operands of its nodes are leaves

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        if sweep.wanted is None:
            node[2][0].accumulate(ct, sweep)


class _Import(Step):
    """A value of another recording, which keeps its cotangent until that recording's next sweep."""

    name = "import"

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        if sweep.wanted is None:
            other, place = node[4]
            sweep.changed.append((other.pending, place, other.pending.get(place)))
            other.leave(place, ct)


class _Mark(Step):
    """A callback that a sweep calls when all later nodes are done."""

    name = "mark"
    communicates = True  # called without a cotangent

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        node[4][0](sweep)


class _Effect(Step):
    """`do` ran when the node was recorded; its adjoint is `undo`, and forward mode runs `do` again."""

    name = "effect"
    communicates = True

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        undo = node[4][1]
        with events.emitting("effect", "undo", undo):
            undo()
        events.emit("end", "effect", "undo", undo)

    def push(self, node: Node, tangents: list[Any], start: int, *context: Any) -> Any:
        node[4][0]()


LEAF, IMPORT, MARK, EFFECT = _Leaf(), _Import(), _Mark(), _Effect()


COPIED_BYTES = 2**20
"""Larger arrays are not copied when they enter a transform: a copy takes a good part of the time of their operation."""


copying: list[Any] = []
"""The recordings with `copies` whose functions run, in any thread. It is tested first, because it is quickly read."""


def unshared(array: Any) -> Any:
    """A copy of a small array on the host, any other array itself."""
    return array.copy("K") if isinstance(array, ndarray) and array.ndim > 0 and array.nbytes <= COPIED_BYTES else array


class Recording(Locks):
    """A thread's flat list of nodes. The outermost active `Tape` owns it; a tape opened inside is an interval of it.

    Attributes
    ----------
    nodes : list
        None in the place of a node that a sweep has released.
    leaves : dict
        The places of inputs: leaves by their id, and values of other recordings by (id of the recording, place).
    pending : dict
        Cotangents, by place, that sweeps of other tapes have left for this one.
    thread : int
    communicates : object
        True in a boolean context if a collective was recorded. It may be the last one, for the layers above.
    lanes : dict
        The places of started (nonblocking) communications, by channel, in order.
    on_sweep : list of callable
        For the layers above: functions that are called with each sweep that gives leaves their gradients at first
        order, before its first step, the last one first.
    copies : bool
        Whether plain arrays of up to `COPIED_BYTES` are copied when they enter, so that the program may write to them,
        as programs of HIPS autograd do. The tape of a transform copies. Larger arrays, and those of other tapes, are
        read-only until the recording is released.
    takes_unrecorded : bool
        Whether values that were computed from leaves while nothing was recorded may enter, as data. The tape of a
        transform takes them if none of its arguments can be what they were computed from.
    notes : dict or None
        By the place of a node: its operand that remembers the number of ranks (`layouts.sizes`), and its line in the
        program, where the layers above ask for it. None without a note.
    scale : object
        For the layers above: what is known of the powers of its values; None as long as nobody has asked.
    given : object
        Of a transform's tape: a container of the values that were passed to the transform, which may enter, too. None
        for other tapes.
    over : str
        Whose values it has that can no longer be used, of an abandoned one.
    records : object
        The `records.recorder.TapeFacts` of the last recorder that heard its operations; missing without one.
    """

    __slots__ = (
        "communicates", "copies", "given", "lanes", "leaves", "nodes", "notes", "on_sweep", "over", "pending",
        "records", "scale", "takes_unrecorded", "thread",
    )  # fmt: skip
    over: str
    records: Any

    def __init__(self) -> None:
        self._held, self._locked = [], []  # as `Locks.__init__`, whose call costs 0.1 us
        self.nodes: list[Node | None] = []
        self.leaves: dict[Any, int] = {}
        self.pending: dict[int, Any] = {}
        self.thread = threading.get_ident()
        self.communicates: Any = False
        self.lanes: dict[Any, list[int]] = {}
        self.on_sweep: list[Callable[[Any], None]] = []
        self.copies = False
        self.takes_unrecorded = False
        self.notes: dict[int, tuple[Any, Any]] | None = None
        self.scale: Any = None
        self.given: Callable[[], Any] | None = None  # flattens what was passed to the transform that records here

    def append(self, node: Node) -> int:
        """Append a node; returns its place."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def whole(self) -> Any:
        """A tape over all of it; made by the class of a tape's recording, `tape.TapeRecording`."""
        raise NotImplementedError

    # -- inputs ------------------------------------------------------------------------------------------------
    def enter(self, x: Any) -> int:
        """The place of a Tensor that was not recorded here: a leaf, a value of another recording, or `OUTSIDE`."""
        leaves = self.leaves
        place = leaves.get(id(x))
        if place is not None:
            return place
        other = x.tape
        if other is None:
            if x.layout is None:
                x.enter_mesh()
            if not x._requires_grad:
                if x.node == UNRECORDED and not self.takes_unrecorded:
                    _refuse_unrecorded(self, x)
                if getattr(x.array, "base", None) is None:
                    self.lock(x.array)
                else:
                    self.lock_given(x.array)
                return OUTSIDE
            self.hold(x)
            nodes = self.nodes
            place = leaves[id(x)] = len(nodes)  # the node holds x, so no other object can have this id
            nodes.append((LEAF, None, (x,), (), (), None, None))
            return place
        if other.thread != self.thread or other.released(x.node):
            _refuse_operand(self, x)
        origin = id(other), x.node
        place = leaves.get(origin)
        if place is None:
            place = leaves[origin] = len(self.nodes)
            self.nodes.append((IMPORT, None, (), (), (other, x.node), None, None))
        return place

    def note(self, place: int, number: Any, site: Any) -> None:
        """Note the number of an operation at a place, and its line, or None."""
        if self.notes is None:
            self.notes = {}
        self.notes[place] = number, site

    def leave(self, place: int, ct: Any) -> None:
        """Keep a cotangent that a sweep of another tape left at a place, for the next sweep of this recording."""
        known = self.pending.get(place)
        self.pending[place] = ct if known is None else known + ct

    def abandon(self, over: str = "") -> None:
        """Forget the nodes and release the arrays, as after an error: later uses and backward passes are refused.

        `over` says in the refusal of a use whose values these are.
        """
        self.over = over
        self.nodes[:] = [None] * len(self.nodes)  # in place: a sweep, a part of a pass, may have the list
        self.release()

    def released(self, place: int) -> bool:
        """Whether the node at a place was released by a sweep."""
        return place >= len(self.nodes) or self.nodes[place] is None

    def node(self, place: int) -> Node | None:
        """The node at a place; None for a value without a place, and for a node that a sweep has released."""
        return self.nodes[place] if 0 <= place < len(self.nodes) else None

    def inputs(self) -> list[Any]:
        """The leaves that sweeps give a gradient, in the order in which they entered."""
        entries = (node[2] for node in self.nodes if node is not None and getattr(node[0], "enters", False))
        return list({id(leaf): leaf for leaves in entries for leaf in leaves if leaf.tape is None}.values())


def _refuse_operand(recording: Recording, x: Any) -> NoReturn:
    """Raise TapeError for a value of another recording that cannot be used in this one."""
    assert x.tape is not None
    if x.tape.thread != recording.thread:
        raise TapeError(
            "an operand was recorded by another thread (on threads: another rank). Needed: values of this rank. "
            "Fix: communicate the value with a collective"
        )
    shape = tuple(map(int, x.array.shape))
    if getattr(x.tape, "over", ""):
        raise TapeError(
            f"an operand of shape {shape} is {x.tape.over}. Here it would be a constant, and the gradient through it "
            "would be silently missing. Needed: values of this run, or results of the function\n"
            "  fix: return it from the function, and use the result\n"
            "  or:  stop_gradient(x), if it is meant without its gradient"
        )
    raise TapeError(
        f"an operand of shape {shape} belongs to a tape that backward has released. Fix: "
        "stop_gradient(x) to use its value only, or backward(..., retain=True)"
    )


def _refuse_unrecorded(recording: Recording, x: Any) -> None:
    """Raise TapeError for a value that was computed from a leaf while nothing was recorded, and is used on a tape.

    A value that was passed to a transform is data.
    """
    given = recording.given
    if given is not None and any(each is x for each in given()[0]):
        return
    from ..layouts.names import name_of  # loaded when it is told

    name = name_of(x, "")
    shown = f"{name}: {describe(x.array, x.array.shape, x.layout)}" if name else (
        f"an operand, {describe(x.array, x.array.shape, x.layout)},")  # fmt: skip
    fix, p = "  fix: ", name or "p"
    if given is not None:
        where = "outside of the function that is differentiated. Used in it"
        needed, inside = "values computed in the function", "inside the function, from its argument"
        as_data = f"  or:  pass {p} as an argument that argnum does not name, or stop_gradient({p})"
    else:
        where = "before the tape's block, after one, or in another thread. Used here"
        needed, inside = "values that this tape records", "inside the tape's block"
        as_data = "  or:  stop_gradient(x), or compute it under `with ag.no_grad():`"
        if x.layout is None or all(label is I for label in x.layout.labels):  # as parameters are
            fix += (
                f"p.data = p.numpy() - lr * p.grad.numpy() in place of p = p - lr * p.grad, or {p} = ag.Parameter("
                f"{p}.numpy()), if {p} is an updated weight\n  or:  "
            )
    raise TapeError(
        f"{shown} was computed from a value that requires a gradient while no tape recorded it: {where}, it would be a "
        f"constant, and the gradient through it would be silently missing. Needed: {needed}\n{fix}compute it {inside}\n"
        f"{as_data}, if it is meant without its gradient"
    )
