"""`checkpoint`: do not store the intermediate values of a function; compute them again when a sweep needs them.

On the tape a checkpoint is one node, the *head*, which keeps the arguments and the function, followed by one small node
per output, as in operations with several outputs (see `engine.multi_output`). A reverse sweep collects the cotangents
of the outputs; at the head it runs the function again on a new tape and sweeps that. Forward mode does the same with a
forward sweep. If the sweep itself is recorded, the second run is recorded on that tape, so that derivatives of any
order work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import numpy as np

from .. import random
from ..arrays.capture import recorded
from ..digests import Projection, is_near, projection
from ..engine.deferred import Deferred
from ..engine.leaves import Leaf
from ..engine.multi_output import append_output
from ..engine.pytree import Structure, flatten
from ..engine.recording import IMPORT, LEAF, Node, Recording, arrays_of, op_of, options_of, parents_of
from ..engine.state import state
from ..engine.sweep import Sweep
from ..engine.tape import Tape
from ..engine.tensor import TENSORS, Tensor, relabel
from ..errors import TapeError, check_callable
from ..random.foreign import Source, changed, rewound, sources

__all__ = ["checkpoint"]


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fun` with its intermediate values not stored on the tape but computed again in each sweep.

    Parameters
    ----------
    fun : callable
        Arguments, positional and keyword, and result may be nested containers. It may use variables of its closure,
        such as parameters of a module or values on the tape. A second run must repeat the first, and random numbers are
        replayed: those of `autograd.random`, those of generators of NumPy and Python that the arguments hold, or the
        closure, the defaults, the global names or the object of `fun`, and on the main thread those of the global
        generators. Running averages of `nn.BatchNorm1d`, and buffers that `Module.set_buffer` assigns, stay as the
        first run left them. Other state that `fun` changes is not restored.

    Returns
    -------
    callable
        A function with the arguments and the result of `fun`. While no tape records it just calls `fun`.

    Raises
    ------
    TapeError
        In a sweep: the shapes, dtypes or layouts of the second run's result differ from the first run's, or its values
        by more than rounding. Values on a GPU are not compared. Where a value that the function kept of its first run
        is used on a tape.

    Notes
    -----
    The tape keeps the arguments and no intermediate value; each sweep runs `fun` once more (T. Chen et al., *Training
    deep nets with sublinear memory cost*, 2016). n layers in sqrt(n) checkpoints need memory for about 2 sqrt(n)
    layers. Reverse mode, forward mode and derivatives of every order are supported.

    A value of the first run that `fun` keeps, as in a list of the caller or for its second run, is refused where it is
    used on a tape: it has no gradient. Side losses of layers (`parallel.expert.side_losses`) are passed on with the
    result.

    Communications inside `fun` run again in every sweep, on all ranks in the same order, whether or not a cotangent has
    arrived on this rank. A sweep thus moves the bytes of `fun` once more, besides those of its adjoints. The layouts
    are those of `fun`. The mesh that was current at the call is current in the second run.

    If the closure of `fun` holds a value on the tape, tape and function refer to each other until backward releases the
    tape or the garbage collector runs; pass such values as arguments instead.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> layer = ag.checkpoint(lambda x: np.tanh(np.sin(x)))
    >>> float(ag.grad(lambda x: layer(layer(x)))(0.5)) == float(
    ...     ag.grad(lambda x: np.tanh(np.sin(np.tanh(np.sin(x)))))(0.5))
    True
    """

    check_callable(fun, "checkpoint")

    @wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs) if state.recording is None else _first_run(fun, args, kwargs)

    return checkpointed


