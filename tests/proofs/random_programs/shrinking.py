"""Shrink a program: make it smaller as long as it still satisfies a condition. Hypothesis is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autograd.layouts.layout import I, P, Rooted

from .form import Program, Statement
from .rules import Illegal, kinds

__all__ = ["is_correct", "shrink"]


def is_correct(program: Program) -> bool:
    """Whether the rules allow every statement, and the last one gives a scalar objective.

    Examples
    --------
    >>> from tests.proofs.random_programs import generate
    >>> is_correct(generate(seed=1))
    True
    """
    try:
        known = kinds(program)
    except (Illegal, KeyError, IndexError):
        return False
    end = known[program.objective] if program.statements else None
    return (
        end is not None and end.depends and end.shape == ()
        and all(x is I or x is P or isinstance(x, Rooted) for x in end.labels)
    )  # fmt: skip


def shrink(program: Program, condition: Callable[[Program], bool]) -> Program:
    """Reduce a program step by step to a smaller correct one that still satisfies a condition.

    A step removes a statement, a leaf or an axis, or lowers an extent or the size of an axis.

    Parameters
    ----------
    program : Program
        A program that satisfies the condition.
    condition : callable
        ``condition(program) -> bool``. If it raises, the condition is not satisfied.

    Examples
    --------
    >>> from tests.proofs.random_programs.shapes import SHAPES
    >>> program = SHAPES["sequence parallel"]
    >>> small = shrink(program, lambda p: any(s.operation == "reduce_scatter" for s in p.statements))
    >>> len(program.statements), len(small.statements) <= 4
    (14, True)
    """
    tried = {program}
    going = True
    while going:
        going = False
        for smaller in _smaller(program):
            if smaller in tried:
                continue
            tried.add(smaller)
            if is_correct(smaller) and _holds(condition, smaller):
                program, going = smaller, True
                break
    return program


def _holds(condition: Callable[[Program], bool], program: Program) -> bool:
    try:
        return bool(condition(program))
    except Exception:
        return False


def _smaller(program: Program) -> Iterator[Program]:
    yield _pruned(program)
    for i in range(len(program.statements) - 1):  # end after an earlier statement
        yield program._replace(statements=program.statements[: i + 1])
    for i in reversed(range(len(program.statements))):
        s = program.statements[i]
        for stand_in in dict.fromkeys((*s.operands, *(x.name for x in program.leaves))):
            yield _pruned(_without(program, i, stand_in))
            yield _without(program, i, stand_in)
    used = {name for s in program.statements for name in s.operands}
    for i, x in enumerate(program.leaves):
        if x.name not in used:
            yield program._replace(leaves=(*program.leaves[:i], *program.leaves[i + 1 :]))
    for k, n in enumerate(program.sizes):
        if len(program.sizes) > 1:
            yield _without_axis(program, k)
        if n > 1:
            yield program._replace(sizes=(*program.sizes[:k], n - 1, *program.sizes[k + 1 :]))
    extents = {n for x in program.leaves for n in x.shape}
    for n in sorted(extents - {1}, reverse=True):
        for m in range(1, n):
            yield program._replace(
                leaves=tuple(x._replace(shape=tuple(m if e == n else e for e in x.shape)) for x in program.leaves)
            )


def _without(program: Program, at: int, stand_in: str) -> Program:
    """Remove a statement, and use another value in place of its result."""
    gone = program.statements[at].name
    rest = (*program.statements[:at], *program.statements[at + 1 :])
    changed = [s._replace(operands=tuple(stand_in if n == gone else n for n in s.operands)) for s in rest]
    return program._replace(statements=tuple(changed))


def _pruned(program: Program) -> Program:
    """Remove the statements that the objective does not depend on, and the unused leaves."""
    if not program.statements:
        return program
    needed = {program.objective}
    kept: list[Statement] = []
    for s in reversed(program.statements):
        if s.name in needed:
            needed.update(s.operands)
            kept.append(s)
    return program._replace(
        statements=tuple(reversed(kept)), leaves=tuple(x for x in program.leaves if x.name in needed)
    )


def _without_axis(program: Program, k: int) -> Program:
    """Remove an axis, and the statements that run along this axis only."""
    axis = program.axes[k]
    leaves = tuple(x._replace(labels=(*x.labels[:k], *x.labels[k + 1 :])) for x in program.leaves)
    program = program._replace(
        axes=(*program.axes[:k], *program.axes[k + 1 :]), sizes=(*program.sizes[:k], *program.sizes[k + 1 :]),
        leaves=leaves,
    )  # fmt: skip
    for i in reversed(range(len(program.statements))):
        s = program.statements[i]
        if s.axes == (axis,):
            program = _without(program, i, s.operands[0])
        elif axis in s.axes:
            changed = s._replace(axes=tuple(a for a in s.axes if a != axis))
            program = program._replace(
                statements=(*program.statements[:i], changed, *program.statements[i + 1 :])
            )
    return program
