"""The newest state that the ranks which are left hold together, and its values where they are needed.

All ranks of an epoch call these functions in the same order, those without a place on the mesh too: they may hold what
others need.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
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
        The pieces of a value are boxes without elements in common; the file of a piece is the rank that holds it.
    held : dict of (str, int) to Box
        The box of the holder in which a piece lies, by key and place.
    """

    step: int
    kind: str
    manifest: Manifest
    held: dict[tuple[str, int], Box]


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
        blobs, which = unique(group, mine[0].inventory() if mine else b"", _OF)
        known = [json.loads(zlib.decompress(blob)) if blob else None for blob in blobs]
        places = [next((at for *key, at in each if key == [kind, step, epoch]), None) for each in told]
        found, missing = _put_together(group.index, step, kind, [known[k] for k in which], places)
        if found is not None:
            return found, ""
        lost = lost or f"{missing} of step {step}"
    return None, lost


def _put_together(
    me: int, step: int, kind: str, of_ranks: Sequence[Any], places: Sequence[int | None]
) -> tuple[Found | None, str]:
    """A step from the inventories of the ranks; or None, and a value of which elements are missing."""
    ranks = [rank for rank, each in enumerate(of_ranks) if each is not None]
    if kind == "copies":
        first = of_ranks[ranks[0]]
        tree, classes, mesh = first["tree"], first["classes"], first["mesh"]
        own_class = dict.fromkeys(ranks, -1)
    else:
        tree, classes, mesh, own_class = _merged(of_ranks, ranks, places)
        if not mesh and (own := values_of_ranks(tree)):  # those of the ranks that are no longer there are lost
            return None, own[0].partition("@")[0]
    offers = _offers(of_ranks, ranks, own_class, values_of(tree))
    expected = {key: tuple(shape) for rank in ranks for key, shape in of_ranks[rank]["expected"].items()}
    for path in values_of(tree):
        if path not in offers and not any(key.startswith(f"{path}@") for key in offers):
            return None, path
    values: dict[str, Value] = {}
    held: dict[tuple[str, int], Box] = {}
    for key in sorted({*offers, *expected}):
        shape, dtype, layout, place, boxes = offers.get(key, (expected.get(key, ()), "float64", {}, {}, []))
        pieces, rest = _cover(whole_box(shape), sorted(boxes, key=lambda each: (each[0] - me) % len(of_ranks)))
        if rest:
            return None, key
        values[key] = Value(shape, dtype, layout, place, tuple(Stretch(rank, 0, 1, box, "") for rank, box, _ in pieces))
        held |= {(key, i): whole for i, (_, _, whole) in enumerate(pieces)}
    manifest = Manifest(step, tree, values, [], mesh, classes, "crc32")
    return Found(step, kind, manifest, held), ""


def _merged(of_ranks: Sequence[Any], ranks: Sequence[int], places: Sequence[int | None]) -> tuple[Any, ...]:
    """The tree of live objects, the classes of the ranks that had them, their mesh, and the class of each rank here.

    Ranks that are no longer there are a class without anything. Then the mesh is none that another one can equal.
    """
    mesh = of_ranks[ranks[0]]["mesh"]
    texts = {rank: json.dumps(of_ranks[rank]["tree"]) for rank in ranks}
    kinds = list(dict.fromkeys(texts.values()))
    own_class = {rank: kinds.index(text) for rank, text in texts.items()}
    classes = [len(kinds)] * math.prod(mesh.values())
    for rank in ranks:
        classes[places[rank] or 0] = own_class[rank]
    is_whole = len(kinds) not in classes
    tree = merged([json.loads(text) for text in kinds] + [{}] * (not is_whole))
    return tree, classes, mesh if is_whole else {}, own_class


