"""Record every operation of this rank, with its communication."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autograd.records.record import CallOf, OperationRecord, RankRecords
from autograd.records.recorder import Recorder

from ..transports.protocol import Communicator
from ..transports.request import Control, Request, given_bytes, shown
from ..world import world
from .clocks import Clock
from .observing import Watched, observing
from .timeline_report import MESSAGES

__all__ = ["Calls", "recording_operations"]

_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
_CONTROL = frozenset(("agree", "exchange", "window", "clocks", "arrivals"))


@contextmanager
def recording_operations(
    *, values: bool = True, lines: bool = True, clock: Clock = time.perf_counter_ns
) -> Iterator[RankRecords]:
    """Record every operation of this rank inside the block: forwards, backwards, effects and updates.

    It does not communicate, so the ranks may enter and leave the block at different times. It is for the current
    thread. Outside of the block nothing is paid.

    Parameters
    ----------
    values : bool
        Whether the records have the values of small arrays, and statistics and a digest of all. The results of all
        operations are read for it, from the device, too. Else they have shapes and dtypes.
    lines : bool
        Whether the records have the program's line and the modules around it.
    clock : callable, optional
        Returns the time on this rank in nanoseconds.

    Yields
    ------
    RankRecords
        The records, in order of execution. If the block raises, they end with the operation that raised, and `error` is
        the message.

    Notes
    -----
    The computation has the same bits as without records. A step takes several times as long.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh, cc.recording_operations() as found:
    ...         w = ag.Parameter([1.0, 2.0], name="w")
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * (1 + mesh.axis("dp").rank)).sum(), "dp", to=cc.I)
    ...         tape.backward(loss)
    ...     return [(r.direction, r.name, r.layout, r.operands, r.adjoint_of) for r in found.records if r.cause is None]
    >>> for row in cc.run(program, ranks=2)[0]:
    ...     print(*row)
    forward parameter w {dp: I} () None
    forward cast I->R {dp: R} (0,) None
    forward multiply {dp: V} (1, -1) None
    forward sum {dp: V} (2,) None
    forward all_reduce {dp: I} (3,) None
    backward all_reduce {dp: I} () 4
    backward sum {dp: V} () 3
    backward multiply {dp: V} () 2
    backward cast I->R {dp: P} () 1
    backward parameter w {dp: I} () 0
    """
    recorder = Recorder(int(world().rank), values=values, lines=lines, clock=clock)
    with observing(Calls(clock, recorder.add_call)), recorder.listening() as found:
        yield found


class Calls:
    """The observer that makes a `CallOf` for each call of a communicator.

    Parameters
    ----------
    clock : callable
        Returns the time on this rank in nanoseconds.
    take : callable
        It is called with each call that has begun. It returns the record of the call alone, if it has made one.
    """

    def __init__(self, clock: Clock, take: Callable[[CallOf], OperationRecord | None]):
        self._clock, self._take = clock, take
        self._counts: dict[Any, int] = {}

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        call = self._new(group, request, started)
        call.begin_ns = call.end_ns = call.wait_ns = self._clock()
        alone = self._take(call)
        try:
            result = run()
        except BaseException as error:
            if alone is not None:
                alone.end_ns, alone.error = self._clock(), str(error) or type(error).__name__
            raise
        call.returned_ns = self._clock()
        call.algorithm, call.reason = group.explain(request)  # which is settled now
        if not started:
            self._end(call, alone, call.returned_ns)
            return result
        is_waited_for = False

        def began() -> None:
            nonlocal is_waited_for
            call.wait_ns, is_waited_for = self._clock(), True

        def ended() -> None:
            self._end(call, alone, self._clock())
            if not is_waited_for:  # a test has found it complete
                call.wait_ns = call.end_ns

        return Watched(result, began, ended)

    @staticmethod
    def _end(call: CallOf, alone: OperationRecord | None, now: int) -> None:
        call.end_ns, call.has_ended = now, True
        if alone is not None:
            alone.end_ns = now

    def _new(self, group: Communicator, request: Request, started: bool) -> CallOf:
        of, channel, peer, way = request.call, group.name, None, ""
        is_control = of in _CONTROL or isinstance(request, Control)
        if of in MESSAGES:
            peer, way = group.ranks[request.peer], "recv" if of == "recv" else "send"
            if request.options and request.options[0] is not None:  # it is received by this number
                channel = f"{channel}#{request.options[0]}"
        elif of in _ROOTED:
            peer = group.ranks[request.root]
        key = channel, group.ranks, peer if way else None, way, is_control
        number = self._counts[key] = self._counts.get(key, 0) + 1
        axis = group.name.partition("@")[0]
        size = 0 if of == "agree" else given_bytes(request)
        return CallOf(
            shown(request), axis, channel, number, tuple(map(int, group.ranks)), size, peer, started, is_control
        )
