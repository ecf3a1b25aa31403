"""Hypothesis strategies for random correct SPMD programs, which shrink to a small program that shows a fault.

Hypothesis is an optional dependency. Only this module imports it.

    from hypothesis import given
    from tests.proofs.random_programs import faults
    from tests.proofs.random_programs.strategies import programs

    @given(programs(ranks=(2, 4)))
    def test_gradients(program):
        assert not faults(program), program.source()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .form import Program
from .generate import ALL, build, meshes
from .shrinking import shrink

try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "random_programs.strategies needs Hypothesis, which is not installed. Fix: pip install hypothesis; or use "
        "random_programs.generate(seed), which makes random programs without it (they do not shrink)"
    ) from error

__all__ = ["minimal", "programs"]


class _HypothesisChooser:
    """Choices by Hypothesis, which shrinks towards the first option and the lowest number."""

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
    """A strategy for correct programs: local operations, collectives and casts that end in a scalar objective.

    Parameters
    ----------
    ranks, axes : (int, int)
        The smallest and the largest number of ranks, and of mesh axes.
    statements : int
        The largest number of statements, not counting those that reduce the results to a scalar.
    trained : bool
        Whether every leaf with a gradient has a layout that an optimizer accepts, and the program also runs on one
        process.
    operations : sequence of str
        The operations to choose from; see `random_programs.generate`.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(programs(ranks=(2, 2), axes=(1, 1), operations=["tanh", "all_reduce"]), lambda program: True).ranks
    2
    """
    return _programs(ranks, axes, statements, trained, tuple(operations))


@st.composite
def _programs(draw: Any, ranks: Any, axes: Any, statements: int, trained: bool, operations: Sequence[str]) -> Program:
    chooser = _HypothesisChooser(draw)
    return build(chooser, meshes(ranks, axes), statements, trained, draw(st.integers(0, 2**16)), operations)


def minimal(condition: Callable[[Program], bool], *, examples: int = 500, **options: Any) -> Program:
    """Find a program that satisfies a condition, such as having a fault, and make it as small as possible.

    Parameters
    ----------
    condition : callable
        ``condition(program) -> bool``.
    examples : int
        The largest number of programs to try.
    **options
        The parameters of `programs`.

    Raises
    ------
    hypothesis.errors.NoSuchExample
        No program among the first `examples` satisfies the condition.

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
