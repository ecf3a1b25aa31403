"""Losses of the stages of a pipeline: only the rank of a stage knows its losses, and all ranks tell of their faults.

The stages of one pipeline are one program, and a message moves a value unchanged. So the losses of a microbatch, times
the scale of the step, are objectives, which the rank of the stage examines along the other axes. The step's sum of
losses also carries the number of faults. If there are any, the ranks exchange the texts: all raise the same error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autograd.errors import ScaleError, ScaleWarning, find_site

from ..checks import modes
from ..checks.reports import warn_once
from .examination import verdict_of
from .microbatches import Microbatch, own_mean_of, text_of
from .walk import Walk

__all__ = ["StageLosses"]


class StageLosses:
    """The losses that arise on this rank in one step of a pipeline.

    Parameters
    ----------
    mesh : Mesh
    axis : str or None
        That of the pipeline.
    """

    def __init__(self, mesh: Any, axis: str | None):
        self._mesh, self._axis = mesh, axis
        self._found: list[Microbatch] = []
        self._faults: dict[str, tuple[bool, str, int]] = {}

    def note(self, losses: Sequence[Any], recording: Any) -> None:
        """Note the losses of a microbatch, times the scale, before its backward pass."""
        if not losses or modes.scale == "off":
            return
        verdict = verdict_of(losses, recording, self._mesh)
        self._found.append((own_mean_of(losses, recording, recording.scale or Walk(recording, self._mesh.grid)), 0))
        for _, is_error, text, site in () if verdict is None else verdict.faults((), self._axis):
            self._faults.setdefault(text, (is_error, *(site or find_site())))
        recording.scale = recording.scale if verdict is None else False

    @property
    def count(self) -> int:
        """The number of faults on this rank."""
        told = text_of(self._found, "of this step", "the pipeline adds the losses of m = {m} microbatches, each a loss")
        if told is not None:
            kind, text = told
            self._faults.setdefault(text, (kind is ScaleWarning and modes.scale == "error", *find_site()))
        return len(self._faults)

    def tell(self, group: Any) -> None:
        """Raise an error, or warn, of the faults of all stages. All ranks of the pipeline call it if there are any."""
        mine = json.dumps([(text, *how) for text, how in self._faults.items()]).encode()
        texts = [mine] if group is None else group.exchange(mine)
        faults = [each for text in texts for each in json.loads(bytes(text).decode())]
        for text, is_error, _, _ in faults:
            if is_error:
                raise ScaleError(text)
        for text, _, file, line in faults:
            if ("stages", file, line) not in self._mesh.told:
                self._mesh.told.add(("stages", file, line))
                if not self._mesh.ranks.index:
                    warn_once(text, ScaleWarning, (file, line))
