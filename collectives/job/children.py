"""Forked children of a rank, which are no ranks: what they may not use refuses them."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Refusing", "forked_text", "refuse_in_child"]


class Refusing(Protocol):
    """An object that communicates, as a rank."""

    def refuse_in_child(self) -> None:
        """Make all further calls of this process, a forked child of the rank, raise an error."""
        ...


def refuse_in_child(what: Refusing) -> None:
    """Have an object refuse all calls in processes that this one forks."""
    _refusing.add(what)


_refusing: weakref.WeakSet[Refusing] = weakref.WeakSet()  # a fork knows no owner


def _refuse() -> None:
    for each in _refusing:
        each.refuse_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse)


def forked_text(what: str) -> str:
    """The message for a call that a forked child of a rank makes."""
    return (
        f"{what}: called in process {os.getpid()}, which rank process {os.getppid()} has forked. A forked child is no "
        "rank: its call would take the place of a call of its parent\n  needed: communication in the processes that "
        "mpiexec started\n  fix: return the child's result to the rank, which then makes the call; or start the child "
        "with multiprocessing's method 'spawn', where it is a world of one rank"
    )
