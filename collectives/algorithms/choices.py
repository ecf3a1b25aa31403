"""The table from which ``auto`` chooses: by operation and size, the same in every run.

A choice decides the order of additions, and so the last bits of sums. It must not depend on the moment at which a
program starts. Therefore nothing is measured when a program runs. Without a table, ``auto`` follows `rule`, which knows
the hosts, the ranks and whether they are processes. ``python -m collectives tune`` measures once and stores a table
for a shape of job: the processor, the MPI library, the hosts and the ranks of each. It is read from the file that
``RINGTAPE_ALGORITHMS`` names, else from the user's cache directory, or from the one in ``algorithm="auto:PATH"``.
Rank 0 of a group reads the file and sends the table to the others, whatever files these have.

The file is JSON: ``{"format": 1, "tables": {SHAPE: {"note": NOTE, "choices": {OPERATION: [[BYTES, ALGORITHM]]}}}}``.
A row holds for arrays of at most BYTES; the last one, with null, for all longer ones.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autograd import environment
from autograd.errors import CommunicationError, MeshError
from autograd.files import opened, replacing
from autograd.machine import processor

from ..transports.protocol import Communicator
from .fit import Fit
from .hierarchical import Level
from .table import OPERATIONS, check_name

__all__ = [
    "VARIABLE", "Choices", "default_path", "follows_rule", "rule", "settled", "shape_of", "stored", "tabulated",
    "tables",
]  # fmt: skip

VARIABLE = "RINGTAPE_ALGORITHMS"
FORMAT = 1
_MOST_CHARACTERS = 1 << 24  # a table of one shape has two thousand
RULE = "rule"
SHORT_BYTES, LONG_BYTES = 1 << 14, 1 << 16
_SIZES = tuple(1 << k for k in range(6, 28))

Rows = dict[str, list[tuple[int | None, str]]]


class Choices:
    """The algorithm for each operation and size.

    Attributes
    ----------
    rows : dict of str to list of (int or None, str)
        By operation: the most bytes of the whole array, in ascending order and None at the end, and the algorithm.
    source : str
        Where they come from: ``rule``, or the path of a file.
    note : str
        How they were made.

    Raises
    ------
    MeshError
        An operation, an algorithm or an order of rows that is not possible.

    Examples
    --------
    >>> choices = Choices({"all_reduce": [(4096, "recursive_doubling"), (None, "ring")]})
    >>> choices.choose("all_reduce", 4096), choices.choose("all_reduce", 4097), choices.choose("reduce", 8)
    ('recursive_doubling', 'ring', 'native')
    """

    def __init__(self, rows: Mapping[str, Any], source: str = "rule", note: str = ""):
        self.rows: Rows = {operation: _checked(operation, given, source) for operation, given in rows.items()}
        self.source, self.note = source, note
        self._limits = {operation: [limit for limit, _ in found if limit is not None]
                        for operation, found in self.rows.items()}  # fmt: skip

    def __repr__(self) -> str:
        return f"Choices({self.rows!r}, {self.source!r})"

    def choose(self, operation: str, size_bytes: int) -> str:
        """The algorithm for an array of `size_bytes`; ``native`` for an operation without rows."""
        rows = self.rows.get(operation)
        return rows[bisect_left(self._limits[operation], size_bytes)][1] if rows else "native"

    def lines(self) -> list[str]:
        """The choices for people, a line for each operation."""
        return [
            f"{operation}: " + ", ".join(f"{name} {_up_to(limit)}" for limit, name in rows)
            for operation, rows in self.rows.items()
        ]


def _up_to(limit: int | None) -> str:
    if limit is None:
        return "above"
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if limit >= size and limit % size == 0:
            return f"to {limit // size} {unit}"
    return f"to {limit} B"


def _checked(operation: str, rows: Any, source: str) -> list[tuple[int | None, str]]:
    """The rows of an operation, if they are right."""
    where = f"the table of choices of {source}, {operation!r}"
    if operation not in OPERATIONS:
        raise MeshError(f"{where}: needed: an operation, one of {', '.join(OPERATIONS)}")
    is_list = isinstance(rows, list) and rows and all(isinstance(row, list | tuple) and len(row) == 2 for row in rows)
    limits = [row[0] for row in rows] if is_list else []
    numbers = limits[:-1]
    if not is_list or limits[-1] is not None or not all(type(n) is int and n >= 0 for n in numbers) or any(
        a >= b for a, b in zip(numbers, numbers[1:], strict=False)
    ):  # fmt: skip
        raise MeshError(
            f"{where}: {str(rows)[:80]} was given; needed: rows [BYTES, ALGORITHM] in ascending order, the last with "
            "null"
        )
    for _, name in rows:
        if not isinstance(name, str) or name.partition(":")[0] == "auto":
            raise MeshError(f"{where}: {name!r} was given; needed: the name of an algorithm other than auto")
        try:
            check_name(name, operation)
        except MeshError as error:
            raise MeshError(f"{where}: {error.reason}") from None
    return [(limit, name) for limit, name in rows]


def rule(hosts: int, sizes: Sequence[int], ranks: int, are_processes: bool) -> Choices:
    """The choices without a table, which follow from the numbers of hosts and ranks alone.

    Processes of one host share memory for arrays of more than 16 KiB: no message has to be copied. Several hosts with
    the same number of ranks, or racks with the same number of hosts, add inside each of them first, for arrays of more
    than 64 KiB: fewer bytes cross the network. Everywhere else the transport's own collectives run, which know the
    network.

    Parameters
    ----------
    hosts : int
    sizes : sequence of int
        The ranks of each host, the hosts of each rack and so on, as far as they are equal; see `even_sizes`.
    ranks : int
    are_processes : bool
        False for threads of one process.

    Examples
    --------
    >>> rule(hosts=1, sizes=[4], ranks=4, are_processes=True).choose("all_reduce", 1 << 20)
    'shared'
    >>> rule(hosts=8, sizes=[4, 2], ranks=32, are_processes=True).choose("all_reduce", 1 << 20)
    'hierarchical:shared,ring,ring'
    """
    if not are_processes or ranks == 1:
        return Choices({})
    if hosts == 1:
        rows = [(SHORT_BYTES, "native"), (None, "shared")]
        return Choices(dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), rows))
    while sizes and math.prod(sizes) == ranks:
        sizes = sizes[:-1]  # one domain, which has all
    if any(size > 1 for size in sizes):
        name = f"hierarchical:shared{',ring' * len(sizes)}"
        return Choices({"all_reduce": [(LONG_BYTES, "native"), (None, name)]})
    return Choices({})


def tabulated(fit: Fit, note: str = "") -> Choices:
    """The choices of a measurement, at powers of two. A row holds from the last one's size to its own."""
    found: Rows = {}
    for operation in OPERATIONS:
        rows: list[tuple[int | None, str]] = []
        for size_bytes in _SIZES:
            name = fit.choose(operation, size_bytes)
            if rows and rows[-1][1] == name:
                rows.pop()
            rows.append((size_bytes, name))
        found[operation] = [*rows[:-1], (None, rows[-1][1])]
    return Choices(found, "measurement", note)


