"""The monitors of many ranks in one process: how many messages they send, and what they find in histories."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from collectives.job import comparison, deadlock
from collectives.job.activity import Activity, Channel
from collectives.job.comparison import Comparison
from collectives.job.deadlock import DeadlockDetection
from collectives.job.ending import Ending
from collectives.job.history import BLOCK
from collectives.job.marks import mark
from collectives.job.monitor import Monitor
from collectives.job.shutdown import Shutdown
from collectives.job.supervisor import CALLS

from .network import Network, NetworkControl


class Ended(Exception):
    """The job was ended with this text."""


def end_job(text: str, is_printed_once: bool = False) -> None:
    raise Ended(text)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(deadlock, "time", made)
    monkeypatch.setattr(comparison, "time", made)
    return made


class Rank:
    """The monitor of one rank, driven by hand."""

    def __init__(self, network: Network, rank: int):
        control = network.control(rank)
        self.activity = Activity(rank, network.size)
        self.channel = Channel("dp", "dp", tuple(range(network.size)))
        self.channel.history = []
        self.activity.channels["dp"] = self.channel
        self.deadlock = DeadlockDetection(control, self.activity, end_job)
        self.comparison = Comparison(control, self.activity, end_job)
        self.shutdown = Shutdown(control, self.activity)

    def call(self, text: str) -> None:
        assert self.channel.history is not None
        self.channel.history.append(mark(text))

    def step(self) -> None:
        self.deadlock.receive()
        self.comparison.receive()
        self.deadlock.step()
        self.comparison.step()

    def leave(self) -> Any:
        self.deadlock.left = "exited early"
        self.comparison.finish()

        def advance(number: int) -> bool:
            self.deadlock.receive()
            self.comparison.receive()
            self.comparison.step()
            if number == 0:
                self.deadlock.step()
            return self.deadlock.has_sent() and self.comparison.is_quiet()

        return self.shutdown.leave(advance)


def waiting_ranks(size: int, seconds: float, clock: Clock) -> Network:
    """All ranks but the last wait in a collective for so long; then all of them leave, one after the other."""
    network = Network(size)
    ranks = [Rank(network, rank) for rank in range(size)]
    for rank in ranks[:-1]:
        rank.channel.calls = 1
        rank.activity.waiting[1] = (rank.channel, "barrier", 1, None)
    for _ in range(int(seconds / 0.05)):
        clock.now += 0.05
        for rank in ranks:
            rank.step()
    for rank in ranks:
        rank.channel.calls = 1
        rank.activity.waiting[1] = None
    leaving = []
    for rank in ranks:
        leaving.append(rank.leave())
        for _ in range(20):  # the others come a second later
            clock.now += 0.05
            for each in leaving:
                next(each, None)
    while any(next(each, leaving) is not leaving for each in leaving):
        clock.now += 0.05
    return network


def test_messages_are_linear_in_the_number_of_ranks(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks that wait for five seconds, and then leave a second after each other."""
    found = {size: waiting_ranks(size, 5.0, clock).sent.total() for size in (4, 8, 16, 32, 64)}
    with capsys.disabled():
        print(f"\n  messages of the monitors by ranks: {found}")
    for size, messages in found.items():
        assert messages <= found[4] / 4 * 1.5 * size


def test_ranks_that_begin_to_wait_at_different_times_cause_linear_messages(clock: Clock) -> None:
    found = {}
    for size in (8, 32):
        network = Network(size)
        ranks = [Rank(network, rank) for rank in range(size)]
        for step in range(100):
            clock.now += 0.05
            for rank in ranks[:-1]:
                if step == rank.activity.rank * 100 // size:
                    rank.channel.calls = 1
                    rank.activity.waiting[1] = (rank.channel, "barrier", 1, None)
                rank.step()
            ranks[-1].step()
        found[size] = network.sent.total() / size
    assert found[32] <= 1.5 * found[8]


def test_a_collector_that_does_not_answer_is_replaced(clock: Clock) -> None:
    """Ranks 0 and 1 are stopped; ranks 2 and 3 wait for each other."""
    network = Network(4)
    ranks = [Rank(network, rank) for rank in range(4)]
    for rank, other in ((ranks[2], 3), (ranks[3], 2)):
        rank.activity.waiting[1] = (rank.channel, "recv", 1, other)
    with pytest.raises(Ended, match="ranks wait for each other") as caught:
        for _ in range(400):
            clock.now += 0.05
            ranks[2].step()
            ranks[3].step()
    assert "rank 0 does not reply" in str(caught.value)
    assert "rank 2 waits in recv #1 on 'dp' from rank 3" in str(caught.value)


@pytest.mark.parametrize("clever", [False, True])
def test_a_wait_for_a_rank_that_has_left(clock: Clock, clever: bool) -> None:
    """The collector sends the departure only to the ranks that need it. With `clever` the collector itself has left."""
    gone, waits, works = (0, 1, 2) if clever else (2, 1, 0)
    network = Network(3)
    ranks = [Rank(network, rank) for rank in range(3)]
    ranks[waits].channel.calls = 1
    ranks[waits].activity.waiting[1] = (ranks[waits].channel, "all_reduce", 1, None)
    leaving = ranks[gone].leave()
    for _ in range(60):
        clock.now += 0.05
        next(leaving)
        ranks[waits].step()
        ranks[works].step()
    assert list(ranks[waits].activity.departed) == [gone]
    assert not ranks[works].activity.departed
    text = ranks[waits].activity.why_endless(ranks[waits].activity.waiting[1])
    assert text is not None and f"rank {gone} of 3 exited early after 0 calls on 'dp'" in text


