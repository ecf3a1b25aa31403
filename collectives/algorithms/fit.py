"""Measure latency and bandwidth of an axis, and find the fastest algorithms, for ``python -m collectives tune``.

Every rank sends to the ranks at distances 1, 2, 4, ... and receives from the ranks at these distances in the other
direction, all ranks at once, as the algorithms do. So links and cores are shared as in the algorithms, and a late rank
delays the others. The result is the median of several tries, which are spread over the whole measurement, so that a
short disturbance has no effect, while a permanent one (ranks that share a core) is included.

The cost of the transport's own collectives, and of memory shared by the ranks of a host, is not modelled. These are
timed at a few sizes, as long as that is quick, and are not chosen for much larger ones. All ranks exchange their
measurements and use the median over the ranks, so they agree on every choice.

A measurement has a budget: a rank gives at most `BUDGET_BYTES` to its calls, and all tries together are expected to
take at most `BUDGET_S`. Measurements that would exceed it are left out, on all ranks.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..transports.protocol import Communicator, Request
from ..transports.request import answer
from ..transports.shared_memory.communicator import shared_memory
from ..transports.steps import finish, swap
from .costs import Levels, candidates, hierarchies, predict
from .hierarchical import Level
from .table import OPERATIONS, steps_of

__all__ = ["Fit", "measure"]

SHORT_BYTES, LONG_BYTES = 64, 128 * 1024
TIMED_BYTES = tuple(1 << k for k in (10, 12, 14, 17))
TRIED_BYTES = TIMED_BYTES[:3]  # sizes at which the model's error is measured; for longer arrays bandwidth dominates
SHORT_TIE_BYTES = 1 << 16
TIMED_LIMIT_S = 0.1  # sizes that are expected to take longer are not timed
BEYOND = 64  # ``native`` and ``shared`` are not chosen above BEYOND times the longest timed size
TIE = 1.05  # the ring is chosen if its predicted time is at most TIE times the best
SHORT_TIE = 1.25  # the same for ``native`` on short arrays: its time was measured, the others are predicted
WARMING, TRIES = 2, 5  # calls before a measurement, and timed ones
REPEATED_BYTES = 32 * 1024  # the most bytes of the calls of one try, unless a single call has more
EACH_S = 0.02  # time for all tries of one measurement, unless a single call takes longer
BUDGET_BYTES, BUDGET_S = 16 * 1000 * 1000, 5.0


Table = dict[str, list[tuple[int, float]]]


class Fit:
    """The measurements of an axis, the same on all its ranks.

    Attributes
    ----------
    alpha_s, beta_s_per_byte, gamma_s_per_byte : float
        Latency of a message, time to send a byte, time to add a byte.
    timed : dict of str to dict of str to list of (bytes, seconds)
        Measured times of ``native`` and ``shared``, for each operation.
    errors : dict of str to list of (bytes, factor)
        For each operation: measured time divided by predicted time of the predicted best, at small sizes.
    levels : sequence of (int, float, float)
        As in `predict`; () unless several domains have several members each.
    outermost : (float, float)
        Latency and time to send a byte between the outermost domains.
    """

    def __init__(
        self,
        ranks: int,
        alpha_s: float,
        beta_s_per_byte: float,
        gamma_s_per_byte: float,
        timed: dict[str, Table],
        levels: Levels = (),
        outermost: tuple[float, float] = (0.0, 0.0),
        errors: dict[str, list[tuple[int, float]]] | None = None,
    ):
        self.ranks = ranks
        self.alpha_s = alpha_s
        self.beta_s_per_byte = beta_s_per_byte
        self.gamma_s_per_byte = gamma_s_per_byte
        self.timed = timed
        self.levels, self.outermost = levels, outermost
        self.errors = errors or {}
        self._chosen: dict[tuple[str, int], str] = {}

    def __repr__(self) -> str:
        rate = 1e-6 / self.beta_s_per_byte if self.beta_s_per_byte else float("inf")
        return f"Fit({self.ranks} ranks, latency {self.alpha_s * 1e6:.3g} us, {rate:.4g} MB/s)"

    def times(self, operation: str, size_bytes: int) -> dict[str, float]:
        """The predicted time of every candidate, in seconds."""
        found = self.modelled(operation, size_bytes)
        if self.levels and operation == "all_reduce":
            alpha_s, beta = self.outermost
            for name in hierarchies(len(self.levels)):
                found[name] = predict(operation, name, size_bytes, self.ranks, alpha_s, beta, self.gamma_s_per_byte,
                                      levels=self.levels).time_s  # fmt: skip
        error = self._error(operation, size_bytes)
        found = {name: error * seconds for name, seconds in found.items()}
        for name, table in self.timed.items():
            points = table.get(operation)
            if points and size_bytes <= BEYOND * points[-1][0]:
                found[name] = _between(points, size_bytes)
        return found

    def modelled(self, operation: str, size_bytes: int) -> dict[str, float]:
        """The times of the algorithms without levels by the model alone, in seconds."""
        model = (self.alpha_s, self.beta_s_per_byte)
        return {name: predict(operation, name, size_bytes, self.ranks, *model, self.gamma_s_per_byte).time_s
                for name in candidates(operation, size_bytes, self.ranks, *model)}  # fmt: skip

    def _error(self, operation: str, size_bytes: int) -> float:
        """The model's error at a size: the factor at the nearest tried size, and 1 for much larger sizes."""
        tried = self.errors.get(operation)
        if not tried or size_bytes > 2 * tried[-1][0]:
            return 1.0
        return min(tried, key=lambda row: abs(math.log(row[0] / max(size_bytes, 1))))[1]

    def choose(self, operation: str, size_bytes: int) -> str:
        """The algorithm with the shortest predicted time, except that near-ties go to the ring, or to ``native``.

        The model does not include late ranks. In a ring, a rank waits for its neighbours only, so a late rank costs the
        ring less than other algorithms. For short arrays near-ties go to ``native``, because its time was measured and
        predictions are less accurate there.
        """
        key = operation, size_bytes
        if key not in self._chosen:
            times = self.times(operation, size_bytes)
            best = min(times, key=lambda name: (times[name], name))
            for name, tie in (("ring", TIE), ("native", SHORT_TIE if size_bytes <= SHORT_TIE_BYTES else 1.0)):
                if name in times and times[name] <= tie * times[best]:
                    best = name
            self._chosen[key] = best
        return self._chosen[key]


