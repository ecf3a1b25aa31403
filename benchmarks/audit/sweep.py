"""The sweep: which cases differ from the serial result, made small, and confirmed by a program on real processes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from .cases import STAGES, Case, Difference, compare, is_smooth, shrink

__all__ = ["Documented", "Found", "System", "confirmed", "progress", "shared", "sweep"]


class Documented(NamedTuple):
    """A difference that the system's documentation states."""

    page: str
    says: str
    covers: Callable[[Case, Difference], bool]


class System(Protocol):
    """What the sweep asks of a system, which is a module of this package."""

    NAME: str
    DOCUMENTED: list[Documented]

    def cases(self) -> Iterator[Case]: ...
    def request(self, case: Case, ranks: int, differences: bool = False) -> dict[str, Any]: ...
    def candidates(self, case: Case) -> Iterable[Case]: ...
    def script(self, case: Case, difference: Difference, ranks: int) -> str: ...


class Found(NamedTuple):
    """A difference that has been made small, the program that shows it, and the number of cases that it stands for."""

    case: Case
    difference: Difference
    program: str
    documented: Documented | None
    count: int


Ask = Callable[[dict[str, Any]], dict[str, Any] | None]


def shared(asks: Sequence[Ask]) -> Ask:
    """One function that asks the first worker which is free."""
    free: SimpleQueue[Ask] = SimpleQueue()
    for ask in asks:
        free.put(ask)

    def of_a_free_one(request: dict[str, Any]) -> dict[str, Any] | None:
        ask = free.get()
        try:
            return ask(request)
        finally:
            free.put(ask)

    return of_a_free_one


def sweep(system: System, ask: Ask, ranks: int, cases: Iterable[Case], jobs: int = 1, seconds: float = 1e9,
          said: Callable[[str], Any] = lambda text: None) -> tuple[Counter[str], list[Found]]:  # fmt: skip
    """Run the cases, and make the differences small.

    Counts are those of cases. Each has agreed, differs, was refused by the system at some stage and agreed up to there,
    or has no serial result. `unchecked` are those for which there was no time.
    """
    counts: Counter[str] = Counter()
    differing: dict[tuple[Any, ...], list[tuple[Case, Difference]]] = {}
    without_rule: set[str] = set()
    end = time.monotonic() + seconds

    def verdict(case: Case) -> str | Difference:
        if time.monotonic() > end:
            return "unchecked"
        if case.call in without_rule:
            return "refused"
        answer = ask(system.request(case, ranks))
        if answer is None:
            return "died"
        if "value" not in answer.get("serial", {}):  # or the rank that computes it was lost
            return "refused" if answer["refused"] else "without a serial result"
        difference = compare(answer["distributed"], answer["serial"])
        if difference is not None:
            return difference
        if answer["refused"].startswith("NotImplementedError") and not any(answer["distributed"]):
            without_rule.add(case.call)  # it has none for any layout
        second = all(STAGES[-1] in told for told in answer["distributed"])
        return "refused" if answer["refused"] else "agreed to second order" if second else "agreed"

    cases, found = list(cases), {}
    with ThreadPoolExecutor(jobs) as pool:
        for case, result in zip(cases, pool.map(verdict, cases), strict=True):
            counts["cases"] += 1
            counts[result if isinstance(result, str) else "different"] += 1
            if isinstance(result, Difference):
                differing.setdefault((*case.key(), result.stage), []).append((case, result))
                said(f"{case.text()} {' '.join(case.layouts)} {case.mode} {dict(case.sizes)}: {result.stage}")
            if counts["cases"] % 100 == 0:
                said(f"{counts}")
        counts["cases"] -= counts["unchecked"]
        groups = list(differing.values())
        for same, one in zip(groups, pool.map(lambda c: small(system, ask, ranks, c), groups), strict=True):
            if one is None:
                counts["at a kink, or not again"] += len(same)
                counts["different"] -= len(same)
                continue
            key = (*one.case.key(), one.difference.stage)
            found[key] = one._replace(count=len(same) + (found[key].count if key in found else 0))
            said(f"small: {one.case.text()} {' '.join(one.case.layouts)} {one.case.mode}: {one.difference.stage}")
    return counts, list(found.values())


def small(system: System, ask: Ask, ranks: int, cases: list[tuple[Case, Difference]]) -> Found | None:
    """The smallest case for cases that differ at one stage, unless it is documented; None at a kink or a tie."""
    case, difference = cases[0]
    documented = next((d for d in system.DOCUMENTED if d.covers(case, difference)), None)
    if documented is not None:
        return Found(case, difference, "", documented, len(cases))

    def differs(case: Case) -> Difference | None:
        answer = ask(system.request(case, ranks, differences=True))
        if answer is None or "differences" not in answer or not is_smooth(answer["serial"], answer["differences"]):
            return None
        found = compare(answer["distributed"], answer["serial"])
        return found if found is not None and found.stage == difference.stage else None

    start = next((case for case, _ in cases if differs(case) is not None), None)
    if start is None:
        return None
    case = shrink(start, system.candidates, lambda case: differs(case) is not None)
    last = differs(case)
    return None if last is None else Found(case, last, system.script(case, last, ranks), None, len(cases))


def confirmed(found: Found, ask: Ask) -> str:
    """"" if ranks that run the program find the difference; else what they said."""
    ended = (ask({"program": found.program}) or {"ended": []})["ended"]
    if any("AssertionError: rank" in errors for errors in ended):
        return ""
    return "not confirmed: " + " | ".join((["no error", *errors.strip().splitlines()])[-1] for errors in ended)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
