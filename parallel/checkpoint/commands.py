"""The commands for the checkpoints of a run. They need one process, no mesh, and the memory of one value at most.

==============================================================  ======================================================
``python -m parallel.checkpoint ls DIRECTORY [STEP]``           the steps, and what is wrong with one; or its values
``python -m parallel.checkpoint verify DIRECTORY [STEP]``       read all bytes, and compare all checksums
``python -m parallel.checkpoint diff DIRECTORY STEP STEP``      the values that differ, and by how much
``python -m parallel.checkpoint merge DIRECTORY [STEP] FILE``   one safetensors file with the whole values of a model
==============================================================  ======================================================

The exit status is 0; 1 if a step is damaged, or two steps differ; 2 if there is no such step, directory or value.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autograd.errors import CheckpointError, DamagedCheckpoint, OptionError, RingtapeError, printable
from autograd.files import replacing
from autograd.nn.weights import checksum_of, noted

from . import disk
from .boxes import elements
from .directory import Directory
from .loading import FileSource, StoredValue, newest
from .manifest import Manifest, Value
from .tree import name_below

__all__ = ["differences", "main", "merge"]

_ROWS_AT_ONCE = 1 << 22  # bytes of each of two values that are compared


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    Examples
    --------
    >>> import tempfile
    >>> from autograd import nn
    >>> from parallel import checkpoint
    >>> from parallel.checkpoint.commands import main
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = checkpoint.save(folder, {"model": nn.Linear(2, 1), "best": 0.5}, 10)
    ...     main(["verify", folder])
    step 10: whole: 2 values, 12 bytes in 1 file
    0
    """
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except DamagedCheckpoint as error:
        print(error.reason, file=sys.stderr)
        return 1
    except RingtapeError as error:
        print(error.reason, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m parallel.checkpoint", description="List, verify, compare and merge the checkpoints of a run.",
        epilog="Exit status: 0; 1 if a step is damaged, or two differ; 2 if there is no such step, directory or value.",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[Any], int], text: str, step: bool = True) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        found.set_defaults(run=run)
        if step:
            found.add_argument("directory", metavar="DIRECTORY", help="of the run, or of one of its steps")
            found.add_argument("step", metavar="STEP", nargs="?", help="the number of a step")
        return found

    ls = add("ls", _ls, "list the steps of a run, and what is wrong with one; of a step the values and the files")
    ls.add_argument("--json", action="store_true", help="print one JSON object")
    verify = add("verify", _verify, "read all bytes of the steps, or of one, and compare all checksums")
    verify.add_argument("--quiet", action="store_true", help="print no progress")
    diff = add("diff", _diff, "list the values in which two steps differ, and the largest differences", step=False)
    diff.add_argument(
        "places", metavar="DIRECTORY|STEP", nargs="+",
        help="a directory and two steps; or two directories, each with a step if it is not the newest",
    )  # fmt: skip
    merge = add("merge", _merge, "write whole values into one safetensors file", step=False)
    merge.add_argument("directory", metavar="DIRECTORY", help="of the run, or of one of its steps")
    merge.add_argument("step", metavar="STEP", nargs="?", help="the number of a step; by default the newest")
    merge.add_argument("file", metavar="FILE", help="the file to write, such as model.safetensors")
    what = merge.add_mutually_exclusive_group()
    what.add_argument(
        "--only", metavar="NAME", action="append", default=[],
        help="the values of an object, such as 'model' or 'trainer/optimizer'; by default those of the model",
    )  # fmt: skip
    what.add_argument("--all", action="store_true", help="all values, with the names that ls prints")
    merge.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    return parser


# -- steps -------------------------------------------------------------------------------------------------------------
def _directory(text: str, step: str | None) -> tuple[Directory, int | None]:
    """The directory of a run, and the number of a step, from what is given: a directory may be that of a step."""
    path = Path(os.path.abspath(text))
    if not path.is_dir():
        fault = "it is no directory" if os.path.lexists(path) else "there is no such directory"
        raise CheckpointError(f"checkpoint {path}: {fault}; needed: the directory of a run, or of one of its steps")
    parent = Directory(path.parent)
    found = next((n for n in parent.steps() if Path(parent.of_step(n)).name == path.name), None)
    if found is not None:
        if step is not None:
            raise OptionError(f"{path} is step {found} itself, and step {step} was given")
        return parent, found
    if step is None:
        return Directory(path), None
    if not (step.isascii() and step.isdigit()):
        raise OptionError(f"step {step!r} was given; needed: the number of a step")
    return Directory(path), int(step)


