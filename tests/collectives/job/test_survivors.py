"""Ranks that go on after others have failed: their agreement, and new epochs of the world.

Where MPI survives deaths (Open MPI under ``--with-ft ulfm``), processes are killed. Elsewhere ranks raise or leave.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from collectives.job.activity import Activity, Channel
from collectives.job.shutdown import Shutdown
from collectives.job.survivors import Survivors

from ..launch import Outcome, launch
from .network import Network

LIMIT_S = 120
TOLERANT: dict[str, Any] = {"on": "openmpi", "options": ["--with-ft", "ulfm"]}
AGREED_S = 2.0  # within which survivors agree on who is left


# -- the agreement by messages -----------------------------------------------------------------------------------------
class Rank:
    """One rank's part in agreements, driven by hand."""

    def __init__(self, network: Network, rank: int):
        control = network.control(rank)
        self.activity = Activity(rank, network.size, raises=True)
        self.survivors, self.shutdown = Survivors(control, self.activity), Shutdown(control, self.activity)
        self.number = 0
        self.epochs: list[tuple[int, ...]] = []

    def step(self) -> None:
        self.shutdown.receive()
        if self.number:
            members = self.survivors.members(self.number)
            if members is not None:
                self.activity.begin_epoch(members)
                self.epochs.append(members)
                self.number = 0
        else:
            self.survivors.step()


@pytest.mark.parametrize("seed", range(40))
def test_all_ranks_agree_in_any_order(seed: int) -> None:
    """Ranks call at different times and learn of failures at different times, in two epochs."""
    random = Random(seed)
    network = Network(size := random.randint(2, 8))
    ranks = [Rank(network, rank) for rank in range(size)]
    fails = {rank: random.randint(0, 1) for rank in random.sample(range(size), random.randint(0, size - 1))}
    alive = list(ranks)
    for epoch in range(2):
        to_do = list(alive)
        random.shuffle(to_do)
        while to_do or any(rank.number for rank in alive):
            if to_do and random.random() < 0.2:
                rank = to_do.pop()
                if fails.get(rank.activity.rank) == epoch:
                    rank.activity.has_failed = True
                    rank.shutdown.send_departures("raised")
                    alive.remove(rank)
                else:
                    rank.number = rank.survivors.enter()
            random.choice(ranks).step()
        expected = tuple(rank.activity.rank for rank in alive)
        assert all(rank.epochs[-1] == expected and len(rank.epochs) == epoch + 1 for rank in alive)
    assert max(network.sent.values()) <= 12 * size


def test_the_first_call_ends_the_epoch_on_all_ranks() -> None:
    network = Network(3)
    ranks = [Rank(network, rank) for rank in range(3)]
    channel = Channel("world", "world", (0, 1, 2))
    assert ranks[1].activity.error((channel, "recv", 1, 2)) is None
    ranks[2].number = ranks[2].survivors.enter()
    for _ in range(4):
        for rank in ranks:
            rank.step()
    error = ranks[1].activity.error((channel, "recv", 1, 2))
    assert "no rank has failed; a rank has called World.survivors" in str(error) and "fix: call" in str(error)
    assert ranks[1].activity.error((Channel("next", "next", (0, 1, 2), epoch=1), "recv", 1, 2)) is None


# -- processes that a signal ends --------------------------------------------------------------------------------------
def killed(seed: int) -> tuple[int, dict[int, float]]:
    """The number of ranks, and after how many seconds some of them are killed."""
    random = Random(seed)
    size = random.choice([2, 3, 3, 4, 5])
    victims = random.sample(range(size), 1 if size < 3 or random.random() < 0.6 else 2)
    if random.random() < 0.25:
        victims = list(dict.fromkeys([0, *victims[1:]]))
    times, when = {}, random.random() * 1.5
    for rank in victims:
        times[rank] = when
        when += random.choice([0.0, random.random() * 0.15, random.random()])
    return size, times


