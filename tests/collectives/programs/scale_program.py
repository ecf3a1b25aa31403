"""The tables of scale on processes: right programs are left alone, wrong ones are refused on every rank."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import collectives as cc
from autograd.errors import ScaleError, ScaleWarning
from tests.collectives.scale import meshes, programs
from tests.collectives.scale.written_programs import counts

Program = Callable[[cc.Mesh], Any]


def refusal(program: Program, axes: dict[str, int]) -> str:
    """The text of the ScaleError of a program on this rank; "" for a program that is left alone."""
    try:
        with cc.Mesh(**axes) as mesh:
            program(mesh)
    except ScaleError as error:
        return str(error)
    return ""


def on_all_ranks(text: str) -> bool:
    """Whether the ranks agree that a program is refused."""
    found = {bool(each) for each in cc.world().exchange(text.encode())}
    assert len(found) == 1, f"only some ranks refuse the program: {text}"
    return found == {True}


n = int(cc.world().size)
warnings.simplefilter("ignore")
warnings.simplefilter("error", ScaleWarning)
cc.check(scale="error")
wrong = [(name, programs.program(row.loss), {"dp": n}, row.says) for name, row in programs.WRONG.items()]
right = [(name, programs.program(loss), {"dp": n}) for name, (loss, _) in programs.RIGHT.items()]
for name, row in meshes.ROWS.items():
    axes = {axis: int(size) for axis, size in row.axes(n).items()}
    if numpy.prod(list(axes.values())) == n:
        right += [(name, row.program(how), axes) for how in row.right]
        wrong += [(name, row.program(each.how), axes, each.says) for each in row.wrong]
for name, written in counts.PROGRAMS.items():  # of counts that the ranks exchange, before sums and gathers
    axes = {axis: int(size) for axis, size in written.axes(n).items()}
    if n in written.ranks and numpy.prod(list(axes.values())) == n and not written.reason(n):
        right += [(name, written.run, axes)] * written.is_right
        wrong += [(name, written.run, axes, ())] * (not written.is_right)
for name, program, axes in right:
    text = refusal(program, axes)
    assert not on_all_ranks(text), f"{name}: {text}"
for name, program, axes, says in wrong:
    text = refusal(program, axes)
    assert on_all_ranks(text), f"{name} is not refused"
    assert all(words in text for words in says), f"{name}: {text}"
if cc.world().rank == 0:
    print(f"SCALE {len(right)} right, {len(wrong)} wrong, {n} ranks", flush=True)
