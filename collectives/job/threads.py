"""The other threads of a rank that waits: whether one of them could still make the call that another rank waits for."""

from __future__ import annotations

import math
import threading
from collections.abc import Container
from types import FrameType

from autograd.errors import frames_of_thread, frames_of_threads, site_of_thread, uncollected

__all__ = ["patience_s", "place_of_program"]

_UNKNOWN_S = 10.0  # how long a wait lasts before threads that have never communicated, and daemon threads, are ignored

# Functions of the standard library in which a thread waits for another thread, with the variable of the time limit.
_WAITS = {
    ("concurrent/futures/thread.py", "_worker"): None,
    ("threading.py", "wait"): "timeout",
    ("threading.py", "_wait_for_tstate_lock"): "timeout",
    ("threading.py", "join"): "timeout",
}


def patience_s(waits: Container[int], communicating: Container[int]) -> float:
    """The time, in seconds, for which a rank must wait before its other threads are ignored.

    It is 0 if all other threads wait for threads of this process, because none is left that could wake them. It is
    infinite if the main thread, or one that has communicated before, does something else or may be woken to do it.

    Parameters
    ----------
    waits : container of int
        The threads that wait in ringtape.
    communicating : container of int
        The threads that have ever communicated.
    """
    frames = frames_of_threads()
    patience, is_woken_later = 0.0, False
    for thread in threading.enumerate():
        ident = thread.ident
        if thread is threading.current_thread() or ident is None or ident in waits or thread.name in _MONITORS:
            continue
        communicates = ident in communicating or thread is threading.main_thread()
        function = _waits_for_a_thread(frames.get(ident))
        if function:
            # The idle thread of a pool gets its work from a thread that communicates, in any ordinary program.
            is_woken_later |= communicates and function != "_worker"
            continue
        if communicates and not thread.daemon:
            return math.inf
        patience = _UNKNOWN_S
    return math.inf if patience and is_woken_later else patience


def place_of_program() -> str:
    """The line that the main thread executes; once it waits for the other threads to end, the lines of these."""
    main = threading.main_thread()
    frames = frames_of_thread(main.ident)
    if not frames or frames[-1].f_code.co_name != "_shutdown":
        return site_of_thread(main.ident)
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]
    sites = [f"thread {thread.name!r} at {site_of_thread(thread.ident)}" for thread in threads]
    return f"the end of its program, where it waits for {', '.join(sites) or 'threads'}"


_MONITORS = ("ringtape monitor", "ringtape reporter")


def _waits_for_a_thread(frame: FrameType | None) -> str:
    """The function in which a thread waits, without a time limit, for another thread of this process; or ""."""
    if frame is None:
        return ""
    code = frame.f_code
    path = code.co_filename.replace("\\", "/")
    for (file, function), limit in _WAITS.items():
        if code.co_name == function and path.endswith(f"/{file}"):
            return function if limit is None or uncollected(lambda: frame.f_locals).get(limit) in (None, -1) else ""
    return ""
