"""Where a host has more ranks than cores, the waits of MPICH give up the core; the environment stays as it was."""

from __future__ import annotations

import pytest

from ..launch import launch


@pytest.mark.parametrize(
    ("arguments", "says"), [(["1"], "True None"), (["2"], "False None"), (["1", "0"], "False 0")]
)
def test_waits_give_up_the_core(arguments: list[str], says: str) -> None:
    outcome = launch("crowded.py", 2, *arguments, limit_s=60)
    assert outcome.code == 0 and outcome.out.split("\n")[0] == says, outcome
