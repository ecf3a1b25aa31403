"""Reading a checkpoint: each rank reads the ranges of bytes of its parts, and all ranks together check the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from autograd.engine.state import state
from autograd.errors import (
    CheckpointError,
    CheckpointWarning,
    DamagedCheckpoint,
    LayoutError,
    OptionError,
    RingtapeError,
    ShapeError,
    warn,
)
from autograd.layouts.layout import Layout
from autograd.machine import environment_of_bits
from autograd.nn import Module
from autograd.nn.saving import prepares, restored_on_error
from autograd.whole import Piece, Stored

from . import disk
from .boxes import Box, boxes_in, meet, refined, shape_of, within
from .directory import Directory
from .manifest import Manifest, Value, refuse
from .ownership import Placement, placement_of
from .pieces import Stretch, equal_to, meeting
from .replicas import exchanged
from .tree import Decoder, objects_of, on_its_mesh, parts_at

__all__ = [
    "FileSource", "Restored", "Source", "StoredValue", "agreed_step", "leave_out", "load_step", "newest", "prepared",
    "set_states", "together",
]  # fmt: skip

_ROWS_AT_ONCE = 1 << 20  # bytes
_LONG_ROW = 1 << 14  # bytes; a call of the system costs as much as copying some KiB


class Restored(NamedTuple):
    """The result of `load`: the step, and the plain values by name. Objects have their states already."""

    step: int
    values: dict[str, Any]


class Source:
    """The values of a checkpoint, read by parts: from files (`FileSource`), or from the memory of ranks.

    Parameters
    ----------
    manifest : Manifest
    folder : str
        Where they are, for errors.
    checksums : bool
        Whether the checksum of each piece that is read is compared.

    Attributes
    ----------
    used : set of str
        The keys of values that were asked for.
    checked, partly : set of (str, int)
        The pieces, by key and place, that were read whole and compared, and those of which parts were read.
    """

    def __init__(self, manifest: Manifest, folder: str, checksums: bool):
        self.manifest, self.folder = manifest, folder
        self.used: set[str] = set()
        self.checked: set[tuple[str, int]] = set()
        self.partly: set[tuple[str, int]] = set()
        self._checksum = disk.running_checksum(manifest.checksum, folder) if checksums else None

    def value(self, key: str) -> StoredValue:
        """A value, of which nothing is read yet."""
        return StoredValue(self, key)

    def piece(self, key: str, i: int, value: Value) -> Any:
        """Read a piece, and compare its checksum."""
        p = value.pieces[i]
        flat, shape = np.empty(p.end - p.begin, np.uint8), [end - begin for begin, end in p.box]
        self.read(key, i, p, flat)
        return flat.view(value.file_dtype).reshape(shape)

    def read(self, key: str, i: int, p: Stretch, flat: Any) -> None:
        """Read a whole piece into an array of bytes, and compare its checksum."""
        raise NotImplementedError

    def part(self, key: str, i: int, p: Stretch, box: Box, dtype: Any, into: Any) -> None:
        """Read a part of a piece."""
        raise NotImplementedError

    def report(self, given: Set[str], unnamed: set[str]) -> dict[str, Any]:
        """Tell the other ranks what this one has not used of the objects that were given, and what it has not checked.

        Values are told by their numbers, in the order of the manifest.
        """
        places = {key: i for i, key in enumerate(self.manifest.values)}
        return {
            "unused": [i for key, i in places.items() if key not in self.used and _is_of(key, given)],
            "unnamed": sorted(unnamed),
            "partly": sorted([places[key], i] for key, i in self.partly - self.checked),
        }

    def refuse_unused(self, everyone: Sequence[Mapping[str, Any]]) -> None:
        """Raise ShapeError for a value, or a parameter of an optimizer, that no rank has."""
        keys = list(self.manifest.values)
        names = [keys[i] for i in sorted(set.intersection(*[set(each["unused"]) for each in everyone]))]
        names += sorted(set.intersection(*[set(each["unnamed"]) for each in everyone]))
        if names:
            more = f" and {len(names) - 1} more value{'s' * (len(names) > 2)}" if len(names) > 1 else ""
            raise ShapeError(
                f"checkpoint.load of step {self.manifest.step}: the checkpoint has {names[0]!r}{more}, which the "
                "objects do not have on any rank\n  fix: the model and the optimizer of the run that saved it"
            )

    def check_share(self, partly: Sequence[tuple[str, int]], k: int, ranks: int) -> None:
        """Compare the checksums of this rank's share of pieces of which parts were read, by key and place."""
        if self._checksum is not None:
            for key, i in partly[k::ranks]:
                if (key, i) not in self.checked:
                    self.piece(key, i, self.manifest.values[key])

    def check_parts(self) -> None:
        """Compare the checksums of the pieces of which parts were read, and forget these."""
        if self._checksum is not None:
            for key, i in sorted(self.partly - self.checked):
                self.piece(key, i, self.manifest.values[key])
        self.partly.clear()