def shape_of(native: Communicator, hosts: Level) -> str:
    """The shape of a job, for which a table holds: processor, transport, hosts and ranks.

    Examples
    --------
    >>> import collectives as cc
    >>> from collectives.algorithms.selected import Channel
    >>> shape_of(cc.world(), Channel(cc.world()).levels).partition("; ")[2]
    'threads; 1 host with 1 rank'
    """
    if native.library is None:
        transport = "threads"
    else:
        name, version = native.library.get_vendor()
        transport = f"{name} {'.'.join(map(str, version))}"
    each = f"{native.size} rank" if hosts.count == 1 else f"{hosts.lanes} or more of {native.size} rank"
    if hosts.count > 1 and hosts.count * hosts.lanes == native.size:
        each = f"{hosts.lanes} rank"
    plural = "s" * (not each.endswith(" 1 rank") and each != "1 rank")
    cores = f"{processor().replace(';', ',')}, {os.cpu_count()} cores"
    together = "".join(f", {size} together" for size in hosts.sizes[1:])
    return f"{cores}; {transport}; {hosts.count} host{'s' * (hosts.count > 1)} with {each}{plural}{together}"
# -- files -------------------------------------------------------------------------------------------------------------
def default_path() -> Path:
    """The file of the tables: that of ``RINGTAPE_ALGORITHMS``, else the one in the user's cache directory."""
    if not follows_rule() and (given := environment.value(VARIABLE)):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "ringtape" / "algorithms.json"