class Segment:
    """A checkpointed call: the function, its arguments and the state needed to run it again."""

    __slots__ = (
        "closure", "collects", "contexts", "distribution", "examined", "fun", "grid", "leaves", "operands", "outputs",
        "projections", "random_state", "sources", "structure",
    )  # fmt: skip

    def __init__(self, fun: Callable[..., Any], leaves: list[Any], structure: Structure):
        self.fun = fun
        self.leaves = leaves  # of the arguments, with None in place of operands
        self.structure = structure
        self.operands: list[tuple[int, Any]] = []  # (index of the leaf, its layout); the node holds arrays and places
        self.outputs: list[tuple[Any, ...]] = []  # (shape, dtype, layout) of each Tensor, () of other outputs
        self.closure: list[int] = []  # the places of the values that the function uses besides its arguments
        self.examined: dict[int, int] | None = None  # for the layers above, see `Recording.scale`: places of outputs
        self.random_state = recorded(random.get_state, name="random state")
        self.sources: list[tuple[Source, Any]] = []  # generators that the first run used, with their states before it
        self.projections: list[Projection | None] = []  # of the values of the outputs
        self.collects = state.collected is not None
        self.grid, self.distribution, self.contexts = state.grid, state.distribution, state.contexts

    def run(self, operands: Sequence[Any]) -> tuple[list[Any], Structure]:
        """Run the function on operands; return the leaves of its result, followed by values that it gave to
        `state.collected`, and the structure of the result."""
        leaves = list(self.leaves)
        for (i, _), x in zip(self.operands, operands, strict=True):
            leaves[i] = x
        args, kwargs = self.structure.rebuild(leaves)
        outer, state.collected = state.collected, [] if self.collects else None
        try:
            found, structure = flatten(self.fun(*args, **kwargs))
            found += state.collected or ()
        finally:
            state.collected = outer
        for y in found:
            if y.__class__ is Deferred:  # a value that is returned must have arrived
                y.wait()
        return found, structure

    def run_again(self, node: Node, recording: Recording, record: bool) -> tuple[Tape, list[Any]]:
        """Run the function again, recorded on the tape that records the sweep, or else on a new one."""
        operands = [
            Tensor(a, layout, recording, p) if p >= 0 else Tensor(a, layout)
            for a, p, (_, layout) in zip(arrays_of(node), parents_of(node), self.operands, strict=True)
        ]
        with self._state_of_first_run(record), Tape() as tape:
            tape.recording.takes_unrecorded |= not record  # as the first run did
            if not record:
                tape.recording.scale = False  # the first run was examined
            outputs, _ = self.run(operands)
        if [_signature(y) for y in outputs] != self.outputs:
            shown = [tuple(map(str, _signature(y))) for y in outputs]
            raise TapeError(
                f"the second run of a checkpointed function returned {shown}, the first one "
                f"{[tuple(map(str, x)) for x in self.outputs]}. Needed: a function that does the same every time. Fix: "
                "let it depend on its arguments and on autograd.random alone"
            )
        for i, (known, found) in enumerate(zip(self.projections, _projections(outputs), strict=True)):
            if not is_near(known, found):
                name, (shape, dtype, _) = getattr(self.fun, "__qualname__", type(self.fun).__name__), self.outputs[i]
                raise TapeError(
                    f"checkpoint({name}): the second run computed other values than the first one, in output {i} of "
                    f"shape {tuple(map(int, shape))} and dtype {dtype}; the gradient would be that of another "
                    "function. Likely causes: random numbers of a generator that checkpoint cannot see, or state that "
                    "the function changes, or that has changed since, such as a counter or an array\n"
                    "  fix: pass the generator to the function as an argument, from which checkpoint rewinds it\n"
                    "  or:  draw from autograd.random, which recomputation replays\n"
                    "  or:  let the function depend on its arguments alone"
                )
        return tape, outputs

    @contextmanager
    def _state_of_first_run(self, record: bool) -> Iterator[None]:
        """Restore the random state, the mesh and the entered contexts of the first run, for another one."""
        now = recorded(random.get_state, name="random state")
        names = "grid", "distribution", "contexts", "recording", "in_rules", "repeats"
        before = [getattr(state, name) for name in names]
        recorded(random.set_state, self.random_state, changes="keys", name="random state")
        state.grid, state.distribution, state.contexts = self.grid, self.distribution, self.contexts
        state.recording = state.recording if record else None
        state.in_rules = state.repeats = True  # the first run has compared its constants
        try:
            with rewound(self.sources), ExitStack() as entered:
                for enter in self.contexts:
                    entered.enter_context(enter())
                yield
        finally:
            recorded(random.set_state, now, changes="keys", name="random state")
            for name, value in zip(names, before, strict=True):
                setattr(state, name, value)


