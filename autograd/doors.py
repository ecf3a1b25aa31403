"""Doors: where the core reaches an extra, a room that uses the core by its public names.

An extra is loaded when its door is first opened, so that programs that need none of it start faster, and a reader may
leave it out. Where its folder is absent the core does without what the door answers, or raises an error that names it.
`tests/documents/test_core.py` holds this table against the imports: nothing else in the core imports an extra.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from .errors import DependencyError

__all__ = ["DOORS", "Door", "is_there", "door", "optional"]


class Door(NamedTuple):
    """A door: the module behind it, and what the core asks of it."""

    module: str
    answers: str


DOORS = {
    "addends": Door("collectives.scale.examination", "whether the addends of a sum over ranks are equal"),
    "algorithm": Door("collectives.algorithms.selected", "a communicator that runs a collective by an algorithm"),
    "algorithms": Door("collectives.algorithms.table", "which algorithms there are, and for which collectives"),
    "compiled loops": Door("autograd.kernels.loops", "loops that Numba compiles, where NumPy passes over arrays"),
    "device": Door("collectives.transports.device.carriers", "how a transport of host memory carries device arrays"),
    "factors of gradients": Door("collectives.scale.by_hand", "whether a program has scaled its gradients by hand"),
    "factors of losses": Door("collectives.scale.stages", "whether the losses of a pipeline's stages are scaled alike"),
    "factors of microbatches": Door("collectives.scale.microbatches", "whether microbatches are scaled alike"),
    "factors of sums": Door("collectives.scale.walk", "which factors meet on a tape that is examined"),
    "faults": Door("collectives.faults.injection", "the faults that a test or the environment has planted"),
    "plans": Door("collectives.inspect.plan", "the communication of a tape's sweep, as a plan"),
    "records": Door("collectives.transports.recording", "a record of the messages of a job"),
    "shared memory": Door("collectives.transports.shared_memory.communicator", "a transport for ranks of one host"),
    "texts of tapes": Door("autograd.records.text", "the operations of a tape, and their values, as text"),
}
"""By name, in alphabetical order."""


def door(name: str) -> Any:
    """Return the module behind a door.

    Raises
    ------
    DependencyError
        The extra is absent.
    """
    at = DOORS[name]
    if not is_there(name):
        raise DependencyError(
            f"{at.module} is absent: the room that has {at.answers}\n  fix: pip install --force-reinstall ringtape"
        )
    return import_module(at.module)


@cache  # of doors; without it each question searches folders, which takes 50 us
def is_there(name: str) -> bool:
    """Whether the module behind a door exists. It is not loaded."""
    module = DOORS[name].module
    package = module.rpartition(".")[0]
    return find_spec(package) is not None and find_spec(module) is not None


def optional(module: str, caller: str) -> Any:
    """Import a module of the extra "runs".

    Raises
    ------
    DependencyError
        It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise DependencyError(
            f"{caller} needs {module.partition('.')[0]}, which cannot be imported ({error})\n"
            "  fix: pip install 'ringtape[runs]'"
        ) from error