def follows_rule() -> bool:
    """Whether the environment asks for the rule, whatever tables there are."""
    return environment.value(VARIABLE) == RULE


def tables(path: Path) -> dict[str, Choices]:
    """The tables of a file, by shape.

    Raises
    ------
    MeshError
        The file cannot be read, or it is no file of tables.
    """
    try:
        with os.fdopen(opened(path), encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise MeshError(
            f"the table of choices {path}: {error}\n  fix: mpiexec -n RANKS python -m collectives tune --to {path}"
        ) from None
    by_shape = found.get("tables") if isinstance(found, dict) and found.get("format") == FORMAT else None
    if not isinstance(by_shape, dict) or not all(
        isinstance(each, dict) and isinstance(each.get("choices"), dict) for each in by_shape.values()
    ):
        raise MeshError(
            f'the table of choices {path}; needed: {{"format": {FORMAT}, "tables": {{SHAPE: {{"choices": ...}}}}}}\n'
            f"  fix: rm {path}; mpiexec -n RANKS python -m collectives tune --to {path}"
        )
    return {shape: Choices(each["choices"], str(path), str(each.get("note", ""))) for shape, each in by_shape.items()}


def stored(path: Path, shape: str, choices: Choices) -> None:
    """Add a table to a file, in the place of the one for the same shape. The file is replaced as a whole."""
    known = tables(path) if path.exists() else {}
    known[shape] = choices
    whole = {"format": FORMAT, "tables": {name: {"note": each.note, "choices": each.rows}
                                          for name, each in sorted(known.items())}}  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, "tune") as file:
            file.write(json.dumps(whole, indent=1).encode() + b"\n")
    except OSError as error:
        raise MeshError(
            f"the table of choices {path} is not written: {error.strerror or error}\n  fix: tune --to PATH, elsewhere"
        ) from None


def _read(given: str, shape: str) -> Choices | None:
    """The table for a shape; None if no file was named, and the cache directory has none."""
    path = Path(given) if given else default_path()
    is_named = bool(given or environment.value(VARIABLE))
    if (not given and follows_rule()) or (not is_named and not path.exists()):
        return None
    try:
        by_shape = tables(path)
    except MeshError as error:
        if is_named and not given:
            error.extend(f"\n  or:  unset {VARIABLE}, which names the file")
        raise
    if shape not in by_shape and is_named:
        known = "".join(f"\n    {each}" for each in by_shape) or " none"
        raise MeshError(
            f"the table of choices {path} has no table for\n    {shape}\n  but for:{known}\n"
            f"  fix: mpiexec -n RANKS python -m collectives tune --to {path}, with as many ranks and hosts"
        )
    return by_shape.get(shape)


def settled(native: Communicator, hosts: Level, given: str = "", topology: Any = None) -> Choices:
    """The choices for a group. All ranks call it; rank 0 reads the file, and all have its table.

    Without a table, the choices follow from the predicted times on a `topology` that is given, else from `rule`.

    Raises
    ------
    MeshError
        On all ranks, if the named file is missing, wrong, or without a table for this shape.
    """
    mine = b""
    if native.recorded_choices is not None:
        mine = json.dumps(native.recorded_choices.get(native.identity, {})).encode()
    elif native.index == 0:
        try:
            found = _read(given, shape_of(native, hosts))
            mine = json.dumps({} if found is None else {"rows": found.rows, "source": found.source}).encode()
        except MeshError as error:
            mine = json.dumps({"error": error.reason}).encode()
    table = json.loads(native.exchange(mine)[0])
    if not isinstance(table, dict):
        raise CommunicationError(f"rank 0 of '{native.name}' sent {table!r}; needed: its table of choices")
    if "error" in table:
        raise MeshError(f"algorithm='auto' on '{native.name}': {table['error']}")
    if table:
        return Choices(table["rows"], table["source"])
    if topology is None:
        return rule(hosts.count, hosts.sizes, native.size, native.are_processes)
    levels, link = topology.links(native.ranks)
    beyond = (link.latency_s, 1 / link.bytes_per_s)
    fit = Fit(native.size, *beyond, topology.gamma_s_per_byte, {}, levels, beyond)
    return Choices(tabulated(fit).rows, "topology")
