"""Plans of faults: their texts, their refusals, and plans drawn from a seed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from autograd.errors import ArgumentError, MeshError, OptionError
from collectives.testing import faults
from collectives.testing.faults import Corrupt, Delay, Drop, Kill, Plan, Stop

FAULTS = {
    "kill:2@17": Kill(2, at=17),
    "kill:0@2,of=checkpoint.write": Kill(rank=0, at=2, of="checkpoint.write"),
    "stop:1@1": Stop(1, 1),
    "delay:0@3": Delay(0, at=3),
    "delay:0@3,seconds=1e-05,of=wait": Delay(0, at=3, seconds=1e-5, of="wait"),
    "drop:3@9,of=window.add": Drop(3, 9, of="window.add"),
    "corrupt:1@9,bits=3,seed=7": Corrupt(1, at=9, bits=3, seed=7),
}


@pytest.mark.parametrize("text", FAULTS)
def test_the_text_of_a_fault_makes_it_again(text: str) -> None:
    fault = FAULTS[text]
    (parsed,) = Plan(text)
    assert parsed == fault
    assert Plan(repr(fault)).faults == (fault,)
    assert sorted(repr(fault).split(",")) == sorted(text.split(","))


def test_the_text_of_a_plan_makes_it_again() -> None:
    plan = Plan(*FAULTS.values())
    assert Plan(repr(plan)) == plan and len(plan) == len(FAULTS)
    assert Plan(" ;".join(FAULTS), []) == plan == Plan([plan]) and hash(plan) == hash(Plan(plan))
    assert Plan() == Plan("") != plan


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: Plan("kil:2@17"), OptionError, "no kind 'kil'; needed: one of kill, stop, delay, drop, corrupt\n"
                                                "  fix: kill:2@17"),
        (lambda: Plan("kill:2"), OptionError, "needed: KIND:RANK@NUMBER, for example kill:2@17"),
        (lambda: Plan("kill:two@17"), OptionError, "'kill:two@17': .*'two'; needed: KIND:RANK@NUMBER"),
        (lambda: Plan("kill:2@0"), OptionError, r"Kill\(at=0\) was given; needed: an int from 1 on"),
        (lambda: Plan("kill:2@17,seconds=2"), OptionError, "seconds is no option of kill; needed: .* of of"),
        (lambda: Plan("delay:2@17,seconds=2,seconds=3"), OptionError, "seconds is given twice"),
        (lambda: Plan("delay:2@17,seconds=soon"), OptionError, "could not convert string to float: 'soon'"),
        (lambda: Plan(17), ArgumentError, "17 was given; needed: a fault, such as Kill"),
        (lambda: Kill(-1, at=1), OptionError, r"Kill\(rank=-1\) was given; needed: an int from 0 on"),
        (lambda: Kill(1, at=1.5), OptionError, r"Kill\(at=1.5\)"),  # type: ignore[arg-type]
        (lambda: Kill(True, at=1), OptionError, r"Kill\(rank=True\)"),
        (lambda: Kill(1), ArgumentError, "at"),  # type: ignore[call-arg]
        (lambda: Kill(1, at=1, of="a b"), OptionError, r"of='a b'\) was given; needed: a name such as all_reduce"),
        (lambda: Delay(1, at=1, seconds=-1), OptionError, r"seconds=-1\) was given; needed: .* not negative"),
        (lambda: Corrupt(1, at=1, bits=0), OptionError, r"bits=0\) was given; needed: an int from 1 on"),
        (lambda: Drop(1, at=1, of="checkpoint.write"), OptionError, "checkpoint.write is none; needed: of one of all_"),
        (lambda: Plan("kill:2@17", "kill:2@18", Delay(2, 17)), OptionError,
         "kill:2@17 and delay:2@17 are at one operation; .*\n  fix: delay:2@19"),
        (lambda: faults.plan(7, ranks=0, operations=9), OptionError, r"plan\(ranks=0\) was given"),
        (lambda: faults.plan(7, ranks=2, operations=9, kinds=["kil"]), OptionError, "no kind 'kil'; needed: some of"),
        (lambda: faults.plan(7, ranks=2, operations=3, count=7), OptionError, "needed: at most 6, one at each place"),
        (lambda: faults.plan(7, ranks=2, operations=3, kinds=()), OptionError, "needed: one kind or more"),
        (lambda: faults.plan("x", ranks=2, operations=3), ArgumentError, "str"),  # type: ignore[arg-type]
        (lambda: Plan("kill:3@1").check_ranks(3), MeshError, "rank=3 was given; needed: a rank from 0 to 2 of a world"),
    ],
)  # fmt: skip
def test_refusals(make: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.compile(says, re.DOTALL)):
        make()


def test_a_seed_draws_the_same_plan_again() -> None:
    kinds = ("kill", "stop", "delay", "drop", "corrupt")
    plans = [faults.plan(seed, ranks=3, operations=20, kinds=kinds, count=4, of="all_reduce") for seed in range(200)]
    assert plans == [faults.plan(seed, 3, 20, kinds, 4, "all_reduce") for seed in range(200)]
    assert len({*map(repr, plans)}) == 200
    every = [fault for plan in plans for fault in plan]
    assert {fault.of for fault in every} == {"all_reduce"}
    assert {fault.kind for fault in every} == {*kinds}
    assert Counter(fault.rank for fault in every).keys() == {0, 1, 2}
    assert {fault.at for fault in every} == {*range(1, 21)}
    # a plan that has been written down stays what it was
    assert repr(faults.plan(seed=11, ranks=4, operations=100, kinds=("kill", "delay"), count=3)) == DRAWN


DRAWN = "delay:1@56,seconds=0.047; kill:2@59; delay:2@63,seconds=0.009"


def test_a_plan_can_fill_all_places() -> None:
    plan = faults.plan(seed=0, ranks=2, operations=3, count=6)
    assert {(fault.rank, fault.at) for fault in plan} == {(rank, at) for rank in range(2) for at in range(1, 4)}