# -- histories ---------------------------------------------------------------------------------------------------------
def run_histories(histories: list[list[str]], clock: Clock, seed: int = 0, end: bool = True) -> None:
    """Let the ranks make these calls at different speeds, and leave."""
    chance = random.Random(seed)
    ranks = [Rank(network, rank) for network in [Network(len(histories))] for rank in range(len(histories))]
    calls = [iter(history) for history in histories]
    is_done = [False] * len(ranks)
    leaving: dict[int, Any] = {}
    while not all(is_done):
        clock.now += 0.3
        for i, rank in enumerate(ranks):
            if i in leaving:
                next(leaving[i], None)
                continue
            for text in itertools.islice(calls[i], chance.choice([0, 1, 3, 50, 400])):
                rank.call(text)
                is_done[i] = len(histories[i]) == 0
            if chance.random() < 0.8:
                rank.step()
            rest = next(calls[i], None)
            if rest is None:
                is_done[i] = True
                if end:
                    leaving[i] = rank.leave()
            else:
                rank.call(rest)
    for _ in range(100):
        clock.now += 0.3
        for i, rank in enumerate(ranks):
            if end:
                next(leaving[i], None)
            else:
                rank.step()


@pytest.mark.parametrize("seed", range(12))
def test_equal_histories_are_no_mismatch(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    history = [f"call {chance.randrange(5)}" for _ in range(chance.choice([0, 1, BLOCK, 3 * BLOCK + 5, 20 * BLOCK]))]
    run_histories([history] * chance.choice([2, 3, 5]), clock, seed, end=bool(seed % 2))


@pytest.mark.parametrize("seed", range(24))
def test_one_different_call_is_found_and_named(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    history = [f"call {chance.randrange(5)}" for _ in range(chance.choice([1, BLOCK, 3 * BLOCK + 5, 20 * BLOCK]))]
    histories = [list(history) for _ in range(chance.choice([2, 3, 5]))]
    odd, at = chance.randrange(len(histories)), chance.randrange(len(history))
    kind = seed % 3
    if kind == 0:
        histories[odd][at] = "another call"
        expected = ["another call", history[at]]
    elif kind == 1:
        histories[odd].insert(at, "a call too many")
        expected = ["a call too many", history[at]]
    else:
        histories[odd].append("a last call")
        expected = ["a last call", "no further call: its program has ended"]
    with pytest.raises(Ended) as caught:
        run_histories(histories, clock, seed)
    assert str(caught.value).startswith("CollectiveMismatch: ")
    for text in (*expected, "test_monitor.py:"):
        assert text in str(caught.value)


def test_a_difference_long_ago_is_found_without_its_calls(clock: Clock) -> None:
    """The calls of that place are no longer kept when the histories are compared."""
    network = Network(2)
    ranks = [Rank(network, rank) for rank in range(2)]
    for i, rank in enumerate(ranks):
        for number in range(200 * BLOCK):
            rank.call("another call" if i and number == 7 else "a call")
            if number % 500 == 0:
                rank.comparison._fold(clock.now)  # it is condensed, but nothing is sent
    with pytest.raises(Ended, match="have made different calls"):
        for _ in range(20):
            clock.now += 0.3
            for rank in ranks:
                rank.step()


class StoppedControl(NetworkControl):
    """The control channel of a process that MPI ends: its calls of MPI do not return."""

    def __init__(self, network: Network, rank: int):
        super().__init__(network, rank)
        self.has_stopped, self.may_go_on = threading.Event(), threading.Event()

    def receive(self, tag: int) -> tuple[int, Any] | None:
        self.has_stopped.set()
        self.may_go_on.wait()
        return None


def test_a_rank_tells_its_calls_while_mpi_holds_its_monitor() -> None:
    """So the supervisor can compare the calls of a rank that MPI ends inside a call."""
    told: list[list[str]] = []
    has_told = threading.Event()
    control = StoppedControl(Network(2), 0)

    def report(text: str, answer: Callable[[bytes], list[str]]) -> bool:
        if control.has_stopped.is_set():
            told.append(answer(CALLS))
            has_told.set()
        return False

    rank = Rank(Network(2), 0)
    rank.call("the first call")
    monitor = Monitor(control, rank.activity, end_job, report, Ending(control, (0, 0), lambda: None))
    monitor.start()
    assert control.has_stopped.wait(20)
    rank.call("the second call")
    has_told.clear()
    try:
        assert has_told.wait(20)
    finally:
        control.may_go_on.set()
        monitor._stop.set()
        monitor._has_left.set()
    (line,) = told[-1][1:]
    key, *fields = line.split("\t")
    assert (key, fields[:2], fields[2::2]) == ("calls 0", ["dp", "dp"], ["the first call", "the second call"])
