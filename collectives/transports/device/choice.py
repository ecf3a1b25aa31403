"""The choice of the carrier of a group's device arrays, made once, by all of its ranks, from a probe's findings.

The first of these that works on all ranks:

========  ======================================================================  =========================
name      where                                                                   module
========  ======================================================================  =========================
nccl      each rank has a GPU of its own, and NCCL works                          `nccl`
ipc       the ranks share a host, and their GPUs read each other's memory         `ipc`
mpi       the MPI library takes device memory                                     `mpi.device_buffers`
staged    everywhere: copies to page-locked memory of the host, in chunks         `pinned`
========  ======================================================================  =========================

Calls that the chosen one does not carry are staged. ``RINGTAPE_DEVICE_TRANSPORT`` names another one; then nothing is
probed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autograd import environment
from autograd.arrays.runtime import Runtime
from autograd.errors import CommunicationError, OptionError

from ..protocol import Communicator, quietly
from .ipc import MOST_RANKS
from .probe import Works, probe

__all__ = ["NAMES", "VARIABLE", "Choice", "Place", "choose", "decide"]

VARIABLE = "RINGTAPE_DEVICE_TRANSPORT"
NAMES = environment.VARIABLES[VARIABLE].values


class Choice(NamedTuple):
    """The name of what carries device arrays, and the reason."""

    name: str
    why: str


class Place(NamedTuple):
    """Where a rank is.

    Attributes
    ----------
    asked : str
        The value of the environment variable.
    host : int
        The lowest rank on its host.
    device : str
        Its GPU, named alike by all processes of the host.
    kind : str
        The name of the device's runtime.
    is_process : bool
        False for a thread of a world of threads.
    """

    asked: str
    host: int
    device: str
    kind: str
    is_process: bool


def decide(places: Sequence[Place], works: Mapping[int, Works]) -> Choice:
    """The choice for a group of ranks at these places, from what works on each host ("" or the reason why not).

    Examples
    --------
    >>> on_one = [Place("", 0, "0000:01:00.0", "cuda", True)] * 2
    >>> decide(on_one, {0: {"ipc": "", "nccl": "", "mpi": "the library does not report it"}}).name
    'ipc'
    """
    asked = {place.asked for place in places}
    if len(asked) > 1:
        raise CommunicationError(f"{VARIABLE} differs between the ranks: {', '.join(sorted(map(repr, asked)))}")
    against = {name: _why_not(name, places, works) for name in ("nccl", "ipc", "mpi")}
    (name,) = asked
    if name:
        if name not in NAMES:
            raise OptionError(f"{VARIABLE}={name} was given; needed: one of {', '.join(NAMES)}")
        if against.get(name):
            raise CommunicationError(f"{VARIABLE}={name} was given, and {against[name]}\n  fix: unset {VARIABLE}")
        return Choice(name, f"{VARIABLE}={name}")
    for name, problem in against.items():
        if not problem:
            before = "; ".join(f"{n}: {p}" for n, p in against.items() if p)
            return Choice(name, f"it works on all ranks ({before})" if before else "it works on all ranks")
    return Choice("staged", "; ".join(f"{n}: {p}" for n, p in against.items()))


def _why_not(name: str, places: Sequence[Place], works: Mapping[int, Works]) -> str:
    hosts = {place.host for place in places}
    devices = {(place.host, place.device) for place in places}
    if name == "nccl" and len(devices) < len(places):
        return "ranks share a GPU"
    if name == "ipc" and len(hosts) > 1:
        return f"the ranks are on {len(hosts)} hosts"
    if name == "ipc" and len(places) > MOST_RANKS:
        return f"there are {len(places)} ranks, more than {MOST_RANKS}"
    if name == "mpi" and not all(place.is_process for place in places):
        return "the ranks are threads of one process"
    for host in sorted(hosts):
        problem = works.get(host, {}).get(name, "" if places[0].asked else "it was not probed")
        if problem:
            return problem
    return ""


def choose(group: Communicator, runtime: Runtime, of: str) -> Choice:
    """Find the choice for a group. All of its ranks call it, at their first call on device arrays.

    Reports name that call `of`: a rank whose array is in host memory does not come here, and makes the call.
    """
    is_process = group.library is not None
    mine = Place(
        environment.value(VARIABLE), group.hosts[group.index], runtime.device_id(), runtime.name, is_process
    )
    places = [Place(*each) for each in _exchanged(group, mine, of)]
    works: dict[int, Works] = {}
    if not mine.asked and all(place.kind == "cuda" for place in places):
        firsts = {place.host: index for index, place in reversed(list(enumerate(places)))}
        found = probe() if firsts[mine.host] == group.index else None
        everyone = _exchanged(group, None if found is None else found.works)
        works = {place.host: each for place, each in zip(places, everyone, strict=True) if each is not None}
    return decide(places, works)


def _exchanged(group: Communicator, value: Any, of: str = "") -> list[Any]:
    return [json.loads(each) for each in quietly(lambda: group.exchange(json.dumps(value).encode(), of))]
