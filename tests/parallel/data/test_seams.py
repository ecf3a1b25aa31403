"""Algorithm x stage of ZeRO x ranks x division x buckets x dtype x microbatches x transport, against one process."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from collectives.algorithms.selected import Selected
from collectives.transports import protocol
from collectives.transports.threads.communicator import LocalCommunicator

from ... import summary
from ...collectives.launch import launch_command
from .seam_cases import Case, full_table, selection, wrong_on_threads


def check_on_threads(cases: list[Case], ranks: int) -> None:
    wrong = [text for case in cases if (text := wrong_on_threads(case, ranks))]
    summary.count("algorithms x ZeRO x parts x buckets, cases", f"on {ranks} threads", len(cases))
    assert not wrong, f"{len(wrong)} of {len(cases)} cases\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize(("ranks", "every"), [(1, 5), (2, 5), (3, 1), (4, 5)])
def test_on_threads(ranks: int, every: int) -> None:
    check_on_threads(selection(ranks, every), ranks)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_everything_on_threads(ranks: int) -> None:
    check_on_threads(list(full_table()), ranks)


@pytest.mark.parametrize(("on", "ranks", "every"), [
    ("here", 3, 9), ("openmpi", 3, 9),
    *(pytest.param("here", n, 0, marks=[pytest.mark.slow, pytest.mark.timeout(1500)]) for n in (2, 3, 4)),
])  # fmt: skip
def test_over_mpi(on: str, ranks: int, every: int) -> None:
    """In one job: as on one host, where the ranks share memory, and as on hosts of their own. `every` 0: all cases."""
    found = launch_command(["-m", "tests.parallel.data.seam_cases", str(every)], ranks, limit_s=1400, on=on)
    assert found.code == 0, found.out + found.err
    (number,) = {int(n) for n in re.findall(r"(\d+) cases equal", found.out)}
    summary.count("algorithms x ZeRO x parts x buckets, cases", f"on {ranks} processes, {on}", number)


# -- the table can fail ------------------------------------------------------------------------------------------------


def _lands_nothing(patch: pytest.MonkeyPatch) -> None:
    """An algorithm that ignores the buffer it was given, and a base class that does not look."""
    patch.setattr(protocol, "landed", lambda y, out: y)


def _leaves_a_part_out(patch: pytest.MonkeyPatch) -> None:
    true = Selected._steps

    def steps(self: Any, request: Any, x: Any, out: Any) -> Any:
        y = yield from true(self, request, x, out)
        y[3 * y.size // 4 :] = 0
        return y

    patch.setattr(Selected, "_steps", steps)


def _shares_a_channel(patch: pytest.MonkeyPatch) -> None:
    """Every duplicate of one name is the same channel."""
    true = LocalCommunicator._channel_of
    patch.setattr(LocalCommunicator, "_channel_of", lambda self, ranks, name, _: true(self, ranks, name, name))


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "out= is ignored": (_lands_nothing, {"reproducible", "hierarchical"}),
    "the last part is left out": (_leaves_a_part_out, {"ring", "halving_doubling", "tree", "reproducible"}),
    "duplicates share a channel": (_shares_a_channel, {"ring", "halving_doubling", "recursive_doubling"}),
}


@pytest.mark.filterwarnings("ignore:SGD.step.*has a gradient")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_faults_are_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, where = MUTANTS[mutant]
    plant(monkeypatch)
    for algorithm in where:
        stages = (0,) if "out=" in mutant or algorithm in ("tree", "reproducible") else (3,)
        cases = [Case(algorithm, zero, "uneven", "several") for zero in stages]
        assert all(wrong_on_threads(case, 3) for case in cases), algorithm
