"""Windows, clocks and arrivals whose accesses are counted as operations of their rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..transports.arrivals import Arrivals
from ..transports.request import Array
from ..transports.windows import Clocks, Window

__all__ = ["CountedArrivals", "CountedClocks", "CountedWindow"]

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

    def put(self, values: Array, owner: int, start: int = 0) -> None:
        self._access("window.put", lambda: self._inner.put(values, owner, start))

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


class CountedArrivals(Arrivals):
    """Arrivals of a rank that it makes, and waits for, through a function."""

    def __init__(self, inner: Arrivals, access: Access):
        super().__init__(inner.index, inner.size, inner.count, inner.steps)
        self._inner = inner
        self._access = access

    def take(self, step: int, is_member: bool | None = None) -> bool:
        return bool(self._access("arrivals.take", lambda: self._inner.take(step, is_member)))

    def members(self, step: int) -> tuple[int, ...]:
        found: tuple[int, ...] = self._access("arrivals.members", lambda: self._inner.members(step))
        return found

    def finish(self, step: int) -> None:
        self._access("arrivals.finish", lambda: self._inner.finish(step))

    def wait(self, step: int) -> None:
        self._access("arrivals.wait", lambda: self._inner.wait(step))

    def is_finished(self, step: int) -> bool:
        return self._inner.is_finished(step)

    def recorded(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        return self._inner.recorded()

    def free(self) -> None:
        self._inner.free()