def _offers(
    of_ranks: Sequence[Any], ranks: Sequence[int], own_class: Mapping[int, int], paths: Iterable[str]
) -> dict[str, Any]:
    """By key: the shape, dtype, layout and place of a value, and the boxes that ranks hold.

    Of an array that each class of ranks has for itself, the key ends with the number of the class, as in the tree.
    """
    wanted = set(paths)
    found: dict[str, Any] = {}
    for rank in ranks:
        for key, (shape, dtype, layout, place, is_own, boxes) in of_ranks[rank]["values"].items():
            if is_own and own_class[rank] >= 0 and f"{key}@{own_class[rank]}" in wanted:
                key = f"{key}@{own_class[rank]}"
            known = found.setdefault(key, (tuple(shape), dtype, layout, place, []))
            if known[:2] == (tuple(shape), dtype):
                known[-1].extend((rank, tuple((a, b) for a, b in box)) for box in boxes)
    return found


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
    found : Found
    data : dict, optional
        The parts that have arrived, by key, place and box. Without it all values are zero, and `wanted` gets the parts
        that are read.
    """

    def __init__(self, found: Found, data: Mapping[Any, Any] | None = None):
        super().__init__(found.manifest, SimpleNamespace(folder="the memory of the ranks"), False)  # type: ignore[arg-type]
        self.wanted: dict[tuple[str, int, Box], None] = {}
        self.data = data

    def read(self, key: str, i: int, p: Stretch, flat: Any) -> None:
        np.frombuffer(flat, np.uint8)[...] = flat_bytes(self._box(key, i, p.box, self.manifest.values[key].numpy_dtype))

    def piece(self, key: str, i: int, value: Value) -> Any:
        return np.array(self._box(key, i, value.pieces[i].box, value.numpy_dtype))

    def part(self, key: str, i: int, p: Stretch, box: Box, dtype: Any, into: Any) -> None:
        into[...] = self._box(key, i, box, dtype)

    def _box(self, key: str, i: int, box: Box, dtype: Any) -> Any:
        if self.data is not None:
            return self.data[key, i, box]
        self.wanted[key, i, box] = None
        return np.zeros(shape_of(box), dtype)


def load_found(group: Any, found: Found, objects: Mapping[str, Any], holdings: Sequence[Holding]) -> Restored:
    """Set the states of objects from a step in memory. The ranks of the mesh call it, the others `exchange_values`.

    If it raises, nothing has been changed on any rank.
    """
    of = f"{_OF} of step {found.step}"
    asking = _Memory(found)
    with together({}, of):
        prepared(objects, asking)
    data = exchange_values(group, found, list(asking.wanted), holdings)
    told: dict[str, Any] = {}
    with together(told, of) as everyone:
        source = _Memory(found, data)
        commits, others, values, unnamed = prepared(objects, source)
        told |= source.report(objects_of(objects).keys(), unnamed)
    with together({}, of):
        source.refuse_unused(everyone)
    set_states(commits, others, of)
    return Restored(found.step, values)


def exchange_values(
    group: Any, found: Found, wanted: Sequence[tuple[str, int, Box]], holdings: Sequence[Holding]
) -> dict[tuple[str, int, Box], Any]:
    """The parts of values that this rank wants, from the ranks that hold them. All ranks of the epoch call it.

    Parameters
    ----------
    group : Communicator
    found : Found
    wanted : sequence of (str, int, Box)
        The key and the place of a piece, and the part of it.
    holdings : sequence of Holding
        Of this rank.
    """
    n, me = group.size, group.index
    asked: list[list[tuple[str, int, Box]]] = [[] for _ in range(n)]
    for key, i, box in wanted:
        asked[found.manifest.values[key].pieces[i].file].append((key, i, box))
    requests = [[(key, found.held[key, i], box) for key, i, box in each] for each in asked]
    coming = _to_each(group, [zlib.compress(json.dumps(each).encode(), 1) if each else b"" for each in requests])
    arrays = _arrays(found, holdings)
    lane, pending = group.lane("restore"), []
    for step in range(1, n):
        rank = (me + step) % n
        if coming[rank]:
            parts = [_cut(arrays, *each) for each in json.loads(zlib.decompress(coming[rank]))]
            flat = np.concatenate([flat_bytes(part) for part in parts])
            if flat.size:
                pending.append(lane.lend(flat, rank))
    data = {}
    for step in range(n):
        rank = (me - step) % n
        kinds = [found.manifest.values[key].numpy_dtype for key, _, _ in asked[rank]]
        sizes = [elements(box) * kind.itemsize for kind, (_, _, box) in zip(kinds, asked[rank], strict=True)]
        if rank == me:
            for (key, i, box), (_, whole, _) in zip(asked[me], requests[me], strict=True):
                data[key, i, box] = _cut(arrays, key, whole, box)
        elif sum(sizes):
            flat, at = lane.recv(np.empty(sum(sizes), np.uint8), rank), 0
            for (key, i, box), kind, size in zip(asked[rank], kinds, sizes, strict=True):
                data[key, i, box] = flat[at : at + size].view(kind).reshape(shape_of(box))
                at += size
    for each in pending:
        each.wait()
    return data


def _arrays(found: Found, holdings: Sequence[Holding]) -> dict[tuple[str, Box], Any]:
    """The arrays of a step that this rank holds, by key and box."""
    arrays: dict[tuple[str, Box], Any] = {}
    for holding in holdings:
        if holding.step == found.step and holding.kind == found.kind:
            arrays |= {(entry.key, entry.box): entry.array for entry in holding.entries}
    return arrays


def _cut(arrays: Mapping[tuple[str, Box], Any], key: str, whole: Any, box: Any) -> Any:
    """A part of an array that this rank holds, contiguous and on the host."""
    whole, box = (tuple((a, b) for a, b in x) for x in (whole, box))
    array = arrays.get((key, whole))
    if array is None:  # an array that each class of ranks has for itself
        array = arrays[key.rpartition("@")[0], whole]
    part = to_host(array)[within(box, whole)]
    return np.ascontiguousarray(part).reshape(shape_of(box))


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
