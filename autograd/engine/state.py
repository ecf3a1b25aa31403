"""What belongs to a thread: the recording that operations append to, and the mesh they run under.

Ranks may be threads of one process, so nothing of this is global. Reading it costs one attribute of a
`threading.local`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..layouts.layout import Grid
from .recording import Recording

__all__ = ["no_grad", "state"]


class State(threading.local):
    """Per-thread state. The class attributes are every thread's start."""

    recording: Recording | None = None
    """The flat list that operations append to; None while nothing is recorded."""
    grid: Grid | None = None
    """The current mesh's names, sizes and this rank's place; None without a mesh."""
    mesh: Any = None
    """The current mesh itself, which `autograd` hands on without looking inside."""
    poke: Callable[[], None] | None = None
    """Called after each node of a sweep, so that pending communication makes progress."""
    pending: Any = ()
    """The values that were started and not yet waited for (see `tensor.Deferred`), in order of their starts."""
    contexts: tuple[Callable[[], Any], ...] = ()
    """What the program is inside of, outermost first: each makes a context manager that enters it again, where a part
    of the program is run a second time (see `transforms.checkpoint`)."""
    dry: bool = False
    """Whether this thread runs a dry world, where every leaf has a shape only."""


state = State()


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside the block, communications included: on every rank of a group or on none."""
    before, state.recording = state.recording, None
    try:
        yield
    finally:
        state.recording = before
