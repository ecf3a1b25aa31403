"""Writing a checkpoint: what each rank does, and what the first rank does when all have."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from autograd.arrays.device import to_host
from autograd.engine.state import state
from autograd.errors import CheckpointError, OptionError, RankFailed, ReplicaMismatch, RingtapeError
from autograd.files import new_file
from autograd.machine import environment_of_bits
from collectives import World
from collectives.transports.job import Replayed

from . import disk
from .directory import Directory
from .manifest import NAME, Manifest, entry_name
from .ownership import Entry, share_of, whole_entry
from .replicas import copies_of, differ, differences, digest_of_text, exchanged, ranks_text
from .tree import Encoded, encode, merged, values_of

__all__ = ["Save", "begin", "divided", "refuse_copies", "told_bytes"]

_ALIGNED = 64  # bytes, of the arrays in a block


@dataclass
class Save:
    """A checkpoint that is being written.

    Attributes
    ----------
    directory : Directory
    folder : str
        Its name until it is complete.
    step : int
    group : Communicator
        The ranks that save together; the mesh may no longer be current when the save ends.
    entries : list of Entry
        What this rank writes.
    head : Manifest
        The manifest without values and files.
    world : World
    epoch : int
        That of the world when the save began.
    index, ranks : int
        The place of this rank in the group, and the number of ranks.
    """

    directory: Directory
    folder: str
    step: int
    group: Any
    entries: list[Entry]
    head: Manifest
    world: World
    epoch: int
    index: int
    ranks: int
    keep: int | None = None
    keep_every: int | None = None

    def copy_values(self, memory: list[Any]) -> None:
        """Replace arrays by copies on the host, in one block of memory, which the next save uses again.

        New memory is the dearest part of a first copy. The system gives it in large pages inside of a block; arrays of
        their own would have small pages at their ends.

        Parameters
        ----------
        memory : list of array
            The block of the save before, or nothing. It is replaced if it is too small.
        """
        places = [*accumulate((-(-entry.array.nbytes // _ALIGNED) * _ALIGNED for entry in self.entries), initial=0)]
        if not memory or memory[0].nbytes < places[-1]:
            memory.clear()  # before there are two
            memory.append(np.empty(places[-1], np.uint8))
        found = []
        for entry, place in zip(self.entries, places, strict=False):
            array = to_host(entry.array)
            held: Any = np.ndarray(array.shape, array.dtype, memory[0], place)
            np.copyto(held, array)
            found.append(replace(entry, array=held))
        self.entries = found

    def write(self) -> None:
        """Write this rank's data file, and its list of what is in it."""
        name = f"rank-{self.index:05d}.safetensors"
        arrays, lines = {}, []
        checksum = disk.checksum_named(self.head.checksum, self.folder)
        for entry in self.entries:
            host = to_host(entry.array)
            stored, dtype = disk.storable(host), disk.dtype_text(host.dtype)
            found, inside = checksum(stored), entry_name(entry.key, entry.shape, entry.box)
            arrays[inside] = stored
            lines.append([inside, entry.key, entry.shape, dtype, entry.layout, entry.place, entry.box, found])
        path = f"{self.folder}/{name}"
        places = disk.write_data(path, arrays, {"format": "ringtape", "step": str(self.step)})
        told = {"file": name, "size": os.stat(path).st_size, "lines": lines, "places": places}
        disk.write_text(f"{self.folder}/rank-{self.index:05d}.json", json.dumps(told), is_kept=False)

    def wait_for_others(self) -> None:
        """Wait until the lists of all ranks are in the directory, or one rank says that it has failed."""
        missing, pause = {f"rank-{k:05d}" for k in range(self.ranks)}, 0.002
        while True:
            names = os.listdir(self.folder)
            failed = [name for name in names if name.endswith(".failed")]
            if failed:
                raise CheckpointError(
                    f"checkpoint.save: rank {int(failed[0][5:-7])} could not write its part of step {self.step}: "
                    + (Path(self.folder, failed[0]).read_text() or "there was no space to say why")
                )
            self.refuse_failed()
            if not missing - {name.removesuffix(".json") for name in names if name.endswith(".json")}:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.2)

    def refuse_failed(self) -> None:
        """Raise RankFailed if one of the ranks has failed, for which the first one would wait for ever."""
        for rank, why in self.world.failed.items():
            if rank in self.group.ranks:
                raise RankFailed(f"checkpoint.save: step {self.step} is not finished: {why}")
        if self.world.epoch != self.epoch:
            raise RankFailed(f"checkpoint.save: step {self.step} is not finished: the ranks have agreed on survivors")

    def finish(self) -> None:
        """Write the manifest and publish the step. The first rank calls it when all have written."""
        lists = []
        for k in range(self.ranks):
            try:
                with open(f"{self.folder}/rank-{k:05d}.json", "rb") as file:
                    each = json.loads(file.read())
                have = os.stat(f"{self.folder}/{each['file']}").st_size
            except FileNotFoundError:
                raise CheckpointError(
                    f"checkpoint.save: rank {k} has written its part of step {self.step}, and the first rank does not "
                    f"see it in {self.directory.path}; needed: a directory that all hosts share"
                ) from None
            if have != each["size"]:
                raise CheckpointError(f"checkpoint.save: the file of rank {k} has {have} bytes, not {each['size']}")
            lists.append(each)
        self.head.files, self.head.about = [(each["file"], each["size"]) for each in lists], about()
        found: dict[str, dict[str, Any]] = {}
        for k, each in enumerate(lists):
            for inside, key, shape, dtype, layout, place, box, checksum in each["lines"]:
                known = found.setdefault(
                    key, {"shape": shape, "dtype": dtype, "layout": layout, "place": place, "pieces": []}
                )
                if known["shape"] != shape or known["dtype"] != dtype:
                    raise CheckpointError(
                        f"checkpoint.save: {key} has shape {tuple(shape)} and dtype {dtype} on rank {k}, and "
                        f"{tuple(known['shape'])} and {known['dtype']} on another"
                    )
                known["pieces"].append([k, *each["places"][inside], box, checksum])
        for value in found.values():
            value["pieces"].sort(key=itemgetter(3))  # by boxes
        # A manifest that cannot be read, or has not each element once, is not published.
        manifest = Manifest.checked(self.head.head(), sorted(found.items()), self.folder)
        for k in range(self.ranks):
            os.remove(f"{self.folder}/rank-{k:05d}.json")
        disk.write_text(f"{self.folder}/{NAME}", manifest.text())
        disk.make_durable(self.folder)
        self.directory.publish(self.folder, self.step)
        self.directory.prune(self.keep, self.keep_every)

    def give_up(self, error: BaseException) -> None:
        """Tell the first rank that this one has failed. It reads the file as soon as it has its name."""
        name = f"{self.folder}/rank-{self.index:05d}.failed"
        with suppress(OSError):
            with suppress(OSError):
                with open(new_file(f"{name}.part"), "w", encoding="utf-8") as file:
                    file.write(str(error))
            os.rename(f"{name}.part", name)

    def remove(self) -> None:
        """Remove what was written. The first rank calls it when no rank writes any more."""
        if not is_replayed():
            shutil.rmtree(self.folder, ignore_errors=True)


