"""Per-thread state: the recording that operations append to, and the current mesh.

Ranks may be threads of one process, so none of this is global. Reading it costs one attribute of a `threading.local`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..layouts.layout import Grid, Layout
from .distribution import ALONE, Distribution
from .recording import Recording

__all__ = ["no_grad", "outside_mesh", "state"]


class State(threading.local):
    """Per-thread state. The class attributes are the initial values in every thread."""

    recording: Recording | None = None
    """The flat list that operations append to; None while nothing is recorded."""
    grid: Grid | None = None
    """The axis names and sizes of the current mesh, and this rank's coordinates; None without a mesh."""
    distribution: Distribution = ALONE
    """The current mesh; `ALONE` without one."""
    pending: Any = ()
    """Values that were started and not yet waited for (see `deferred.Unwaited`), in the order in which they started."""
    contexts: tuple[Callable[[], Any], ...] = ()
    """The active contexts, outermost first. Each makes a context manager that enters the context again when a part of
    the program runs a second time (see `transforms.checkpoint`)."""
    collected: list[Any] | None = None
    """Values besides its result that the running function gives to the program, such as side losses of layers; None
    where nothing collects them. A checkpointed function returns those of its own run with its result."""
    unstated: dict[str, tuple[str, Any, Any, Layout]] = {}
    """By axis: the name, dtype, shape and layout of the last leaf with labels for other axes but none for this one."""
    in_rules: bool = False
    """Whether a sweep runs. The numbers in the rules of operations are not compared between the ranks."""
    repeats: bool = False
    """Whether a part of the program runs a second time. Buffers of modules keep what the first run made of them."""
    levels: tuple[int, ...] = ()
    """The first places of the tapes of the transforms whose functions are running, outermost first."""
    recorder: Any = None
    """What records the calls of a step that is captured (`transforms.recorder`); None while nothing is captured."""
    no_grad: bool = False
    """Whether a `no_grad` block is active: values computed outside of a tape in it are meant without a gradient."""
    dry: bool = False
    """Whether this thread runs a dry world, where every leaf has a shape only."""

    @property
    def mesh(self) -> Any:
        """The current mesh, for the layers above; None without one."""
        return None if self.distribution is ALONE else self.distribution


state = State()


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside the block, communications included: on every rank of a group or on none.

    Its results are data on every tape. A value that is computed from a Parameter outside of a tape and of `no_grad` is
    refused on a tape.
    """
    before = state.recording, state.no_grad
    state.recording, state.no_grad = None, True
    try:
        yield
    finally:
        state.recording, state.no_grad = before


@contextmanager
def outside_mesh() -> Iterator[None]:
    """Inside the block there is no mesh, so new leaves have no layout."""
    before = state.distribution, state.grid
    state.distribution, state.grid = ALONE, None
    try:
        yield
    finally:
        state.distribution, state.grid = before
