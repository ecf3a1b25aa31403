"""The sweep of other systems: its comparison and its shrinker, with a system that has planted faults."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.audit import dtensor, shard_map
from benchmarks.audit.cases import STAGES, Case, Difference, arrays, compare, shrink, smaller
from benchmarks.audit.processes import Worker
from benchmarks.audit.sweep import Documented, confirmed, shared, sweep

RANKS = 2


class Fake:
    """A system with one call, the sum of cubes: its serial results, and those of its ranks with a fault."""

    NAME = "fake"
    DOCUMENTED: list[Documented] = []

    def __init__(self, fault: Callable[[Case], bool], stage: str = STAGES[1], kink: bool = False):
        self.fault, self.stage, self.kink = fault, stage, kink

    def cases(self) -> Iterator[Case]:
        for layouts in (("S0", "R"), ("S1", "S0"), ("R", "S0")):
            for extrema in ("first", "last"):
                yield Case("cubes", ("nk", "n"), layouts, (("k", 3), ("n", 5)), extrema)

    def request(self, case: Case, ranks: int, differences: bool = False) -> dict[str, Any]:
        return {"case": case, "differences": differences}

    def candidates(self, case: Case) -> Iterator[Case]:
        return smaller(case, "R")

    def script(self, case: Case, difference: Difference, ranks: int) -> str:
        return f"{case.text()} {difference.stage}"

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        case = request["case"]
        x, y = arrays(case)
        first, second = [3 * x**2, 3 * y**2], [6 * x, 6 * y]
        serial = dict(zip(STAGES, ([np.sum(x**3) + np.sum(y**3)], first, list(first), second), strict=True))
        ranks = [copy.deepcopy(serial) for _ in range(RANKS)]
        if self.fault(case):
            ranks[1][self.stage][0] = ranks[1][self.stage][0] + 1
        near = {stage: [g + self.kink for g in serial[stage]] for stage in STAGES[1:]}
        return {"serial": serial, "distributed": ranks, "refused": "", "differences": near}

    def run(self, said: Callable[[str], Any] = lambda text: None) -> Any:
        return sweep(self, shared([self.ask, self.ask]), RANKS, self.cases(), jobs=2, said=said)


def last_rank_has_the_maximum(case: Case) -> bool:
    return case.layouts[0] == "S0" and case.extrema == "last" and case.size("n") >= 3


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("side", ["serial", "distributed"])
def test_the_comparison_complains_when_either_side_is_changed(stage: str, side: str) -> None:
    fake = Fake(lambda case: False)
    answer = fake.ask({"case": next(fake.cases())})
    assert compare(answer["distributed"], answer["serial"]) is None
    changed = answer["serial"] if side == "serial" else answer["distributed"][1]
    at = len(changed[stage]) - 1
    changed[stage][at] = changed[stage][at] * (1 + 1e-7)
    found = compare(answer["distributed"], answer["serial"])
    assert found is not None and found.stage == stage and found.operand == (-1 if stage == "value" else at)
    assert found.ranks == ((0, 1) if side == "serial" else (1,))


def test_shapes_and_kinds_are_compared() -> None:
    for got, want in (([1.0], [[1.0]]), ([1, 2], [1.0, 2.0]), ([True], [False]), ([np.nan], [1.0]), ([1.0], [np.nan])):
        assert compare([{"value": [got]}], {"value": [want]}) is not None, (got, want)
        assert compare([{"value": [want]}], {"value": [want]}) is None


@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_is_made_small(stage: str) -> None:
    counts, found = Fake(last_rank_has_the_maximum, stage).run()
    assert counts["cases"] == 6 and counts["different"] == 1 and counts["agreed to second order"] == 5
    (one,) = found
    assert one.difference.stage == stage and one.difference.ranks == (1,) and one.documented is None
    assert one.case == Case("cubes", ("nk", "n"), ("S0", "R"), (("k", 1), ("n", 3)), "last", decimals=0)


def test_layouts_that_lead_to_the_same_small_case_are_one() -> None:
    counts, found = Fake(lambda case: case.layouts[1] == "S0").run()
    assert counts["different"] == 4 and [(f.case.layouts, f.count) for f in found] == [(("R", "S0"), 4)]


def test_without_a_fault_nothing_is_found() -> None:
    counts, found = Fake(lambda case: False).run()
    assert found == [] and counts["different"] == 0 and counts["agreed to second order"] == 6


def test_a_difference_at_a_kink_is_none() -> None:
    counts, found = Fake(last_rank_has_the_maximum, kink=True).run()
    assert found == [] and counts["different"] == 0 and counts["at a kink, or not again"] == 1


def test_a_documented_difference_is_marked() -> None:
    fake = Fake(lambda case: "S0" in case.layouts)
    fake.DOCUMENTED = [Documented("https://a.page", "so it is", lambda case, difference: case.layouts[1] == "S0")]
    _, found = fake.run()
    assert {f.case.layouts: f.documented and f.documented.page for f in found} == {
        ("S0", "R"): None, ("S1", "S0"): "https://a.page", ("R", "S0"): "https://a.page",
    }  # fmt: skip
    assert [bool(f.program) for f in found] == [f.documented is None for f in found]


def test_only_the_assertion_of_the_program_confirms() -> None:
    _, (found,) = Fake(last_rank_has_the_maximum).run()
    assert confirmed(found, lambda request: {"ended": ["", "AssertionError: rank 1: 3, not 2"]}) == ""
    for errors in (["", ""], ["ImportError: no torch", ""], ["AssertionError", "AssertionError"]):
        assert confirmed(found, lambda request, errors=errors: {"ended": errors}).startswith("not confirmed")
    assert confirmed(found, lambda request: None).startswith("not confirmed")


def test_refusals_are_counted_and_no_rule_is_asked_once() -> None:
    fake, asked = Fake(lambda case: False), []

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {"serial": {"value": [1.0]}, "distributed": [{}, {}], "refused": "NotImplementedError: no rule"}

    counts, _ = sweep(fake, ask, RANKS, fake.cases())
    assert counts["refused"] == 6 and len(asked) == 1
    counts, _ = sweep(fake, lambda request: None, RANKS, fake.cases())
    assert counts["died"] == 6
    counts, _ = sweep(fake, fake.ask, RANKS, fake.cases(), seconds=-1)
    assert counts["unchecked"] == 6 and counts["cases"] == 0


def test_each_rank_has_an_extremum() -> None:
    for operand in ("nk", "nk+", "nk%", "n"):
        for n in (2, 3, 5, 8):
            case = Case("", (operand,), ("S0",), (("k", 3), ("n", n)))
            (x,), (y,) = arrays(case), arrays(case._replace(extrema="last"))
            cut = (n + 1) // 2  # torch's parts: the first one is the larger
            assert x[:cut].max() == x.max() and x[cut:].min() == x.min()
            assert y[cut:].max() == y.max() and y[:cut].min() == y.min()
            assert len(np.unique(x)) == x.size and (x != 0).all()


def test_the_addends_of_a_partial_make_its_value() -> None:
    for layout, combine in (("P", np.sum), ("Pavg", np.mean), ("Pmax", np.max)):
        case = Case("x", ("nk",), (layout,), (("k", 3), ("n", 5)))
        request = dtensor.request(case, 3)
        np.testing.assert_array_equal(combine(request["addends"][0], axis=0), request["operands"][0])
        np.testing.assert_allclose(request["operands"][0], arrays(case)[0], atol=1e-6)


@pytest.mark.parametrize("system", [dtensor, shard_map], ids=lambda module: module.NAME)
def test_every_program_is_python_of_at_most_15_lines(system: Any) -> None:
    chosen = {case.call: case for case in system.cases()}
    for number, case in enumerate(chosen.values()):
        for stage in STAGES if number < 20 else STAGES[-1:]:
            text = system.script(case, Difference(stage, 0, (0,), None, None), RANKS)
            ast.parse(text)
            assert text.count("\n") <= 15


def test_the_shrinker_keeps_what_it_was_given_if_nothing_smaller_differs() -> None:
    case = next(Fake(lambda case: True).cases())
    assert shrink(case, lambda case: smaller(case, "R"), lambda candidate: False) == case


def test_a_worker_that_dies_is_replaced() -> None:
    program = """
import json, os, sys
print(json.dumps({"version": "1"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request.get("die"):
        os._exit(3)
    print(json.dumps({"pid": os.getpid()}), flush=True)
"""
    worker = Worker([sys.executable, "-c", program])
    first = worker.ask({})
    assert worker.ask({"die": True}) is None
    second = worker.ask({})
    assert first is not None and second is not None and first != second and worker.version == "1"
    worker.end()
    with pytest.raises(SystemExit, match="--python PATH"):
        Worker([sys.executable, "-c", ""]).ask({})
