"""The newest state that the ranks which are left hold together, and its values where they are needed.

All ranks of an epoch call these functions in the same order, those without a place on the mesh too: they may hold what
others need.

The trees and the shapes of values are alike on many ranks, and each different one is sent once. The boxes are not: with
ZeRO each rank has its own of each value. So each value has a *directory*, a rank that is chosen by its name. All ranks
send it the boxes that they hold, it looks whether they are the whole value, and those that need a part of it ask it for
the ranks that hold that.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autograd.arrays.device import to_host

from ..checkpoint.boxes import Box, elements, meet, shape_of, whole_box, within, without
from ..checkpoint.loading import Restored, Source, prepared, set_states, together
from ..checkpoint.manifest import Manifest, Value
from ..checkpoint.pieces import Stretch
from ..checkpoint.tree import merged, objects_of, values_of, values_of_ranks
from .holdings import Holding, flat_bytes, unique

__all__ = ["Found", "exchange_values", "load_found", "newest_in_memory"]

_OF = "elastic.restore"
_ORDER = {"copies": 0, "replicas": 1}  # of two holdings of a step the live objects come first
Request = tuple[str, Box, Box]
"""The key of a value, the box of it that a rank holds, and the part of it that is asked for."""


@dataclass
class Found:
    """A step that can be put together, as this rank sees it.

    Attributes
    ----------
    step : int
    kind : str
        "replicas" or "copies".
    manifest : Manifest
        Each value has one piece, which is the whole.
    offers : dict of str to list of (int, Box)
        Of the values whose directory this rank is: the ranks that hold boxes, and these.
    """

    step: int
    kind: str
    manifest: Manifest
    offers: dict[str, list[tuple[int, Box]]]


# -- the agreement -----------------------------------------------------------------------------------------------------
def newest_in_memory(
    group: Any, holdings: Sequence[Holding], told: Sequence[Sequence[Any]], above: int
) -> tuple[Found | None, str]:
    """The newest step of which the holdings of all ranks have everything, and the first value that a newer one lacks.

    Parameters
    ----------
    group : Communicator
    holdings : sequence of Holding
        Of this rank.
    told : sequence
        For each rank, the kind, step, epoch and place of each of its holdings.
    above : int
        Older steps are left out.
    """
    named = {(step, _ORDER[kind], epoch, kind) for each in told for kind, step, epoch, _ in each}
    candidates = sorted(named, reverse=True)
    lost = ""
    for step, _, epoch, kind in candidates:
        if step < above:
            break
        mine = [x for x in holdings if x.step == step and (x.kind, x.epoch) == (kind, epoch)]
        heads, which = unique(group, mine[0].head() if mine else b"", _OF)
        known = [json.loads(zlib.decompress(head)) if head else None for head in heads]
        places = [next((at for *key, at in each if key == [kind, step, epoch]), None) for each in told]
        found, fault = _put_together(group, step, kind, [known[k] for k in which], places, mine[0] if mine else None)
        if found is not None:
            return found, ""
        lost = lost or fault
    return None, lost


def _put_together(
    group: Any, step: int, kind: str, of_ranks: Sequence[Any], places: Sequence[int | None], mine: Holding | None
) -> tuple[Found | None, str]:
    """A step from the holdings of the ranks; or None, and why not. All ranks call it.

    Parameters
    ----------
    of_ranks : sequence
        The `Holding.head` of each rank; None of one that has none. The same object for the same head.
    """
    ranks = [rank for rank, each in enumerate(of_ranks) if each is not None]
    if kind == "copies":
        first = of_ranks[ranks[0]]
        tree, classes, mesh = first["tree"], first["classes"], first["mesh"]
        own_class = dict.fromkeys(ranks, -1)
    else:
        tree, classes, mesh, own_class = _merged(of_ranks, ranks, places)
        if not mesh and (own := values_of_ranks(tree)):  # those of the ranks that are no longer there are lost
            return None, f"{own[0].partition('@')[0]} of step {step} was lost with it"
    lists: list[dict[str, Any]] = [{} for _ in range(group.size)]  # of boxes, for the directories of their values
    for key, each in {} if mine is None else mine.boxes().items():
        lists[_directory(key, group.size)][key] = each
    coming = [_unpacked(data) or {} for data in _to_each(group, [_packed(each) for each in lists])]
    here = _Directory(group, set(values_of(tree)))
    for rank in ranks:
        here.take(rank, of_ranks[rank], coming[rank], own_class[rank])
    # the shapes of all values, and what is missing, to all
    heads = {id(of_ranks[rank]): of_ranks[rank] for rank in ranks}.values()
    fault = here.fault({key: tuple(shape) for head in heads for key, shape in head["expected"].items()})
    found = [_unpacked(each) for each in group.exchange(_packed([fault, here.values]), of=_OF)]
    if any(each for each, _ in found):
        return None, min(each for each, _ in found if each).replace(" of it ", f" of step {step} ", 1)
    table = {
        key: Value(tuple(shape), dtype, layout, place, (Stretch(0, 0, 1, whole_box(shape), ""),))
        for _, each in found for key, (shape, dtype, layout, place) in each.items()
    }  # fmt: skip
    manifest = Manifest(step, tree, {key: table[key] for key in sorted(table)}, [], mesh, classes, "crc32")
    return Found(step, kind, manifest, here.offers), ""


class _Directory:
    """The values whose directory this rank is.

    Parameters
    ----------
    group : Communicator
    wanted : set of str
        The paths of the values that the tree has. Of an array that each class of ranks has for itself, the path ends
        with the number of the class.

    Attributes
    ----------
    values : dict of str to list
        By key: shape, dtype, layout and place.
    offers : dict of str to list of (int, Box)
        The ranks that hold boxes, and these.
    """

    def __init__(self, group: Any, wanted: Set[str]):
        self.group, self.wanted = group, wanted
        self.values: dict[str, list[Any]] = {}
        self.offers: dict[str, list[tuple[int, Box]]] = {}
        self._digests: dict[Any, tuple[int, str]] = {}
        self._faults: list[str] = []
        self._shapes: dict[int, dict[str, Any]] = {}  # of the values of each head

    def take(self, rank: int, head: Mapping[str, Any], boxes: Mapping[str, Any], own_class: int) -> None:
        """Note the boxes that a rank holds."""
        known = self._shapes.setdefault(id(head), {key: each for key, *each in head["values"]})
        for key, each in boxes.items():
            shape, dtype, layout, place, is_own = known[key]
            if is_own and own_class >= 0 and f"{key}@{own_class}" in self.wanted:
                key = f"{key}@{own_class}"
            if self.values.setdefault(key, [shape, dtype, layout, place])[:2] == [shape, dtype]:
                for box, digest in each:
                    self._add(key, rank, _box_of(box), digest)

    def _add(self, key: str, rank: int, box: Box, digest: str) -> None:
        self.offers.setdefault(key, []).append((rank, box))
        other, before = self._digests.setdefault((key, box), (rank, digest))
        if before != digest:
            who = f"ranks {self.group.ranks[other]} and {self.group.ranks[rank]}"
            self._faults.append(f"{key} of it is one value, and {who} have different ones")

    def fault(self, expected: Mapping[str, tuple[int, ...]]) -> str:
        """A text on the first value that differs between ranks, or of which elements are missing; "" if there is none.

        `expected` has the shapes of values that all ranks together had.
        """
        mine = {key for key in (*self.wanted, *expected) if _directory(key, self.group.size) == self.group.index}
        held = {key.partition("@")[0] for key in self.values} | self.values.keys()
        missing = [path for path in mine & self.wanted if path not in held]
        for key in {*self.values, *(mine & expected.keys())}:
            shape = self.values[key][0] if key in self.values else expected[key]
            if _cover(whole_box(shape), self.offers.get(key, ()))[1]:
                missing.append(key)
        return min([*self._faults, *(f"{key} of it was lost with it" for key in missing)], default="")


def _directory(key: str, ranks: int) -> int:
    """The rank that is the directory of a value."""
    return zlib.crc32(key.partition("@")[0].encode()) % ranks


def _packed(x: Any) -> bytes:
    """A JSON value as bytes; those of an empty one are none."""
    return zlib.compress(json.dumps(x).encode(), 1) if x else b""


def _unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data)) if data else None


def _box_of(x: Any) -> Box:
    return tuple((a, b) for a, b in x)


def _merged(of_ranks: Sequence[Any], ranks: Sequence[int], places: Sequence[int | None]) -> tuple[Any, ...]:
    """The tree of live objects, the classes of the ranks that had them, their mesh, and the class of each rank here.

    Ranks that are no longer there are a class without anything. Then the mesh is none that another one can equal.
    """
    mesh = of_ranks[ranks[0]]["mesh"]
    of_head = {id(each): json.dumps(each["tree"]) for each in of_ranks if each is not None}
    texts = {rank: of_head[id(of_ranks[rank])] for rank in ranks}
    kinds = list(dict.fromkeys(texts.values()))
    own_class = {rank: kinds.index(text) for rank, text in texts.items()}
    classes = [len(kinds)] * math.prod(mesh.values())
    for rank in ranks:
        classes[places[rank] or 0] = own_class[rank]
    is_whole = len(kinds) not in classes
    tree = merged([json.loads(text) for text in kinds] + [{}] * (not is_whole))
    return tree, classes, mesh if is_whole else {}, own_class


def _cover(whole: Box, boxes: Iterable[tuple[int, Box]]) -> tuple[list[tuple[int, Box, Box]], list[Box]]:
    """Parts of boxes that cover a whole one, each with its rank and the box that it is a part of; and what is left."""
    rest = [whole] if elements(whole) else []
    found = []
    for rank, box in boxes:
        if not rest:
            break
        for part in rest:
            common = meet(part, box)
            if common is not None:
                found.append((rank, common, box))
        rest = [each for part in rest for each in without(part, box)]
    return found, rest


# -- the values --------------------------------------------------------------------------------------------------------
class _Memory(Source):
    """The values of a step in the memory of the ranks.

    Parameters
    ----------
    manifest : Manifest
    data : dict, optional
        By key, the arrays of the pieces. Without it all values are zero, and `wanted` gets the parts that are read.
    """

    def __init__(self, manifest: Manifest, data: Mapping[str, Sequence[Any]] | None = None):
        super().__init__(manifest, "the memory of the ranks", False)
        self.wanted: dict[tuple[str, Box], None] = {}
        self.data = data

    def read(self, key: str, i: int, p: Stretch, flat: Any) -> None:
        np.frombuffer(flat, np.uint8)[...] = flat_bytes(self._box(key, i, p.box, self.manifest.values[key].numpy_dtype))

    def piece(self, key: str, i: int, value: Value) -> Any:
        return np.array(self._box(key, i, value.pieces[i].box, value.numpy_dtype))

    def part(self, key: str, i: int, p: Stretch, box: Box, dtype: Any, into: Any) -> None:
        into[...] = self._box(key, i, box, dtype)

    def _box(self, key: str, i: int, box: Box, dtype: Any) -> Any:
        if self.data is not None:
            return self.data[key][i][within(box, self.manifest.values[key].pieces[i].box)]
        self.wanted[key, box] = None
        return np.zeros(shape_of(box), dtype)


def load_found(group: Any, found: Found, objects: Mapping[str, Any], holdings: Sequence[Holding]) -> Restored:
    """Set the states of objects from a step in memory. The ranks of the mesh call it, the others `exchange_values`.

    If it raises, nothing has been changed on any rank.
    """
    of = f"{_OF} of step {found.step}"
    asking = _Memory(found.manifest)
    with together({}, of):
        known = objects_of(objects)
        prepared(known, asking)
    parts = exchange_values(group, found, list(asking.wanted), holdings)
    values_here = {
        key: replace(value, pieces=tuple(Stretch(i, 0, 1, box, "") for i, (box, _) in enumerate(parts.get(key, ()))))
        for key, value in found.manifest.values.items()
    }
    data = {key: [array for _, array in each] for key, each in parts.items()}
    told: dict[str, Any] = {}
    with together(told, of) as everyone:
        source = _Memory(replace(found.manifest, values=values_here), data)
        commits, others, values, unnamed = prepared(known, source)
        told |= source.report(known.keys(), unnamed)
    with together({}, of):
        source.refuse_unused(everyone)
    set_states(commits, others, of)
    return Restored(found.step, values)


def exchange_values(
    group: Any, found: Found, wanted: Sequence[tuple[str, Box]], holdings: Sequence[Holding]
) -> dict[str, list[tuple[Box, Any]]]:
    """The parts of values that this rank wants, from the ranks that hold them. All ranks of the epoch call it.

    Parameters
    ----------
    group : Communicator
    found : Found
    wanted : sequence of (str, Box)
        The key of a value, and the part of it.
    holdings : sequence of Holding
        Of this rank.

    Returns
    -------
    dict of str to list of (Box, array)
        By key, boxes that together are the parts that are wanted.
    """
    n, me = group.size, group.index
    requests = _located(group, found, wanted)
    coming = _to_each(group, [_packed(each) for each in requests])
    arrays = {
        (entry.key, entry.box): entry.array
        for each in holdings if each.step == found.step and each.kind == found.kind for entry in each.entries
    }  # fmt: skip
    lane, pending = group.lane("restore"), []
    for step in range(1, n):
        rank = (me + step) % n
        if coming[rank]:
            flat = np.concatenate([flat_bytes(_cut(arrays, *each)) for each in _unpacked(coming[rank])])
            if flat.size:
                pending.append(lane.lend(flat, rank))
    data: dict[str, list[tuple[Box, Any]]] = {}
    for step in range(n):
        rank = (me - step) % n
        if rank == me:
            for key, whole, box in requests[me]:
                data.setdefault(key, []).append((box, _cut(arrays, key, whole, box)))
            continue
        kinds = [found.manifest.values[key].numpy_dtype for key, _, _ in requests[rank]]
        sizes = [elements(box) * kind.itemsize for kind, (_, _, box) in zip(kinds, requests[rank], strict=True)]
        if sum(sizes):
            flat, at = lane.recv(np.empty(sum(sizes), np.uint8), rank), 0
            for (key, _, box), kind, size in zip(requests[rank], kinds, sizes, strict=True):
                data.setdefault(key, []).append((box, flat[at : at + size].view(kind).reshape(shape_of(box))))
                at += size
    for each in pending:
        each.wait()
    return data


def _located(group: Any, found: Found, wanted: Sequence[tuple[str, Box]]) -> list[list[Request]]:
    """The parts that this rank asks each other one for, as the directories of the values say. All ranks call it."""
    n = group.size
    asked: list[list[tuple[str, Box]]] = [[] for _ in range(n)]
    for key, box in wanted:
        asked[_directory(key, n)].append((key, box))
    coming = _to_each(group, [_packed(each) for each in asked])
    answers = []
    for rank, data in enumerate(coming):
        near = {key: sorted(found.offers[key], key=lambda each: (each[0] - rank) % n)
                for key in dict.fromkeys(key for key, _ in _unpacked(data) or ())}  # fmt: skip
        answers.append([
            [key, holder, whole, part] for key, box in _unpacked(data) or ()
            for holder, part, whole in _cover(_box_of(box), near[key])[0]
        ])  # fmt: skip
    requests: list[list[Request]] = [[] for _ in range(n)]
    for data in _to_each(group, [_packed(each) for each in answers]):
        for key, holder, whole, part in _unpacked(data) or ():
            requests[holder].append((key, _box_of(whole), _box_of(part)))
    return requests


def _cut(arrays: Mapping[tuple[str, Box], Any], key: str, whole: Any, box: Any) -> Any:
    """A part of an array that this rank holds, contiguous and on the host."""
    whole, box = _box_of(whole), _box_of(box)
    array = arrays.get((key, whole))
    if array is None:  # an array that each class of ranks has for itself
        array = arrays[key.rpartition("@")[0], whole]
    return np.ascontiguousarray(to_host(array)[within(box, whole)]).reshape(shape_of(box))


def _to_each(group: Any, data: Sequence[bytes]) -> list[bytes]:
    """Send some bytes to each rank, and return those from each. All ranks call it."""
    if group.size == 1:
        return list(data)
    ones = [1] * group.size
    sizes = np.array([len(each) for each in data], np.int64)
    coming = group.all_to_all(sizes, ones, ones)
    flat = group.all_to_all(np.frombuffer(b"".join(data), np.uint8), sizes.tolist(), coming.tolist())
    ends = np.cumsum(coming)
    return [flat[end - size : end].tobytes() for end, size in zip(ends, coming, strict=True)]
