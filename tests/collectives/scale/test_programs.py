"""The scale of losses: wrong factors are told on any number of ranks, and right programs are left alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import pytest

import collectives as cc
from autograd.errors import GradientWarning, ReplicaWarning, ScaleError, ScaleWarning

from ...proofs.cases import Case, prove_exact, prove_refused
from ...tables import some
from .programs import RIGHT, SILENT, WRONG, program, serial_gradients

RANKS = (2, 3, 4, 5)


def in_turn(most: Mapping[str, int]) -> list[Any]:
    """Each name with all numbers of ranks up to its most: by default an even and an odd one, which change from name to
    name. Of 24 faults that were planted in `collectives.scale`, no habit told one number of ranks from the others, and
    one layer told an even number from an odd one.
    """
    cases = []
    for i, (name, last) in enumerate(most.items()):
        ranks = [n for n in RANKS if n <= last]
        odd = [n for n in ranks if n % 2]
        first = ((2, 4)[i % 2], odd[i // 2 % len(odd)])
        cases += [pytest.param(name, n, marks=[pytest.mark.slow] * (n not in first), id=f"{name}-{n}") for n in ranks]
    return cases


@contextmanager
def scale(setting: str) -> Iterator[None]:
    cc.check(scale=setting)
    try:
        yield
    finally:
        cc.check(scale="warn")


def told(loss: Any, n: int) -> tuple[list[str], Any]:
    """The warnings of a program, and its gradients on the first rank."""

    def main() -> Any:
        with cc.Mesh(dp=n) as mesh:
            return program(loss)(mesh)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cc.run(main, n)
    mine = [each for each in caught if issubclass(each.category, GradientWarning | ReplicaWarning)]
    return [f"{each.category.__name__}: {each.message}" for each in mine], found[0]


@pytest.mark.parametrize("n", some((3, 5, 2, 4), 2))
def test_right_programs(n: int) -> None:
    for name, (loss, serial) in RIGHT.items():
        texts, _ = told(loss, n)
        assert texts == [], f"{name}: {texts}"
        with scale("error"):
            prove_exact(Case(right=program(loss), serial=lambda s=serial: serial_gradients(s, n), axes={"dp": n}))


@pytest.mark.parametrize("n", some((3, 5, 2, 4), 2))
def test_wrong_programs(n: int) -> None:
    for name, row in WRONG.items():
        expected = serial_gradients(row.serial, n)
        if row.error:
            case = Case(wrong=program(row.loss), says=row.says, error="ScaleError", axes={"dp": n})
            prove_refused(case)
            with scale("off"):
                texts, found = told(row.loss, n)
            assert texts == [], name
        else:
            texts, found = told(row.loss, n)
            mine = [text for text in texts if text.startswith(ScaleWarning.__name__)]
            assert len(mine) == 1, f"{name}: {texts}"
            for words in row.says:
                assert words in mine[0], f"{name}: {words!r} is not in\n{mine[0]}"
            with scale("error"):
                prove_refused(Case(wrong=program(row.loss), says=row.says, error="ScaleError", axes={"dp": n}))
        if row.power is None:
            assert any(numpy.linalg.norm(found[k] - expected[k]) > 1e-3 for k in found), name
        else:
            for k in found:
                numpy.testing.assert_allclose(found[k], expected[k] * float(n) ** row.power, err_msg=name)


@pytest.mark.parametrize("n", some((3, 5, 2, 4), 2))
def test_what_stays_silent(n: int) -> None:
    for name, (loss, serial, _) in SILENT.items():
        texts, found = told(loss, n)
        assert texts == [], f"{name}: {texts}"
        expected = serial_gradients(serial, n)
        is_exact = name.startswith("half") and n > 2
        assert is_exact or any(numpy.linalg.norm(found[k] - expected[k]) > 1e-3 for k in found), name


def test_a_sum_over_tasks_is_warned() -> None:
    """It is character for character the mistake of a port from torch's DDP; `declare_partial` says that it is meant."""
    texts, _ = told(WRONG["ddp"].loss, 3)
    assert len(texts) == 1 and "if the sum of different losses is meant" in texts[0]
    assert told(RIGHT["tasks, declared"][0], 3)[0] == []


def test_the_modes() -> None:
    loss = WRONG["ddp"].loss
    with scale("off"):
        assert told(loss, 2)[0] == []
    with scale("error"), pytest.raises(ScaleError, match="2 times too large"):
        told(loss, 2)
    cc.check("off")
    try:
        assert told(loss, 2)[0] == []
    finally:
        cc.check("first")