def survive(seed: int) -> str:
    """Run a job in which ranks are killed, and check what the others do. Returns what MPI did wrong."""
    size, times = killed(seed)
    victims = ",".join(f"{rank}@{when:.4f}" for rank, when in times.items())
    outcome = launch("survives.py", size, "150", str(seed), victims, limit_s=LIMIT_S, **TOLERANT)
    case = f"seed {seed}, {size} ranks, {victims}\n{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, case
    died = {int(rank): float(when) for rank, when in re.findall(r"^DIES (\d+) ([\d.]+)", outcome.out, re.M)}
    crashed = {int(rank) for rank in re.findall(r"rank (\d+) of \d+ .* was killed by signal (?:11|6) ", outcome.err)}
    if "Segmentation fault" in outcome.err:  # in Open MPI, if a death is told while it makes a communicator
        return "crash"
    assert outcome.code == 0 and not crashed, case
    left = sorted(set(range(size)) - set(died))
    done = {int(rank): members for rank, members in re.findall(r"^DONE (\d+) \d+ (\[.*?\]) ", outcome.out, re.M)}
    assert set(left) <= set(done) and len({done[rank] for rank in left}) == 1, case
    last = [float(when) for members, when in re.findall(r"^EPOCH \d+ \d+ (\[.*?\]) ([\d.]+)", outcome.out, re.M)
            if members == str(left)]  # fmt: skip
    assert not last or max(last) - max(died.values()) < AGREED_S, case
    assert "STRANGE" not in outcome.out and "Traceback" not in outcome.err, case
    return ""


@pytest.mark.parametrize("seed", [4, 10, 23])
def test_others_go_on_after_deaths(seed: int) -> None:
    survive(seed)


@pytest.mark.slow
def test_others_go_on_after_deaths_at_any_place() -> None:
    wrong = [survive(seed) for seed in range(100, 160)]
    assert len([text for text in wrong if text]) <= 3


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("kill", "died"),
        ("raise", "raised ValueError: planted"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [
            ("exit", "exited early, with code 3"), ("tell", "lost its disk"), ("close", "closed the world"),
            ("stop", "died"),
        ]),
    ],
)  # fmt: skip
def test_a_rank_is_lost(how: str, says: str) -> None:
    outcome = lose(how)
    assert not outcome.is_late and outcome.code == 5, outcome
    for rank in (0, 2):
        assert re.search(rf"^LEFT {rank} {says}$", outcome.out, re.M), outcome
    first = "no rank has failed" if how == "close" else f"rank 1 of 3 {says}"
    told = rf"TOLD 2 .{first}; a rank has called World.survivors.* in recv #1 from rank 0"
    assert re.search(told, outcome.out), outcome
    if how == "stop":
        assert "has told nothing for 2 s (RINGTAPE_STOPPED_S): its process is stopped (SIGSTOP)" in outcome.err
    if how in ("kill", "stop"):
        assert len(re.findall("rank 1 of 3 .* the job continues without it", outcome.err)) == 1, outcome


@pytest.mark.slow
def test_an_end_that_mpi_does_not_tell_of_ends_the_job() -> None:
    outcome = lose("status")
    assert not outcome.is_late and outcome.code != 0 and "LEFT" not in outcome.out, outcome
    assert "MPI has not told the other ranks that rank 1 has ended" in outcome.err, outcome


def lose(how: str) -> Outcome:
    return launch("loses_rank.py", 3, how, limit_s=LIMIT_S, RINGTAPE_STOPPED_S="2", **TOLERANT)


# -- memory ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_twenty_epochs_do_not_grow(on: str) -> None:
    tolerant: dict[str, Any] = TOLERANT if on == "openmpi" else {}
    outcome = launch("rebuilds.py", 3, "24", limit_s=LIMIT_S, **tolerant)
    found = [tuple(map(int, each)) for each in re.findall(r"EPOCH (\d+) (\d+) (\d+)", outcome.out)]
    assert outcome.code == 0 and len(found) == 24, outcome
    assert found[-1][1] <= found[5][1] and found[-1][2] <= found[5][2] + 8, found
