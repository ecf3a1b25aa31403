"""Walk: the powers of the values of a recording, along each axis of a mesh.

The powers follow from the nodes of the tape alone. They are computed when they are asked for, from the inputs on, and
kept. A decision of the ranks about a number (see `numbers`) changes those that follow from it.

Along an axis on which a value is Varying the ranks may have different powers, as their numbers differ. At an examined
sum they compare them; then they have *agreed*. After any other collective that makes one value of theirs they have not,
and nothing is told of it unless they compare it when backward starts: an error on one rank alone would be a riddle.

The first run of a checkpointed function is a recording of its own, which is gone before backward. It shares the walk of
the tape that it is on: a value in it has a place behind all places of that tape, and the walk keeps its nodes without
their arrays.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autograd.engine.leaves import Parameter
from autograd.engine.recording import (
    IMPORT,
    LEAF,
    Node,
    Recording,
    arrays_of,
    op_of,
    options_of,
    parents_of,
    shapes_of,
    signature_of,
)
from autograd.engine.state import state
from autograd.layouts.layout import C, Grid, Label, Layout, Shard, V

from .numbers import Division, Evidence, counts_rows, is_weight, whole_divisor
from .powers import DATA, UNKNOWN, Power
from .rules import COLLECTIVES, OPERATIONS, is_open, of_operation
from .sums import Sum
from .uses import Use

__all__ = ["Walk"]


class _Run:
    """The nodes of a recording, at the places from `base` on, and what is known of them.

    Attributes
    ----------
    recording : Recording
    base : int
    known : list
        The powers of the first nodes.
    """

    __slots__ = ("base", "known", "nodes", "notes", "recording")

    def __init__(self, recording: Recording | None, base: int):
        self.recording, self.base = recording, base
        self.known: list[tuple[Power, ...]] = []
        self.nodes: list[Node | None] = [] if recording is None else recording.nodes
        self.notes: Any = None

    def note(self, at: int) -> tuple[Any, Any]:
        """The number and the line that were noted of the node at a place."""
        notes = self.notes if self.recording is None else self.recording.notes
        found: tuple[Any, Any] = (None, None) if notes is None else notes.get(at - self.base, (None, None))
        return found

    def node(self, at: int) -> Any:
        """The node at a place, whose parents have their places in the walk; None without one."""
        local = at - self.base
        node = self.nodes[local] if local < len(self.nodes) else None
        return node if node is None or not self.base or self.recording is None else _moved(node, self.base)

    def close(self, bases: dict[int, int]) -> None:
        """Keep the nodes without their arrays, and leave the recording."""
        assert self.recording is not None
        self.nodes = [None if node is None else _without_arrays(node, self.base, bases) for node in self.nodes]
        self.notes, self.recording = self.recording.notes, None


def _moved(node: Node, base: int) -> Node:
    parents = tuple([place + base if place >= 0 else place for place in parents_of(node)])
    return op_of(node), None, arrays_of(node), parents, options_of(node), shapes_of(node), signature_of(node)


def _without_arrays(node: Node, base: int, bases: dict[int, int]) -> Node | None:
    """A node of a run that is over. Its numbers and its labels of rows stay; imports get their place in the walk."""
    op, _, arrays, parents, options, shapes, signature = _moved(node, base)
    if op is IMPORT and id(options[0]) in bases:
        options = None, bases[id(options[0])] + options[1]
    elif op is not LEAF:
        arrays = tuple([x if np.ndim(x) == 0 or (np.ndim(x) == 1 and x.dtype.kind in "iu") else None for x in arrays])
    return op, None, arrays, parents, options, shapes, signature


class Walk:
    """The powers of the values of a recording.

    Parameters
    ----------
    recording : Recording
    grid : Grid
        Of the mesh.

    Attributes
    ----------
    sums : dict of int to Sum
        The examined sums over ranks, by the place of their result.
    count : int
        The number of sums over ranks on the tape so far.
    gathers : int
        The number of gathers.
    """

    def __init__(self, recording: Recording, grid: Grid):
        self.grid, self.sums, self.count, self.gathers = grid, dict[int, Sum](), 0, 0
        self._runs = [_Run(recording, 0)]  # that of the tape, and those of checkpointed functions on it
        self._bases = {id(recording): 0}  # of those that are not over, by the id of the recording
        self._others: dict[int, Walk] = {}  # of the tapes from which values are imported; they live as long as this one
        self._decided: dict[int, dict[str, str]] = {}  # of a place, along each axis
        self._readings: dict[int, list[dict[str, str]]] = {}  # other decisions, of a number that may be two counts
        self._agreed = set[int]()  # the places of sums before which all ranks had the same powers
        self._counted: dict[int, tuple[frozenset[float], frozenset[float], frozenset[int]]] = {}
        self._unknown = (UNKNOWN,) * len(grid.names)

    def at(self, place: int) -> tuple[Power, ...]:
        """The powers of the value at a place, along each axis."""
        if place < 0:
            return self._unknown
        run = self._runs[place // _SPAN]
        known, at = run.known, place - run.base
        if at >= len(run.nodes):
            return self._unknown
        for k in range(len(known), at + 1):
            known.append(self._next(run.base + k))
        return known[at]

    # -- checkpointed functions ------------------------------------------------------------------------------------
    def begin_run(self, recording: Recording) -> None:
        """The first run of a checkpointed function begins, on a recording of its own."""
        base = self._bases[id(recording)] = len(self._runs) * _SPAN
        self._runs.append(_Run(recording, base))

    def end_run(self, recording: Recording, outputs: dict[int, int]) -> dict[int, int]:
        """It is over; given the places of its outputs on the recording, returns those in the walk."""
        base = self._bases.pop(id(recording))
        self._runs[base // _SPAN].close(self._bases)
        return {i: base + place for i, place in outputs.items()}

    def place_of(self, recording: Any, place: int) -> int:
        """The place in the walk of a value on a recording; negative if it is none of the walk's."""
        base = self._bases.get(id(recording))
        return -1 if base is None else base + place

    def _forget(self, place: int) -> None:
        """Forget what follows from a place."""
        own = self._runs[place // _SPAN]
        for run in self._runs:
            del run.known[place - run.base if run is own else 0 :]

    # -- decisions of the ranks ------------------------------------------------------------------------------------

    def decide(self, place: int, decided: str, axes: Sequence[str]) -> None:
        """Keep what the ranks along some axes have decided about the number at a place."""
        self._decided[place] = {**self._decided.get(place, {}), **dict.fromkeys(axes, decided)}
        self._forget(place)

    def decided(self, place: int) -> dict[str, str]:
        """The decisions about the number at a place, along each axis."""
        return self._decided.get(place, {})

    def read(self, place: int, decided: dict[str, str]) -> None:
        """Keep other decisions about the number at a place, which are as likely as the first."""
        self._readings.setdefault(place, []).append(decided)

    def readings(self, place: int) -> Iterator[tuple[Power, ...]]:
        """The powers of the value at a place, for each way to read the numbers that may be two counts."""
        yield self.at(place)
        others = [{at: decided} for at, all_of in self._readings.items() for decided in all_of]
        if len(self._readings) > 1:
            others.insert(0, {at: all_of[0] for at, all_of in self._readings.items()})
        first = self._decided
        for other in others[:_MOST_READINGS]:
            self._decided = first | other
            self._forget(min(other))
            yield self.at(place)
            self._decided = first
            self._forget(min(other))

    def agree(self, place: int) -> None:
        """Keep that all ranks had the same powers before the sum over ranks at a place."""
        self._agreed.add(place)
        self._forget(place)

    def know(self, place: int, totals: set[float], counts: set[float], extents: set[int]) -> None:
        """Keep the numbers of elements that a sum over ranks at a place has added: of all ranks, of each, and the
        extents of their dimensions."""
        self._counted[place] = frozenset(totals), frozenset(counts), frozenset(extents)
        self._forget(place)

    def evidence(self, place: int, axes: Sequence[str]) -> Evidence:
        """The evidence of this rank about an addend, for the other ranks along the axes of the sum."""
        powers = [power for name, power in zip(self.grid.names, self.at(place), strict=True) if name in axes]
        terms = next((power.terms for power in powers if power.terms), ())
        divisions = self.divisions(place, axes)
        return Evidence(
            tuple(division for _, division in divisions),
            tuple((count, abs(weight)) for count, weight in terms if count), _numbers(powers, "counts"),
            any(power.averaged for power in powers), _numbers(powers, "extents"),
            self._digest(place, [at for at, _ in divisions]), _others(powers),
        )  # fmt: skip

    def _digest(self, place: int, divisions: Sequence[int]) -> int:
        """That of the powers of a value without the undecided numbers, which may differ on the ranks."""
        if divisions:
            decided = self._decided.copy()
            for at in divisions:
                self.decide(at, "left out", self.grid.names)
        powers = [
            (power.powers and sorted(power.powers), power.averaged, power.plain, sorted(power.unsure),
             [each.place for each in power.faults])
            for power in self.at(place)
        ]
        if divisions:
            self._decided = decided
            self._forget(divisions[0])
        return zlib.crc32(repr((len(divisions), powers)).encode())

    def divisions(self, place: int, axes: Sequence[str]) -> list[tuple[int, Division]]:
        """The undecided divisions on the way of a value, in the order of the tape, as this rank sees them."""
        powers = self.at(place)
        places = sorted({at for k, name in enumerate(self.grid.names) if name in axes for at in powers[k].divisions})
        found = []
        along = [k for k, name in enumerate(self.grid.names) if name in axes]
        for at in places:
            parents, divisor = parents_of(self.node(at)), self.divisor(at)
            assert divisor is not None
            before = [self.at(max(parents))[k] for k in along]  # the counts along any of them are those of this rank
            if not any(each.counts for each in before):  # elements are divided before they are summed
                before = [powers[k] for k in along]
            is_round = op_of(self.node(at)).name == "multiply" and is_weight(whole_divisor(divisor))
            counts, extents = _numbers(before, "counts"), _numbers(before, "extents")
            later = _numbers([powers[k] for k in along], "counts")
            found.append((at, Division(
                divisor, counts, extents, _others(before), is_round, max([each.summands for each in before]),
                later if later != counts and any(at < each <= place for each in self._counted) else (),
            )))  # fmt: skip
        return found

    def number(self, at: int) -> Any:
        """The operand of a node that remembers the number of ranks; of the mean of a BatchNorm its name."""
        return self._runs[at // _SPAN].note(at)[0]

    def node(self, at: int) -> Any:
        """The node at a place."""
        return self._runs[at // _SPAN].node(at) if at >= 0 else None

    def site(self, at: int) -> tuple[str, int] | None:
        """The line of the program that made a node, if it is known."""
        known = self._runs[at // _SPAN].note(at)[1] if at >= 0 else None
        return self.sums[at].site if known is None and at in self.sums else known

    def divisor(self, at: int) -> float | None:
        """The plain number by which a node divides; of a product one over it. None if there is no such number."""
        node = self.node(at)
        if op_of(node).name not in ("multiply", "divide"):
            return None
        off, number = int(parents_of(node)[0] >= 0), self.number(at)
        value = arrays_of(node)[off] if number is None else float(number) if is_open(number) else number.rest
        c = 0.0 if value is None or np.shape(value) != () or np.iscomplexobj(value) else abs(float(value))
        if not c or not math.isfinite(c) or parents_of(node)[off] >= 0:
            return None
        divisor = c if op_of(node).name == "divide" else 1 / c
        return float(whole_divisor(divisor) or divisor)

    # -- one node ----------------------------------------------------------------------------------------------
    def _next(self, at: int) -> tuple[Power, ...]:
        node = self.node(at)
        if node is None:
            return self._unknown
        op, options, parents = op_of(node), options_of(node), parents_of(node)
        if op is LEAF:
            return self._of_layout(arrays_of(node)[0].layout, isinstance(arrays_of(node)[0], Parameter))
        if op.name in _STEPS:
            return _STEPS[op.name](self, at, parents, options)
        if options.__class__.__name__ == "Prepared":
            return self._collective(at, options.collective.name, options.call, options.layout, options.out, parents[0])
        signature = signature_of(node)
        if getattr(signature, "out", None).__class__ is not Layout or signature.shapes is None:
            return self._unknown
        return self._operation(at, node, signature)

    def _of_layout(self, layout: Layout | None, is_parameter: bool) -> tuple[Power, ...]:
        """Of a leaf. A Varying Parameter is unknown: perhaps a stage's, perhaps one of many models."""
        if layout is None or layout.grid is not self.grid:
            return self._unknown
        return tuple([(UNKNOWN if is_parameter else DATA) if x is V else Power() for x in layout.labels])

    def _collective(
        self, at: int, name: str, call: Any, layout: Layout | None, out: Layout | None, place: int
    ) -> tuple[Power, ...]:  # fmt: skip
        rule = COLLECTIVES.get(name)
        if rule is None or layout is None or out is None or layout.grid is not self.grid:
            return self._unknown
        given = self.at(place) if place >= 0 else self._of_layout(layout, False)
        found = [
            rule(given[k], layout.labels[k], out.labels[k], at, call) if axis in call.axes else given[k]
            for k, axis in enumerate(self.grid.names)
        ]
        if name in _GATHERS and {*(call.extents or ())} == {1}:  # one value of each rank: no rows along other axes
            found = [
                each if axis in call.axes else each._replace(whole=each.whole | {call.dim})
                for axis, each in zip(self.grid.names, found, strict=True)
            ]
        made_one = {
            axis for k, axis in enumerate(self.grid.names)
            if axis in call.axes and layout.labels[k] is V and out.labels[k] is not V and self.grid.sizes[k] > 1
        }  # fmt: skip
        if made_one:
            unsure = found[0].unsure - made_one if at in self._agreed else found[0].unsure | made_one
            found = [each._replace(unsure=unsure) for each in found]
        return self._with_counts(at, name, call, out, found) if at in self._counted else tuple(found)

    def _with_counts(
        self, at: int, name: str, call: Any, out: Layout, found: Sequence[Power]
    ) -> tuple[Power, ...]:  # fmt: skip
        """The powers of a collective's result, with the counts of all ranks that it was found to have."""
        totals, counts, extents = self._counted[at]
        more = []
        for axis, label, each in zip(self.grid.names, out.labels, found, strict=True):
            if axis in call.axes:
                more.append(each._replace(totals=totals | each.totals, counts=counts, extents=extents))
            elif label is V:
                own = (totals | each.counts if name in _GATHERS else totals) or each.counts  # perhaps their mean
                more.append(each._replace(counts=own, added=1 if totals else each.added))
            else:
                more.append(each._replace(totals=totals or each.totals))
        return tuple(more)

    def _operation(self, at: int, node: Any, signature: Any) -> tuple[Power, ...]:
        op, out = op_of(node), signature.out
        if out.grid is not self.grid:
            return self._unknown
        parents, options = parents_of(node), options_of(node)
        given = [self.at(place) if place >= 0 else None for place in parents]
        letters = op.letters(len(parents))
        maps = None if op.dims is None else op.dims(signature.shapes, options)
        number = self.number(at)
        extents = _extents(signature.layouts[0], signature.shapes[0]) if signature.shapes else ()
        rule, found = OPERATIONS.get(op.name, of_operation), []
        plain = _plain_scalars(arrays_of(node)) if op.number == "scales" else ()
        decided = self._decided.get(at)
        is_here = decided is not None and all(
            decided.get(axis) in _COUNT_NO_OTHERS
            for x, axis in zip(out.labels, self.grid.names, strict=True) if x is V
        )  # fmt: skip
        is_one = V not in out.labels
        for k, axis in enumerate(self.grid.names):
            labels: tuple[Label | None, ...] = tuple([
                C if i in plain else layout.labels[k] for i, layout in enumerate(signature.layouts)
            ])  # fmt: skip
            inputs = tuple([None if each is None else each[k] for each in given])
            found.append(rule(Use(
                op, at, letters, inputs, labels, out.labels[k], signature.shapes, extents, maps, arrays_of(node),
                options, self.grid.sizes[k], number, axis, "" if decided is None else _along(decided, axis), is_one,
                decided is not None and axis not in decided, is_here,
            )))  # fmt: skip
        return tuple(found)

    # -- steps that are no operation -----------------------------------------------------------------------------
    def _imported(self, at: int, parents: Any, options: Any) -> tuple[Power, ...]:
        """A value of another tape, or of the tape that a checkpointed function is on."""
        other, place = options
        base = 0 if other is None else self._bases.get(id(other))
        if base is not None:
            return self.at(base + place)
        if id(other) not in self._others:
            self._others[id(other)] = Walk(other, self.grid)
        known = self._others[id(other)].at(place)  # the places in it are those of the other tape
        return tuple([power._replace(divisions=(), events=(), faults=(), once=-1) for power in known])

    def _output(self, at: int, parents: Any, options: Any) -> tuple[Power, ...]:
        """An output of a checkpointed function; of another operation with several outputs nothing is known."""
        head = self.node(parents[0])
        places = None if head is None or op_of(head).name != "checkpoint" else options_of(head).examined
        return self.at(places[options[0]]) if places else self._unknown

    def _entered(self, at: int, parents: Any, options: Any) -> tuple[Power, ...]:
        """A parameter that `DataParallel` has entered."""
        _, first, _, _, call = options
        return self._of_layout(call.layouts[at % _SPAN - first], True)

    def _started(self, at: int, parents: Any, options: Any) -> tuple[Power, ...]:
        """A nonblocking collective: its start passes on the operand, and its wait is the collective."""
        return self.at(parents[0]) if parents[0] >= 0 else self._of_layout(options[2], False)

    def _waited(self, at: int, parents: Any, options: Any) -> tuple[Power, ...]:
        start = self.node(parents[0])
        if start is None:
            return self._unknown
        collective, call, layout, _, _ = options_of(start)
        return self._collective(parents[0], collective.name, call, layout, options[2], parents[0])

    def _watched(self, at: int, parents: Any, options: Any) -> tuple[Power, ...]:
        return self.at(parents[0]) if parents[0] >= 0 else self._of_layout(options[0], False)


def _numbers(powers: Sequence[Power], of: str) -> tuple[Any, ...]:
    return tuple(sorted({n for power in powers for n in getattr(power, of)}))


def _others(powers: Sequence[Power]) -> tuple[float, ...]:
    """The number of values that were added, and the sums of weights, if these are not those of many terms."""
    weights = sorted({w for power in powers for w in power.weights})
    return (max([each.added for each in powers], default=1), *(weights if len(weights) <= _MOST_WEIGHTS else ()))


def _along(decided: dict[str, str], axis: str) -> str:
    """Return the decision about a number along an axis, perhaps by the ranks along others.

    The number of all rows along another axis is that of the rows that this axis does not divide: their mean.
    """
    known = decided.get(axis)
    return ("mean" if counts_rows(decided) else "") if known is None else known


def _plain_scalars(arrays: Sequence[Any]) -> list[int]:
    """Which operands are leaves that were made of one plain number, whatever their labels: they are constants."""
    known = getattr(state.mesh, "scalars", ())
    return [i for i, x in enumerate(arrays) if x is not None and any(x is each for each in known)]


def _extents(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of a whole value, where the ranks have agreed on them, else those of this rank's part."""
    whole = list(shape)
    for label in layout.labels:
        if type(label) is Shard and label.extent:
            whole[label.dim] = max(whole[label.dim], label.extent)
    return tuple(whole)


_COUNT_NO_OTHERS = ("own", "mean", "constant", "ranks", "root")  # no rows of other ranks along the axis of the decision
_MOST_READINGS = 8
_GATHERS = ("all_gather", "gather")
_MOST_WEIGHTS = 16
_SPAN = 1 << 40  # of the places of one run
_STEPS: dict[str, Any] = {
    "import": Walk._imported, "output": Walk._output, "entered parameter": Walk._entered, "start": Walk._started,
    "wait": Walk._waited, "watch": Walk._watched,
}  # fmt: skip
