"""Wrong programs: a mistake in a distributed program, the program without it, and the gradients of one process.

A `Case` is one row of a table. `prove_refused` runs its wrong program, which an error must refuse, and `prove_exact`
its right one, whose gradients must be the serial ones. Both run it on threads, one for each rank of a mesh, or of a
mesh whose axes have size 1. A job on threads takes 10 ms, so each row has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

import collectives as cc
from autograd.errors import RingtapeError

from ..on_mesh import on_mesh

__all__ = ["Case", "prove_exact", "prove_refused"]


@dataclass(frozen=True)
class Case:
    """One mistake. A row may lack the wrong program or the right one.

    Attributes
    ----------
    wrong : callable or None
        ``wrong(mesh)``, a program with the mistake.
    right : callable or None
        ``right(mesh)``, a program without it, which returns {name: gradient}, where a gradient is an array or (array,
        the part of the whole that it is). It may return a pair of this and its own `serial`.
    serial : callable or None
        ``serial()``, the gradients of the same loss on one process, without ranks.
    says : tuple of str
        Words of the error's text: the operation, the axis, the layouts, the fix, the place.
    error : str
        The name of the error's class; "RingtapeError" stands for any of ringtape's errors.
    axes : dict of str to int
        The mesh.
    on_one_rank : bool
        Whether the wrong program is refused on one rank too, under a mesh whose axes have size 1: layouts do this.
    on_every_rank : bool
        Whether every rank raises the error by itself, rather than end with the rank that raises it.
    """

    wrong: Callable[[cc.Mesh], Any] | None = None
    right: Callable[[cc.Mesh], Any] | None = None
    serial: Callable[[], Mapping[str, Any]] | None = None
    says: tuple[str, ...] = ()
    error: str = "LayoutError"
    axes: Mapping[str, int] = field(default_factory=lambda: {"dp": 3})
    on_one_rank: bool = False
    on_every_rank: bool = False

    @property
    def alone(self) -> dict[str, int]:
        """The axes with one rank each."""
        return dict.fromkeys(self.axes, 1)


def prove_refused(case: Case, axes: Mapping[str, int] | None = None) -> list[str]:
    """Run the wrong program on a mesh, by default the case's own, and return the texts of the errors that refuse it."""
    assert case.wrong is not None
    wrong, found = case.wrong, list[str]()

    def caught(mesh: cc.Mesh) -> str:
        try:
            wrong(mesh)
        except RingtapeError as error:
            return told(error)
        raise AssertionError("the program was not refused on this rank")

    def told(error: RingtapeError) -> str:
        name = type(error).__name__
        assert case.error in (name, "RingtapeError"), f"{name}: {error}"
        return str(error)

    if case.on_every_rank:
        found = on_mesh(caught, **axes or case.axes)
    else:
        try:
            gradients = on_mesh(wrong, **axes or case.axes)
        except RingtapeError as error:
            found = [told(error)]
        else:
            raise AssertionError(f"the program was not refused; it returned {gradients}")
    for text in found:
        for words in case.says:
            assert words in text, f"{words!r} is not in the text:\n{text}"
    return found


def prove_exact(case: Case, axes: Mapping[str, int] | None = None) -> list[set[str]]:
    """Run the right program on a mesh, by default the case's own, and compare the gradients of each rank.

    Returns the names of each rank's gradients: a stage of a pipeline has only some.
    """
    assert case.right is not None
    names = []
    for found in on_mesh(case.right, **axes or case.axes):
        gradients, serial = found if isinstance(found, tuple) else (found, case.serial)
        expected = serial()
        assert gradients.keys() <= expected.keys()
        names.append(set(gradients))
        for name, value in gradients.items():
            gradient, part = value if isinstance(value, tuple) else (value, ...)
            wanted = numpy.asarray(expected[name])[part]
            assert gradient.shape == wanted.shape, name
            scale = max(float(numpy.linalg.norm(wanted)), 1e-6)
            assert numpy.linalg.norm(gradient - wanted) <= 1e-12 * scale, f"{name}: {gradient} is not {wanted}"
    return names


