"""The states of a run that a rank has in memory: the live objects at the last step, and copies of earlier ones.

A `Holding` is a step, the tree of its plain values, and boxes of its values with their arrays: what a file of a
checkpoint has. The ranks that are left after a death put their holdings together; see `restoring`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import is_absent
from autograd.engine.state import state
from autograd.errors import OptionError
from autograd.nn import Module
from autograd.nn.module import tree_of
from autograd.optim import Optimizer
from autograd.optim.copies import OfCopies
from autograd.whole import Piece
from collectives.checks.modes import is_due
from collectives.faults.points import point

from ..checkpoint.disk import dtype_text, value_digest
from ..checkpoint.manifest import Value
from ..checkpoint.ownership import Entry, entry_of, share_of, whole_entry
from ..checkpoint.replicas import copies_of, differ, digest_of_text, exchanged
from ..checkpoint.saving import divided, refuse_copies
from ..checkpoint.tree import Encoded, encode, encode_part, parts_of, walked, with_digests

__all__ = [
    "Copies", "Holding", "Live", "expected_here", "expected_of", "flat_bytes", "is_compared", "mesh_sizes",
    "objects_in", "unique", "values_in", "what_is_here",
]  # fmt: skip


@dataclass
class Holding:
    """The part of the state of one step that a rank has.

    Attributes
    ----------
    kind : {"replicas", "copies"}
        Live objects, or copies.
    step, epoch : int
        The step, and the epoch of the world in which the ranks have computed it.
    tree : dict
        The plain values: of this rank, or of all if they are copies.
    classes : list of int
        Of copies: the class of each rank; see `checkpoint.tree`.
    mesh : dict of str to int
    index : int
        The place of this rank on the mesh.
    expected : dict of str to tuple of int
        The values that all ranks together had, with their shapes.
    entries : list of Entry
    values : dict of str to list
        By key: the shape, dtype, layout and place of a value, and whether it is an array without a layout, of which
        each rank may have another one. As many ranks as possible have the same values here, of which their entries are
        parts.
    objects : list
        Of live objects: those that have the arrays.
    is_confirmed : bool
        Whether all ranks had their copies.
    """

    kind: str
    step: int
    epoch: int
    tree: dict[str, Any]
    classes: list[int]
    mesh: dict[str, int]
    index: int
    expected: dict[str, tuple[int, ...]]
    entries: list[Entry]
    values: dict[str, list[Any]]
    objects: list[Any] = field(default_factory=list)
    is_confirmed: bool = False

    def head(self) -> bytes:
        """All but the arrays and their boxes: many ranks have the same."""
        text = json.dumps({
            "tree": self.tree, "classes": self.classes, "mesh": self.mesh, "expected": self.expected,
            "values": [[key, *self.values[key]] for key in sorted(self.values)],
        })  # fmt: skip
        return zlib.compress(text.encode(), 1)

    def boxes(self) -> dict[str, list[Any]]:
        """By key, the boxes of the entries, each with a digest if other ranks should have the same."""
        found: dict[str, list[Any]] = {}
        for entry in self.entries:
            digest = value_digest(to_host(entry.array)) if self.kind == "replicas" and is_compared(entry) else ""
            found.setdefault(entry.key, []).append([entry.box, digest])
        return found

    def copy_arrays(self) -> None:
        """Replace the arrays of live objects by copies."""
        self.entries, self.objects = [copied(entry) for entry in self.entries], []


def copied(entry: Entry) -> Entry:
    """An entry with a copy of its array on the host."""
    array = np.array(to_host(entry.array))
    return Entry(entry.key, entry.shape, entry.layout, entry.place, entry.box, array)


def flat_bytes(array: Any) -> Any:
    """The bytes of an array, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def values_in(entries: Iterable[Entry], own: Container[str] = ()) -> dict[str, list[Any]]:
    """The values of `Holding.values`, given entries, and the keys of those that each rank may have for itself."""
    return {e.key: [e.shape, dtype_text(e.array.dtype), e.layout, e.place, e.key in own] for e in entries}