def is_replayed() -> bool:
    """Whether this program is the replay of a record, in which the files of the recorded run stay as they are."""
    return Replayed.job is not None


def begin(
    directory: Directory, objects: Any, step: int, *, overwrite: bool, keep: int | None, keep_every: int | None
) -> Save:
    """Agree on what is written, by which rank. All ranks of the mesh call it.

    Raises
    ------
    CheckpointError
        The directory cannot be written, has the step, or is another job's.
    ReplicaMismatch
        Copies of a value differ.
    ArgumentError, DtypeError, LayoutError, MeshError, OptionError
        A value, or the step, cannot be saved.
    """
    group = state.distribution.group()
    if group.dry:
        raise OptionError(
            "checkpoint.save was called in a dry world, which has no values\n  fix: checkpoint.explain(state), for the "
            "files, bytes and messages of a save"
        )
    mine = _Mine()
    try:
        mine.collect(directory, objects, step, overwrite, group)
    except RingtapeError as failure:
        mine.error = failure
    tree = json.dumps(mine.found.tree)
    told = exchanged(group, mine.told(tree, step, group.index), "checkpoint.save")
    try:
        _refuse(told, mine, group)
    except RingtapeError:
        if group.index == 0 and mine.folder:
            shutil.rmtree(mine.folder, ignore_errors=True)
        raise
    entries, head = divided(mine.found, mine.entries, [each["tree"] for each in told], step, group)
    folder = f"{directory.path}/{told[0]['folder']}"
    _refuse_invisible(folder, group)
    world = World.current()
    return Save(
        directory, folder, step, group, entries, head, world, world.epoch, int(group.index), int(group.size), keep,
        keep_every,
    )  # fmt: skip


def divided(
    found: Encoded, entries: list[Entry], digests: list[str], step: int, group: Any, of: str = "checkpoint.save"
) -> tuple[list[Entry], Manifest]:
    """The part of the state of all that this rank keeps, and the manifest without values, files and notes.

    All ranks call it.

    Parameters
    ----------
    found : Encoded
        The state of this rank.
    entries : list of Entry
        Its share of the values that have layouts.
    digests : list of str
        The digest of each rank's tree.
    step : int
    group : Communicator
    of : str
        The call that reports name.
    """
    kinds = list(dict.fromkeys(digests))
    classes = [kinds.index(each) for each in digests]
    first = [digests.index(kind) for kind in kinds]
    trees = [found.tree]
    if len(first) > 1:
        tree = json.dumps(found.tree).encode() if group.index in first else b""
        sent = group.exchange(tree, of=of)
        trees = [json.loads(sent[k]) for k in first]
    whole, own = merged(trees), classes[group.index]
    if found.arrays and group.index == first[own]:
        entries = entries + _own_arrays(found, whole, trees, own)
    grid = state.grid
    mesh = {} if grid is None else dict(zip(grid.names, map(int, grid.sizes), strict=True))
    return entries, Manifest(step, whole, {}, [], mesh, classes, disk.CHECKSUM)


