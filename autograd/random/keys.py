"""`Key`, the name of a stream of random numbers, and each thread's state, from which `next_key` makes new keys."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..arrays.capture import Whole, current_capture, recorded, refuse
from ..arrays.plain import require_plain
from ..errors import DtypeError, LayoutError, OptionError, ShapeError, typed_errors
from ..layouts.rank_values import rank_axes, require_same_number

__all__ = [
    "Key", "Place", "State", "begin_state", "check_key", "get_state", "hold_state", "integer", "keys_below",
    "load_state_dict", "next_key", "placed", "put_back", "real", "seed", "set_state", "state_dict",
]  # fmt: skip


def integer(value: Any, what: str) -> int:
    """Convert to a Python int; raise DtypeError for anything that is not an integer, LayoutError for a rank number."""
    axes = sorted(rank_axes(value))
    if axes:
        raise LayoutError(
            f"{what} is {value!r}, which depends on the rank on axis {axes[0]!r}. A key is the same on all ranks: its "
            "draws count as one value, although they would differ\n"
            f"  fix: the same seed on every rank, and key.along({axes[0]!r}) for numbers of each rank"
        )
    try:
        return int(operator.index(value))
    except TypeError:
        raise DtypeError(f"{what} must be an integer, got {value!r}") from None


def real(value: Any, what: str) -> float:
    """Convert to a float; raise DtypeError for anything else, LayoutError for one that differs between ranks."""
    require_same_number(value, what)
    require_plain(value, what, numbers=False)  # a masked number would be nan
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise DtypeError(f"{what} must be one real number, got {value!r}") from None


def check_key(key: Any, caller: str) -> None:
    """Raise DtypeError if the first argument of a draw is not a Key."""
    if not isinstance(key, Key):
        raise DtypeError(
            f"{caller}: key must be a Key, got {key!r}\n  fix: {caller}(autograd.random.Key(0, 'weight'), shape, ...), "
            "or numpy.random for numbers without a key"
        )


class Place(NamedTuple):
    """The pieces of a dimension that a rank holds, one after another, of a value that is V on an axis.

    Attributes
    ----------
    axis : str
    dim : int
    pieces : tuple of (start, stop)
        Places in the logical tensor.
    extent : int
        That of the dimension in the logical tensor.
    """

    axis: str
    dim: int
    pieces: tuple[tuple[int, int], ...]
    extent: int

    @classmethod
    def of(cls, axis: str, dim: int, pieces: Sequence[slice], extent: int) -> Place:
        """Check the arguments of `Key.placed`."""
        if not isinstance(axis, str):
            raise DtypeError(f"placed: axis={axis!r} was given; needed: the name of a mesh axis")
        dim, extent = integer(dim, "placed: dim"), integer(extent, "placed: extent")
        found: list[tuple[int, int]] = []
        for piece in (pieces,) if isinstance(pieces, slice) else pieces:
            if not isinstance(piece, slice) or piece.step not in (None, 1):
                raise ShapeError(f"placed: the piece {piece!r} was given; needed: a slice without step")
            start, stop = int(operator.index(piece.start)), int(operator.index(piece.stop))
            if not 0 <= start <= stop <= extent or any(start < b and a < stop for a, b in found):
                raise ShapeError(
                    f"placed: pieces={list(pieces)!r} were given; needed: slices from 0 to {extent} that do not overlap"
                )
            found.append((start, stop))
        if dim < 0:
            raise ShapeError(f"placed: dim={dim} was given; needed: dim >= 0, from the left")
        return cls(axis, dim, tuple(found), extent)


@typed_errors
@dataclass(frozen=True, slots=True)
class Key:
    """The name of one stream of random numbers.

    Parameters
    ----------
    seed : int
        Any integer, of any size and sign.
    name : str
        What the numbers are for, like ``"layer1/dropout"``.
    step : int
        The training step, epoch or other count of draws with this name.
    axes : tuple of str
        Mesh axes along which each rank has a stream of its own; see `along`.
    places : tuple of Place
        For mesh axes, the pieces that this rank holds of values that are V there; see `placed`.
    apart : tuple of str
        Mesh axes along which no two ranks use this key, such as the stages of a pipeline; see `State`.

    Raises
    ------
    DtypeError
        If seed or step is not an integer, or name or an axis not a string.
    LayoutError
        If seed or step depends on the rank.

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
    places: tuple[Place, ...] = ()
    apart: tuple[str, ...] = field(default=(), repr=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", integer(self.seed, "Key: seed"))
        object.__setattr__(self, "step", integer(self.step, "Key: step"))
        if not isinstance(self.name, str):
            raise DtypeError(f"Key: name must be a string, got {self.name!r}")
        if not isinstance(self.places, tuple) or not all(isinstance(place, Place) for place in self.places):
            raise DtypeError(f"Key: places must be those of Key.placed, got {self.places!r}")
        if self.axes:
            if not all(isinstance(axis, str) for axis in self.axes):
                raise DtypeError(f"Key: axes must be names of mesh axes, got {self.axes!r}")
            object.__setattr__(self, "axes", tuple(sorted(set(self.axes))))

    def __repr__(self) -> str:
        along = f", axes={self.axes!r}" if self.axes else ""
        if self.places:  # the pieces differ between ranks, and ranks compare this text
            along += f", placed={tuple(place.axis for place in self.places)!r}"
        return f"Key(seed={self.seed!r}, name={self.name!r}, step={self.step!r}{along})"

    def fold(self, name: str) -> Key:
        """Return a key whose name is extended by "/" and `name`.

        Examples
        --------
        >>> Key(0, "a").fold("b").name
        'a/b'
        """
        if not isinstance(name, str):
            raise DtypeError(
                f"Key.fold: name must be a string, got {name!r}\n  fix: key.at({name!r}) for the numbers of a step, as "
                "fold_in of JAX"
            )
        key: Key = recorded(_folded, self, name)
        return key

    def at(self, step: int) -> Key:
        """Return the key with the same seed and name at another step.

        Examples
        --------
        >>> Key(0, "shuffle").at(3)
        Key(seed=0, name='shuffle', step=3)
        """
        key: Key = recorded(_stepped, self, step)
        return key

    def along(self, *axes: str) -> Key:
        """Return a key that gives each rank of these mesh axes a stream of its own. Its draws are V on these axes.

        Use it for Varying values, which have no position in a logical tensor. The numbers then depend on the rank, and
        so on the number of ranks. Without a mesh the coordinate on each axis is 0, as on a mesh of size 1.

        Examples
        --------
        >>> Key(0, "noise").along("dp").fold("a")
        Key(seed=0, name='noise/a', step=0, axes=('dp',))
        """
        key: Key = recorded(_along, self, *axes)
        return key

    def placed(self, axis: str, dim: int, pieces: Sequence[slice], extent: int) -> Key:
        """Return a key for values that are V on a mesh axis, of which each rank holds some pieces of a dimension.

        A draw for such a Tensor gives the elements that the draw of the logical tensor has at these places, and is V
        on the axis. Where another axis shards the dimension, it divides the concatenation of the pieces. Values with
        another label on the axis are drawn as without it.

        Parameters
        ----------
        axis : str
        dim : int
            The dimension, counted from the left.
        pieces : sequence of slice
            The pieces in the order in which this rank holds them.
        extent : int
            The extent of the dimension in the logical tensor.

        Raises
        ------
        ShapeError
            The pieces are not slices inside the extent, or overlap. At a draw: they are not as long together as the
            Tensor's dimension.

        Examples
        --------
        >>> Key(0, "noise").placed("cp", 1, [slice(0, 2), slice(6, 8)], extent=8)
        Key(seed=0, name='noise', step=0, placed=('cp',))
        """
        return replace(self, places=_replaced(self.places, Place.of(axis, dim, pieces, extent)))


def _folded(key: Key, name: str) -> Key:
    return replace(key, name=f"{key.name}/{name}" if key.name else name)


def _stepped(key: Key, step: int) -> Key:
    return replace(key, step=step)


def _along(key: Key, *axes: str) -> Key:
    return replace(key, axes=(*key.axes, *axes))


def _replaced(places: tuple[Place, ...], place: Place) -> tuple[Place, ...]:
    """The places with one more, which takes the place of an earlier one of its axis."""
    return (*(known for known in places if known.axis != place.axis), place)


@dataclass(frozen=True, slots=True)
class State:
    """A thread's random state: its seed, the number of keys that `next_key` has returned for each name, and `placed`.

    `places` are those of the `placed` blocks that the thread is in. Along the mesh axes in `apart` the ranks have
    states of different seeds, as the stages of a pipeline have. So their keys are different, and a draw for a Varying
    value needs no key along these axes. `above` is the key of the `keys_below` block that the thread is in, and its
    number, which stand for the seed.
    """

    seed: int = 0
    ordinals: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    places: tuple[Place, ...] = ()
    apart: tuple[str, ...] = ()
    above: tuple[Key, int] | None = None

    def __reduce__(self) -> Any:  # a MappingProxyType cannot be pickled
        return State, (self.seed, dict(self.ordinals), self.places, self.apart, self.above)


class _Thread(threading.local):
    # per thread, because ranks may be threads of one process

    def __init__(self) -> None:
        self.seed = 0
        self.ordinals: dict[str, int] = {}
        self.places: tuple[Place, ...] = ()
        self.apart: tuple[str, ...] = ()
        self.above: tuple[Key, int] | None = None
        self.is_set = threading.current_thread() is threading.main_thread()  # or by `set_state`


_thread = _Thread()


def seed(n: int) -> None:
    """Set this thread's seed, and reset the counts of `next_key` to zero.

    The seed of the main thread, and of a rank that is a thread (`cc.run`), is initially 0. Another thread has none
    until it sets one. Ranks that set the same seed and run the same program get the same keys.

    Parameters
    ----------
    n : int
        The seed.

    Raises
    ------
    DtypeError
        If n is not an integer.
    LayoutError
        If n depends on the rank.

    Examples
    --------
    >>> seed(3)
    >>> next_key("weight"), next_key("weight")
    (Key(seed=3, name='weight.0', step=0), Key(seed=3, name='weight.1', step=0))
    >>> seed(3)
    >>> next_key("weight")
    Key(seed=3, name='weight.0', step=0)
    """
    set_state(State(integer(n, "seed: n"), places=_thread.places))


def _key_of(*parts: Any) -> Key:
    """The key of parts in the order of its fields, which are known to be legal."""
    key = object.__new__(Key)
    for name, part in zip(Key.__slots__, parts, strict=True):
        object.__setattr__(key, name, part)
    return key


def next_key(name: str) -> Key:
    """Return a new key made of this thread's seed, a name, and the number of earlier keys of that name.

    Parameters
    ----------
    name : str
        What the key is for. Each name has its own count, so adding a dropout does not change the initial weights.

    Returns
    -------
    Key
        ``Key(seed, f"{name}.{ordinal}")``, with the places of the `placed` blocks around the call.

    Raises
    ------
    OptionError
        In a thread that has set no seed, such as a worker of a ``ThreadPoolExecutor``: its keys would not depend on the
        seed of the thread that started it, and which task gets which key would depend on the timing.
    DtypeError
        If name is not a string.

    Examples
    --------
    >>> seed(0)
    >>> next_key("weight").name, next_key("dropout").name, next_key("weight").name
    ('weight.0', 'dropout.0', 'weight.1')
    """
    if (above := _thread.above) is not None:
        ordinal = _thread.ordinals.get(name, 0)
        below: Key = recorded(_below, *above, f"{name}.{ordinal}", Whole(_thread.places))
        _thread.ordinals[name] = ordinal + 1
        return below
    if (capture := current_capture()) is not None:
        if capture.records:
            key: Key = recorded(next_key, name, changes="keys")
            return key
        refuse(
            f"next_key({name!r}) was called", "dropout of 0, or evaluation mode: each replay would use the same numbers"
        )
    if not _thread.is_set:
        raise OptionError(
            f"next_key({name!r}): called in thread {threading.current_thread().name!r}, which has set no seed. Random "
            "state is per thread, and which thread runs which task may differ between runs and ranks\n"
            f"  fix: make the keys before, in the thread that starts the tasks: key = random.next_key({name!r}), and "
            "give task i key.at(i), as in nn.dropout(x, p, key=key.at(i))\n"
            "  or:  random.seed(n) at the beginning of a thread that runs one fixed part of the program"
        )
    if not isinstance(name, str):
        raise DtypeError(f"next_key: name must be a string, got {name!r}")
    ordinal = _thread.ordinals.get(name, 0)
    _thread.ordinals[name] = ordinal + 1
    return _key_of(_thread.seed, f"{name}.{ordinal}", 0, (), _thread.places, _thread.apart)


def get_state() -> State:
    """Return this thread's random state. `set_state` restores it, in this or another thread.

    Use it to repeat a computation with the same keys, or to resume a run.

    Examples
    --------
    >>> seed(5)
    >>> before = get_state()
    >>> first = next_key("mask")
    >>> set_state(before)
    >>> next_key("mask") == first
    True
    """
    return State(_thread.seed, MappingProxyType(dict(_thread.ordinals)), _thread.places, _thread.apart, _thread.above)


@typed_errors
def set_state(state: State) -> None:
    """Restore a random state that `get_state` returned."""
    refuse("the random state was set", "random.seed or random.set_state outside of the step")
    _thread.is_set = True
    _thread.seed = state.seed
    _thread.ordinals = dict(state.ordinals)
    _thread.places = state.places
    _thread.apart = state.apart
    _thread.above = state.above


def begin_state(seed: int, places: tuple[Place, ...], apart: tuple[str, ...]) -> None:
    """Begin a random state in which no key has been made: `set_state` of such a `State`, in a fifth of the time."""
    _thread.is_set = True
    _thread.seed = seed
    _thread.ordinals = {}
    _thread.places = places
    _thread.apart = apart
    _thread.above = None


def hold_state() -> tuple[Any, ...]:
    """The random state for `put_back`, after some `begin_state`: no copy is made, as `get_state` and `set_state` do."""
    refuse("the random state was set", "random.seed or random.set_state outside of the step")
    return _thread.seed, _thread.ordinals, _thread.places, _thread.apart, _thread.above


def put_back(held: tuple[Any, ...]) -> None:
    """Restore what `hold_state` returned."""
    _thread.seed, _thread.ordinals, _thread.places, _thread.apart, _thread.above = held


@contextmanager
def keys_below(key: Key, number: int) -> Iterator[None]:
    """Make `next_key` in this block a function of a key, which may be an argument of a captured step.

    The keys are those after ``begin_state(key.seed | number, key.places, key.apart)``. No random state is read or
    changed, so that a replay with another key draws other numbers.
    """
    held = _thread.ordinals, _thread.places, _thread.above, _thread.is_set
    _thread.ordinals, _thread.places, _thread.above, _thread.is_set = {}, key.places, (key, number), True
    try:
        yield
    finally:
        _thread.ordinals, _thread.places, _thread.above, _thread.is_set = held


def _below(key: Key, number: int, name: str, places: tuple[Place, ...]) -> Key:
    return replace(key, seed=key.seed | number, name=name, places=places)


@contextmanager
@typed_errors
def placed(axis: str, dim: int, pieces: Sequence[slice], extent: int) -> Iterator[None]:
    """Give the keys of `next_key` in this block the pieces that this rank holds on a mesh axis; see `Key.placed`.

    So `nn.Dropout` of a value that is V on the axis drops the same elements for any number of ranks. The places are
    part of this thread's random state, so a checkpoint replays them.

    Parameters
    ----------
    axis : str
    dim : int
        The dimension of the pieces, in every value that is drawn for, counted from the left.
    pieces : sequence of slice
        The pieces in the order in which this rank holds them.
    extent : int
        The extent of the dimension in the logical tensor.

    Raises
    ------
    ShapeError
        As in `Key.placed`.

    Examples
    --------
    >>> with placed("cp", 1, [slice(0, 2), slice(6, 8)], extent=8):
    ...     next_key("mask of pieces").places
    (Place(axis='cp', dim=1, pieces=((0, 2), (6, 8)), extent=8),)
    """
    before = _thread.places
    _thread.places = _replaced(before, Place.of(axis, dim, pieces, extent))
    try:
        yield
    finally:
        _thread.places = before


def state_dict() -> dict[str, Any]:
    """Return this thread's random state as numbers and texts that any format can save.

    It is the seed, and the number of keys that `next_key` has returned for each name, by which a layer such as dropout
    draws other numbers at each call. Keys that the program makes itself have no state.

    Examples
    --------
    >>> seed(5)
    >>> _ = next_key("dropout")
    >>> state_dict()
    {'seed': 5, 'ordinals': {'dropout': 1}}
    """
    return {"seed": _thread.seed, "ordinals": dict(_thread.ordinals)}


@typed_errors
def load_state_dict(state: Mapping[str, Any]) -> None:
    """Restore this thread's random state from a `state_dict`.

    Raises
    ------
    OptionError
        `state` is not a `state_dict` of random numbers.

    Examples
    --------
    >>> load_state_dict({"seed": 5, "ordinals": {"dropout": 1}})
    >>> next_key("dropout").name
    'dropout.1'
    """
    prepare_state_dict(state)()


@typed_errors
def prepare_state_dict(state: Mapping[str, Any]) -> Callable[[], None]:
    """Check a `state_dict`, and return the function that restores it. `nn.load` calls it."""
    if set(state) != {"seed", "ordinals"}:
        raise OptionError(
            f"random.load_state_dict: {sorted(state)} was given; needed: ['ordinals', 'seed'], the result of "
            "random.state_dict()"
        )
    ordinals = {str(name): integer(n, f"load_state_dict: {name}") for name, n in state["ordinals"].items()}
    number = integer(state["seed"], "load_state_dict: seed")
    return lambda: set_state(State(number, ordinals, _thread.places))
