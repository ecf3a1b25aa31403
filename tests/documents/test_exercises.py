"""The exercises: their solutions are right, and wrong ones are refused, with the rank or the axis and a reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import autograd.numpy as np
import collectives as cc
from autograd import nn

EXERCISES = Path(__file__).resolve().parents[2] / "examples" / "exercises"
NAMES = {"1_broadcast": ("adjoint",), "2_ring": ("sent", "received"), "3_layers": ("columns", "rows"),
         "4_schedule": ("SCHEDULE",), "5_scale": ("loss",)}  # fmt: skip


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"exercise_{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exercise(name: str) -> ModuleType:
    return loaded(EXERCISES / f"{name}.py")


def solution(name: str) -> tuple[Any, ...]:
    module = loaded(EXERCISES / "solutions" / f"{name}.py")
    return tuple(getattr(module, each) for each in NAMES[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_is_right(name: str) -> None:
    assert exercise(name).check(*solution(name)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_hole_is_to_be_filled(name: str) -> None:
    module = exercise(name)
    given = [getattr(module, each) for each in NAMES[name]]
    if name == "4_schedule":
        assert "rank 0 holds the activations of 4" in module.check(*given)
    else:
        with pytest.raises(NotImplementedError):
            module.check(*given)


def _halved(ct: Any, group: Any) -> Any:
    total = group.reduce(ct.copy(), 0)
    return None if total is None else total / group.size


def _overwritten(ct: Any, group: Any) -> Any:
    total = group.all_reduce(ct.copy())
    ct[:] = total
    return ct if group.rank == 0 else None


WRONG_ADJOINTS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (lambda ct, group: ct if group.rank == 0 else None, ("2 ranks, rank 0", "rank 0's own cotangent", "<F* ct, x>")),
    (lambda ct, group: group.all_reduce(ct.copy()), ("2 ranks, rank 1", "only rank 0 has the operand")),
    (_halved, ("2 ranks, rank 0", "2 times too small")),
    (_overwritten, ("2 ranks, rank 0", "fix: ct.copy()")),
]
WRONG_RINGS: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
    (lambda r, s, p: (r - s) % p, lambda r, s, p: (r - s) % p, "2 ranks, step 0, rank 0: it receives part 0"),
    (lambda r, s, p: (r + s) % p, lambda r, s, p: (r - 1 + s) % p, "3 ranks, rank 0, part 0: the sum is"),
    (lambda r, s, p: r, lambda r, s, p: (r - 1) % p, "2 ranks, rank 0, part 0: the sum is"),
]
WRONG_SCHEDULES = {
    "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3\n1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3": "the ranks are idle for 50% of the time",
    "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3\n1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3": "rank 0 waits in 0B0 for the result of 1B0",
    "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1": "2 ranks and 2 microbatches were given",
    "0F0 0X1": "OptionError",
}


def test_wrong_adjoints() -> None:
    for adjoint, says in WRONG_ADJOINTS:
        text = exercise("1_broadcast").check(adjoint)
        assert all(words in text for words in says), text


def test_wrong_rings() -> None:
    for sent, received, says in WRONG_RINGS:
        assert says in exercise("2_ring").check(sent, received)


def test_wrong_layers() -> None:
    columns, rows = solution("3_layers")
    check = exercise("3_layers").check
    says = check(lambda x, up, b: np.tanh(x @ up + b), rows)
    assert "axis 'tp': Invariant (x) does not mix with Shard (up)" in says and "fix: cast(x, 'tp', to=R)" in says
    says = check(columns, lambda h, down: h @ down)
    assert "axis 'tp'" in says and "Partial" in says and "fix: all_reduce" in says
    says = check(columns, lambda h, down: cc.all_reduce(h @ down, "tp", to=cc.R))
    assert "axis 'tp': the objective is Replicated" in says


def test_wrong_schedules() -> None:
    for schedule, says in WRONG_SCHEDULES.items():
        assert says in exercise("4_schedule").check(schedule), schedule


def test_wrong_losses() -> None:
    check, ce, total = exercise("5_scale").check, nn.cross_entropy, lambda x: cc.all_reduce(x, "dp", to=cc.I)
    says = check(lambda model, x, y, rows: total(ce(model(x), y)))
    assert "2 ranks, axis 'dp': ScaleError" in says and "2 times too large" in says
    says = check(lambda model, x, y, rows: cc.mean(ce(model(x), y), "dp", to=cc.I))
    assert "axis 'dp'" in says and ("ScaleError" in says or "times the right one" in says)
    says = check(lambda model, x, y, rows: total(ce(model(x), y, reduction="sum") / rows) / cc.world().size)
    assert "axis 'dp': ScaleError" in says and "too small" in says
    says = check(lambda model, x, y, rows: ce(model(x), y))
    assert "axis 'dp'" in says and "fix:" in says