def _step_or_newest(directory: Directory, step: int | None) -> int:
    found = newest(directory) if step is None else step
    if found is None:
        raise CheckpointError(f"checkpoint {directory.path} has no step that is whole")
    return found


# -- ls ----------------------------------------------------------------------------------------------------------------
def _ls(chosen: Any) -> int:
    directory, step = _directory(chosen.directory, chosen.step)
    if step is not None:
        manifest = directory.manifest(step)
        print(json.dumps(_contents(manifest), indent=1) if chosen.json else _table_of_values(manifest))
        return 0
    found = [_summary(directory, n) for n in directory.steps()]
    if chosen.json:
        print(json.dumps({"directory": directory.path, "steps": found}, indent=1))
        return 0
    rows = [["step", "saved", "size", "ranks", "mesh", "values", "state"]]
    for each in found:
        if each["fault"]:
            rows.append([str(each["step"]), *"-----", f"damaged: {each['fault']}"])
        else:
            rows.append([
                str(each["step"]), each["time"], _size(each["bytes"]), str(each["ranks"]), _mesh(each["mesh"]),
                str(each["values"]), "whole",
            ])  # fmt: skip
    print(_table(rows) if found else f"{printable(directory.path)} has no checkpoint")
    for name in directory.unfinished():
        print(f"{printable(name)}: not finished: it is being written, or the job that wrote it has ended")
    return 0


def _summary(directory: Directory, step: int) -> dict[str, Any]:
    try:
        manifest = directory.manifest(step)
    except CheckpointError as error:
        fault = error.reason.removeprefix(f"checkpoint {directory.of_step(step)}").lstrip(",: ")
        return {"step": step, "fault": fault}
    return {
        "step": step, "time": _time(manifest), "bytes": manifest.size, "ranks": len(manifest.classes),
        "mesh": manifest.mesh, "values": len(manifest.values), "fault": None,
    }  # fmt: skip


def _contents(manifest: Manifest) -> dict[str, Any]:
    return {
        "step": manifest.step, "mesh": manifest.mesh, "ranks": len(manifest.classes), "about": manifest.about,
        "files": dict(manifest.files), "plain": plain_values(manifest.tree),
        "values": {
            key: {"shape": value.shape, "dtype": value.dtype, "layout": value.layout, "files": _files(manifest, value)}
            for key, value in manifest.values.items()
        },
    }  # fmt: skip


def _table_of_values(manifest: Manifest) -> str:
    ranks = len(manifest.classes)
    head = f"step {manifest.step}, saved {_time(manifest)} by {ranks} rank{'s' * (ranks > 1)}"
    head += f" of the mesh {_mesh(manifest.mesh)}" if manifest.mesh else ""
    rows = [["value", "shape", "dtype", "layout", "bytes", "files"]]
    for key, value in manifest.values.items():
        label = ", ".join(f"{axis}: {each}" for axis, each in value.layout.items())
        names = _files(manifest, value)
        files = ", ".join(names) or "-"
        rows.append([
            key, "x".join(map(str, value.shape)) or "-", value.dtype, f"{{{label}}}" if label else "-",
            str(sum(p.end - p.begin for p in value.pieces)), files if len(files) < 60 else f"{len(names)} files",
        ])  # fmt: skip
    parts = [head, _table(rows)]
    plain = plain_values(manifest.tree)
    if plain:
        parts.append(_table([["plain value", ""], *([path, _short(x)] for path, x in plain.items())]))
    return "\n\n".join(parts)


def _files(manifest: Manifest, value: Value) -> list[str]:
    return sorted({manifest.files[p.file][0] for p in value.pieces})


