"""Counts the operations of ranks, and carries the faults of a plan out when their time has come.

The calls of a rank are seen by an observer of its thread (`transports.protocol.observers`), and named points by a
listener (`points`). Without a plan there is neither.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import get_ident
from typing import Any, NoReturn, TypeVar

import numpy as np

from autograd import environment
from autograd.errors import OptionError, find_site, short_site

from ..checks.reports import print_report
from ..job.failure import process
from ..transports.job import Death
from ..transports.protocol import Communicator, Observer, Pending, Request, observers, quietly
from .one_sided import CountedArrivals, CountedClocks, CountedWindow
from .plan import CALLS, Corrupt, Delay, Drop, Fault, Kill, Plan, Stop
from .points import listeners

__all__ = ["Injection", "RankFaults", "around", "attach", "begin", "is_active"]

T = TypeVar("T")
Changes = list[tuple[Fault, str]]
"""Faults that change a call, and the text of its place."""
_UNCOUNTED = frozenset(("agree", "exchange"))  # comparisons and control messages depend on the check mode
_NAMES = {"lend": "send"}


class Injection:
    """A plan in force: the counts of its ranks, and the faults that have happened.

    Attributes
    ----------
    plan : Plan
    happened : list of str
        Each fault that has happened on the ranks of this process, with its operation and line, in order of time.
    counts : dict of int to Counter
        For each rank of this process, the number of its operations by name; the key ``""`` has the number of all.
    """

    def __init__(self, plan: Plan):
        self.plan = plan.of_start(environment.whole("RINGTAPE_START"))  # `parallel.launch` counts from 1 on
        self.happened: list[str] = []
        self._faulty: dict[tuple[int, bool], RankFaults] = {}
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[int, Counter[str]]:
        found: dict[int, Counter[str]] = {}
        for (rank, _), faulty in sorted(self._faulty.items()):
            found[rank] = found.get(rank, Counter()) + faulty.counts
        return found

    def of_rank(
        self, rank: int, world: Callable[[], Communicator], is_process: bool, is_started: bool = False
    ) -> RankFaults:
        """The faults of a rank that begins a program. Its counts go on from the one before.

        Parameters
        ----------
        rank : int
        world : callable
            Returns the channel of all ranks.
        is_process : bool
            Whether this rank is a process, which signals can end and stop.
        is_started : bool
            Whether `run` has started it as a thread. The thread that calls `run` may be a rank, too: its own.
        """
        with self._lock:
            faulty = self._faulty.get((rank, is_started))
            if faulty is None:
                faulty = self._faulty[rank, is_started] = RankFaults(self, rank, is_process)
        faulty.begin(world)
        return faulty

    def unreached(self, ranks: Sequence[int] | None = None) -> Iterator[str]:
        """A text for each fault that did not happen although the program of its rank has ended normally.

        Parameters
        ----------
        ranks : sequence of int, optional
            The ranks that this process knows; by default all.
        """
        for fault in self.plan:
            if ranks is not None and fault.rank not in ranks:
                continue
            found = [x for (rank, _), x in self._faulty.items() if rank == fault.rank]
            if any(fault not in x.left or not x.has_ended for x in found):
                continue  # it has happened, or an error has ended the program
            counts = sum((x.counts for x in found), Counter[str]())
            made = f"rank {fault.rank} made {counts['']} operation{'s' * (counts[''] != 1)}"
            if fault.of:
                made += f", {counts[fault.of]} of them of {fault.of}"
            if any(fault in x.due for x in found):
                made += f", and no call that {fault.kind} can change from the one on at which it was due"
            yield f"the fault {fault} did not happen: {made}"


class RankFaults:
    """The faults of one rank: how many operations it has made, and what is still to happen.

    Attributes
    ----------
    counts : Counter
        The operations by name; ``""`` counts all.
    left, due : list of Fault
        The faults that have not happened, and those of them whose place was reached, but which wait for a call that
        they can change.
    has_ended : bool
        Whether the rank's program has returned.
    """

    def __init__(self, injection: Injection, rank: int, is_process: bool):
        self.counts: Counter[str] = Counter()
        self.left: list[Fault] = [fault for fault in injection.plan if fault.rank == rank]
        self.due: list[Fault] = []
        self.has_ended = False
        self.world: Callable[[], Communicator]
        self._injection = injection
        self._rank = rank
        self._is_process = is_process
        self._pid = os.getpid()
        self._death = ""
        self._cut: dict[tuple[Communicator, str, int], str] = {}  # channels on which nothing arrives any more, and why
        self._lock = threading.RLock()  # points may be in other threads

    # -- what is seen ------------------------------------------------------------------------------------------
    def observer(self, outer: Observer | None) -> Observer:
        """The observer of this rank's calls, inside another one."""

        def observe(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
            if group.dry or self._pid != os.getpid():  # a child by a fork is no rank
                return run() if outer is None else outer(group, request, started, run)
            return self._called(group, request, started, run if outer is None else lambda: outer(
                group, request, started, run))  # fmt: skip

        return observe

    def heard(self, name: str) -> None:
        """Count a named point of this rank's thread."""
        if self._pid == os.getpid():
            self.reach(name, None)

    def heard_beside(self, name: str) -> None:
        """Count a named point of another thread, by its name only."""
        if self._pid == os.getpid():
            self.reach(name, None, is_counted=False, is_beside=True)

    def _called(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        name = _NAMES.get(request.call, request.call)
        if name in _UNCOUNTED:
            self.reach(name, group, is_counted=False)
            return run()
        if name == "window":
            return CountedWindow(run(), lambda *call: self.access(group, *call))
        if name == "clocks":
            return CountedClocks(run(), lambda *call: self.access(group, *call))
        if name == "arrivals":
            return CountedArrivals(run(), lambda *call: self.access(group, *call))
        changes = self.reach(name, group, is_call=True)
        # The next call of the channel must not take the place of the one that is lost.
        channel = (group, name, request.peer) if name in ("send", "recv") else (group, "", 0)
        if (dropped := self._first_drop(changes)) is not None:
            self._cut[channel] = f"its {name} was dropped by an injected fault ({dropped})"
        if (why := self._cut.get(channel)) is not None:
            if name == "send":
                return Pending.done(None) if started else None
            if started:
                return self._started(_Later(lambda: _endless(group, why)), group, [])
            self._wait_for_ever(group, why)
        if name == "send" and changes:  # a corrupted copy
            copy = request._replace(x=self._corrupt(request.x.copy(), changes), call="send")
            return quietly(lambda: group.start(copy) if started else group.run(copy))
        return self._started(run(), group, changes) if started else self._corrupt(run(), changes)

    def access(self, group: Communicator, name: str, run: Callable[[], Any]) -> Any:
        """Count an access to a window, clocks or arrivals, and make it."""
        changes = self.reach(name, group, is_call=name in CALLS)
        if (dropped := self._first_drop(changes)) is not None:
            if name in ("window.add", "window.put"):
                return None  # as they do
            self._wait_for_ever(group, f"its {name} was dropped by an injected fault ({dropped})")
        return self._corrupt(run(), changes)

    def reach(
        self, name: str, group: Communicator | None, is_counted: bool = True, is_call: bool = False,
        is_beside: bool = False,
    ) -> Changes:  # fmt: skip
        """Count an operation, carry out the faults that need no call, and return those that change this one.

        An operation of another thread than the rank's `is_beside`. Only the rank's thread can wait for ever: it stops
        at its next operation.
        """
        if self._death:
            raise Death(self._death)
        with self._lock:
            self.counts[name] += 1
            self.counts[""] += is_counted
            now = self._due_now(name, is_counted, is_call, not is_beside or self._is_process)
            number = f"operation {self.counts['']}" if is_counted else f"number {self.counts[name]} of this name"
        if not now:
            return []
        on = "" if group is None else f" on '{group.name}'"
        place = f"at {name}{on}, {number} of rank {self._rank}, at {short_site(*find_site())}"
        for fault in now:
            if not fault.needs_call:
                self._record(fault, place)
                self._carry_out(fault, group, place)
        return [(fault, place) for fault in now if fault.needs_call]

    def _due_now(self, name: str, is_counted: bool, is_call: bool, may_stop: bool) -> list[Fault]:
        """Take out the faults that happen at the operation that has just been counted. The caller holds the lock."""
        self.due += [fault for fault in self.left if fault not in self.due and self._is_at(fault, name, is_counted)]
        possible = [fault for fault in self.due if is_call or not fault.needs_call]
        now = [fault for fault in possible if may_stop or not isinstance(fault, Stop)]
        self.due = [fault for fault in self.due if fault not in now]
        self.left = [fault for fault in self.left if fault not in now]
        return now

    def _is_at(self, fault: Fault, name: str, is_counted: bool) -> bool:
        """Whether a fault is due at the operation that has just been counted."""
        return fault.at == self.counts[fault.of] and (fault.of == name or is_counted and not fault.of)

    def _record(self, fault: Fault, place: str) -> None:
        self._injection.happened.append(f"{fault}, {place}")
        if self._is_process:
            print_report(f"injected fault on rank {self._rank}: {fault}, {place}")

    def begin(self, world: Callable[[], Communicator]) -> None:
        """The rank begins a program: a rank that was killed in the one before is replaced by a new one."""
        self.world, self.has_ended, self._death = world, False, ""
        self._cut.clear()

    def end(self) -> None:
        """The rank's program has returned. It may have kept the exception of its own death: then it is raised again."""
        if self._death:
            raise Death(self._death)
        self.has_ended = True

    # -- the faults --------------------------------------------------------------------------------------------
    def _carry_out(self, fault: Fault, group: Communicator | None, place: str) -> None:
        if isinstance(fault, Delay):
            time.sleep(fault.seconds)
        elif isinstance(fault, Kill):
            if self._is_process:
                os.kill(os.getpid(), signal.SIGKILL)
            self._death = f"was killed by an injected fault: {fault}, {place}"
            raise Death(self._death)
        elif self._is_process:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            self._wait_for_ever(group or self.world(), f"it was stopped by an injected fault ({fault})")

    def _wait_for_ever(self, group: Communicator, why: str) -> NoReturn:
        """Wait for a message that never comes, so that the detection of deadlocks sees this wait as any other."""
        quietly(_endless(group, why).wait)
        raise AssertionError(why)

    def _first_drop(self, changes: Changes) -> Fault | None:
        """The fault that drops a call, if there is one: then nothing is left to corrupt."""
        for fault, place in changes:
            if isinstance(fault, Drop):
                self._record(fault, place)
                return fault
        return None

    def _started(self, inner: Pending[Any], group: Communicator, changes: Changes) -> Pending[Any]:
        return _Started(inner, lambda: self.reach("wait", group), lambda y: self._corrupt(y, changes))

    def _corrupt(self, result: Any, changes: Changes) -> Any:
        """Invert bits of a result. A fault whose call has no array here waits for the next one."""
        for fault, place in changes:
            assert isinstance(fault, Corrupt)
            if isinstance(result, np.ndarray) and result.size:
                self._record(fault, place)
                invert_bits(result, fault.bits, f"{fault.seed} {fault.rank} {fault.of} {fault.at}")
            else:
                with self._lock:
                    self.left.append(fault)
                    self.due.append(fault)
        return result


def invert_bits(x: Any, bits: int, seed: str) -> Any:
    """Invert different bits of a contiguous array, at places drawn from a seed, and return it.

    Examples
    --------
    >>> int(np.bitwise_count(invert_bits(np.zeros(4, np.uint8), 3, "a")).sum())
    3
    """
    raw = x.reshape(-1).view(np.uint8)
    width = 1 if x.dtype == np.bool_ else 8  # the other bits of a boolean mean nothing
    random, places = Random(seed).random, dict[int, None]()
    while len(places) < min(bits, raw.size * width):
        places[int(random() * raw.size * width)] = None
    for at in places:
        raw[at // width] ^= 1 << at % width
    return x


def _endless(group: Communicator, why: str) -> Pending[Any]:
    """A receive of a message from this rank to itself that is never sent. Reports show the reason."""
    lane = group.lane("faults")
    request = Request("recv", out=np.empty(1), peer=lane.index, options=(None, why))
    return quietly(lambda: lane.start(request))


class _Later(Pending[Any]):
    """A communication that is started when its result is asked for."""

    __slots__ = ("_inner", "_make")

    def __init__(self, make: Callable[[], Pending[Any]]):
        super().__init__(None, None)
        self._make = make
        self._inner: Pending[Any] | None = None

    def _made(self) -> Pending[Any]:
        self._inner = self._inner or self._make()
        return self._inner

    def test(self) -> bool:
        return self._made().test()

    def wait(self) -> Any:
        return self._made().wait()


class _Started(Pending[Any]):
    """A started call: its first wait is an operation too, and its result may be changed.

    Parameters
    ----------
    inner : Pending
    waits : callable
        Called before the first wait.
    change : callable
        Receives the result of the first wait, and returns the result of this one.
    """

    __slots__ = ("_change", "_inner", "_waits")

    def __init__(self, inner: Pending[Any], waits: Callable[[], Any], change: Callable[[Any], Any]):
        super().__init__(None, None)
        self._inner: Pending[Any] | None = inner
        self._waits: Callable[[], Any] | None = waits
        self._change = change

    def test(self) -> bool:
        return self._inner is None or bool(quietly(self._inner.test))

    def wait(self) -> Any:
        if self._waits is not None:
            waits, self._waits = self._waits, None
            waits()
        if self._inner is not None:
            self._result = self._change(quietly(self._inner.wait))
            self._inner = None
        return self._result


# -- which ranks -------------------------------------------------------------------------------------------------------


class _Active(threading.local):
    """The injection of a thread, which the ranks of the worlds of threads that it starts share."""

    injection: Injection | None = None


_active = _Active()


class _OfProcess:
    """The injection that the environment demands, made with the first world."""

    injection: Injection | None = None


def is_active() -> bool:
    """Whether the calling thread has an injection."""
    return _active.injection is not None


@contextmanager
def attach(
    injection: Injection, rank: int, world: Callable[[], Communicator], is_process: bool, is_started: bool = False
) -> Iterator[None]:
    """Inject the faults of one rank into the calls and points of this thread, inside the block; see `of_rank`."""
    faulty, outer = injection.of_rank(rank, world, is_process, is_started), observers.get(get_ident())
    _install(injection, faulty, rank, is_process)
    try:
        yield
        faulty.end()
    finally:
        _uninstall(faulty, rank, outer)


def _install(injection: Injection, faulty: RankFaults, rank: int, is_process: bool) -> None:
    """Observe the calling thread, which is a rank, and listen to its points."""
    thread = get_ident()
    observers[thread] = faulty.observer(observers.get(thread))
    listeners.by_thread[thread] = faulty.heard
    listeners.by_rank[rank] = faulty.heard_beside
    if is_process:
        listeners.by_thread[None] = faulty.heard_beside
    _active.injection = injection


def _uninstall(faulty: RankFaults, rank: int, outer: Observer | None) -> None:
    thread = get_ident()
    if outer is None:
        del observers[thread]
    else:
        observers[thread] = outer
    del listeners.by_thread[thread]
    listeners.by_thread.pop(None, None)
    if listeners.by_rank.get(rank) == faulty.heard_beside:  # otherwise that of another world with such a rank
        del listeners.by_rank[rank]
    _active.injection = None


def around(program: Callable[..., T], size: int, world: Callable[[], Communicator]) -> Callable[..., T]:
    """The program of ranks that are threads, with the faults that the calling thread or the environment has for them.

    Parameters
    ----------
    program : callable
    size : int
        The number of ranks.
    world : callable
        Returns the channel of all ranks for the rank of the calling thread.
    """
    injection = _active.injection or _OfProcess.injection
    if injection is None:
        return program
    injection.plan.check_ranks(size)

    def with_faults(*args: Any) -> T:
        communicator = world()
        rank = communicator.ranks[communicator.index]  # one that replaces another begins in a later epoch
        with attach(injection, rank, lambda: communicator, is_process=False, is_started=True):
            try:
                return program(*args)
            except Exception as error:
                if injection.happened:  # the cause is probably among them
                    error.add_note("injected faults: " + "; ".join(injection.happened))
                raise

    return with_faults


def begin(communicator: Communicator | None) -> None:
    """Inject the faults of ``RINGTAPE_FAULTS``, if it is set, when a world is made.

    Parameters
    ----------
    communicator : Communicator or None
        The channel of all ranks, for the rank of the calling thread; None if the ranks are threads of `run`.
    """
    if _OfProcess.injection is None:
        import atexit

        given = environment.value("RINGTAPE_FAULTS")
        try:
            _OfProcess.injection = Injection(Plan(given))
        except OptionError as error:
            raise OptionError(f"RINGTAPE_FAULTS: {error.reason}") from None
        atexit.register(_report_at_exit, _OfProcess.injection)
    injection = _OfProcess.injection
    if communicator is None or communicator.dry or _active.injection is not None:
        return
    if process.size > 1:  # otherwise the program may still run ranks as threads
        injection.plan.check_ranks(communicator.size)
    world = communicator
    rank = world.ranks[world.index]  # as the plan counts, also in the epoch of survivors
    _install(injection, injection.of_rank(rank, lambda: world, True), rank, True)


def _report_at_exit(injection: Injection) -> None:
    """Report the faults that were not reached, unless the program ends by an error."""
    if getattr(sys, "last_type", None) is not None:
        return
    for faulty in injection._faulty.values():
        faulty.has_ended = True
    for text in injection.unreached([process.rank] if process.size > 1 else None):
        print_report(text)
