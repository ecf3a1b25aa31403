"""Where a host has more ranks than cores, the waits of MPICH give up the core; the environment stays as it was."""

from __future__ import annotations

import pytest

from ..launch import launch


STATED = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "0"}


@pytest.mark.parametrize(
    ("cores", "given", "says"), [(1, {}, "True None"), (2, {}, "False None"), (1, STATED, "False 0")]
)
def test_waits_give_up_the_core(cores: int, given: dict[str, str], says: str) -> None:
    outcome = launch("crowded.py", 2, str(cores), limit_s=60, **given)
    assert outcome.code == 0 and outcome.out.split("\n")[0] == says, outcome
