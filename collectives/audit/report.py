"""The report of an audit: a verdict on each parameter, and the causes that they have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CONSEQUENCE", "RIGHT", "UNKNOWN", "Finding", "Report", "Verdict"]


@dataclass(frozen=True)
class Finding:
    """A cause.

    Attributes
    ----------
    cause : str
        A word of the table in `collectives.audit.judge`.
    text : str
        The formula that the values obey.
    fix : str
    """

    cause: str
    text: str
    fix: str = ""


RIGHT = Finding("right", "right")
CONSEQUENCE = Finding("consequence", "backward reaches it after what is named above")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The finding of the gradient of a parameter.

    Attributes
    ----------
    name : str
    finding : Finding
    distances : mapping of int to float
        By rank: the largest error, in tolerances.
    """

    name: str
    finding: Finding
    distances: Mapping[int, float]


@dataclass
class Report:
    """The findings of a job.

    Attributes
    ----------
    step, steps : int
        The first step that is wrong, `steps` if none is; and the number of steps that both runs have.
    verdicts : list of Verdict
        Of that step, or of the last one, in the order of the model.
    others : list of Finding
        Of starts, updates, norms and ranks, whose texts name the parameters.
    notes : list of str
        What the tolerance is, and what could not be judged.
    is_comparable : bool
    """

    step: int
    steps: int
    verdicts: list[Verdict] = field(default_factory=list)
    others: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_comparable: bool = True

    @property
    def status(self) -> int:
        """0 if all is right, 1 if something is wrong, 2 if the runs cannot be compared."""
        is_wrong = bool(self.others) or any(each.finding is not RIGHT for each in self.verdicts)
        return int(is_wrong) if self.is_comparable else 2

    @property
    def findings(self) -> list[tuple[Finding, list[str]]]:
        """The causes with their parameters: what is beside gradients, then the one nearest the loss, and so on."""
        found: dict[Finding, list[str]] = {each: [] for each in self.others}
        for verdict in reversed(self.verdicts):
            if verdict.finding is not RIGHT:
                found.setdefault(verdict.finding, []).append(verdict.name)
        return sorted(found.items(), key=lambda each: each[0].cause in (CONSEQUENCE.cause, UNKNOWN))

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        findings = [{"cause": each.cause, "text": each.text, "fix": each.fix, "parameters": names}
                    for each, names in self.findings]  # fmt: skip
        verdicts = [{"name": each.name, "cause": each.finding.cause,
                     "distances": {str(rank): x if math.isfinite(x) else None for rank, x in each.distances.items()}}
                    for each in self.verdicts]  # fmt: skip
        return {"status": self.status, "step": self.step, "steps": self.steps, "findings": findings,
                "verdicts": verdicts, "notes": self.notes}  # fmt: skip

    def __str__(self) -> str:
        right = sum(each.finding is RIGHT for each in self.verdicts)
        if not self.is_comparable:
            lines = ["the runs cannot be compared"]
        elif self.status:
            lines = [f"wrong at step {self.step}, where {right} of {len(self.verdicts)} gradients are right"]
        else:
            lines = [f"right: {right} gradients in each of {self.steps} steps"]
        for finding, names in self.findings:
            shown = ", ".join(names if len(names) <= 5 else [*names[:4], f"and {len(names) - 4} more"])
            lines.append(f"  {finding.cause}: {shown}{': ' if names else ''}{finding.text}")
            if finding.fix:
                lines.append(f"    fix: {finding.fix}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
