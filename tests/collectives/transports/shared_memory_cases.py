"""Tests of shared memory: every call on random operands inside and outside the window, compared with dense sums.

Also a stand-in for a host, so that the ranks of `collectives.run`, which are threads, use the same flags and slots.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from autograd.errors import RankFailed
from collectives.transports.shared_memory import region
from collectives.transports.shared_memory.communicator import SharedMemory

DTYPES = ("f4", "f8", "F", "D", "e", "i4", "u1", "?")
SIZES = (0, 1, 7, 1000, 5003, 65536, 70001, 200003)  # below a slot, at its end, a few slots


def addends(seed: int, count: int, dtype: str, ranks: int) -> list[np.ndarray]:
    """Every rank's operand, random and different."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind in "iu":
        return [rng.integers(0, 50, count).astype(dtype) for _ in range(ranks)]
    if kind == "b":
        return [rng.random(count) < 0.3 for _ in range(ranks)]
    found = [rng.standard_normal(count) for _ in range(ranks)]
    return [(x + (1j * x[::-1] if kind == "c" else 0)).astype(dtype) for x in found]


def dense(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum in order of rank, which is the order that shared memory promises."""
    half = parts[0].dtype == np.float16
    total = parts[0].astype(np.float32) if half else parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total.astype(parts[0].dtype)


def uneven(count: int, ranks: int) -> list[int]:
    """Sizes that differ between neighbours; one is 0 where there are three ranks or more."""
    weights = [(3 * r + 1) % (ranks + 1) if ranks > 2 else r + 1 for r in range(ranks)]
    counts = [count * w // sum(weights) for w in weights]
    counts[weights.index(max(weights))] += count - sum(counts)
    return counts


def check_all(memory: SharedMemory, count: int, dtype: str, seed: int) -> None:
    """Every call, the operand inside, outside, and inside on some ranks; operands stay as they were."""
    me, ranks = memory.rank, memory.size
    xs = addends(seed, count, dtype, ranks)
    total, mine = dense(xs), xs[me]
    counts = uneven(count, ranks)
    offset = sum(counts[:me])
    gathered = np.concatenate([x[:n] for x, n in zip(xs, counts, strict=True)])
    inside = memory.empty(count, dtype)
    part = memory.empty(counts[me], dtype)
    part[...] = mine[: counts[me]]
    assert count == 0 or ranks == 1 or memory.holds(inside)
    for name in ("outside", "inside", "mixed"):
        inside[...] = mine
        use_inside = name == "inside" or (name == "mixed" and (me + seed) % 2 == 0)
        x = inside if use_inside else mine.copy()
        g = part if use_inside else part.copy()
        results = {
            "all_reduce": (memory.all_reduce(x), total),
            "reduce_scatter": (memory.reduce_scatter(x, counts), total[offset : offset + counts[me]]),
            "all_gather": (memory.all_gather(g, counts), gathered),
        }
        for call, (got, want) in results.items():
            assert got.dtype == want.dtype and np.array_equal(got, want), f"{call} {count} {dtype} {name} rank {me}"
            assert not np.may_share_memory(got, x)
        assert np.array_equal(x, mine) and np.array_equal(g, mine[: counts[me]])
        for root in range(ranks):
            got = memory.broadcast(x if me == root else np.empty_like(mine), root)
            assert np.array_equal(got, xs[root]), f"broadcast {count} {dtype} {name} root {root} rank {me}"
        assert memory.all_reduce_in_place(x) is x
        assert np.array_equal(x, total), f"all_reduce_in_place {count} {dtype} {name} rank {me}"


def stress(memory: SharedMemory, rounds: int) -> None:
    """Calls in quick succession whose operands change at once, which find a missing barrier or a stale slot."""
    me, ranks = memory.rank, memory.size
    total = ranks * (ranks + 1) // 2
    small, large = np.empty(64, np.float32), memory.empty(70001, np.float32)
    for i in range(rounds):
        small.fill((me + 1) * (i + 1))
        got = memory.all_reduce(small)
        assert got[0] == got[-1] == total * (i + 1), f"round {i}: {got[0]} to {got[-1]}, not {total * (i + 1)}"
        if i % 8 == 0:
            large.fill((me + 1) * (i + 1))
            memory.all_reduce_in_place(large)
            assert (large == total * (i + 1)).all(), f"round {i}, in place"
            large.fill((me + 1) * (i + 2))
            got = memory.all_reduce(large)
            large.fill(-1)
            assert (got == total * (i + 2)).all(), f"round {i}, from the window"


# -- a host of threads ------------------------------------------------------------------------------------------------
class _Window:
    def __init__(self, content: np.ndarray):
        self.bytes = content
        self.is_freed = False

    def sync(self) -> None:
        """Threads of one interpreter see each other's stores in order."""

    def free(self) -> None:
        self.is_freed = True


class Threads:
    """Replaces `windows.Host` for the ranks of a local world."""

    is_fenced = False
    is_alarmed = False
    epoch = 0
    channel_key = "threads"
    ranks_here = 1 << 20  # so that a rank that waits does not spin

    def __init__(self, group: Any, windows: dict[int, np.ndarray]):
        self.group = group
        self.waiting: dict[int, Any] = {}
        self.made: list[_Window] = []
        self._windows = windows

    def window(self, size_bytes: int) -> _Window:
        number = len(self.made)
        if self.group.rank == 0:
            self._windows[number] = np.full(size_bytes, 0xA5, np.uint8)
        self.group.barrier()
        self.made.append(_Window(self._windows[number]))
        return self.made[-1]

    def free(self, window: _Window) -> None:
        window.free()

    def add_channel(self, channel: Any) -> None:
        """No monitor."""

    def remove_channel(self, channel: Any) -> None:
        """No monitor."""

    def on_close(self, release: Any) -> None:
        """No world is closed."""

    def own(self, memory: Any) -> str:
        return "threads"

    def disown(self, key: str) -> None:
        """Nothing was registered."""

    def forget(self, release: Any) -> None:
        """Nothing was registered."""

    def check(self, wait: Any) -> None:
        """No monitor."""

    def progress(self) -> None:
        time.sleep(0)  # lets another thread run
        local = getattr(self.group, "_world", None)
        if local is not None and local.failed:  # otherwise threads that wait for it would go on after the test
            raise RankFailed("another rank of this local world failed")


@contextmanager
def hosted() -> Iterator[None]:
    """Inside the block `SharedMemory` takes threads for ranks of one host."""
    windows: dict[int, np.ndarray] = {}
    real = region.open_host
    region.open_host = lambda base: Threads(base, windows) if base.size > 1 else None
    try:
        yield
    finally:
        region.open_host = real
