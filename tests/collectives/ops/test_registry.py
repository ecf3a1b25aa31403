"""Every collective on every pair of layouts in local worlds of 1 to 8 ranks, against a dense serial reference.

The registry is the test plan: a collective without cases fails. See `testing.registry_cases` for the cases and
`collectives.testing` for what is checked of each. By default meshes of two axes run a part that has every pair of
layouts beside every other label, and worlds of 2 and 5 to 8 ranks are left to ``pytest -m slow``, which runs all: ranks
that are threads compute a collective from all operands at once, and do nothing else for 7 operands than for 3. The last
test prints what ran and every skip's reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autograd.arrays.device import dtype_name
from collectives import R, Rooted, V
from collectives.declaration.collective import collectives
from collectives.declaration.prepared import Prepared
from collectives.testing import Case, Setting, Skip, check, prepare
from collectives.testing.registry_cases import HELPERS, cases, work_and_skips

from ... import summary

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
DEFAULT = (1, 3, 4)
TWO_AXES = (4, 6, 8)
THINNED = (3, *TWO_AXES, 7)
Work = list[tuple[Case, Setting]]
REGISTERED = tuple(collectives)  # before any test makes one of its own


def pair_of(case: Case) -> tuple[str, str, str]:
    return case.name.split()[0], str(case.takes).split("(")[0], str(case.gives).split("(")[0]


def kind_of(case: Case) -> tuple[str, ...]:
    return case.name.split()[0], str(case.takes), str(case.gives), dtype_name(case.dtype)


def default_part(work: Work, ranks: int) -> Work:
    """Every second case of each pair of layouts, but all on one axis of 6; beside another axis one.

    Beside another axis a pair takes every second setting: each label once, beside one axis or the other, and second
    order with some label. Which case it is goes round; no root and no dtype of a pair is left out.
    """
    numbers: dict[tuple[str, str, str], int] = {}
    settings: dict[int, int] = {}
    found: dict[tuple[int, int], list[tuple[Case, Setting]]] = {}
    for case, setting in work:
        n, k = settings.setdefault(id(setting), len(settings)), numbers.setdefault(pair_of(case), len(numbers))
        found.setdefault((n, k), []).append((case, setting))
    beside = {k: [n for n, j in found if j == k and (n + k) % 2 == 0 and found[n, k][0][1].others]
              for k in numbers.values()}  # fmt: skip
    part: Work = []
    for (n, k), given in found.items():
        setting = given[0][1]
        if not setting.others:
            whole = len(setting.axes) == 1 and ranks == 6
            part += given if whole else [given[0], *given[1 + (n + k) % 2 :: 2]]
        elif n in beside[k]:
            second = n == beside[k][k % len(beside[k])]
            part.append((replace(given[n // 2 % len(given)][0], order=2 if second else 1), setting))
    seen = {kind_of(case) for case, _ in part}
    rest = {kind_of(case): (replace(case, order=1), setting) for case, setting in work if kind_of(case) not in seen}
    return [*part, *rest.values()]


def run_world(work: Work, ranks: int) -> None:
    failures = check(work, ranks)
    summary.count("registry in local worlds, cases", f"on {ranks} ranks", len(work))
    assert not failures, f"{len(failures)} failures\n" + "\n".join(map(" | ".join, failures[:20]))


@pytest.mark.parametrize("ranks", [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in SIZES])
def test_world(ranks: int) -> None:
    work, skips = work_and_skips(ranks)
    for skip, times in Counter(skips).items():
        summary.count("registry in local worlds, skipped", f"({skip.reason})", times)
        summary.line("registry in local worlds, skipped", f"{skip.name}: {skip.reason}: {times} on {ranks} ranks")
    part = default_part(work, ranks) if ranks in THINNED else work
    run_world(part, ranks)
    if len(part) < len(work):
        thinned = f"{len(part)} of {len(work)} on {ranks} ranks"
        summary.line("registry in local worlds, thinned by shapes and dtypes, with every pair of layouts", thinned)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", THINNED)
def test_whole_world(ranks: int) -> None:
    run_world(work_and_skips(ranks)[0], ranks)


@pytest.mark.parametrize("ranks", TWO_AXES)
def test_the_default_part_has_every_pair_beside_every_label(ranks: int) -> None:
    def labels(work: Work, order: int) -> set[Any]:
        return {(*pair_of(case), setting.axes if not setting.others else str(*setting.others.values()))
                for case, setting in work if case.order >= order}  # fmt: skip

    whole, _ = work_and_skips(ranks)
    part = default_part(whole, ranks)
    assert labels(part, 1) == labels(whole, 1) and len(part) < 0.8 * len(whole)
    assert {pair[:3] for pair in labels(part, 2) if isinstance(pair[3], str)} == {pair_of(case) for case, _ in whole}
    assert {kind_of(case) for case, _ in part} == {kind_of(case) for case, _ in whole}  # no root or dtype is lost


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
    run = Prepared.run

    def noted(self: Prepared, *args: Any) -> Any:
        seen.add(self.collective.name)
        return run(self, *args)

    monkeypatch.setattr(Prepared, "run", noted)
    setting = Setting({"a": 2}, ["a"])
    work = [(case, setting) for case in cases(setting, 2) if isinstance(case, Case)]
    assert not check(work, 2)
    assert set(HELPERS) <= seen
    for name, how in HELPERS.items():
        summary.line("registry, collectives without a call of their own", f"{name!r}: {how}")


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
