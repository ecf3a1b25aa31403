"""A slow link on one host: each communication takes at least as long as on a link of a stated speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

from autograd.errors import OptionError, short, typed_errors

from ..inspect.observing import observing
from ..transports.protocol import Communicator, Pending, Request
from ..transports.request import whole_bytes
from ..world import World, is_rank_thread

__all__ = ["slow_link"]


@typed_errors
@contextmanager
def slow_link(gbit_per_s: float = 1.0, latency_s: float = 5e-5) -> Iterator[None]:
    """Inside the block, let every communication of a rank take the time of a link of its own.

    A rank enters the block for itself. Around `collectives.run` it holds for all ranks that are started inside.

    On one host, ranks communicate through memory, so that little is left to hide or to save. With this block the times
    are those of a network, on a laptop and without root, and started calls go on while the rank computes. Each rank has
    one link, on which its communications follow one another. The values do not change.

    Parameters
    ----------
    gbit_per_s : float
        The speed of the link, in 10**9 bits a second.
    latency_s : float
        The seconds that each communication takes besides.

    Raises
    ------
    OptionError
        The speed is not positive, or the latency is negative.

    Notes
    -----
    A call counts the bytes that its rank has to send at least: ``2 n (p - 1) / p`` for an all-reduce of n bytes by p
    ranks, ``n (p - 1) / p`` for its other collectives, n for a message. Comparisons of calls cost nothing. Enter the
    block before that of a timeline or a `StepReport`, which then measures these times. What cannot be seen: congestion,
    and what the processor spends on a network.

    Examples
    --------
    >>> import time, numpy as np, collectives as cc
    >>> from collectives.testing import slow_link
    >>> def program():
    ...     with slow_link(gbit_per_s=0.008):  # 10**6 bytes a second
    ...         start = time.perf_counter()
    ...         cc.world().all_reduce(np.ones(2500))  # each of 2 ranks sends 20,000 bytes
    ...         return time.perf_counter() - start > 0.02
    >>> cc.run(program, ranks=2)
    [True, True]
    """
    are_numbers = all(isinstance(x, Real) and not isinstance(x, bool) for x in (gbit_per_s, latency_s))
    if not are_numbers or not gbit_per_s > 0 or not latency_s >= 0:
        raise OptionError(
            f"slow_link: gbit_per_s={short(gbit_per_s)}, latency_s={short(latency_s)} were given; needed: a positive "
            "speed, and a latency of at least 0\n  fix: slow_link(gbit_per_s=1.0, latency_s=5e-5)"
        )

    def on_link(program: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with observing(_Link(gbit_per_s, latency_s)):
                return program(*args)

        return run

    # The main thread may have a world of its own, of one rank, and start ranks besides.
    starts_ranks = not is_rank_thread() or threading.current_thread() is threading.main_thread()
    if starts_ranks:
        World.wrappers.append(on_link)
    try:
        with observing(_Link(gbit_per_s, latency_s)):
            yield
    finally:
        if on_link in World.wrappers:
            World.wrappers.remove(on_link)


_FREE = frozenset(("agree", "window", "clocks", "arrivals", "recv"))


class _Link:
    """The observer of a rank whose communications take the time of a link."""

    def __init__(self, gbit_per_s: float, latency_s: float):
        self._gbit_per_s, self._latency_s = gbit_per_s, latency_s
        self._free = 0.0  # when the link has sent all that was given to it

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if group.size == 1 or request.call in _FREE:
            return run()
        transfer_s = self._latency_s + 8e-9 * _sent(request, group) / self._gbit_per_s
        self._free = done = max(time.perf_counter(), self._free) + transfer_s
        if started:
            return _Late(run(), done)
        found = run()
        _sleep_until(done)
        return found


def _sent(request: Request, group: Communicator) -> float:
    """The bytes that a rank sends at least."""
    if request.call in ("send", "lend"):
        return float(getattr(request.x, "nbytes", 0))
    size = whole_bytes(request, group.index, group.size)
    if request.call in ("get", "accumulate"):
        return float(size)
    return size * (group.size - 1) / group.size * (2 if request.call == "all_reduce" else 1)


def _sleep_until(done: float) -> None:
    left = done - time.perf_counter()
    if left > 0:
        time.sleep(left)


class _Late(Pending[Any]):
    """A started call that is complete at a time at the earliest."""

    __slots__ = ("_done", "_inner")

    def __init__(self, inner: Pending[Any], done: float):
        super().__init__(None, None)
        self._inner, self._done = inner, done

    def test(self) -> bool:
        return self._inner.test() and time.perf_counter() >= self._done

    def wait(self) -> Any:
        found = self._inner.wait()
        _sleep_until(self._done)
        return found

    def into(self, out: Any) -> _Late:
        self._inner.into(out)
        return self