def is_compared(entry: Entry) -> bool:
    """Whether other ranks should have the same array."""
    return not {"R", "I"}.isdisjoint(entry.layout.values())


def mesh_sizes() -> dict[str, int]:
    """The axes of the current mesh and their sizes."""
    grid = state.grid
    return {} if grid is None else dict(zip(grid.names, map(int, grid.sizes), strict=True))


def unique(group: Any, data: bytes, of: str) -> tuple[list[bytes], list[int]]:
    """The different data of all ranks, and for each rank which of them is its own. All ranks call it.

    Data that several ranks have in common is sent by the first of them.
    """
    digests = group.exchange(digest_of_text(data.hex()).encode(), of=of)
    kinds = list(dict.fromkeys(digests))
    first = [digests.index(kind) for kind in kinds]
    sent = group.exchange(data if group.index in first else b"", of=of)
    return [sent[k] for k in first], [kinds.index(digest) for digest in digests]


def expected_of(objects: Mapping[str, Any], group: Any) -> dict[str, tuple[int, ...]]:
    """The values of the modules of all ranks, with their shapes. All ranks of the mesh call it.

    The state that an optimizer makes at its first step lies where its parameters are, so theirs stand for it.
    """
    blobs, _ = unique(group, json.dumps(expected_here(objects)).encode(), "elastic.restore")
    return {key: tuple(shape) for blob in blobs for key, shape in json.loads(blob).items()}


