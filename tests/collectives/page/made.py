"""Records made by hand, for tests of the alignment and of the data."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from collectives.inspect.record import CallOf, OperationRecord, RankRecords, Summary


def summary(values: object, *, absent: bool = False) -> Summary:
    """The summary of an array, as a recorder makes it."""
    array = np.asarray(values, dtype=np.float64)
    digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
    shown = tuple(float(x) for x in array.ravel()) if array.size <= 64 else None
    finite = array[np.isfinite(array)]
    return Summary(
        array.shape, "float64", shown, *(float(f(finite)) for f in (np.min, np.mean, np.max, np.std)),
        array.size - finite.size, digest, absent,
    )  # fmt: skip


class Maker:
    """Makes the records of one rank. An operation is a name, and what follows it in words.

    ``all_reduce@dp`` is a collective on a channel; ``send>1`` and ``recv<0`` are messages.
    """

    def __init__(self, rank: int, ranks: Sequence[int]):
        self.rank, self.ranks = rank, tuple(ranks)
        self.records: list[OperationRecord] = []
        self._numbers: dict[object, int] = defaultdict(int)

    def add(self, text: str, direction: str = "forward", adjoint_of: int | None = None) -> OperationRecord:
        calls = []
        name = text
        if "@" in text:
            name, channel = text.split("@")
            self._numbers[channel] += 1
            calls = [CallOf(name, channel, channel, self._numbers[channel], self.ranks, 8)]
        elif ">" in text or "<" in text:
            name, peer = text.replace("<", ">").split(">")
            self._numbers[text] += 1
            calls = [CallOf(name, "pp", "pp", self._numbers[text], self.ranks, 8, peer=int(peer))]
        made = OperationRecord(len(self.records), direction, name, file="program.py", line=1, calls=calls)
        made.adjoint_of = adjoint_of
        self.records.append(made)
        return made


def programs(*texts: str) -> list[RankRecords]:
    """The records of ranks that run operations, one text of words for each rank."""
    found = []
    for rank, text in enumerate(texts):
        maker = Maker(rank, range(len(texts)))
        for word in text.split():
            maker.add(word)
        found.append(RankRecords(rank, records=maker.records))
    return found
