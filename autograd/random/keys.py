"""Keys, which name streams of random numbers, and what a thread keeps so as to hand out keys by name."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..errors import DtypeError

__all__ = ["Key", "State", "get_state", "integer", "next_key", "seed", "set_state"]


def integer(value: Any, what: str) -> int:
    """A whole number as Python's own, checked."""
    try:
        return int(operator.index(value))
    except TypeError:
        raise DtypeError(f"{what} must be an integer, got {value!r}") from None


@dataclass(frozen=True, slots=True)
class Key:
    """The name of one stream of random numbers.

    Parameters
    ----------
    seed : int
        Any integer, of any size and sign.
    name : str
        Which stream: ``"layer1/dropout"``.
    step : int
        Which draw of that stream: the training step, the epoch.
    axes : tuple of str
        Mesh axes along which every rank has a stream of its own; see `along`.

    Raises
    ------
    DtypeError
        If seed or step is not an integer, or name not a string, or an axis not one.

    Examples
    --------
    >>> key = Key(7).fold("encoder").fold("dropout").at(100)
    >>> key
    Key(seed=7, name='encoder/dropout', step=100)
    >>> from autograd.random import uniform
    >>> bool(uniform(key, 3)[1] == uniform(key, 3, part=(slice(1, 2),))[0])
    True
    """

    seed: int
    name: str = ""
    step: int = 0
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", integer(self.seed, "Key: seed"))
        object.__setattr__(self, "step", integer(self.step, "Key: step"))
        if not isinstance(self.name, str):
            raise DtypeError(f"Key: name must be a string, got {self.name!r}")
        if self.axes:
            if not all(isinstance(axis, str) for axis in self.axes):
                raise DtypeError(f"Key: axes must be names of mesh axes, got {self.axes!r}")
            object.__setattr__(self, "axes", tuple(sorted(set(self.axes))))

    def __repr__(self) -> str:
        along = f", axes={self.axes!r}" if self.axes else ""
        return f"Key(seed={self.seed!r}, name={self.name!r}, step={self.step!r}{along})"

    def fold(self, name: str) -> Key:
        """Return the child of that name, as in a path.

        Examples
        --------
        >>> Key(0, "a").fold("b").name
        'a/b'
        """
        return Key(self.seed, f"{self.name}/{name}" if self.name else name, self.step, self.axes)

    def at(self, step: int) -> Key:
        """Return the same stream at another step.

        Examples
        --------
        >>> Key(0, "shuffle").at(3)
        Key(seed=0, name='shuffle', step=3)
        """
        return Key(self.seed, self.name, step, self.axes)

    def along(self, *axes: str) -> Key:
        """Return a key of which every rank of these mesh axes has a stream of its own, so that its draws are V there.

        For values that are Varying, which have no place in a logical tensor: the numbers depend on the rank, and so on
        the number of ranks. Without a mesh each axis has one place, as on a mesh of size 1.

        Examples
        --------
        >>> Key(0, "noise").along("dp").fold("a")
        Key(seed=0, name='noise/a', step=0, axes=('dp',))
        """
        return Key(self.seed, self.name, self.step, (*self.axes, *axes))


@dataclass(frozen=True, slots=True)
class State:
    """What `next_key` depends on: a thread's seed, and how many keys each name has had. See `get_state`."""

    seed: int = 0
    ordinals: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


class _Thread(threading.local):
    """Per thread, for ranks may be threads of one process."""

    def __init__(self) -> None:
        self.seed = 0
        self.ordinals: dict[str, int] = {}


_thread = _Thread()


def seed(n: int) -> None:
    """Set this thread's seed and start the count of every name afresh.

    Each thread has its own, and starts with seed 0. Ranks that set the same seed and build the same program get the
    same keys.

    Parameters
    ----------
    n : int
        The seed.

    Raises
    ------
    DtypeError
        If n is not an integer.

    Examples
    --------
    >>> seed(3)
    >>> next_key("weight"), next_key("weight")
    (Key(seed=3, name='weight.0', step=0), Key(seed=3, name='weight.1', step=0))
    >>> seed(3)
    >>> next_key("weight")
    Key(seed=3, name='weight.0', step=0)
    """
    set_state(State(integer(n, "seed: n")))


def next_key(name: str) -> Key:
    """Return this thread's next key of that name: its seed, and how many keys the name has had before.

    Parameters
    ----------
    name : str
        What the key is for. Names count separately, so one more dropout does not change the weights.

    Returns
    -------
    Key
        ``Key(seed, f"{name}.{ordinal}")``.

    Examples
    --------
    >>> seed(0)
    >>> next_key("weight").name, next_key("dropout").name, next_key("weight").name
    ('weight.0', 'dropout.0', 'weight.1')
    """
    ordinal = _thread.ordinals.get(name, 0)
    key = Key(_thread.seed, f"{name}.{ordinal}")
    _thread.ordinals[name] = ordinal + 1
    return key


def get_state() -> State:
    """Return what this thread's `next_key` depends on, to be given to `set_state`: there or in another thread.

    A recomputation that asks for its keys again, and a run that resumes, need it.

    Examples
    --------
    >>> seed(5)
    >>> before = get_state()
    >>> first = next_key("mask")
    >>> set_state(before)
    >>> next_key("mask") == first
    True
    """
    return State(_thread.seed, MappingProxyType(dict(_thread.ordinals)))


def set_state(state: State) -> None:
    """Go back to a state that `get_state` returned. See there."""
    _thread.seed = state.seed
    _thread.ordinals = dict(state.ordinals)