def _refuse_invisible(folder: str, group: Any) -> None:
    """Raise CheckpointError if a rank does not see the directory that the first one has made.

    File systems of networks may show it a moment later. Without this the first rank would wait for ever.
    """
    until = time.monotonic() + _VISIBLE_S
    while not (sees := os.path.isdir(folder) or is_replayed()) and time.monotonic() < until:
        time.sleep(0.02)
    blind = [rank for rank, each in zip(group.ranks, group.exchange(b"1" if sees else b"0", of="checkpoint.save"),
                                        strict=True) if each == b"0"]  # fmt: skip
    if blind:
        if group.index == 0 and not is_replayed():
            shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint.save: rank{'s' * (len(blind) > 1)} {', '.join(map(str, blind))} cannot see "
            f"{os.path.dirname(folder)}, into which the first rank writes; needed: a directory that all hosts share\n"
            "  fix: a path on a file system of the network"
        )


_VISIBLE_S = 10.0


def told_bytes(copies: int, step: int = 10**6) -> int:
    """The bytes that a rank tells each other one in a save, with copies of values along so many sets of axes.

    Examples
    --------
    >>> told_bytes(0), told_bytes(2)
    (50, 129)
    """
    mine = _Mine()
    mine.copies = {str(k): {} for k in range(copies)}
    return len(mine.told("", step, 1))


class _Mine:
    """The part of this rank in a save, as far as it came."""

    def __init__(self) -> None:
        self.found, self.folder = Encoded(), ""
        self.entries: list[Entry] = []
        self.copies: dict[str, dict[str, str]] = {}
        self.error: RingtapeError | None = None

    def told(self, tree: str, step: Any, index: int) -> str:
        """The text that all ranks get from this one. It is short, since each gets that of all: see `told_bytes`."""
        told: dict[str, Any] = {"step": step if isinstance(step, int) else 0, "tree": digest_of_text(tree)}
        if self.copies:
            told["copies"] = {
                digest_of_text(key)[:12]: digest_of_text(json.dumps(each))[:16] for key, each in self.copies.items()
            }
        if index == 0:
            told["folder"] = self.folder.rpartition("/")[2]
        if self.error is not None:
            told["error"] = str(self.error)
        return json.dumps(told, separators=(",", ":"))

    def collect(self, directory: Directory, objects: Any, step: Any, overwrite: bool, group: Any) -> None:
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
            raise OptionError(f"checkpoint.save: step={step!r} was given; needed: a whole number of at least 0")
        named = objects if isinstance(objects, Mapping) else {"state": objects}
        self.found = encode(named, None if group.size == 1 else disk.value_digest)
        self.entries = share_of(self.found.pieces, group.size)
        self.copies = {} if group.size == 1 else copies_of(self.found.pieces)
        if group.index == 0 and not is_replayed():
            self.folder = directory.begin(step, overwrite)


def _refuse(told: list[dict[str, Any]], mine: _Mine, group: Any) -> None:
    """Raise the error of this rank, or that another rank has one, or that the ranks save different things."""
    if mine.error is not None:
        raise mine.error
    for rank, each in zip(group.ranks, told, strict=True):
        if "error" in each:
            raise CheckpointError(f"checkpoint.save: rank {rank} could not save: {each['error']}")
    if len({each["step"] for each in told}) > 1:
        steps = ", ".join(str(each["step"]) for each in told)
        raise CheckpointError(f"checkpoint.save: the ranks save steps {steps}; needed: one step")
    if differ([each.get("copies", {}) for each in told]):
        refuse_copies(mine.copies, group)


def refuse_copies(copies: Mapping[str, Mapping[str, str]], group: Any, of: str = "checkpoint.save") -> NoReturn:
    """Raise ReplicaMismatch, with the first value of which ranks do not have the same, and these ranks."""
    for each in differences(copies, group, of):
        raise ReplicaMismatch(
            f"{of}: {each.path} is one value for ranks {', '.join(map(str, each.ranks))} (axis "
            f"{each.axes!r}), and on {ranks_text(each.others)} it is another one; a checkpoint has it "
            "once\n  fix: find where the ranks have become different: RINGTAPE_CHECK=always compares them at "
            "every step\n  or:  nn.save with a path for each rank, if they are meant to differ, as the states "
            "of a parameter server's optimizer are"
        )
    raise ReplicaMismatch(f"{of}: copies of a value differ between the ranks")


def _own_arrays(found: Encoded, whole: Any, trees: list[Any], mine: int) -> list[Entry]:
    """The arrays without layouts that the first rank of a class writes: those that no class before it has."""
    earlier = {path for tree in trees[:mine] for path in values_of(tree)}
    entries = []
    for path in values_of(whole):
        name, _, k = path.rpartition("@")
        if path in found.arrays and path not in earlier:
            entries.append(whole_entry(path, found.arrays[path]))
        elif name in found.arrays and k == str(mine):
            entries.append(whole_entry(path, found.arrays[name]))
    return entries


def about() -> dict[str, Any]:
    """Notes on the run: the time, and versions on which its bits depend."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": platform.python_version(),
        "bits": environment_of_bits(),
    }  # fmt: skip