def expected_here(objects: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The values of the modules of this rank, with their shapes."""
    found = Encoded()
    for part in parts_of(objects):
        if isinstance(part.object, Module):
            encode_part(part, found)
    return {entry.key: entry.shape for entry in what_is_here(found)}


def objects_in(objects: Mapping[str, Any]) -> list[Any]:
    """The objects with a state, of which some consist, and the parameters of modules."""
    parts = [part.object for part in parts_of(objects)]
    return parts + [p for part in parts if isinstance(part, Module) for p in part.parameters()]


def _pieces(found: Encoded) -> list[Entry]:
    """All that this rank has of the values with layouts of what was encoded."""
    pieces = [entry_of(path, piece, at) for path, (piece, at) in found.pieces.items()]
    return [entry for entry in pieces if entry is not None]


def what_is_here(found: Encoded) -> list[Entry]:
    """All that this rank has of what was encoded."""
    return _pieces(found) + [whole_entry(path, array) for path, array in found.arrays.items()]


def _count(x: Any) -> Any:
    """A number that changes before an optimizer changes anything; None for other objects."""
    if isinstance(x, Optimizer):
        return x.steps
    if isinstance(x, OfCopies):
        scaler = getattr(x, "scaler", None)
        return x.steps, None if scaler is None else scaler.state_dict()
    return None


class Live:
    """The objects of a run, whose arrays are its state until an optimizer begins its next step.

    Whatever something else than an optimizer may change is small, and is copied at each commit: buffers, random keys,
    places of loaders, residuals, plain values. So are parameters that no optimizer of the run has.

    Parameters
    ----------
    objects : mapping
    expected : dict
        See `expected_of`.
    epoch : int
    """

    def __init__(self, objects: Mapping[str, Any], expected: dict[str, tuple[int, ...]], epoch: int):
        self.objects, self.expected, self.epoch = objects, expected, epoch
        self.parts = parts_of(objects)
        self.step = 0
        self._looked_at = 0
        self._counts: dict[str, Any] = {}
        self._kept: dict[str, Encoded] = {}
        self._copies: dict[str, Any] = {}  # arrays of modules, by path
        optimizers = [part.object for part in self.parts if isinstance(part.object, Optimizer | OfCopies)]
        self._stepped = {id(p) for x in optimizers for p in (x.held if isinstance(x, OfCopies) else x.parameters)}

    def commit(self, step: int) -> None:
        """Note that the objects have the state of a step. Nothing is sent."""
        self._counts, self._kept, self._copies = {}, {}, {}
        for part in self.parts:
            path, x = part.path, part.object
            count = _count(x)
            if count is not None:
                self._counts[path] = count
            elif isinstance(x, Module):
                self._copies |= {f"{path}/{name}": np.array(to_host(array)) for name, array in self._others(x)}
            else:
                found = Encoded()
                encode_part(part, found)
                self._kept[path] = _copied(found)
        self._kept[""] = _copied(encode(walked(self.objects)[1]))
        self.step = step

    def refuse_forgotten(self) -> None:
        """Raise OptionError for an optimizer with a state that has made a step on the mesh, and is not in the state.

        The mesh knows those whose steps the ranks compare.
        """
        made = list(state.mesh.optimizers)
        if len(made) == self._looked_at:
            return
        self._looked_at = len(made)
        parts = [part.object for part in self.parts]
        known = {id(x) for part in parts for x in (part, *getattr(part, "__dict__", {}).values())}
        for x in made:
            values = [value for each in x.state_lists() for value in each if value is not None]
            if id(x) not in known and (values or x.schedule is not None):
                raise OptionError(
                    f"Run.steps: {type(x).__name__} of {len(x.parameters)} parameters, the first of them "
                    f"{x.parameters[0].name or 'without a name'}, has made a step, and is none of the objects of "
                    "Run.restore: after a death it would begin again without its state\n"
                    '  fix: run.restore({..., "optimizer": optimizer})'
                )

    def _others(self, module: Module) -> Iterable[tuple[str, Any]]:
        """The arrays of a module that no optimizer changes."""
        tree = tree_of(module)
        for path, owner, attribute in tree.buffers:
            yield path, getattr(getattr(owner, attribute), "array", getattr(owner, attribute))
        for path, _, _, p in tree.parameters:
            if id(p) not in self._stepped and not is_absent(p.array):
                yield path, p.array

    def holding(self) -> Holding | None:
        """The part of this rank in the step of the last commit; None if an optimizer has begun another one.

        The mesh of the objects is current. Nothing is sent.
        """
        if any(_count(part.object) != self._counts[part.path] for part in self.parts if part.path in self._counts):
            return None
        found = Encoded()
        for part in self.parts:
            if part.path not in self._kept:
                encode_part(part, found)
        for kept in self._kept.values():
            found.tree |= kept.tree
            found.pieces |= kept.pieces
            found.arrays |= kept.arrays
        for path, array in self._copies.items():
            if path in found.pieces:
                piece, place = found.pieces[path]
                found.pieces[path] = Piece(array, piece.layout), place
            else:
                found.arrays[path] = array
        group = state.distribution.group()
        tree = with_digests(found.tree, {path: value_digest(to_host(array)) for path, array in found.arrays.items()})
        return Holding(
            "replicas", self.step, self.epoch, tree, [], mesh_sizes(), int(group.index), self.expected,
            (entries := what_is_here(found)), values_in(entries, found.arrays), objects_in(self.objects),
        )  # fmt: skip


def _copied(found: Encoded) -> Encoded:
    """A state with copies of its arrays."""
    pieces = {path: (Piece(np.array(to_host(piece.array)), piece.layout), place) for path, (piece, place) in
              found.pieces.items() if not is_absent(piece.array)}  # fmt: skip
    return Encoded(found.tree, pieces, {path: np.array(array) for path, array in found.arrays.items()})


class Copies:
    """Copies of the state in the memory of the ranks, of which each part is on two ranks.

    A rank copies the share of the state that it would write to a checkpoint, and sends it to a partner, on another host
    where there is one. The copies of the step before are kept until all ranks have the new ones.

    Attributes
    ----------
    generations : list of Holding
    made : int
        How many copies were made. The 1st, 2nd, 4th, 8th, ... and each 100th one compares the replicas.
    bytes, messages : int
        What this rank has sent for the last copies, and by how many messages.
    """

    def __init__(self) -> None:
        self.generations: list[Holding] = []
        self.bytes = self.messages = self.made = 0

    def make(self, objects: Mapping[str, Any], step: int, epoch: int) -> None:
        """Copy a step. All ranks of the mesh call it.

        Raises
        ------
        ReplicaMismatch
            A value that is one for several ranks has become different on one of them.
        """
        of = "copies of elastic.run"
        group: Any = state.distribution.group()
        found = encode(objects, None if group.size == 1 else value_digest)
        self.made += 1
        entries = share_of(found.pieces, group.size)
        copies = copies_of(found.pieces) if is_due(self.made, every=100) else {}
        told = exchanged(group, json.dumps([
            digest_of_text(json.dumps(found.tree)),
            {key: digest_of_text(json.dumps(each)) for key, each in copies.items()},
        ]), of)  # fmt: skip
        if differ([each for _, each in told]):
            refuse_copies(copies, group, of)
        entries, head = divided(found, entries, [tree for tree, _ in told], step, group, of)
        own = [copied(entry) for entry in entries]
        values = values_in([*_pieces(found), *entries])
        made = Holding("copies", step, epoch, head.tree, head.classes, head.mesh, int(group.index), {}, own, values)
        self.generations.append(made)
        point("elastic.copy")
        made.entries = own + self._partners(group, own, values)
        point("elastic.copied")
        group.exchange(b"", of=of)  # when it returns, all ranks have theirs
        made.is_confirmed = True
        self.generations = [made]

    def _partners(self, group: Any, entries: Sequence[Entry], values: dict[str, list[Any]]) -> list[Entry]:
        """Send entries to the partner, and receive those of the rank whose partner this one is, with their values."""
        if group.size == 1:
            return []
        lane, shift = group.lane("copies"), partner_shift(group.hosts)
        to, source = (group.index + shift) % group.size, (group.index - shift) % group.size
        lines = [[e.key, e.box] for e in entries]
        header = np.frombuffer(json.dumps([values, lines]).encode(), np.uint8)
        data = np.concatenate([flat_bytes(e.array) for e in entries] or [np.empty(0, np.uint8)])
        sent = [np.array([header.size, data.size]), header, data]
        pending = [lane.lend(each, to) for each in sent]
        self.bytes, self.messages = sum(each.nbytes for each in sent), len(sent)
        sizes = lane.recv(np.empty(2, np.int64), source)
        coming = lane.recv(np.empty(int(sizes[0]), np.uint8), source)
        data = lane.recv(np.empty(int(sizes[1]), np.uint8), source)
        for each in pending:
            each.wait()
        found, at = [], 0
        theirs, lines = json.loads(coming.tobytes())
        for key, box in lines:
            shape, dtype, layout, place, _ = theirs[key]
            box = tuple((a, b) for a, b in box)
            kind = Value(tuple(shape), dtype, layout, place, ()).numpy_dtype
            extents = [b - a for a, b in box]
            size = int(np.prod(extents, dtype=np.int64)) * kind.itemsize
            array = data[at : at + size].view(kind).reshape(extents)
            found.append(Entry(key, tuple(shape), layout, place, box, array))
            at += size
        values |= {key: each for key, each in theirs.items() if key not in values}
        return found


def partner_shift(hosts: Sequence[int]) -> int:
    """The distance from each rank to its partner: on another host for all of them, if that is possible.

    Examples
    --------
    >>> partner_shift((0, 0, 2, 2)), partner_shift((0, 0, 0))
    (2, 1)
    """
    n = len(hosts)
    return next((s for s in range(1, n) if all(hosts[k] != hosts[(k + s) % n] for k in range(n))), 1)
