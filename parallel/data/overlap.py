"""Predictions of the overlap of communication and backward: how much of a step's communication stays hidden.

`link` says when each bucket is sent. Communication after the end of backward is exposed, the rest is hidden. Forward
cannot hide anything, because it needs the parameters of the last step; so the time of a step is not the larger one of
compute and communication, but follows from the times at which buckets are ready (Li et al. 2020, "PyTorch Distributed:
experiences on accelerating data parallel training", section 3.2.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autograd.errors import ArgumentError, typed_errors
from collectives.inspect.dry_costs import costs
from collectives.inspect.topology import Topology

from .link import Overlap, simulate

__all__ = ["Overlap", "StepPrediction", "communication_time", "predict_step", "simulate"]

Calls = Sequence[tuple[str, float]]
"""The calls that sum one bucket: the name of each, and the bytes of the whole value."""


def communication_time(
    calls: float | Calls, ranks: int | Sequence[int], topology: Topology, *, algorithm: str | None = None
) -> float:
    """The predicted time of the calls that sum one bucket, one after another, in seconds.

    Parameters
    ----------
    calls : number or sequence of (str, number)
        The bytes of an all-reduce, or the calls of a compressed sum: names as `collectives.dry` prints them
        ("all_reduce", "all_gather", "all_to_all", ...), and the bytes of the whole value (of an all-gather: of its
        result).
    ranks : int or sequence of int
        The ranks of the group; a number means that many, from 0.
    topology : Topology
        The machine.
    algorithm : str, optional
        The algorithm of the calls that have it, such as "ring" or "hierarchical". By default each call uses its
        fastest flat one, that is, any but "hierarchical".

    Returns
    -------
    float

    Raises
    ------
    ArgumentError
        No call has the algorithm.

    Notes
    -----
    The costs are those of `collectives.dry`. A flat algorithm is charged at the slowest link of the group.

    Examples
    --------
    >>> import collectives as cc
    >>> machine = cc.Topology(4, inside=cc.Link(1e-6, 1e10), between=cc.Link(5e-6, 1e9))
    >>> f"{communication_time(4e6, 8, machine, algorithm='ring'):.5f}"
    '0.00707'
    """
    members = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
    given = [("all_reduce", calls)] if isinstance(calls, int | float) else calls
    known: dict[str, float] = {}
    total, used = 0.0, False
    for call, size in given:
        times = {name: cost.time_s for name, cost in costs(call, math.ceil(size), members, topology)}
        known |= times
        if algorithm in times:
            total, used = total + times[algorithm], True
        else:
            total += min((time for name, time in times.items() if name != "hierarchical"), default=0.0)
    if algorithm is not None and len(members) > 1 and given and not used:
        raise ArgumentError(f"communication_time: algorithm={algorithm!r} was given; the calls have {', '.join(known)}")
    return total


class StepPrediction(NamedTuple):
    """The predicted parts of a step, in seconds. Hidden communication happens during backward.

    Attributes
    ----------
    forward_s, backward_s, hidden_s, exposed_s, optimizer_s : float
    """

    forward_s: float
    backward_s: float
    hidden_s: float
    exposed_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """The time of the step: forward, backward, exposed communication, optimizer."""
        return self.forward_s + self.backward_s + self.exposed_s + self.optimizer_s

    @property
    def exposed_share(self) -> float:
        """The exposed part of the communication, 0 to 1; 0 if there is none."""
        total = self.hidden_s + self.exposed_s
        return self.exposed_s / total if total else 0.0


@typed_errors
def predict_step(
    ready_s: Sequence[float],
    buckets: Sequence[float | Calls],
    backward_s: float,
    *,
    ranks: int | Sequence[int],
    topology: Topology,
    forward_s: float = 0.0,
    optimizer_s: float = 0.0,
    algorithm: str | None = None,
    overlap: bool = True,
) -> StepPrediction:
    """Predict a data-parallel step at any number of ranks, from the backward pass of one rank.

    Parameters
    ----------
    ready_s : sequence of float
        When each bucket is complete, in seconds from the begin of backward, measured or stated.
    buckets : sequence of (number, or sequence of (str, number))
        The bytes of each bucket, or the calls of its compressed sum. See `communication_time`.
    backward_s : float
        The time of backward without communication.
    ranks, topology, algorithm
        See `communication_time`.
    forward_s, optimizer_s : float
        The times of the rest of the step.
    overlap : bool
        False: every transfer starts at the end of backward.

    Returns
    -------
    StepPrediction

    Raises
    ------
    ArgumentError
        See `simulate` and `communication_time`.

    Examples
    --------
    Two buckets of 25 MB on 1,024 ranks, 8 on each host. Random-k compression to 1 % sends one hundredth of the bytes:

    >>> import collectives as cc
    >>> machine = cc.Topology(8, inside=cc.Link(2e-6, 100e9), between=cc.Link(10e-6, 1.5e9))
    >>> def exposed(size, **options):
    ...     step = predict_step([0.03, 0.06], [size] * 2, 0.06, ranks=1024, topology=machine, **options)
    ...     return f"{1e3 * step.exposed_s:.1f} ms"
    >>> exposed(25e6, overlap=False), exposed(25e6), exposed(25e6, algorithm="hierarchical"), exposed(25e4)
    ('67.0 ms', '37.0 ms', '7.7 ms', '0.5 ms')
    """
    transfers = [communication_time(calls, ranks, topology, algorithm=algorithm) for calls in buckets]
    found = simulate(ready_s if overlap else [backward_s] * len(transfers), transfers, backward_s)
    return StepPrediction(forward_s, backward_s, found.hidden_s, found.exposed_s, optimizer_s)
