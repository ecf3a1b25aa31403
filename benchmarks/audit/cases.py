"""A case of the sweep, which is one operation on given operands: how it is compared, and how it is made smaller."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = ["STAGES", "Case", "Difference", "arrays", "compare", "is_smooth", "shrink", "smaller"]

STAGES = ("value", "gradient", "gradient of a recorded sweep", "second order")
"""The results that are compared, in this order; the third is torch's gradient with `create_graph=True`."""

TOLERANCE = 1e-9


class Case(NamedTuple):
    """One operation on given operands.

    An operand is one letter for each dimension, whose number stands in `sizes`, and a suffix: ``nk`` any numbers,
    ``nk+`` positive ones, ``nk%`` in (0, 1), ``nk!`` a well-conditioned matrix, ``nk?`` booleans, ``n<k`` integers
    below k. A digit is a fixed size.
    """

    call: str  # an expression of the operands x, y, z, w
    operands: tuple[str, ...]
    layouts: tuple[str, ...]  # one for each operand
    sizes: tuple[tuple[str, int], ...]
    extrema: str = "first"  # the largest number at the first place and the smallest at the last one; or "last"
    mode: str = ""
    decimals: int = 2

    def size(self, letter: str) -> int:
        return int(letter) if letter.isdigit() else dict(self.sizes)[letter]

    def shape(self, operand: str) -> tuple[int, ...]:
        return tuple(self.size(letter) for letter in operand.split("<")[0].rstrip("+%!?"))

    def text(self) -> str:
        """The call, with the sizes in the place of their letters."""
        return self.call.format_map(dict(self.sizes)) if "{" in self.call else self.call

    def key(self) -> tuple[Any, ...]:
        """The call and its layouts, without sizes and values."""
        return self.call, self.layouts, self.mode


class Difference(NamedTuple):
    """The first stage at which ranks differ from the serial result."""

    stage: str
    operand: int  # whose gradient it is; -1 for a value
    ranks: tuple[int, ...]
    got: Any
    want: Any


def arrays(case: Case) -> list[Any]:
    """The operands: different numbers, away from 0, with the extrema at the two ends, so that ranks have one each."""
    made = []
    for i, operand in enumerate(case.operands):
        shape = case.shape(operand)
        count = math.prod(shape)
        rng = np.random.default_rng(zlib.crc32(f"{i} {operand}".encode()))
        if "<" in operand:
            values = rng.integers(0, case.size(operand.split("<")[1]), count)
        elif operand.endswith("?"):
            values = (np.arange(count) % 3 + i) % 2 == 0
        else:
            low, high = {"+": (0.3, 3.0), "%": (0.05, 0.95)}.get(operand[-1], (-2.0, 2.0))
            order = rng.permutation(count)
            if count > 1:  # the largest at the first place, the smallest at the last
                for place, rank in ((0, count - 1), (count - 1, 0)):
                    where = int(np.flatnonzero(order == rank)[0])
                    order[where], order[place] = order[place], rank
                if case.extrema == "last":
                    order = order[::-1]
            places = (order + 0.37 + 0.2 * i) / max(count, 1)  # of no two operands the same, which would be ties
            values = np.round(low + places * (high - low), case.decimals)
        array = values.reshape(shape)
        if operand.endswith("!"):
            array = array + 4 * np.eye(*shape[-2:])
        made.append(array)
    return made


def same(got: Any, want: Any) -> bool:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype.kind != want.dtype.kind:
        return False
    if want.dtype.kind in "biu":
        return bool((got == want).all())
    scale = np.max(np.abs(want), initial=0.0, where=np.isfinite(want))
    return bool(np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * max(scale, 1e-3), equal_nan=True))


def compare(ranks: Iterable[dict[str, Any]], serial: dict[str, Any]) -> Difference | None:
    """The first difference of any rank from the serial results, stage by stage; None if there is none.

    Each answer holds, for the stages that were reached, a list of arrays: the value, or the gradient of each operand.
    """
    answers = list(ranks)
    for stage in STAGES:
        if stage not in serial or not all(stage in answer for answer in answers):
            continue
        for i, want in enumerate(serial[stage]):
            got = [answer[stage][i] for answer in answers]
            differ = tuple(rank for rank, g in enumerate(got) if not same(g, want))
            if differ:
                return Difference(stage, -1 if stage == "value" else i, differ, got[differ[0]], want)
    return None


def is_smooth(serial: dict[str, Any], by_differences: dict[str, Any]) -> bool:
    """Whether the serial gradients are what central differences of the serial program give.

    They are not at a kink or a tie, where several gradients are right.
    """
    stages = [s for s in STAGES[1:] if s in serial and s in by_differences]
    return all(
        np.allclose(want, near, rtol=1e-4, atol=1e-5)
        for stage in stages for want, near in zip(serial[stage], by_differences[stage], strict=True)
    )  # fmt: skip


def smaller(case: Case, plain: str) -> Iterator[Case]:
    """Simpler cases, the simplest first: a layout becomes `plain`, a size smaller, or the numbers are rounder."""
    for i, layout in enumerate(case.layouts):
        if layout != plain:
            yield case._replace(layouts=(*case.layouts[:i], plain, *case.layouts[i + 1 :]))
    for i, (letter, size) in enumerate(case.sizes):
        for less in dict.fromkeys((1, 2, size - 1)):
            if 1 <= less < size:
                yield case._replace(sizes=(*case.sizes[:i], (letter, less), *case.sizes[i + 1 :]))
    for decimals in range(case.decimals):
        yield case._replace(decimals=decimals)


def shrink(case: Case, candidates: Callable[[Case], Iterable[Case]], differs: Callable[[Case], bool]) -> Case:
    """The smallest case that still differs: each step takes the first candidate that does, until there is none."""
    found: Case | None = case
    while found is not None:
        case = found
        found = next((candidate for candidate in candidates(case) if differs(candidate)), None)
    return case