class FileSource(Source):
    """The values of a checkpoint in its files, given what reads them."""

    def __init__(self, manifest: Manifest, reader: disk.Reader, checksums: bool):
        super().__init__(manifest, reader.folder, checksums)
        self.reader = reader

    def read(self, key: str, i: int, p: Stretch, flat: Any) -> None:
        running = None if self._checksum is None else self._checksum()
        self.reader.read(p.file, p.begin, memoryview(flat), running and running.update)
        if running is not None:
            if (found := running.hexdigest()) != p.checksum:
                name = self.manifest.files[p.file][0]
                raise DamagedCheckpoint(
                    f"checkpoint {self.folder}, {name}, bytes {p.begin} to {p.end}, of {key}: the checksum is "
                    f"{found}, and it was {p.checksum} when it was saved"
                )
            self.checked.add((key, i))

    def part(self, key: str, i: int, p: Stretch, box: Box, dtype: Any, into: Any) -> None:
        """Read a part of a piece; of the bytes between its rows only those between short rows.

        The file is not mapped: the system would end the process if the file was cut off meanwhile.
        """
        self.partly.add((key, i))
        self._rows(p.file, p.begin, shape_of(p.box), within(box, p.box), dtype, into)

    def _rows(
        self, file: int, begin: int, shape: tuple[int, ...], wanted: tuple[slice, ...], dtype: Any, into: Any
    ) -> None:
        """Read a part of an array of some shape that begins at a byte of a file."""
        row, first, last = math.prod(shape[1:]) * dtype.itemsize, wanted[0].start, wanted[0].stop
        used = math.prod(s.stop - s.start for s in wanted[1:]) * dtype.itemsize
        if used == row and into.flags.c_contiguous:
            self.reader.read(file, begin + first * row, disk.bytes_of(into))
        elif len(shape) > 1 and (row > _ROWS_AT_ONCE or _LONG_ROW <= used <= row // 2):
            for k in range(first, last):
                self._rows(file, begin + k * row, shape[1:], wanted[1:], dtype, into[k - first])
        else:
            count = max(_ROWS_AT_ONCE // row, 1)
            for k in range(first, last, count):
                held = np.empty((min(count, last - k), *shape[1:]), dtype)
                self.reader.read(file, begin + k * row, disk.bytes_of(held))
                into[k - first : k - first + len(held)] = held[(slice(None), *wanted[1:])]


def _is_of(key: str, paths: Set[str]) -> bool:
    """Whether a value is one of the objects with these paths."""
    at = key.find("/")
    while at >= 0:
        if key[:at] in paths:
            return True
        at = key.find("/", at + 1)
    return False


class StoredValue(Stored):
    """A value in the files of a checkpoint, in a shape that may split or merge dimensions of the one that was saved."""

    def __init__(self, source: Source, key: str, shape: tuple[int, ...] | None = None):
        self.source, self.key, self.saved = source, key, source.manifest.values[key]
        self.shape = self.saved.shape if shape is None else shape
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        return self.saved.numpy_dtype

    def reshaped(self, shape: tuple[int, ...]) -> StoredValue | None:
        shape = tuple(int(n) for n in shape)
        if refined(self.saved.shape, shape) is None:
            return None
        return StoredValue(self.source, self.key, shape)

    def __getitem__(self, box: Any) -> Any:
        box = () if box is Ellipsis else box
        slices = [*box, *(slice(None),) * (self.ndim - len(box))]
        wanted = tuple([s.indices(n)[:2] for s, n in zip(slices, self.shape, strict=True)])
        self.source.used.add(self.key)
        whole = equal_to(self.saved.pieces, wanted) if self.shape == self.saved.shape else None
        if whole is not None:
            found = self.source.piece(self.key, whole, self.saved)
        else:
            dtype = self.saved.file_dtype
            found = np.empty(shape_of(wanted), dtype)
            finer = refined(self.saved.shape, self.shape)
            assert finer is not None
            for own, box in boxes_in(wanted, self.shape, finer):
                if finer == self.shape:
                    self._fill(box, found[within(own, wanted)], finer, dtype)
                else:
                    part = np.empty(shape_of(box), dtype)
                    self._fill(box, part, finer, dtype)
                    found[within(own, wanted)] = part.reshape(shape_of(own))
        return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))

    def _fill(self, wanted: Box, out: Any, finer: tuple[int, ...], dtype: Any) -> None:
        """Read a box for a shape that splits dimensions of the saved one, or is the same, into an array."""
        if finer == self.saved.shape:
            for i in meeting(self.saved.pieces, wanted):
                p = self.saved.pieces[i]
                common = meet(p.box, wanted)
                assert common is not None
                self._read(i, p, common, dtype, out[within(common, wanted)])
            return
        for i, p in enumerate(self.saved.pieces):
            for own, box in boxes_in(p.box, self.saved.shape, finer):
                common = meet(box, wanted)
                if common is not None:
                    held = np.empty(shape_of(own), dtype)
                    self._read(i, p, own, dtype, held)
                    out[within(common, wanted)] = held.reshape(shape_of(box))[within(common, box)]

    def _read(self, i: int, p: Stretch, box: Box, dtype: Any, into: Any) -> None:
        if box == p.box and into.flags.c_contiguous and into.size:
            self.source.read(self.key, i, p, disk.bytes_of(into))
        elif into.size:
            self.source.part(self.key, i, p, box, dtype, into)


