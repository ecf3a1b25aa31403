"""A transport that runs its collectives by their names: what threads and processes do alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.communicator import Array, Communicator

__all__ = ["ByName"]


class ByName(Communicator):
    """A communicator whose collectives are entries of one table. A transport overrides `_call`, and what is special."""

    def _call(self, name: str, *args: Any) -> Any:
        """The named call, blocking."""
        raise NotImplementedError

    def broadcast(self, x: Array, root: int) -> Array:
        return self._call("broadcast", x, root)

    def reduce(self, x: Array, root: int) -> Array | None:
        return self._call("reduce", x, root)

    def all_reduce(self, x: Array) -> Array:
        return self._call("all_reduce", x)

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        return self._call("gather", x, counts, root)

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("all_gather", x, counts)

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        return self._call("scatter", x, counts, root, dtype)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("reduce_scatter", x, counts)

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        return self._call("all_to_all", x, send_counts, receive_counts)

    def maximum(self, x: Array) -> Array:
        return self._call("maximum", x)

    def product(self, x: Array) -> Array:
        return self._call("product", x)

    def scan(self, x: Array, exclusive: bool, backwards: bool) -> Array:
        return self._call("scan", x, exclusive, backwards)

    def barrier(self) -> None:
        self._call("barrier")
