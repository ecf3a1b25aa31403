"""Every collective on every pair of layouts in local worlds of 1 to 8 ranks, against a dense serial reference.

The registry is the test plan: a collective without cases fails. See `collectives.registry_cases` for the cases and
`collectives.testing` for what is checked of each. The last test prints how many cases ran and every skip's reason.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from collectives import R, Rooted, V
from collectives.primitive import Collective, collectives
from collectives.registry_cases import HELPERS, cases, settings, work_and_skips
from collectives.testing import Case, Setting, Skip, check, prepare

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
REGISTERED = tuple(collectives)  # before any test makes one of its own
RAN: dict[int, int] = {}
SKIPPED: Counter[Skip] = Counter()


@pytest.mark.parametrize("ranks", SIZES)
def test_world(ranks: int) -> None:
    work, skips = work_and_skips(ranks)
    failures = check(work, ranks)
    RAN[ranks] = len(work)
    SKIPPED.update(skips)
    assert not failures, f"{len(failures)} failures\n" + "\n".join(map(" | ".join, failures[:20]))


def test_every_collective_has_cases() -> None:
    covered = {name for case in cases(Setting({"a": 3}, ["a"])) if isinstance(case, Case) for name in case.covers}
    without = set(REGISTERED) - covered - set(HELPERS)
    assert not without, f"these collectives have no cases: {sorted(without)}"
    assert covered <= set(REGISTERED) and set(HELPERS) <= set(REGISTERED)


def test_every_pair_of_layouts_that_is_taken_has_cases() -> None:
    """What a collective says that it takes is what the cases give it."""
    given: dict[str, set[str]] = {}
    for case in cases(Setting({"a": 3}, ["a"])):
        if isinstance(case, Case):
            for name in case.covers:
                given.setdefault(name, set()).add(repr(case.takes).partition("(")[0])
    for name, labels in given.items():
        if name in (*HELPERS, "send", "recv"):  # a Shard is sent as V; recv has no operand
            continue
        taken = {x.__name__ if isinstance(x, type) else repr(x) for x in collectives[name].takes} - {"C"}
        assert taken <= labels, f"{name}: no case for {sorted(taken - labels)}"


def test_helpers_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives that only adjoints call run in the cases of their pairs."""
    seen: set[str] = set()
    run = Collective.run

    def noted(self: Collective, *args: Any) -> Any:
        seen.add(self.name)
        return run(self, *args)

    monkeypatch.setattr(Collective, "run", noted)
    setting = Setting({"a": 2}, ["a"])
    work = [(case, setting) for case in cases(setting, 2) if isinstance(case, Case)]
    assert not check(work, 2)
    assert set(HELPERS) <= seen


def test_the_data_is_not_easy() -> None:
    """Operands and cotangents differ between ranks and lie scattered in memory; x' is independent of x."""
    setting = Setting({"a": 2, "b": 3}, ["b"], {"a": R})
    for case in cases(setting, 2):
        if isinstance(case, Skip) or case.takes is not V or case.gives is not R or "(2, 3)" not in case.name:
            continue
        plan = prepare(case, setting)
        assert not plan.x[0].flags.c_contiguous and not plan.ct[0].flags.c_contiguous
        assert np.array_equal(plan.x[0], plan.x[3]) and not np.array_equal(plan.x[0], plan.x[1])  # a: R, b: V
        assert not any(np.array_equal(plan.ct[0], plan.ct[r]) for r in range(1, 6))  # addends on both axes
        assert not np.allclose(plan.x[0], plan.dx[0])


def test_absent_off_the_root() -> None:
    setting = Setting({"a": 3}, ["a"])
    plans = [prepare(c, setting) for c in cases(setting, 2) if isinstance(c, Case) and isinstance(c.takes, Rooted)]
    assert plans and all([x is None for x in plan.x] == [True, True, False] for plan in plans)


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what ran; the last of this file."""
    if not RAN:
        pytest.skip("no world ran")
    with capsys.disabled():
        print(f"\nregistry, local worlds: {sum(RAN.values())} cases (" +
              ", ".join(f"{n} on {ranks}" for ranks, n in RAN.items()) + " ranks)")
        for ranks, n in RAN.items():
            whole = sum(isinstance(case, Case) for setting, _ in settings(ranks) for case in cases(setting, 0))
            if n < whole:
                print(f"  thinned on {ranks} ranks: {n} of {whole} cases, by shapes and dtypes; every pair of layouts")
        for skip, times in SKIPPED.items():
            print(f"  skipped {times} times: {skip.name}: {skip.reason}")
        for name, how in HELPERS.items():
            print(f"  {name!r} has no call of its own: {how}")