def plain_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a tree by their paths. A list or tuple without arrays is one of them.

    Examples
    --------
    >>> plain_values({"run": {"state": {"dict": {"steps": 3, "w": {"value": "run/w"}}}}, "rates": [0.1, 0.2]})
    {'run/steps': 3, 'rates': [0.1, 0.2]}
    """
    found: dict[str, Any] = {}

    def visit(code: Any, path: str) -> None:
        if not isinstance(code, dict | list):
            found[path] = code
            return
        if isinstance(code, dict) and "value" in code:
            return
        kind, content = ("list", code) if isinstance(code, list) else next(iter(code.items()))
        if kind == "float":
            found[path] = content
        elif kind == "state":
            visit(content, path)
        elif isinstance(content, dict):
            for key, each in content.items():
                visit(each, f"{path}/{key}")
            if not content:
                found[path] = {}
        elif kind == "names" or not any(isinstance(each, dict | list) for each in content):
            found[path] = content
        else:
            for k, each in enumerate(content):
                visit(each, f"{path}@{k}" if kind in ("ranks", "differs") else f"{path}/{k}")

    for name, code in tree.items():
        visit(code, name)
    return found


# -- verify ------------------------------------------------------------------------------------------------------------
def _verify(chosen: Any) -> int:
    directory, step = _directory(chosen.directory, chosen.step)
    steps = directory.steps() if step is None else [step]
    if not steps:
        raise CheckpointError(f"checkpoint {directory.path} has no checkpoint")
    is_damaged = False
    for each in steps:
        progress = None if chosen.quiet else _Progress(f"step {each}")
        try:
            faults, manifest = directory.verify(each, progress)
        except DamagedCheckpoint as error:
            faults, manifest = [error], None
        if progress is not None:
            progress.end()
        for fault in faults:
            print(f"step {each}: damaged: {fault.reason}")
        if not faults and manifest is not None:
            count, values = len(manifest.files), len(manifest.values)
            total = sum(p.end - p.begin for v in manifest.values.values() for p in v.pieces)
            print(f"step {each}: whole: {values} value{'s' * (values != 1)}, {_size(total)} in {count} file"
                  f"{'s' * (count != 1)}")  # fmt: skip
        is_damaged = is_damaged or bool(faults)
    return int(is_damaged)


class _Progress:
    """A line with the bytes that were read, on stderr, once a read takes more than a second."""

    def __init__(self, of: str):
        self.of, self.next, self.is_terminal = of, time.monotonic() + 1, sys.stderr.isatty()
        self.has_shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next, self.has_shown = now + (0.2 if self.is_terminal else 10), True
        text = f"{self.of}: {_size(done)} of {_size(total)}"
        print(f"\r{text}  " if self.is_terminal else text, end="" if self.is_terminal else "\n", file=sys.stderr,
              flush=True)  # fmt: skip

    def end(self) -> None:
        if self.has_shown and self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# -- diff --------------------------------------------------------------------------------------------------------------
def _diff(chosen: Any) -> int:
    (first, a), (second, b) = _two(chosen.places)
    a, b = _step_or_newest(first, a), _step_or_newest(second, b)
    rows = list(differences(first, a, second, b))
    if not rows:
        print("equal")
        return 0
    names = (f"step {a}", f"step {b}") if first.path == second.path else (
        f"{Path(first.path).name} step {a}", f"{Path(second.path).name} step {b}")  # fmt: skip
    print(_table([["value", *names, "difference"], *(list(row) for row in rows)]))
    return 1


def _two(places: Sequence[str]) -> list[tuple[Directory, int | None]]:
    """The two steps to compare, of directories that steps may follow."""
    given: list[list[str]] = []
    for text in places:
        if given and text.isascii() and text.isdigit() and len(given[-1]) < 3 and not os.path.isdir(text):
            given[-1].append(text)
        else:
            given.append([text])
    if len(given) == 1 and len(given[0]) == 3:
        text, a, b = given[0]
        return [_directory(text, a), _directory(text, b)]
    if len(given) == 2 and all(len(each) < 3 for each in given):
        return [_directory(each[0], each[1] if len(each) > 1 else None) for each in given]
    raise OptionError(
        f"diff {' '.join(places)}: needed: a directory and two steps, or two directories, each with a step if it is "
        "not the newest"
    )


def differences(first: Directory, a: int, second: Directory, b: int) -> Iterator[tuple[str, str, str, str]]:
    """The differences between two steps: a path, what each step has there, and by how much it differs.

    Values are read in blocks, and their checksums compared.

    Raises
    ------
    CheckpointError
        There is no such step, or it is damaged.
    """
    one, two = first.manifest(a), second.manifest(b)
    plain = plain_values(one.tree), plain_values(two.tree)
    for path in {**plain[0], **plain[1]}:
        x, y = (_short(each[path]) if path in each else "-" for each in plain)
        if path not in plain[0] or path not in plain[1]:
            yield path, x, y, "only in one"
        elif type(plain[0][path]) is not type(plain[1][path]) or plain[0][path] != plain[1][path]:
            yield path, x, y, ""
    with (
        disk.Reader(first.of_step(a), one.files) as left, disk.Reader(second.of_step(b), two.files) as right
    ):  # fmt: skip
        sources = FileSource(one, left, True), FileSource(two, right, True)
        for key in sorted({*one.values, *two.values}):
            known = [manifest.values.get(key) for manifest in (one, two)]
            x, y = ("-" if each is None else f"{each.dtype}[{', '.join(map(str, each.shape))}]" for each in known)
            if None in known:
                yield key, x, y, "only in one"
                continue
            mine, other = (source.value(key) for source in sources)
            if mine.shape != other.shape:
                yield key, x, y, "the shapes differ"
                continue
            found = _difference(mine, other)
            if found or mine.dtype != other.dtype:
                yield key, x, y, found or "equal values"
            for source in sources:  # a piece of which a block was read
                source.check_parts()


def _difference(x: StoredValue, y: StoredValue) -> str:
    """The size of the difference of two values of one shape; "" if they are equal. NaN is equal to NaN."""
    count, largest, largest_value, nans = 0, 0.0, 0.0, 0
    for rows in _blocks(x):
        a, b = x[rows], y[rows]
        if a.dtype == b.dtype and disk.bytes_of(np.ascontiguousarray(a)) == disk.bytes_of(np.ascontiguousarray(b)):
            continue
        differs = a != b
        if not (_is_number(a.dtype) and _is_number(b.dtype)):
            count += int(np.count_nonzero(differs))
            continue
        if a.dtype.kind in "iu" and b.dtype == a.dtype:  # of which float64 would lose digits
            apart = np.maximum(a, b).astype("uint64") - np.minimum(a, b).astype("uint64")
            is_nan = np.zeros(a.shape, bool)
        else:
            a, b = (each.astype("complex128" if each.dtype.kind == "c" else "float64") for each in (a, b))
            is_nan = np.isnan(a) != np.isnan(b)
            differs &= ~(np.isnan(a) & np.isnan(b))
            with np.errstate(all="ignore"):
                apart = np.abs(a - b)
        count += int(np.count_nonzero(differs))
        nans += int(np.count_nonzero(is_nan))
        largest = max(largest, float(apart[differs & ~is_nan].max(initial=0)))
        largest_value = max(largest_value, float(np.nanmax(np.abs(b), initial=0)))
    if not count:
        return ""
    text = f"{count} of {x.size} elements"
    if largest:
        text += f", at most {largest:.3g}, {largest / largest_value:.2g} of the largest" if largest_value else (
            f", at most {largest:.3g}")  # fmt: skip
    return text + (f", NaN in one: {nans}" if nans else "")


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)  # those of ml_dtypes


def _blocks(x: StoredValue) -> Iterator[Any]:
    """The indices of rows of a value that are read at once."""
    if not x.ndim:
        yield ()
        return
    row = max(x.size // max(x.shape[0], 1) * x.dtype.itemsize, 1)
    count = max(_ROWS_AT_ONCE // row, 1)
    for at in range(0, x.shape[0] if x.size else 0, count):
        yield (slice(at, at + count),)


# -- merge -------------------------------------------------------------------------------------------------------------
def _merge(chosen: Any) -> int:
    directory, step = _directory(chosen.directory, chosen.step)
    step = _step_or_newest(directory, step)
    target = Path(chosen.file)
    if os.path.lexists(target) and not chosen.overwrite:
        raise CheckpointError(f"merge: {target} is there already\n  fix: another file\n  or:  --overwrite")
    names = merge(directory, step, target, only=chosen.only, everything=chosen.all)
    print(f"{printable(str(target))}: {len(names)} value{'s' * (len(names) != 1)} of step {step}, "
          f"{_size(target.stat().st_size)}")  # fmt: skip
    return 0


_TYPES = {**disk.NAMES, "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def merge(
    directory: Directory, step: int, path: Path, *, only: Sequence[str] = (), everything: bool = False
) -> list[str]:
    """Write whole values of a step into one safetensors file, and return their names.

    One value at a time is in memory. Values of dtypes that such a file cannot have are written as in the data files of
    a checkpoint, and the metadata has their dtypes.

    Parameters
    ----------
    directory : Directory
    step : int
    path : Path
    only : sequence of str
        The names of objects. By default the modules: the objects whose states are arrays alone. The values of one
        object get their names in it, and those of several the names of these before them.
    everything : bool
        All values, under the names that they have in the checkpoint.

    Raises
    ------
    CheckpointError
        There is no such step or object, it is damaged, or the file cannot be written.
    """
    manifest = directory.manifest(step)
    named = _named(manifest, only, everything)
    dtypes = {name: manifest.values[key].numpy_dtype for name, key in named.items()}
    order = sorted(named, key=lambda name: (-dtypes[name].itemsize, name))  # as the library: all values are aligned
    about, header, at = {"format": "ringtape", "step": str(step)}, {}, 0
    for name in order:
        shape: tuple[int, ...] = manifest.values[named[name]].shape
        kind = _TYPES.get(dtypes[name].name)
        size = dtypes[name].itemsize * elements(tuple((0, n) for n in shape))
        if kind is None:
            about[f"dtype {name}"] = disk.dtype_text(dtypes[name])
            stored, shape = disk.stored_as(dtypes[name], shape)
            kind = disk.NAMES[stored]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    checksums = dict.fromkeys(order, disk.NO_CHECKSUM)

    def head() -> bytes:
        """The beginning of the file, which has the same length with any checksums.

        Its notes also tell `nn.load` that matrices lie as here, [in, out].
        """
        comments = {name: {"digest": digest} for name, digest in checksums.items()}
        entries = [(name, str(each["dtype"]), tuple(map(int, each["shape"]))) for name, each in header.items()]
        notes = noted(about, comments, entries, disk.CHECKSUM)
        text = json.dumps({"__metadata__": notes, **header}).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    try:
        with disk.Reader(directory.of_step(step), manifest.files) as reader, replacing(str(path)) as file:
            source = FileSource(manifest, reader, True)
            file.write(head())
            for name in order:
                array = source.value(named[name])[...]
                source.check_parts()
                array = array if array.dtype.kind == "V" else array.astype(array.dtype.newbyteorder("<"), copy=False)
                array = np.ascontiguousarray(array)
                checksums[name] = checksum_of(array, disk.CHECKSUM)
                file.write(disk.bytes_of(array))
            file.seek(0)
            file.write(head())
    except OSError as error:
        raise CheckpointError(f"merge: {path} could not be written: {error}") from error
    return sorted(named)


def _named(manifest: Manifest, only: Sequence[str], everything: bool) -> dict[str, str]:
    """The keys of the values to merge, by the names that they get."""
    if everything:
        return {key: key for key in manifest.values}
    modules = [name for name, code in manifest.tree.items() if "/attached/" not in name and _is_module(code)]
    objects = list(dict.fromkeys(only)) or modules
    if not objects:
        raise CheckpointError(
            f"merge: step {manifest.step} has no module; it has {', '.join(map(repr, manifest.tree)) or 'nothing'}\n"
            "  fix: --only NAME, of one of these; or --all"
        )
    found = {}
    for name in objects:
        keys = [key for key in manifest.values if key == name or key.startswith(f"{name}/")]
        if not keys:
            raise CheckpointError(
                f"merge: --only {name}: step {manifest.step} has no such values; it has "
                f"{', '.join(map(repr, manifest.tree)) or 'nothing'}"
            )
        for key in keys:
            if "/attached/" not in key or "/attached/" in name:
                found[name_below(key.removeprefix(f"{name}/")) if len(objects) == 1 else key] = key
    return found


def _is_module(code: Any) -> bool:
    state = code.get("state") if isinstance(code, dict) else None
    values = state.get("dict", {}) if isinstance(state, dict) else {}
    return bool(values) and all(isinstance(each, dict) and "value" in each for each in values.values())


# -- texts -------------------------------------------------------------------------------------------------------------
def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [[printable(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _size(n: int) -> str:
    """A number of bytes as a text.

    Examples
    --------
    >>> _size(12), _size(5_300_000_000)
    ('12 bytes', '5.3 GB')
    """
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n} bytes"


def _mesh(mesh: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={n}" for axis, n in mesh.items()) or "-"


def _time(manifest: Manifest) -> str:
    return str(manifest.about.get("time", "-"))[:40]


def _short(x: Any) -> str:
    text = x if isinstance(x, str) and x in ("nan", "inf", "-inf") else repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."
