"""Hypothesis strategies: random correct SPMD programs that shrink to the smallest one that shows a fault.

Hypothesis is an optional dependency; this file is where it enters.

    from hypothesis import given
    from collectives.testing.strategies import programs
    from collectives.testing.proof import faults

    @given(programs(ranks=(2, 4)))
    def test_gradients(program):
        assert not faults(program), program.source()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .random_programs.form import Program
from .random_programs.generate import ALL, build, meshes
from .random_programs.shrinking import shrink

try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "collectives.testing.strategies needs Hypothesis, which is not installed. Fix: pip install hypothesis; or use "
        "collectives.testing.generate(seed), which makes random programs without it (they do not shrink)"
    ) from error

__all__ = ["minimal", "programs"]


class _Drawn:
    """Choices by Hypothesis: the first option and the lowest number are the simplest."""

    def __init__(self, draw: Any):
        self.draw = draw

    def one(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))


def programs(
    *, ranks: tuple[int, int] = (1, 8), axes: tuple[int, int] = (1, 3), statements: int = 10, trained: bool = False,
    operations: Sequence[str] = ALL,
) -> st.SearchStrategy[Program]:  # fmt: skip
    """Correct programs: graphs of local operations, collectives and casts that end in one number.

    Parameters
    ----------
    ranks, axes : (int, int)
        How many of each, from and to.
    statements : int
        How many at most, before those that make one number of the results.
    trained : bool
        Whether every leaf with a gradient has a layout that an optimizer takes, and the program also runs on one
        process.
    operations : sequence of str
        Which to choose from; see `testing.random_programs.generate`.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(programs(ranks=(2, 2), axes=(1, 1), operations=["tanh", "all_reduce"]), lambda program: True).ranks
    2
    """
    return _programs(ranks, axes, statements, trained, tuple(operations))


@st.composite
def _programs(draw: Any, ranks: Any, axes: Any, statements: int, trained: bool, operations: Sequence[str]) -> Program:
    return build(_Drawn(draw), meshes(ranks, axes), statements, trained, draw(st.integers(0, 2**16)), operations)


def minimal(condition: Callable[[Program], bool], *, examples: int = 500, **options: Any) -> Program:
    """A small program of `programs(**options)` that has a property, like a fault: found, then made smaller.

    Raises
    ------
    hypothesis.errors.NoSuchExample
        None of so many has it.

    Examples
    --------
    >>> program = minimal(lambda p: any(s.operation == "all_gather" for s in p.statements), ranks=(2, 2), axes=(1, 1))
    >>> sum(s.communicates for s in program.statements) <= 3
    True
    """
    settings = hypothesis.settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    return shrink(hypothesis.find(programs(**options), condition, settings=settings), condition)
