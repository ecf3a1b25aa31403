"""Random programs: right ones raise no alarm of scale, and a planted factor of the number of ranks is told."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import collectives as cc
from autograd.errors import ScaleError
from collectives import Shard
from collectives.mesh import Mesh

from ...proofs.random_programs import Program, Statement, execute, generate, kinds
from ...proofs.random_programs.generate import ALL

OPTIONS: dict[str, Any] = {"ranks": (2, 6), "axes": (1, 2)}
KNOWN = tuple(each for each in ALL if each != "hand_over")
"""Operations without messages, behind which every power is unknown, so that no factor is told."""


@pytest.fixture(autouse=True)
def as_errors() -> Iterator[None]:
    cc.check(scale="error")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        cc.check(scale="warn")


def alarm(program: Program) -> str:
    """The text of the alarm; "" without one."""

    def main() -> None:
        with Mesh(**dict(zip(program.axes, program.sizes, strict=True))) as mesh:
            execute(program, mesh)

    try:
        cc.run(main, program.ranks)
    except ScaleError as error:
        return str(error)
    return ""


# -- planted factors ---------------------------------------------------------------------------------------------------
PLANTED = ("times the size", "by the size")


def planted(program: Program, seed: int) -> tuple[Program, Statement] | None:
    """A program with one factor, the size of one axis, in a value that the objective needs; None if no axis has two
    ranks. With two axes, it is the size of one of them, whichever the program sums over.
    """
    random = numpy.random.default_rng(seed)
    axes = [axis for axis, n in zip(program.axes, program.sizes, strict=True) if n > 1]
    known, needed = kinds(program), needed_by(program)
    places = [i for i, s in enumerate(program.statements) if s.name in needed and known[s.name].depends]
    if not axes or not places:
        return None
    i = int(random.choice(places))
    s = program.statements[i]
    first = s._replace(name=s.name + "_")
    factor = Statement(s.name, str(random.choice(PLANTED)), (first.name,), (str(random.choice(axes)),))
    statements = (*program.statements[:i], first, factor, *program.statements[i + 1 :])
    return program._replace(statements=statements), factor


def gradients(program: Program) -> list[Any]:
    """The gradients on each rank, in the order of the ranks and the leaves, whatever their scale."""

    def main() -> list[Any]:
        with Mesh(**dict(zip(program.axes, program.sizes, strict=True))) as mesh:
            return list(execute(program, mesh).gradients.values())

    cc.check(scale="off")
    try:
        return [g for found in cc.run(main, program.ranks) for g in found if g is not None]
    finally:
        cc.check(scale="error")


def is_fault(right: Program, wrong: Program) -> bool:
    """Whether a planted factor changes a gradient. One in a term that cancels, or has no gradient, does not."""
    pairs = zip(gradients(right), gradients(wrong), strict=True)
    return any(not numpy.allclose(g, h, rtol=1e-6, atol=1e-9) for g, h in pairs)


def needed_by(program: Program) -> set[str]:
    """The names of the values that the objective is computed from."""
    needed = {program.objective}
    for s in reversed(program.statements):
        if s.name in needed:
            needed.update(s.operands)
    return needed


HALF = "on two ranks a half is one over their number: the same tape is that of a mean over them, times their number"
ITEMS = "each rank has one element: the same tape is that of the mean over the elements"
DECLARED = "the program declares the values of the ranks to be addends: the same tape is that of their mean"
INSEPARABLE = HALF, ITEMS, DECLARED
"""The reasons for which a right program has the same tape: nothing that sees the tape alone can tell the two."""
OTHERS = (
    "data beside a value of another scale have a scale of their own",
    "a scalar that was computed off the tape may count anything",
    "the program itself declares a value Partial",
)
"""The reasons that are limits of the examination."""
_SUMS = ("add", "subtract", "concatenate")


def why_silent(program: Program, factor: Statement) -> str:
    """The name of the reason for which a factor stays silent, one of `INSEPARABLE` if it is among them; "" without one.

    It is found from the statements, and not from what the examination knows of them.
    """
    sizes = dict(zip(program.axes, program.sizes, strict=True))
    plain = [s._replace(operation="scale", axes=()) if s is factor else s for s in program.statements]
    known = kinds(program._replace(statements=tuple(plain)))
    axis, scaled, found = factor.axes[0], {factor.name}, dict[str, frozenset[str]]()
    n, k, is_divided = sizes[axis], program.axes.index(axis), factor.operation == "by the size"
    data = {leaf.name for leaf in program.leaves if leaf.role == "data"}
    computed = set[str]()
    for s in program.statements:
        reasons = set().union(*(found.get(x, ()) for x in s.operands))
        if s is not factor and scaled & set(s.operands):
            scaled.add(s.name)
        if s.operation == "declare_partial" and axis in s.axes:
            reasons |= {OTHERS[2], DECLARED} if is_divided else {OTHERS[2]}
        if len(s.operands) > 1 and scaled & set(s.operands) and data & set(s.operands) and s.operation in _SUMS:
            reasons.add(OTHERS[0])
        if s.operation == "multiply" and computed & set(s.operands):
            reasons.add(OTHERS[1])
        if s.operation == "scale" and s.number == 0.5 and n == 2 and not is_divided:
            reasons.add(HALF)
        if s.operation == "sum" and is_divided and s.operands[0] not in scaled:
            label, shape = known[s.operands[0]].labels[k], known[s.operands[0]].shape
            is_summed = isinstance(label, Shard) and (s.dim is None or s.dim == label.dim)
            reasons |= {ITEMS} if is_summed and shape[label.dim] == n else set()
        if data.issuperset(s.operands):
            data.add(s.name)
            computed |= {s.name} if known[s.name].shape == () else set()
        found[s.name] = frozenset(reasons)
    reasons = found[program.objective]
    return next((each for each in (*INSEPARABLE, *OTHERS) if each in reasons), "")


def right(seeds: range, labelled: bool) -> None:
    for seed in seeds:
        text = alarm(generate(seed, labelled=labelled, **OPTIONS))
        assert not text, f"seed {seed}: {text}"


def told(seeds: range) -> Counter[str]:
    """The number of planted factors that are told, and of those that stay silent by reason: "no fault" where no
    gradient changes.
    """
    found = Counter[str]()
    for seed in seeds:
        program = generate(seed, labelled=True, operations=KNOWN, **OPTIONS)
        one = planted(program, seed)
        if one is None:
            continue
        text = alarm(one[0])
        if text:
            found["told"] += 1
            assert f"axis {one[1].axes[0]!r}" in text, f"seed {seed}: {text}"
        elif not is_fault(program, one[0]):
            found["no fault"] += 1
        else:
            found[why_silent(*one) or f"seed {seed}"] += 1
    return found


def assert_told(found: Counter[str]) -> None:
    """Of the planted factors that change a gradient, 99 % of those that can be told are, and each other has its reason.

    Both shares are printed: of all, and of those without a right program with the same tape.
    """
    silent = {name: n for name, n in found.items() if name not in ("told", "no fault")}
    total = found["told"] + sum(silent.values())
    can_be_told = total - sum(silent.get(name, 0) for name in INSEPARABLE)
    print(f"\n{found['told']} of {total} planted factors that change a gradient are told: {found['told'] / total:.2%}")
    print(f"{found['told']} of the {can_be_told} that no right program shares its tape with: "
          f"{found['told'] / can_be_told:.2%}")  # fmt: skip
    for name, n in sorted(silent.items()):
        print(f"{n:5} silent: {name}")
    assert found["told"] >= 0.99 * can_be_told, found
    assert found["told"] >= 0.97 * total, found
    assert silent.keys() <= {*INSEPARABLE, *OTHERS}, found


def test_right_programs() -> None:
    right(range(100), labelled=True)
    right(range(100), labelled=False)


def test_planted_factors() -> None:
    assert_told(told(range(150)))


@pytest.mark.slow
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("part", range(10))
def test_many_right_programs(part: int, labelled: bool) -> None:
    right(range(500 * part, 500 * (part + 1)), labelled)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_many_planted_factors(part: int) -> None:
    assert_told(told(range(1000 * part, 1000 * (part + 1))))
