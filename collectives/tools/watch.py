"""A time limit on every step of a program that runs on all ranks, which says who holds the others up.

Every process has a thread that looks at what its ranks do. When a step lasts too long, each tells rank 0 where it
stands; rank 0 names the ranks that wait for nobody (they compute, or say nothing at all), and the job ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from ..job.failure import end_job
from ..transports.protocol import Communicator, Request

__all__ = ["Watch"]

_PERIOD_S = 0.2
_TELL_S = 5.0  # how long rank 0 listens to the others
_BYTES = 4096  # of what a rank says
_BACKENDS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "transports") + os.sep


class _Place(NamedTuple):
    step: int
    name: str
    since: float
    thread: int


class _Shared:
    """What the ranks of one process (one, or all of a local world) share."""

    def __init__(self) -> None:
        self.places: dict[int, _Place] = {}
        self.users = 0
        self.thread: threading.Thread | None = None
        self.stop = threading.Event()


_shared = _Shared()
_lock = threading.Lock()


class Watch:
    """``with Watch(...) as watch: watch.at(1, "the first step"); ...``. Every rank makes one.

    Parameters
    ----------
    title : str
        What messages begin with.
    ranks : Communicator
        All ranks of the job. Collective: ranks that are processes get a channel of their own for the last word.
    limit_s : float
        How long a step may last.

    Examples
    --------
    >>> import collectives as cc
    >>> with Watch("doc", cc.world(), 10.0) as watch:
    ...     watch.at(1, "nothing much")
    """

    def __init__(self, title: str, ranks: Communicator, limit_s: float):
        self._title = title
        self._ranks = ranks
        self._limit_s = limit_s
        self._are_threads = "Mpi" not in type(ranks).__name__
        self._channel = None if self._are_threads or ranks.size == 1 else ranks.duplicate(title)

    def at(self, step: int, name: str) -> None:
        """This rank begins a step."""
        _shared.places[self._ranks.rank] = _Place(step, name, time.monotonic(), threading.get_ident())

    def __enter__(self) -> Watch:
        self.at(0, "the start")
        with _lock:
            _shared.users += 1
            if _shared.users == 1:
                _shared.stop = threading.Event()
                _shared.thread = threading.Thread(target=self._look, args=(_shared.stop,), daemon=True, name="watch")
                _shared.thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        thread = None
        with _lock:
            _shared.users -= 1
            _shared.places.pop(self._ranks.rank, None)
            if _shared.users == 0:
                _shared.stop.set()
                thread = _shared.thread
        if thread is not None:
            thread.join(10.0)

    # -- the thread --------------------------------------------------------------------------------------------
    def _look(self, stop: threading.Event) -> None:
        while not stop.wait(_PERIOD_S):
            now = time.monotonic()
            if any(now - place.since > self._limit_s for place in _shared.places.copy().values()):
                self._end()
                return

    def _end(self) -> None:
        said = {rank: _state(place) for rank, place in _shared.places.copy().items()}
        if self._channel is not None:
            said = self._gather(said[self._ranks.rank])
        if self._are_threads or self._ranks.size == 1:
            print(f"ringtape: {self._text(said)}", file=sys.stderr, flush=True)
            os._exit(1)
        end_job(self._text(said))

    def _gather(self, mine: str) -> dict[int, str]:
        """On rank 0: what each rank says. Elsewhere: tell it, and leave the end to it, unless it does not come."""
        channel, ranks = self._channel, self._ranks
        assert channel is not None
        if sys.modules["mpi4py.MPI"].Query_thread() < sys.modules["mpi4py.MPI"].THREAD_MULTIPLE:
            return {ranks.rank: mine}
        buffers = {rank: np.zeros(_BYTES, np.uint8) for rank in range(1, ranks.size)}
        if ranks.rank > 0:
            own = buffers[ranks.rank]
            data = np.frombuffer(mine.encode()[:_BYTES], np.uint8)
            own[: data.size] = data
            channel.send(own, 0)
            time.sleep(2 * _TELL_S)
            return {ranks.rank: mine}
        pending = {rank: channel.start(Request("recv", out=buffer, peer=rank)) for rank, buffer in buffers.items()}
        end = time.monotonic() + _TELL_S
        while pending and time.monotonic() < end:
            pending = {rank: each for rank, each in pending.items() if not each.test()}
            time.sleep(0.01)
        said = {0: mine}
        for rank, buffer in buffers.items():
            if rank not in pending:
                said[rank] = buffer.tobytes().rstrip(b"\0").decode(errors="replace")
        return said

    def _text(self, said: dict[int, str]) -> str:
        silent = [rank for rank in range(self._ranks.size) if rank not in said] if 0 in said else []
        busy = [rank for rank, text in said.items() if not text.startswith("waits")]
        late = sorted(silent) + busy
        who = "all ranks wait for one another" if not late else (
            f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} of {self._ranks.size} hold"
            f"{'s' * (len(late) == 1)} it up"
        )  # fmt: skip
        lines = [f"{self._title}: a step has lasted more than {self._limit_s:g} s; {who}; the job ends"]
        lines += [f"  rank {rank} {said.get(rank, 'says nothing: it is stopped, or its process is gone')}"
                  for rank in sorted({*said, *silent})]  # fmt: skip
        return "\n".join(lines)


def _state(place: _Place) -> str:
    """What a rank does: it ``waits`` in a call of a transport, or it ``runs``; where, and since when."""
    frame = sys._current_frames().get(place.thread)
    innermost, call = frame, None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_BACKENDS):
            call = frame.f_code.co_name  # the outermost in the transport: the call that was made
        frame = frame.f_back
    step = f"step {place.step} ({place.name}) for {time.monotonic() - place.since:.1f} s"
    if call is not None:
        return f"waits in {call}, in {step}"
    if innermost is None:
        return f"has ended, in {step}"
    where = f"{os.path.basename(innermost.f_code.co_filename)}:{innermost.f_lineno} in {innermost.f_code.co_name}"
    return f"runs {where}, in {step}"