def _signature(y: Any) -> tuple[Any, ...]:
    return (y.array.shape, y.array.dtype, y.layout) if y.__class__ in TENSORS else ()


def _projections(outputs: list[Any]) -> list[Projection | None]:
    return [projection(y.array) if y.__class__ in TENSORS else None for y in outputs]


def _first_run(fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the function on a temporary tape, to see what the outputs depend on; append the head and output nodes."""
    recording = state.recording
    assert recording is not None
    leaves, structure = flatten((args, kwargs))
    segment = Segment(fun, leaves, structure)
    arrays, places, operands = [], [], []
    for i, x in enumerate(leaves):
        if isinstance(x, Leaf):
            recording.hold(x)  # a leaf is not an operand: the second run itself accumulates its gradient
        elif x.__class__ in TENSORS:
            array, layout = x.array, x.layout  # reading .array waits if it is still being communicated
            place = x.node if x.tape is recording else recording.enter(x)
            arrays.append(array)
            places.append(place)
            segment.operands.append((i, layout))
            operands.append(x)
        else:
            recording.lock(x)
    for i, _ in segment.operands:
        leaves[i] = None
    before = [(source, source.get()) for source in sources(fun, *leaves)]
    state.recording = None
    try:
        with Tape() as tape:
            tape.recording.takes_unrecorded, tape.recording.given = recording.takes_unrecorded, recording.given
            state.distribution.begin_run(recording, tape.recording)
            outputs, out_structure = segment.run(operands)
    finally:
        state.recording = recording
    segment.sources = changed(before)
    scratch = tape.recording
    try:
        tracked = [i for i, y in enumerate(outputs) if y.__class__ in TENSORS and y.tape is scratch]
        if scratch.scale:
            segment.examined = scratch.scale.end_run(scratch, {i: outputs[i].node for i in tracked})
        if tracked or scratch.communicates:
            segment.outputs, segment.projections = [_signature(y) for y in outputs], _projections(outputs)
            segment.closure = _enter_inputs(scratch, recording)
            head = HEAD_OF_COMMUNICATION if scratch.communicates else HEAD
            recording.communicates = recording.communicates or scratch.communicates
            at = recording.append((head, None, tuple(arrays), tuple(places), segment, None, None))
            for i in tracked:
                y = outputs[i]
                outputs[i] = append_output(recording, at, i, y.array, y.layout)
        n = out_structure.count
        if state.collected is not None:  # the values that the function gave to its own list are given to the caller's
            state.collected += outputs[n:]
        return out_structure.rebuild(outputs[:n])
    finally:
        name = getattr(fun, "__qualname__", type(fun).__name__)
        scratch.abandon(f"a value that checkpoint({name}) computed in its first run, and did not keep")


def _enter_inputs(scratch: Recording, recording: Recording) -> list[int]:
    """Enter the inputs of the first run, before the head; return the places of the values that it imports.

    A leaf enters because the head adds to its gradient where the sweep is recorded, and a value of a third recording
    because the function is inside of another checkpointed one, which then hands on its cotangent.
    """
    for _, (other, place) in _origins(scratch):
        if other is not recording:
            recording.enter(Tensor(_NOTHING, None, other, place))
    for node in scratch.nodes:
        if node is not None and op_of(node) is LEAF:
            recording.enter(arrays_of(node)[0])
    return [place for _, place, _ in _imports(scratch, recording)]


class _Head:
    """The operation of the head node: its pull and push run the function again and sweep that run."""

    name = "checkpoint"
    makes_rows = True  # of the operations of the second run, where a step is captured

    def __init__(self, communicates: bool):
        self.communicates = communicates

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """Run the function again and sweep that run backwards, from the cotangents of the outputs in `ct`."""
        recording, segment = sweep.recording, options_of(node)
        tape, outputs = segment.run_again(node, recording, sweep.record)
        again = tape.recording
        end = len(again.nodes) if tape.end is None else tape.end
        wanted = None if sweep.wanted is None else {q: None for q, _, _ in _imports(again, recording)}
        inner = type(sweep)(again, tape.start, end, wanted, sweep.record)
        inner.fresh, inner.later, inner.changed = sweep.fresh, sweep.later, sweep.changed
        inner.general = sweep.general
        for i, g in ({} if ct is None else ct.found).items():
            y = outputs[i]
            if sweep.record and y.layout is not None:
                g = relabel(g, y.layout.dual)
            if y.tape is again:
                inner.add(y.node, g)
            elif y.tape is recording:
                sweep.add(y.node, g)
        inner.run(again.nodes[tape.start : end], release=not sweep.record)
        sweep.general = inner.general
        if again is recording:  # the sweep is recorded on the tape of the first run, which has all closure values
            for place, g in inner.outside.items():
                if place < sweep.place:
                    sweep.add(place, g)
                else:  # a leaf that the first run did not use
                    step: Any = again.nodes[place]  # not released yet
                    op_of(step).pull(step, g, sweep)
            return
        for q, place, (other, at) in _imports(again, recording):
            g = None if wanted is None else wanted[q]
            if g is None:
                g = inner.outside.pop(q, None)
            if wanted is None and (left := other.pending.pop(at, None)) is not None:  # what the import has added there
                g = left if g is None else g + left
            if g is not None:
                sweep.add(place, g)
        if not sweep.record:
            again.release()

    @staticmethod
    def reads(node: Node) -> list[int]:
        """The places of values that the function uses without getting them as arguments."""
        closure: list[int] = options_of(node).closure
        return closure

    def communication(self, node: Node) -> Any:
        """Raise for `Tape.plan` if the function communicates: its communications are not on the tape."""
        if self.communicates:
            raise TapeError(
                "plan of a tape with a checkpoint that communicates: its communications are not on the tape, because a "
                "sweep runs it again. Fix: plan the step without checkpoint(...), whose communications are the same"
            )

    def push(self, node: Node, carried: Any, start: int, record: bool, recording: Recording, place: int) -> Any:
        """Run the function again, sweep that run forwards, and return the tangents of its outputs."""
        segment = options_of(node)
        known = {  # lists and tuples are the tangents of operations with several outputs, whose output nodes follow
            start + i: t
            for i, t in enumerate(carried[: place - start])
            if t is not None and t.__class__ not in (list, tuple)
        }
        if not known and not self.communicates:
            return None
        tape, outputs = segment.run_again(node, recording, record)
        again = tape.recording
        imports = _imports(again, recording)
        given = known if again is recording else {q: known[p] for q, p, _ in imports if p in known}
        first = min([tape.start, *given])
        end = len(again.nodes) if tape.end is None else tape.end
        inner: list[Any] = [None] * (end - first)
        for q, t in given.items():
            inner[q - first] = t
        active = state.recording
        if not record:
            state.recording = None
        try:
            for q in range(tape.start, end):
                step: Any = again.nodes[q]
                if q not in given:
                    inner[q - first] = op_of(step).push(step, inner, first, record, again, q)
        finally:
            state.recording = active
        found = {id(recording): known, id(again): {first + i: t for i, t in enumerate(inner)}}
        tangents = [found.get(id(y.tape), {}).get(y.node) if y.__class__ in TENSORS else None for y in outputs]
        if again is not recording and not record:
            again.release()
        return tangents


def _imports(again: Recording, recording: Recording) -> list[tuple[int, int, tuple[Recording, int]]]:
    """The values of other recordings in `again` that are in `recording`, too: their own, or imported by it as well.

    As (place in `again`, place in `recording`, (the recording that `again` imports from, place in it)).
    """
    if again is recording:
        return []
    found = []
    for q, (other, place) in _origins(again):
        at = place if other is recording else recording.leaves.get((id(other), place))
        if at is not None:
            found.append((q, at, (other, place)))
    return found


def _origins(again: Recording) -> list[tuple[int, tuple[Recording, int]]]:
    """The places of imports in a recording, with those of their values in the recordings that they are from."""
    nodes = ((q, again.nodes[q]) for q in again.leaves.values())
    return [(q, options_of(node)) for q, node in nodes if node is not None and op_of(node) is IMPORT]


_NOTHING = np.empty(0)  # an import needs no array
HEAD, HEAD_OF_COMMUNICATION = _Head(False), _Head(True)
