"""Read the record of a job: the facts of its ranks, and their calls by channel and number."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import Any, NamedTuple

from autograd.errors import CommunicationError, MeshError, printable

from ..job import job_of
from ..program_facts import checked, checked_files
from ..record_file import SAMPLING, TEXT, Entry, guarded, read_record
from ..recording import LEAST

__all__ = ["Key", "Record", "Recorded"]


_OF_RANK = re.compile("rank-[0-9]+")


class Recorded(NamedTuple):
    """A recorded call: its name, its entry, which of the next calls were compared, and its error."""

    call: str
    entry: Entry | None = None
    sampling: tuple[float, int] | None = None
    error: tuple[str, str] | None = None


Key = tuple[str, int, str]
"""A call: its channel, its number there, and of a comparison its text. See `Numbering.next`."""


class Record:
    """The record of all ranks of a job that can be read from a folder.

    Parameters
    ----------
    folder : str

    Attributes
    ----------
    facts : dict of int to dict
        By rank: the facts of its program.
    calls : dict of int to dict
        By rank and key: its calls.
    ends : dict of int to str
        By rank: the error that ended it, or "" if it came to its end. A rank that was cut off has no end.
    choices : dict of str to dict
        By channel: the tables of ``auto``.
    of_processes : bool
        Whether its ranks were processes, and not threads.
    has_data : bool
        Whether the results of all calls were recorded.

    Raises
    ------
    CommunicationError
        The folder has no record, or a damaged one.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.facts: dict[int, dict[str, Any]] = {}
        self.calls: dict[int, dict[Key, Recorded]] = {}
        self.ends: dict[int, str] = {}
        self.choices: dict[str, Any] = {}
        self._counts: dict[int, dict[str, int]] = {}
        names = guarded(folder, lambda: os.listdir(folder)) if os.path.isdir(folder) else []
        self.paths = [os.path.join(folder, name) for name in sorted(names) if _OF_RANK.fullmatch(name)]
        for path in self.paths:
            entries = read_record(path)
            guarded(path, partial(self._take, entries))
        if not self.facts:
            raise CommunicationError(f"{folder} holds no record of a rank; needed: a folder that cc.record wrote")
        shapes = {(of["size"], of["kind"], of["data"], of["block"]) for of in self.facts.values()}
        if len(shapes) > 1:
            raise CommunicationError(
                f"{folder} has ranks of different jobs: {', '.join(f'{n} ranks ({kind})' for n, kind, *_ in shapes)}\n"
                "  fix: record into an empty folder"
            )
        self.has_data: bool = self.any["data"]
        self.of_processes = job_of(self.any["kind"]).has_processes

    def _take(self, entries: list[Entry]) -> None:
        if not entries:
            return  # killed before its first entry was complete
        facts = checked(json.loads(entries[0].text))
        rank = facts["rank"]
        if rank in self.facts:
            raise ValueError(f"it is another record of rank {rank}")
        self.facts[rank] = facts
        calls = self.calls[rank] = {}
        names: dict[int, tuple[str, str]] = {}
        compared: dict[str, tuple[float, int]] = {}
        next_compared = None
        for entry in entries[1:]:
            if entry.kind == SAMPLING:
                agreed, opens = (float("inf") if n == LEAST else n for n in (entry.of, entry.number))
                next_compared = float(agreed), 1 << 62 if opens == float("inf") else int(opens)
            elif entry.kind != TEXT:
                name, channel = names[entry.of]
                if next_compared is not None:
                    compared[channel], next_compared = next_compared, None
                calls[channel, entry.number, ""] = Recorded(name, entry, compared.get(channel))
            else:
                line = json.loads(entry.text)
                if "id" in line:
                    names[line["id"]] = printable(str(line["call"])), printable(str(line["channel"]))
                elif "choices" in line:
                    self.choices[line["channel"]] = {"rows": line["choices"], "source": printable(str(line["source"]))}
                elif "files" in line:
                    facts["files"] |= checked_files(line["files"])
                elif "end" in line:
                    self.ends[rank] = printable(str(line["end"]))
                else:
                    kind, text = (printable(str(each)) for each in line["error"])
                    name, channel = ("agree", line["before"]) if "before" in line else names[line["of"]]
                    key = channel, entry.number, line.get("text", "")
                    calls[key] = Recorded(name, error=(kind, text))

    @property
    def any(self) -> dict[str, Any]:
        """The facts of the lowest rank."""
        return self.facts[min(self.facts)]

    @property
    def files(self) -> dict[str, str]:
        """The digests of the program's files that the ranks have imported."""
        return {name: digest for rank in sorted(self.facts) for name, digest in self.facts[rank]["files"].items()}

    def counts(self, rank: int) -> dict[str, int]:
        """The numbers of the recorded calls of a rank, by channel."""
        found = self._counts.get(rank)
        if found is None:
            found = self._counts[rank] = {}
            for channel, number, _ in self.calls.get(rank, {}):
                found[channel] = max(number, found.get(channel, 0))
        return found

    def needs_rank(self, rank: int) -> dict[Key, Recorded]:
        """The calls of a rank.

        Raises
        ------
        MeshError
            The record does not have that rank.
        """
        if rank not in self.calls:
            raise MeshError(
                f"replay of rank {rank}: {self.folder} has the ranks {', '.join(map(str, sorted(self.calls)))}"
            )
        return self.calls[rank]
