"""Latency and bandwidth of an axis, measured when they are first needed, and what `auto` chooses by them.

Every rank exchanges with its neighbours on the ring, all at once, as the algorithms do: what they share (a link, a
core) is shared here too. A few short exchanges and the smallest time of several tries: noise only adds. The transport's
own collectives are a black box, so a few of their sizes are timed instead. All ranks get all measurements and take the
median of the ranks', so that they agree on every choice.
"""

from __future__ import annotations

import json
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.communicator import Communicator

from .costs import candidates, predict
from .steps import finish, swap
from .table import OPERATIONS

__all__ = ["Fit", "measure"]

SHORT_BYTES, LONG_BYTES = 64, 512 * 1024
NATIVE_BYTES = (1024, 8 * 1024, 64 * 1024, 1024 * 1024)
TRIES = 4
BUDGET_S = 0.02  # of one measurement, where a single call does not take longer


class Fit:
    """What was measured on an axis, the same on all its ranks.

    Attributes
    ----------
    alpha_s, beta_s_per_byte, gamma_s_per_byte : float
        Latency of a message, time of a byte on the link, time to add a byte.
    native : dict of str to list of (bytes, seconds)
        For each operation: times of the transport's own.
    """

    def __init__(
        self,
        ranks: int,
        alpha_s: float,
        beta_s_per_byte: float,
        gamma_s_per_byte: float,
        native: dict[str, list[tuple[int, float]]],
    ):
        self.ranks = ranks
        self.alpha_s = alpha_s
        self.beta_s_per_byte = beta_s_per_byte
        self.gamma_s_per_byte = gamma_s_per_byte
        self.native = native
        self._chosen: dict[tuple[str, int], str] = {}

    def __repr__(self) -> str:
        rate = 1e-6 / self.beta_s_per_byte if self.beta_s_per_byte else float("inf")
        return f"Fit({self.ranks} ranks, latency {self.alpha_s * 1e6:.3g} us, {rate:.4g} MB/s)"

    def times(self, operation: str, size_bytes: int) -> dict[str, float]:
        """Predicted seconds of every candidate."""
        model = (self.alpha_s, self.beta_s_per_byte)
        found = {name: predict(operation, name, size_bytes, self.ranks, *model, self.gamma_s_per_byte).time_s
                 for name in candidates(operation, size_bytes, self.ranks, *model)}  # fmt: skip
        if self.native.get(operation):
            found["native"] = _between(self.native[operation], size_bytes)
        return found

    def choose(self, operation: str, size_bytes: int) -> str:
        """The algorithm with the least predicted time."""
        key = operation, size_bytes
        if key not in self._chosen:
            times = self.times(operation, size_bytes)
            self._chosen[key] = min(times, key=lambda name: (times[name], name))
        return self._chosen[key]


def _between(points: list[tuple[int, float]], size_bytes: int) -> float:
    """The line through the two points around a size, or through the last two."""
    at = min(max(bisect_right([n for n, _ in points], size_bytes), 1), len(points) - 1)
    (n0, t0), (n1, t1) = points[at - 1], points[at]
    return max(t0 + (t1 - t0) * (size_bytes - n0) / (n1 - n0), min(t0, t1) * 0.5)


def _least(run: Callable[[], Any], before: Callable[[], Any], times: int) -> float:
    found = []
    for _ in range(TRIES):
        before()
        start = time.perf_counter()
        for _ in range(times):
            run()
        found.append((time.perf_counter() - start) / times)
    return min(found)


def measure(native: Communicator, messages: Communicator) -> Fit:
    """Measure; all ranks of the group call it.

    Parameters
    ----------
    native : Communicator
        Whose own collectives are timed.
    messages : Communicator
        The channel for the exchanges.
    """
    p, r = messages.size, messages.rank

    def exchange(size_bytes: int) -> Callable[[], None]:
        out, into = np.zeros(size_bytes, np.uint8), np.empty(size_bytes, np.uint8)
        return lambda: finish(swap(messages, out, (r + 1) % p, into, (r - 1) % p))

    def timed(run: Callable[[], Any]) -> float:
        run()  # connections and buffers are made at the first use
        start = time.perf_counter()
        run()
        first = time.perf_counter() - start
        slowest = max(json.loads(text) for text in native.exchange(json.dumps(first).encode()))
        return min(first, _least(run, messages.barrier, max(1, min(10, int(BUDGET_S / TRIES / slowest)))))

    short, long = (timed(exchange(n)) for n in (SHORT_BYTES, LONG_BYTES))
    x = np.zeros(LONG_BYTES // 8, np.float32)
    adding = _least(lambda: np.add(x, x, out=x), lambda: None, 4) / x.nbytes
    calls = {op: [timed(_native_call(native, op, n)) for n in NATIVE_BYTES] for op in OPERATIONS}
    told = [json.loads(text) for text in native.exchange(json.dumps([short, long, adding, calls]).encode())]
    short, long, adding = (statistics.median(row[k] for row in told) for k in range(3))
    beta = max(long - short, 0.0) / (LONG_BYTES - SHORT_BYTES)
    table = {op: [(n, statistics.median(row[3][op][k] for row in told)) for k, n in enumerate(NATIVE_BYTES)]
             for op in OPERATIONS}  # fmt: skip
    return Fit(p, max(short - SHORT_BYTES * beta, 1e-9), max(beta, 1e-13), adding, table)


def _native_call(group: Communicator, operation: str, size_bytes: int) -> Callable[[], Any]:
    count = size_bytes // 4
    x = np.zeros(count, np.float32)
    counts = [count * (i + 1) // group.size - count * i // group.size for i in range(group.size)]
    if operation == "all_reduce":
        return lambda: group.all_reduce(x)
    if operation == "reduce_scatter":
        return lambda: group.reduce_scatter(x, counts)
    if operation == "all_gather":
        return lambda: group.all_gather(x[: counts[group.rank]], counts)
    return lambda: getattr(group, operation)(x, 0)
