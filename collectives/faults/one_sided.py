"""Windows and clocks whose accesses are counted as operations of their rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..transports.request import Array
from ..transports.windows import Clocks, Window

__all__ = ["CountedClocks", "CountedWindow"]

Access = Callable[[str, Callable[[], Any]], Any]
"""``access(name, run)`` counts an operation and returns ``run()``."""


class CountedWindow(Window):
    """A window that makes its accesses through a function."""

    def __init__(self, inner: Window, access: Access):
        super().__init__(inner.index, inner.ranks, inner.counts, inner.dtype, inner.name)
        self.traffic = inner.traffic
        self._inner = inner
        self._access = access

    def get(self, owner: int, start: int = 0, count: int | None = None) -> Array:
        found: Array = self._access("window.get", lambda: self._inner.get(owner, start, count))
        return found

    def add(self, values: Array, owner: int, start: int = 0) -> None:
        self._access("window.add", lambda: self._inner.add(values, owner, start))

    def fetch_and_add(self, value: Any, owner: int, at: int) -> Any:
        return self._access("window.fetch_and_add", lambda: self._inner.fetch_and_add(value, owner, at))

    @contextmanager
    def locked(self, owner: int) -> Iterator[None]:
        self._access("window.locked", lambda: None)
        with self._inner.locked(owner):
            yield

    def free(self) -> None:
        self._inner.free()


class CountedClocks(Clocks):
    """Clocks that are set, and waited for, through a function."""

    def __init__(self, inner: Clocks, access: Access):
        self._inner = inner
        self._access = access

    def set(self, clock: int) -> None:
        self._access("clocks.set", lambda: self._inner.set(clock))

    def wait(self, clock: int) -> None:
        self._access("clocks.wait", lambda: self._inner.wait(clock))

    def values(self) -> list[int]:
        return self._inner.values()

    @property
    def mine(self) -> int:
        return self._inner.mine

    def free(self) -> None:
        self._inner.free()
