"""When scale is examined: at the sums over ranks of an examined tape, and when backward starts from its objective.

What labels and remembered numbers prove is a `ScaleError`. Where Varying data are involved, the program may mean what
it does, so it is a `ScaleWarning`, which ``cc.check(scale="error")`` makes an error, and ``scale="off"`` leaves out.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from autograd.engine.objective import place_in
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import GradientWarning, ScaleError, ScaleWarning, find_site

from ..checks import modes
from ..checks.reports import warn_once
from .addends import addend_of, learn_of_parts, warn_of_addends
from .messages import describe_fault, describe_meeting
from .powers import Fault, Power
from .walk import Walk

__all__ = ["Examined", "Finding", "Verdict", "verdict_of"]


class Examined:
    """An examined sum over ranks, or gather: the addend to send, and what its facts tell.

    Parameters
    ----------
    prepared : Prepared
    x : Tensor
    name : str
        That of the function that the program has called.
    """

    def __init__(self, prepared: Any, x: Tensor, name: str):
        self._x, self._name, self._axes, self._group = x, name, prepared.call.axes, prepared.group
        self._recording, self._adds = state.recording, prepared.collective.adds
        walk: Walk | None = None if self._recording is None else self._recording.scale or None
        self._walk = walk if walk is not None and walk.place_of(x.tape, x.node) >= 0 else None
        is_compared = self._group.checking
        self.addend = (
            addend_of(x, name, self._axes, self._group, self._walk, self._adds) if is_compared else None
        )

    def tell(self, place: int) -> None:
        """After the call, tell what is wrong with the addends; `place` is that of the result."""
        place = place if self._walk is None else self._walk.place_of(self._recording, place)
        tell = warn_of_addends if self._adds else learn_of_parts
        tell(self.addend, self._name, self._x, self._axes, self._group, self._walk, place)


class Finding(NamedTuple):
    """A fault of an objective along one axis.

    Attributes
    ----------
    axis : str
    size : int
        The number of ranks.
    value : Power
        Of the objective, or of the values that meet in `fault`.
    fault : Fault or None
        Where unequal terms were added; None for a wrong power of the objective.
    """

    axis: str
    size: int
    value: Power
    fault: Fault | None

    @property
    def is_plain(self) -> bool:
        """Whether Varying data are involved, so that it is likely and not proven."""
        return self.value.plain if self.fault is None else self.fault.is_plain

    @property
    def unsure(self) -> frozenset[str]:
        """The axes along which some ranks may not have found it."""
        values = (self.value,) if self.fault is None else self.fault.values
        return frozenset().union(*(each.unsure for each in values))


class Verdict:
    """The faults of an objective, and the places where rows of one rank meet each other on its way.

    Attributes
    ----------
    digest : int
        Equal on ranks that have found the same.
    """

    def __init__(self, findings: list[Finding], met: list[tuple[str, int]], walk: Walk, mesh: Any):
        self._findings, self._walk, self._mesh, self._met = findings, walk, mesh, met
        shown = sorted((each.axis, each.fault is None, sorted(each.value.powers or ())) for each in findings)
        self.digest = zlib.crc32(repr(shown).encode())

    def tell(self, axes: tuple[str, ...]) -> None:
        """Raise a ScaleError for what is proven, and warn of the rest on the first rank of the axis.

        Nothing is told of what some ranks may not have found. `axes` are those along which the ranks have compared
        their verdicts, and come to the same.
        """
        for axis, place in self._met:
            text, site = describe_meeting(axis, place, self._walk, self._mesh)
            site = site or find_site()
            if self._is_new((axis, site)) and not self._mesh.axis(axis).group.index:
                warn_once(text, GradientWarning, site)
        for axis, is_error, text, at in self.faults(axes):
            if is_error:
                raise ScaleError(text)
            site = at or find_site()
            if self._is_new((axis, site)) and not self._mesh.axis(axis).group.index:
                warn_once(text, ScaleWarning, site)

    def faults(
        self, axes: tuple[str, ...], apart: str | None = None
    ) -> Iterator[tuple[str, bool, str, tuple[str, int] | None]]:
        """The faults that all ranks have found, except along the axis `apart`: the axis, whether it is an error, the
        text, and the line of the program."""
        for finding in self._findings:
            if finding.unsure.issubset(axes) and finding.axis != apart:
                text, site = describe_fault(finding, self._walk, self._mesh)
                yield finding.axis, not finding.is_plain or modes.scale == "error", text, site

    @property
    def has_findings(self) -> bool:
        """Whether a factor is wrong."""
        return bool(self._findings)

    def _is_new(self, place: tuple[str, tuple[str, int]]) -> bool:
        """Whether nothing was told of an axis and a line on this mesh, which now is."""
        is_new = place not in self._mesh.told
        self._mesh.told.add(place)
        return is_new


def verdict_of(outputs: Any, recording: Any, mesh: Any) -> Verdict | None:
    """The faults of the objectives of a sweep; None if there are none, or if the tape is not examined."""
    if modes.scale == "off":
        return None
    walk = recording.scale
    if walk is None:
        if recording.notes is None:
            return None
        mesh.begin_walk(recording)
        walk = recording.scale
    if not walk or walk.grid is not mesh.grid:
        return None
    findings: list[Finding] = []
    met: dict[tuple[str, int], None] = {}
    for y in outputs if isinstance(outputs, list | tuple) else (outputs,):
        if not isinstance(y, Tensor):
            continue
        each = [_of_axes(powers, mesh.grid) for powers in walk.readings(place_in(y, recording))]
        findings += each[0] if all(each) else []
        powers = walk.at(place_in(y, recording))
        for k, name in enumerate(mesh.grid.names):
            if mesh.grid.sizes[k] > 1:
                met |= dict.fromkeys((name, place) for place in sorted(powers[k].met))
    return Verdict(findings, list(met), walk, mesh) if findings or met else None


def _of_axes(powers: Sequence[Power], grid: Any) -> list[Finding]:
    return [
        Finding(axis, n, power, power.faults[0] if power.faults else None)
        for axis, n, power in zip(grid.names, grid.sizes, powers, strict=True)
        if n > 1 and (power.faults or power.is_fault)
    ]