def _between(points: list[tuple[int, float]], size_bytes: int) -> float:
    """Interpolate linearly between the two points around a size, or extrapolate from the last two."""
    at = min(max(bisect_right([n for n, _ in points], size_bytes), 1), len(points) - 1)
    (n0, t0), (n1, t1) = points[at - 1], points[at]
    return max(t0 + (t1 - t0) * (size_bytes - n0) / (n1 - n0), min(t0, t1) * 0.5)


Run = Callable[[], Any]


def _usual(runs: Sequence[tuple[Run, int]], before: Run) -> list[float]:
    """The median time of each of several calls; `runs` has each call with its number of repetitions per try.

    The calls take turns, so a temporary disturbance affects one try of each call and not all tries of one call.
    """
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(TRIES):
        for (run, times), seen in zip(runs, found, strict=True):
            before()
            start = time.perf_counter()
            for _ in range(times):
                run()
            seen.append((time.perf_counter() - start) / times)
    return [statistics.median(seen) for seen in found]


def measure(native: Communicator, messages: Communicator, hosts: Level) -> Fit:
    """Measure an axis. All ranks of the group call it.

    Parameters
    ----------
    native : Communicator
        The communicator whose own collectives are timed.
    messages : Communicator
        The channel of the algorithms' messages.
    hosts : Level
        The ranks of the group by host, rack and so on.

    Returns
    -------
    Fit
    """
    clock, p = _Clock(native, messages), messages.size
    inside, last = _groups(hosts)
    groups = [messages, *(group for group in inside if group.size > 1), *last]
    runs = [clock.repeated(_exchange(group, n), (group.size - 1).bit_length() * n)
            for group in groups for n in (SHORT_BYTES, LONG_BYTES)]  # fmt: skip
    x = np.zeros(LONG_BYTES // 8, np.float32)
    runs.append((lambda: np.add(x, x, out=x), 4))
    unmodelled = {"native": native}
    memory = _memory(messages, hosts)
    if memory is not None:
        unmodelled["shared"] = memory
    timed = list(_unmodelled_runs(unmodelled, clock))
    found = clock.agreed([*runs, *(run for _, run in timed)])
    steps = [found[2 * k + i] / (group.size - 1).bit_length() for k, group in enumerate(groups) for i in (0, 1)]
    (link, *lines) = [_line(*steps[2 * k : 2 * k + 2]) for k in range(len(groups))]
    levels = [(group.size, *(lines.pop(0) if group.size > 1 else (0.0, 0.0))) for group in inside]
    tables: dict[str, Table] = {name: {} for name in unmodelled}
    for ((name, op, size_bytes), _), seconds in zip(timed, found[len(runs) :], strict=True):
        tables[name].setdefault(op, []).append((size_bytes, seconds))
    adding = found[2 * len(groups)] / x.nbytes
    fit = Fit(p, *link, adding, tables, levels, lines[0] if levels else (0.0, 0.0))
    _try_models(fit, clock)
    return fit


def _groups(level: Level) -> tuple[list[Communicator], list[Communicator]]:
    """The groups of the even levels, and the one between the outermost; none where no domain has several members."""
    inside: list[Communicator] = []
    last: list[Communicator] = []
    sizes = level.sizes
    while len(inside) < len(sizes) and level.between is not None and level.between.size > 1:
        inside, last = [*inside, level.inside], [level.between]
        if level.above is None:
            break
        level = level.above
    return (inside, last) if any(group.size > 1 for group in inside) else ([], [])


class _Clock:
    """Times calls that all ranks make together, agrees on the times, and keeps the budget, as all ranks do alike."""

    def __init__(self, native: Communicator, messages: Communicator):
        self.native, self.messages = native, messages
        self.left_bytes, self.left_s = float(BUDGET_BYTES), BUDGET_S

    def affords(self, size_bytes: float) -> bool:
        """Whether a call that gives `size_bytes` can be measured within the budget."""
        return self.left_s > 0 and (WARMING + TRIES) * size_bytes <= self.left_bytes

    def slowest(self, run: Run) -> float:
        """The approximate time of a call on the slowest rank; the same number on all ranks."""
        run()  # the first call makes connections and buffers
        start = time.perf_counter()
        run()
        first = time.perf_counter() - start
        return max(json.loads(text) for text in self.native.exchange(json.dumps(first).encode()))

    def repeated(self, run: Run, size_bytes: float, seconds: float | None = None) -> tuple[Run, int]:
        """A call with its number of repetitions per try; `seconds` is its approximate time, if that is known."""
        seconds = self.slowest(run) if seconds is None else seconds
        times = max(1, min(10, int(EACH_S / TRIES / seconds), int(REPEATED_BYTES / max(size_bytes, 1.0))))
        self.left_bytes -= (WARMING + TRIES * times) * size_bytes
        self.left_s -= (WARMING + TRIES * times) * seconds
        return run, times

    def agreed(self, runs: Sequence[tuple[Run, int]]) -> list[float]:
        """The median over the ranks of their median times."""
        mine = json.dumps(_usual(runs, self.messages.barrier)).encode()
        return [statistics.median(each) for each in zip(*map(json.loads, self.native.exchange(mine)), strict=True)]


def _exchange(group: Communicator, size_bytes: int) -> Run:
    """Messages between ranks at the distances 1, 2, 4, ..., one after another."""
    out, into = np.zeros(size_bytes, np.uint8), np.empty(size_bytes, np.uint8)
    distances = [1 << k for k in range((group.size - 1).bit_length())]

    def rounds() -> None:
        for distance in distances:
            to, source = (group.index + distance) % group.size, (group.index - distance) % group.size
            finish(swap(group, out, to, into, source))

    return rounds


def _unmodelled_runs(
    groups: dict[str, Communicator], clock: _Clock
) -> Iterator[tuple[tuple[str, str, int], tuple[Run, int]]]:
    """The calls whose times no model gives, each with its name, operation and size, until one takes too long."""
    for name, group in groups.items():
        for op in OPERATIONS:
            if steps_of(op, name) is None and name != "native":
                continue
            for k, size_bytes in enumerate(TIMED_BYTES):
                if k > 1 and not clock.affords(size_bytes):
                    break
                run = _call(group, op, size_bytes)
                seconds = clock.slowest(run)
                yield (name, op, size_bytes), clock.repeated(run, size_bytes, seconds)
                if 4 * seconds > TIMED_LIMIT_S and k:
                    break


def _try_models(fit: Fit, clock: _Clock) -> None:
    """Time the best algorithm by the model, which is the same on all ranks, beside ``native``; set `fit.errors`."""
    tried, runs = [], []
    for op, size_bytes in [(op, size_bytes) for op in OPERATIONS for size_bytes in TRIED_BYTES]:
        _, best = min((t, name) for name, t in fit.modelled(op, size_bytes).items())
        ours_bytes = predict(op, best, size_bytes, fit.ranks, fit.alpha_s, fit.beta_s_per_byte).bytes
        if not clock.affords(ours_bytes + size_bytes):
            continue
        tried.append((op, size_bytes))
        runs.append(clock.repeated(_trial(clock.messages, op, best, size_bytes), ours_bytes))
        runs.append(clock.repeated(_call(clock.native, op, size_bytes), size_bytes))
    found = clock.agreed(runs)
    for (op, size_bytes), ours, beside in zip(tried, found[::2], found[1::2], strict=True):
        # both were measured under the same load, so their ratio is reliable
        seconds = ours / beside * _between(fit.timed["native"][op], size_bytes)
        fit.errors.setdefault(op, []).append((size_bytes, seconds / min(fit.modelled(op, size_bytes).values())))


def _line(short_s: float, long_s: float) -> tuple[float, float]:
    """alpha and beta of the line through the times of a short and a long message."""
    beta = max((long_s - short_s) / (LONG_BYTES - SHORT_BYTES), 1e-13)
    return max(short_s - SHORT_BYTES * beta, 1e-9), beta


def _memory(group: Communicator, hosts: Level) -> Communicator | None:
    """A communicator by shared memory; None if the ranks are on several hosts, or are threads of one process."""
    if hosts.count > 1:
        return None
    memory = shared_memory(group)
    return None if memory.is_plain else memory


def _call(group: Communicator, operation: str, size_bytes: int) -> Callable[[], Any]:
    """A call of a communicator's own collective."""
    request, _ = _request(group, operation, size_bytes)
    return lambda: group.run(request)


def _trial(group: Communicator, operation: str, name: str, size_bytes: int) -> Callable[[], Any]:
    """A call by an algorithm."""
    algorithm, (request, out) = steps_of(operation, name), _request(group, operation, size_bytes)
    assert algorithm is not None
    return lambda: finish(algorithm(group, request, request.x, out))


def _request(group: Communicator, operation: str, size_bytes: int) -> tuple[Request, Any]:
    """A request of `size_bytes` in all, with root 0, and the array for its result."""
    count = size_bytes // 4
    counts = [count * (i + 1) // group.size - count * i // group.size for i in range(group.size)]
    x = np.zeros(counts[group.index] if operation == "all_gather" else count, np.float32)
    request = Request(operation, x, counts=counts)
    if operation == "broadcast" and group.index:
        request = Request(operation, out=x)
    found = answer(request, group.index)
    return request, None if found is None else np.empty(*found)