# -- steps -------------------------------------------------------------------------------------------------------------
def newest(directory: Directory, below: int | None = None) -> int | None:
    """The newest step that is whole, with a warning for each newer one that is not; None if there is none."""
    for step in reversed(directory.steps()):
        if below is None or step < below:
            try:
                directory.manifest(step)
            except CheckpointError as error:
                leave_out(directory, step, error)
                continue
            return step
    return None


def leave_out(directory: Directory, step: int, error: CheckpointError) -> None:
    """Warn that a step is damaged, and that an older one is taken."""
    warn(f"checkpoint {directory.path}: step {step} is left out: {error.reason}", CheckpointWarning)


def agreed_step(directory: Directory, below: int | None = None) -> int | None:
    """The newest whole step, as the first rank sees it. All ranks of the mesh call it."""
    group = state.distribution.group()
    mine = newest(directory, below) if group.index == 0 else None
    found: int | None = json.loads(group.exchange(json.dumps(mine).encode(), of="checkpoint.load")[0])
    return found


def load_step(directory: Directory, objects: Any, step: int, checksums: bool) -> Restored:
    """Load one step. All ranks of the mesh call it. If it raises, nothing has been changed on any rank.

    Raises
    ------
    DamagedCheckpoint
        The step is damaged on the disk: another one may be whole.
    RingtapeError
        Objects do not take their states.
    """
    group = state.distribution.group()
    if group.dry:
        raise OptionError("checkpoint.load was called in a dry world, which has no values\n  fix: load in a real one")
    of = f"checkpoint.load of step {step}"
    if not isinstance(objects, Mapping):
        objects = {"state": objects}
    with disk.Reader(directory.of_step(step)) as reader:
        told: dict[str, Any] = {}
        with together(told, of) as everyone:
            manifest = directory.manifest(step)
            reader.files = manifest.files
            source = FileSource(manifest, reader, checksums)
            known = objects_of(objects)
            # Memory that is taken in one piece and freed: the arrays that are read next take it, with large pages
            # throughout, if the process keeps what it frees (`kernels.keep_freed_memory`). Taken one by one from the
            # system, each has small pages at its ends, which take as long as all the large ones.
            try:
                np.empty(manifest.size // group.size, np.uint8)
            except MemoryError:
                pass
            commits, others, values, unnamed = prepared(known, source)
            told |= source.report(known.keys(), unnamed)
        with together({}, of):
            source.refuse_unused(everyone)
            partly = sorted({(key, i) for each in everyone for key, i in each["partly"]})
            keys = list(manifest.values)
            source.check_share([(keys[n], i) for n, i in partly], group.index, group.size)
        set_states(commits, others, of)
    _compare_bits(manifest, known)
    return Restored(step, values)


def set_states(commits: Sequence[Callable[[], None]], others: Sequence[tuple[Any, Any]], of: str) -> None:
    """Set the states that `prepared` has checked. All ranks of the mesh call it."""
    if others:
        with restored_on_error(x for x, _ in others), together({}, of):
            for x, known in others:
                x.load_state_dict(known)
    for commit in commits:
        commit()


def _compare_bits(manifest: Manifest, objects: Mapping[str, Any]) -> None:
    """Warn if a run with the same bits on any mesh goes on where its bits may be other ones."""
    if any(getattr(x, "bits", None) == "same" for x in objects.values()):
        before, now = manifest.about.get("bits"), environment_of_bits()
        if isinstance(before, dict) and before != now:
            changes = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in now if before.get(key) != now.get(key)]
            warn(
                f"checkpoint.load of step {manifest.step}: with bits='same' the run goes on with other bits than where "
                f"it was saved: {', '.join(changes)}\n  fix: the same libraries, kernels and number of threads",
                CheckpointWarning,
            )


