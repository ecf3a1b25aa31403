"""The cases of `test_registry` on real processes: one mpiexec run for each world size, every call checked."""

from __future__ import annotations

import re

import pytest

from .launch import launch

RAN: dict[int, int] = {}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_world(ranks: int) -> None:
    outcome = launch("registry_program.py", ranks, limit_s=110, RINGTAPE_CHECK="always", OPENBLAS_NUM_THREADS="1")
    shown = f"{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, f"killed after 110 s\n{shown}"
    found = re.search(r"REGISTRY (\d+) cases on (\d) ranks, 0 failures", outcome.out)
    assert found is not None and int(found[2]) == ranks, shown
    assert outcome.code == 0, shown
    RAN[ranks] = int(found[1])


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what ran; the last of this file."""
    if not RAN:
        pytest.skip("no mpiexec run")
    with capsys.disabled():
        print(f"\nregistry, mpiexec: {sum(RAN.values())} cases (" +
              ", ".join(f"{n} on {ranks}" for ranks, n in RAN.items()) + " ranks)")
