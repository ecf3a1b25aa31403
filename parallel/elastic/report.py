"""The report of an elastic run: who died, what was lost, and where the state came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from autograd.errors import CommunicationError

__all__ = ["ElasticError", "ElasticReport", "Recovery"]


class ElasticError(CommunicationError):
    """A run cannot go on after the death of a rank: a part of its state is lost, or too few ranks are left."""


@dataclass(frozen=True)
class Recovery:
    """One or several deaths, and how the run went on.

    Attributes
    ----------
    died : dict of int to str
        The ranks that died, and why.
    reached : int
        The number of steps that were done, at least on one of the other ranks.
    step : int
        The number of steps after which the run goes on.
    source : str
        "replicas", "copies", "checkpoint" or "beginning".
    mesh : dict of str to int
        The new mesh.
    seconds : float
        From the error on this rank to the restored state.
    replaced : tuple of int
        Those of the ranks that died in whose place others were started.
    joined : tuple of int
        The ranks that had waited, and have got a place on the new mesh.
    """

    died: dict[int, str]
    reached: int
    step: int
    source: str
    mesh: dict[str, int]
    seconds: float
    replaced: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()

    @property
    def lost(self) -> int:
        """The number of complete steps that are done again."""
        return self.reached - self.step

    def __str__(self) -> str:
        whose = ", ".join(map(str, sorted(self.died)))
        died = f"rank{'s' * (len(self.died) > 1)} {whose} died in step {self.reached + 1}"
        if self.replaced:
            some = "" if len(self.replaced) == len(self.died) else f", {len(self.replaced)} of them"
            died += f"{some or ' and'} {'was' if len(self.replaced) == 1 else 'were'} replaced"
        if self.joined:
            died += f", rank{'s' * (len(self.joined) > 1)} {', '.join(map(str, self.joined))} joined"
        mesh = ", ".join(f"{axis}={n}" for axis, n in self.mesh.items())
        again = f"{self.lost} step{'s' * (self.lost != 1)} done again"
        return f"{died}; on from step {self.step} ({self.source}), {again}, on {mesh}, after {self.seconds:.2f} s"


@dataclass
class ElasticReport:
    """The recoveries of a run, in order; ``print(report)`` shows a line for each."""

    recoveries: list[Recovery] = field(default_factory=list)

    def __str__(self) -> str:
        n = len(self.recoveries)
        lines = [f"elastic run: {f'{n} recover' + ('ies' if n > 1 else 'y') if n else 'no rank died'}"]
        lines += [str(each) for each in self.recoveries]
        lines += [f"  rank {rank}: {why}" for each in self.recoveries for rank, why in each.died.items()]
        return "\n".join(lines)
