"""What a collective asks of its transport, found by running its own rules on a stand-in for the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .communicator import Array, Communicator, Runs

__all__ = ["Probe", "Sent"]


class Sent(NamedTuple):
    """One call of a transport: its name, the other rank (a world rank; None for a collective), the operand's bytes."""

    call: str
    peer: int | None
    bytes: int


class Probe(Communicator):
    """In the place of a group: sends nothing, notes what would be sent, and gives zeros."""

    checking = False

    def __init__(self, group: Communicator):
        self.rank, self.size, self.ranks, self.name = group.rank, group.size, group.ranks, group.name
        self.copies, self.texts = [], {}
        self.sent: list[Sent] = []

    def _note(self, call: str, x: Any, peer: int | None = None) -> None:
        self.sent.append(Sent(call, None if peer is None else self.ranks[peer], 0 if x is None else x.nbytes))

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        pass

    def broadcast(self, x: Array, root: int) -> Array:
        self._note("broadcast", x)
        return x

    def reduce(self, x: Array, root: int) -> Array | None:
        self._note("reduce", x)
        return np.zeros_like(x) if self.rank == root else None

    def all_reduce(self, x: Array) -> Array:
        self._note("all_reduce", x)
        return np.zeros_like(x)

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        self._note("gather", x)
        return np.zeros(sum(counts), x.dtype) if self.rank == root else None

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        self._note("all_gather", x)
        return np.zeros(sum(counts), x.dtype)

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        self._note("scatter", x)
        return np.zeros(counts[self.rank], dtype)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        self._note("reduce_scatter", x)
        return np.zeros(counts[self.rank], x.dtype)

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        self._note("all_to_all", x)
        return np.zeros(sum(receive_counts), x.dtype)

    def maximum(self, x: Array) -> Array:
        self._note("maximum", x)
        return x

    def product(self, x: Array) -> Array:
        self._note("product", x)
        return x

    def scan(self, x: Array, exclusive: bool, backwards: bool) -> Array:
        self._note("scan", x)
        return np.zeros_like(x)

    def get(self, x: Array, runs: Runs) -> Array:
        self._note("get", x)
        return np.zeros(sum(count for _, _, count in runs), x.dtype)

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        self._note("accumulate", values)
        return np.zeros(count, values.dtype)

    def duplicate(self, purpose: str) -> Probe:
        return self

    def send(self, x: Array, dst: int) -> None:
        self._note("send", x, dst)

    def recv(self, buffer: Array, src: int) -> Array:
        self._note("recv", buffer, src)
        return buffer
