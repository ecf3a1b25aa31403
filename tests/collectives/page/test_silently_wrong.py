"""The wrong line of ten programs that raise no error, found with the data of the page alone.

For each program a function stands for a viewer with one question. It returns the lines to which the page points. Of the
wrong program that is the wrong line; of the right one there is none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import collectives as cc

from . import silently_wrong as programs
from .test_data import content


class Seen:
    """What is on a page, by rank and operation."""

    def __init__(self, data: Any):
        self.data, self.ranks = data, range(len(data["ranks"]))

    def operations(self, r: int) -> Iterator[int]:
        return iter(range(len(self.data["records"]["name"][r])))

    def name(self, r: int, k: int) -> str:
        return str(self.data["texts"][self.data["records"]["name"][r][k]])

    def line(self, r: int, k: int) -> int:
        return int(self.data["sites"][self.data["records"]["site"][r][k]][1])

    def direction(self, r: int, k: int) -> str:
        return ("forward", "backward", "effect", "update")[self.data["records"]["direction"][r][k]]

    def values(self, r: int, k: int) -> list[float]:
        value = self.data["records"]["value"][r][k]
        return [] if value < 0 else list(self.data["summaries"]["values"][value] or [])

    def operands(self, r: int, k: int) -> list[int]:
        found, at, rows = [], 0, self.data["operands"]
        record = 0
        for step, count in zip(rows["record"][r], rows["count"][r], strict=True):
            record += step
            if record == k:
                found = rows["to"][r][at : at + count]
            at += count
        return found

    def problems(self, *kinds: str) -> list[tuple[list[int], int]]:
        return [(rows, k) for kind, rows, k in self.data["problems"] if kind in kinds]


def equal_parts(seen: Seen) -> set[int]:
    """Does the page doubt that values differ?"""
    return {seen.line(rows[0], k) for rows, k in seen.problems("equal")}


def counts(seen: Seen) -> set[int]:
    """Is the sum by which the loss is divided that of the mask?"""
    masks = [
        seen.values(r, operand) for r in seen.ranks for k in seen.operations(r)
        if seen.name(r, k) == "multiply" and seen.direction(r, k) == "forward" for operand in seen.operands(r, k)
        if seen.name(r, operand).startswith("leaf")
    ]  # fmt: skip
    return {
        seen.line(r, k) for r in seen.ranks for k in seen.operations(r)
        if seen.name(r, k) == "all_reduce" and seen.values(r, k) and float(seen.values(r, k)[0]).is_integer()
        and seen.values(r, k)[0] != sum(map(sum, masks))
    }  # fmt: skip


def without_cotangent(seen: Seen) -> set[int]:
    """Is there a result that nothing uses, with nothing below it?"""
    found = set()
    for r in seen.ranks:
        used = {operand for k in seen.operations(r) for operand in seen.operands(r, k)}
        for k in seen.operations(r):
            on_tape = seen.direction(r, k) == "forward" and seen.data["records"]["tape"][r][k]
            if on_tape and k not in used and k not in seen.data["records"]["adjoint"][r]:
                found.add(seen.line(r, k))
    return found


def fewer_updates(seen: Seen) -> set[int]:
    """Do all parameters with gradients have an update, and all or none of them a clipped gradient?"""
    found = set()
    for r in seen.ranks:
        rows = [k for k in seen.operations(r) if seen.direction(r, k) == "update"]
        given = {seen.name(r, k) for k in seen.operations(r) if seen.name(r, k).startswith("parameter")}
        for kind in {seen.name(r, k).split()[0] for k in rows}:
            of_kind = [k for k in rows if seen.name(r, k).startswith(kind)]
            found |= {seen.line(r, k) for k in of_kind if len(of_kind) < len(given)}
    return found


def sent_without_gradient(seen: Seen) -> set[int]:
    """Does a rank on which a parameter has no gradient send what none of its operations made?"""
    return {
        seen.line(r, k) for rows, _ in seen.problems("no gradient") for r in rows for k in seen.operations(r)
        if seen.name(r, k) == "send" and not any(seen.name(r, x) == "tanh" for x in seen.operands(r, k))
    }  # fmt: skip


def order_of_tokens(seen: Seen) -> set[int]:
    """With experts that change nothing: have the results the order of the tokens?"""
    found = set()
    for r in seen.ranks:
        (first, last) = [k for k in seen.operations(r) if seen.name(r, k) == "getitem"][:2]
        (tokens, *_) = seen.operands(r, first)
        if seen.values(r, tokens) != seen.values(r, last) and set(seen.values(r, tokens)) == set(seen.values(r, last)):
            found.add(seen.line(r, last))
    return found


def direction_of_messages(seen: Seen) -> set[int]:
    """To whom do the arrows point?"""
    found, calls = set(), seen.data["calls"]
    for r in seen.ranks:
        record = 0
        for step, call, peer in zip(calls["record"][r], calls["call"][r], calls["peer"][r], strict=True):
            record += step
            is_sent = seen.data["texts"][call] == "send" and seen.data["records"]["cause"][r][record] < 0
            if is_sent and peer != (r + 1) % len(seen.ranks):
                found.add(seen.line(r, record))
    return found


CASES: dict[Callable[[bool], None], Callable[[Seen], set[int]]] = {
    programs.padding_counted: counts,
    programs.one_mask: equal_parts,
    programs.overwritten_loss: without_cotangent,
    programs.clipped_one_parameter: fewer_updates,
    programs.parameter_left_out: fewer_updates,
    programs.one_slice: equal_parts,
    programs.off_the_tape: sent_without_gradient,
    programs.experts_out_of_order: order_of_tokens,
    programs.labels_in_another_order: equal_parts,
    programs.ring_in_the_wrong_direction: direction_of_messages,
}


def test_all_programs_are_looked_at() -> None:
    assert list(CASES) == programs.PROGRAMS and len(CASES) == 10


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_the_page_shows_the_wrong_line(program: Callable[[bool], None]) -> None:
    def shown(is_wrong: bool) -> Any:
        with cc.Mesh(axis=programs.RANKS), cc.show() as made:
            program(is_wrong)
        return made.page

    with warnings.catch_warnings():  # outside of the ranks; ringtape warns of some of them
        warnings.simplefilter("ignore")
        wrong, right = (content(cc.run(shown, programs.RANKS, each)[0].html) for each in (True, False))
    assert CASES[program](Seen(wrong)) == {programs.wrong_line(program)}
    assert CASES[program](Seen(right)) == set()
    assert right["problems"] == []