def prepared(
    objects: Mapping[str, Any], source: Source
) -> tuple[list[Callable[[], None]], list[tuple[Any, Any]], dict[str, Any], set[str]]:
    """Check the states of objects, by path. All that is read of values is read here.

    Returns
    -------
    commits : list of callable
        They set the states.
    others : list of (object, object)
        The objects that cannot check their states before, with these.
    values : dict
        The plain values.
    unnamed : set of str
        The parameters of optimizers that are not here.
    """
    manifest = source.manifest
    tree = manifest.tree
    grid, group = state.grid, state.distribution.group()
    mesh = {} if grid is None else dict(zip(grid.names, map(int, grid.sizes), strict=True))
    is_same = mesh == manifest.mesh and group.size == len(manifest.classes)
    place = manifest.classes[group.index] if is_same else None
    decoder = Decoder(partial(_value, source, {}), place, manifest.classes)
    commits: list[Callable[[], None]] = []
    others = []
    # Modules first: a parameter that is assigned replaces the master weight that an optimizer has of it.
    for part in sorted(parts_at(objects), key=lambda part: not isinstance(part.object, Module)):
        path, x, owner = part
        if path not in tree:
            if "/attached/" in path:
                continue  # the run that saved it had no such memory
            raise ShapeError(
                f"checkpoint.load of step {manifest.step}: it has no {path!r}; it has "
                f"{', '.join(map(repr, tree)) or 'nothing'}"
                + "\n  fix: checkpoint.load(directory, x), as one object was saved, without a name" * ("state" in tree)
            )
        if not _is_state(tree[path]):
            inside = [repr(each) for each in tree if each.startswith(f"{path}/")]
            raise CheckpointError(
                f"checkpoint.load of step {manifest.step}: {path!r} is a plain value in it, no state"
                + (f"; of these it has {', '.join(inside)}" if inside else "")
            )
        try:
            with on_its_mesh(owner):
                known = decoder.decode(tree[path]["state"], part.state(), path, isinstance(x, Module))
                if prepares(x):
                    commits.append(x.prepare_state_dict(known))
                else:
                    others.append((x, known))
        except RingtapeError as error:
            error.add_note(f"while checkpoint.load of step {manifest.step} checked the state of {path!r}")
            raise
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint.load of step {manifest.step}: the state of {path!r} is none of a {type(x).__name__}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return commits, others, _plain_values(tree, decoder, source.folder), decoder.unused


def _plain_values(tree: Mapping[str, Any], decoder: Decoder, folder: Any) -> dict[str, Any]:
    values = {}
    for name, code in tree.items():
        if not _is_state(code):
            try:
                values[name] = decoder.decode(code, None, name)
            except RingtapeError:
                raise
            except (TypeError, ValueError, LookupError) as error:
                refuse(folder, name, f"it is no plain value: {type(error).__name__}: {error}")
    return values


def _is_state(code: Any) -> bool:
    return isinstance(code, dict) and "state" in code


def _value(source: Source, placements: dict[Layout, Placement], path: str, like: Any) -> Any:
    """A value of the tree: not read yet for what has a layout, or is a part of a module; else its array.

    `placements` gets those of the layouts that were met.
    """
    values, place, key = source.manifest.values, {}, path
    if isinstance(like, Piece) and like.layout is not None:
        at = placements.get(like.layout)
        if at is None:
            at = placements[like.layout] = placement_of(like.layout)
        place, key = at.place, path + at.suffix
    if key not in values and place and path in values:
        key = path  # it was one value for all ranks
    sizes = dict(zip(like.layout.grid.names, like.layout.grid.sizes, strict=True)) if place else {}
    is_other = key != path and any(source.manifest.mesh.get(axis) != sizes[axis] for axis in place)
    if key not in values or is_other:
        saved = [each for each in values if each.startswith(f"{path}@")]
        if not saved:
            return refuse(source.folder, path, "its tree has a value of which it has no pieces")
        fault = f"each rank has a value of its own there, {', '.join(saved[:4])}{', ...' * (len(saved) > 4)}"
        raise LayoutError(
            f"checkpoint.load of step {source.manifest.step}: {path}: in the checkpoint {fault}, and here "
            + (", ".join(f"{axis!r} has {sizes[axis]} ranks" for axis in place) if place else "it is one value")
            + "\n  fix: the mesh and the layouts of the run that saved it"
        )
    found = source.value(key)
    return found if isinstance(like, Piece) else found[...]


class together:
    """A block that fails on all ranks of the mesh if it fails on one.

    The list that it gives has, when the block has ended, what each rank has put into `mine`.
    """

    def __init__(self, mine: dict[str, Any], of: str):
        self.mine, self.of, self.group = mine, of, state.distribution.group()
        self.everyone: list[dict[str, Any]] = []

    def __enter__(self) -> list[dict[str, Any]]:
        return self.everyone

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is not None and (self.group.size == 1 or not isinstance(error, Exception)):
            return
        if self.group.size == 1:
            self.everyone.append(self.mine)
            return
        is_damage = isinstance(error, DamagedCheckpoint)
        code = {**self.mine, "error": error and f"{type(error).__name__}: {error}", "damage": is_damage}
        self.everyone += exchanged(self.group, json.dumps(code), self.of)
        if error is None:
            for rank, each in zip(self.group.ranks, self.everyone, strict=True):
                if each["error"] is not None:
                    raise (DamagedCheckpoint if each["damage"] else CheckpointError)(
                        f"{self.of}: rank {rank} could not load it, and so nothing was changed on any rank: "
                        f"{each['error']}"
                    )
