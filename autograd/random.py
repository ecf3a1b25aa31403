"""Random numbers that do not depend on how many ranks make them.

A number is a function of a *key* (seed, name, step) and of its element's place in the logical tensor, the one that all
ranks hold together. Nothing else enters: no hidden state, no rank, no order of calls. So a rank makes its own part
alone, bitwise equal to the same slice of the whole; a recomputation gets the same numbers; and 3 ranks see what 8 saw.

The words come from Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), whose 128-bit
key is a hash of (seed, name, step). Element i, counted in C order in the logical shape, uses word i of that stream and
no other. What follows is arithmetic that IEEE 754 rounds exactly (+ - * / and the square root), one element at a time:
`numpy.log` and `numpy.cos` differ in their last bit between processors, and copies on two hosts would not be equal.

Draws know layouts. Give a Tensor in the place of a shape, and the draw is for that Tensor: of a sharded one this
rank's part, of equal copies equal numbers. Where the ranks hold values of their own (V) there is no logical tensor, and
one key would give them all the same numbers, which is how dropout goes wrong in silence; the key must say that it
differs, `key.along("dp")`. Inside a mesh the draw of a shape is a Tensor labelled D (Drawn): it enters where copies are
equal or sharded on another dimension, becomes a Parameter, or a constant if one says so (`constant`), and is refused
where it meets Varying. A part of it, taken by index, is V; so is a draw with `part=`, where the program says whose part
it is. `autograd.places` has the table.

In a dry run uniform, normal and bernoulli numbers have a shape only; integers and permutations, by which programs
choose what to do, are as real as ever, and plain arrays.

One key is for one draw: two draws from the same key are functions of the same words. `Key.fold` and `Key.at` make more.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import numpy as np

from autograd.arrays import DRY, Shaped
from autograd.errors import DtypeError, RingtapeError, ShapeError
from autograd.layout import Layout
from autograd.places import Part, coordinates, of_shape, of_tensor
from autograd.state import state
from autograd.tensor import FREE, Tensor

__all__ = [
    "Key",
    "State",
    "bernoulli",
    "get_state",
    "integers",
    "next_key",
    "normal",
    "permutation",
    "seed",
    "set_state",
    "uniform",
]

Array = np.ndarray[Any, Any]
BLOCK = 16384  # words worked on at a time: the temporaries of a transform stay in the second level of cache
JUMP = 512  # words that take as long to make as one jump of the counter


# -- keys -----------------------------------------------------------------------------------------------------------
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
    >>> bool(uniform(key, 3)[1] == uniform(key, 3, part=(slice(1, 2),))[0])
    True
    """

    seed: int
    name: str = ""
    step: int = 0
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _integer(self.seed, "Key: seed"))
        object.__setattr__(self, "step", _integer(self.step, "Key: step"))
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
        self.philox: np.random.Philox | None = None  # kept because making one costs 16 times as much as moving one


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
    set_state(State(_integer(n, "seed: n")))


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


# -- draws ----------------------------------------------------------------------------------------------------------
def uniform(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = np.float64,
    part: Part | None = None,
) -> Any:
    """Numbers that are equally likely anywhere in [low, high).

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor, the same on all ranks; or the Tensor that the draw is for.
    low, high : float
        The bounds, rounded to dtype. high itself is never returned, unless it equals low.
    dtype : dtype
        float64, float32 or float16. Numbers are made in float64 and rounded, so dtype changes them by rounding only.
    part : tuple of slice, optional
        The part to make: one slice a dimension, with start and stop, without step. All of it by default. Not with a
        Tensor, which knows its part.

    Returns
    -------
    numpy.ndarray or Tensor
        The part. Bitwise ``uniform(key, shape, ...)[part]``. A Tensor with labels inside a mesh, without `part`.

    Raises
    ------
    ShapeError
        If shape is not a shape or part is not inside it.
    LayoutError
        If shape is a Tensor that is Varying on an axis that the key is not along, or has the extent of a rank's part.
    DtypeError
        If dtype is not one of those above.
    RingtapeError
        If the bounds are not finite in dtype, or low > high.

    Notes
    -----
    The upper 53 bits of the element's word, times 2^-53.

    Examples
    --------
    >>> whole = uniform(Key(1, "weight"), (4, 3), low=-1, high=1)
    >>> mine = uniform(Key(1, "weight"), (4, 3), low=-1, high=1, part=(slice(2, 4), slice(0, 3)))
    >>> bool((mine == whole[2:4]).all())
    True
    """
    dtype = _floating(dtype, "uniform")
    with np.errstate(over="ignore"):  # reported below
        bottom, top = dtype.type(low), dtype.type(high)
    span = float(top) - float(bottom)
    if not (math.isfinite(span) and span >= 0):
        raise RingtapeError(f"uniform: low={low!r}, high={high!r}; both must be finite in {dtype}, and low <= high")
    greatest = np.nextafter(top, bottom)  # rounding to dtype, or the sum itself, may reach top
    unit, base = span * 2.0**-53, float(bottom)

    def transform(words: Array) -> Array:
        x = (words >> 11) * unit
        x += base
        return np.minimum(x.astype(dtype, copy=False), greatest)

    return _fill(key, shape, part, dtype, transform, "uniform")


def normal(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Any = np.float64,
    part: Part | None = None,
) -> Any:
    """Normally distributed numbers.

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor, the same on all ranks; or the Tensor that the draw is for.
    mean, std : float
        Mean and standard deviation.
    dtype : dtype
        float64, float32 or float16. Numbers are made in float64 and rounded, so dtype changes them by rounding only.
    part : tuple of slice, optional
        The part to make: one slice a dimension, with start and stop, without step. All of it by default. Not with a
        Tensor, which knows its part.

    Returns
    -------
    numpy.ndarray or Tensor
        The part. Bitwise ``normal(key, shape, ...)[part]``. No number lies more than 8.3 std from the mean. A Tensor
        with labels inside a mesh, without `part`.

    Raises
    ------
    ShapeError
        If shape is not a shape or part is not inside it.
    LayoutError
        If shape is a Tensor that is Varying on an axis that the key is not along, or has the extent of a rank's part.
    DtypeError
        If dtype is not one of those above.
    RingtapeError
        If mean or std is not finite, or std < 0.

    Notes
    -----
    The inverse of the distribution function at the middle of the element's cell of width 2^-53, by the rational
    approximations PPND16 of M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution",
    Applied Statistics 37 (1988); the relative error is below 1e-15.

    Examples
    --------
    >>> x = normal(Key(1, "weight"), (1000, 8), std=0.02, dtype="float32")
    >>> x.dtype, bool(abs(x.mean()) < 1e-3), bool(abs(x.std() - 0.02) < 1e-3)
    (dtype('float32'), True, True)
    """
    dtype = _floating(dtype, "normal")
    mean, std = float(mean), float(std)
    if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
        raise RingtapeError(f"normal: mean={mean!r}, std={std!r}; both must be finite, and std >= 0")

    def transform(words: Array) -> Array:
        x = _standard_normal(words)
        x *= std
        x += mean
        return x

    return _fill(key, shape, part, dtype, transform, "normal")


def integers(
    key: Key, shape: int | Sequence[int] | Tensor, low: int, high: int, part: Part | None = None
) -> Any:
    """Integers that are equally likely in low, ..., high - 1.

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor, the same on all ranks; or the Tensor that the draw is for.
    low, high : int
        The bounds, -2^63 <= low < high <= 2^63.
    part : tuple of slice, optional
        The part to make: one slice a dimension, with start and stop, without step. All of it by default. Not with a
        Tensor, which knows its part.

    Returns
    -------
    numpy.ndarray or Tensor
        The part, int64. Bitwise ``integers(key, shape, low, high)[part]``. A Tensor inside a mesh, if for a Tensor.

    Raises
    ------
    ShapeError
        If shape is not a shape or part is not inside it.
    LayoutError
        If shape is a Tensor that is Varying on an axis that the key is not along, or has the extent of a rank's part.
    DtypeError
        If a bound is not an integer.
    RingtapeError
        If the bounds are out of range.

    Notes
    -----
    The upper 64 bits of word * (high - low). Rejection would use a varying number of words; without it the
    probabilities differ by at most 2^-64.

    Examples
    --------
    >>> x = integers(Key(1, "crop"), (2, 500), -1, 2)
    >>> sorted(set(x.ravel().tolist()))
    [-1, 0, 1]
    """
    low, high = _integer(low, "integers: low"), _integer(high, "integers: high")
    if not -(2**63) <= low < high <= 2**63:
        raise RingtapeError(f"integers: low={low}, high={high}; needed -2**63 <= low < high <= 2**63")
    count, base = high - low, np.uint64(low % 2**64)

    def transform(words: Array) -> Array:
        return (_multiply_high(words, count) + base).view(np.int64)

    return _fill(key, shape, part, np.dtype(np.int64), transform, "integers")


def bernoulli(key: Key, shape: int | Sequence[int] | Tensor, p: float, part: Part | None = None) -> Any:
    """Booleans that are True with probability p.

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor, the same on all ranks; or the Tensor that the draw is for.
    p : float
        The probability, 0 <= p <= 1.
    part : tuple of slice, optional
        The part to make: one slice a dimension, with start and stop, without step. All of it by default. Not with a
        Tensor, which knows its part.

    Returns
    -------
    numpy.ndarray or Tensor
        The part, bool. ``uniform(key, shape, part=part) < p``, without making the numbers. A Tensor with labels inside
        a mesh, without `part`.

    Raises
    ------
    ShapeError
        If shape is not a shape or part is not inside it.
    LayoutError
        If shape is a Tensor that is Varying on an axis that the key is not along, or has the extent of a rank's part.
    RingtapeError
        If p is not a probability.

    Examples
    --------
    >>> keep = bernoulli(Key(1, "dropout"), (100, 100), 0.9)
    >>> keep.dtype, bool(0.88 < keep.mean() < 0.92)
    (dtype('bool'), True)
    """
    p = float(p)
    if not 0 <= p <= 1:
        raise RingtapeError(f"bernoulli: p={p!r}; needed 0 <= p <= 1")
    least = math.ceil(p * 2.0**53) << 11  # the least word whose uniform number is not below p

    def transform(words: Array) -> Array:
        return np.ones(words.shape, bool) if least == 2**64 else words < np.uint64(least)

    return _fill(key, shape, part, np.dtype(bool), transform, "bernoulli")


def permutation(key: Key, n: int) -> Array:
    """A random order of 0, ..., n - 1.

    Parameters
    ----------
    key : Key
        The stream.
    n : int
        How many.

    Returns
    -------
    numpy.ndarray
        int64, of shape (n,).

    Raises
    ------
    ShapeError
        If n is not a length.

    Notes
    -----
    The order that sorts n words. Two equal ones, whose order would not be random, have probability below n^2 / 2^65.

    Examples
    --------
    >>> order = permutation(Key(1, "shuffle").at(4), 10)
    >>> sorted(order.tolist()) == list(range(10))
    True
    """
    extents, box, _ = of_shape(n, key.axes, None, "permutation")
    if len(extents) != 1:
        raise ShapeError(f"permutation: n must be one number, got {n!r}")
    words = np.empty(extents, np.uint64)
    _words(words, key, extents, box)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


# -- words ----------------------------------------------------------------------------------------------------------
def _fill(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    part: Part | None,
    dtype: np.dtype[Any],
    transform: Callable[[Array], Array],
    caller: str,
) -> Any:
    """This rank's part of the logical tensor: its words, each transformed by itself."""
    if isinstance(shape, Tensor):
        if part is not None:
            raise ShapeError(f"{caller}: a Tensor was given, which knows its part, and part={part!r} too")
        extents, box, layout = of_tensor(shape, key.axes, caller)
    else:
        extents, box, layout = of_shape(shape, key.axes, part, caller)
        if caller == "integers":
            layout = None  # by integers programs choose: they are plain, and real in a dry run
    if state.dry and (caller != "integers" or layout is not None):  # values, which nobody may look at
        values: Any = Shaped([s.stop - s.start for s in box], dtype, DRY)
        return values if layout is None else _labelled(values, layout)
    words = np.empty([s.stop - s.start for s in box], np.uint64)
    _words(words, key, extents, box)
    # A result of 8 bytes an element takes the place of its words: a block is read before it is written.
    out = words.view(dtype) if dtype.itemsize == 8 else np.empty(words.shape, dtype)
    source, target = words.reshape(-1), out.reshape(-1)
    for i in range(0, source.size, BLOCK):
        target[i : i + BLOCK] = transform(source[i : i + BLOCK])
    return out if layout is None else _labelled(out, layout)


def _labelled(array: Any, layout: Layout) -> Tensor:
    return Tensor(array, layout, None, -1 if state.recording is None else FREE)


def _words(out: Array, key: Key, shape: tuple[int, ...], part: Part) -> None:
    """Write the words of one box of the logical tensor into `out`, a new array of the box's shape."""
    if out.size == 0:
        return
    if _thread.philox is None:
        _thread.philox = np.random.Philox(0)
    philox = _thread.philox
    text = f"{key.seed}\0{key.step}\0{key.name}"  # two integers without zero bytes, then anything: no two keys alike
    person = b"ringtape"
    if key.axes:
        text, person = f"{coordinates(key.axes)!a}\0{text}", b"ringtape along"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=person).digest()
    counter = np.zeros(4, np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": np.frombuffer(digest, "<u8").astype(np.uint64)},
        "buffer": np.zeros(4, np.uint64),
        "buffer_pos": 4,  # empty: the next word is the first of a counter's four
        "has_uint32": 0,
        "uinteger": 0,
    }

    def run(target: Array, start: int) -> None:
        """Write words start, start + 1, ... of the stream."""
        counter[0], skip = divmod(start, 4)
        philox.state = state
        if skip:
            philox.random_raw(skip)
        for i in range(0, target.size, BLOCK):
            block = target[i : i + BLOCK]
            block[:] = philox.random_raw(block.size)

    def box(target: Array, start: int, shape: tuple[int, ...], part: Part) -> None:
        """Write the box `part` of a tensor of that shape, whose first element has word `start`."""
        inner = math.prod(shape[1:])
        first, last = part[0].start, part[0].stop
        if target.size == (last - first) * inner:
            run(target.reshape(-1), start + first * inner)
        elif inner <= JUMP:  # rows too short to jump between: make them whole, some at a time, and cut
            rows = BLOCK // inner
            for row in range(first, last, rows):
                whole = np.empty((min(rows, last - row), *shape[1:]), np.uint64)
                run(whole.reshape(-1), start + row * inner)
                target[row - first : row - first + len(whole)] = whole[(slice(None), *part[1:])]
        else:
            for row in range(first, last):
                box(target[row - first], start + row * inner, shape[1:], part[1:])

    if shape:
        box(out, 0, shape, part)
    else:
        run(out.reshape(-1), 0)


# -- transforms -----------------------------------------------------------------------------------------------------
# Coefficients of PPND16, from the highest power down.
_CENTRE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)


def _standard_normal(words: Array) -> Array:
    """One standard normal number a word, increasing with the word read as a signed integer."""
    # s + 1/2 and its distance from +-2^52 are exact in float64, so both tails are as fine as each other.
    s = (words.view(np.int64) >> 11) + 0.5
    q = s * 2.0**-53
    r = 0.180625 - q * q
    tail = np.flatnonzero(r < 0)  # |q| > 0.425
    x = q * _ratio(_CENTRE, np.maximum(r, 0.0, out=r))
    if tail.size:
        s = s[tail]
        r = np.sqrt(_minus_log((2.0**52 - np.abs(s)) * 2.0**-53))
        z = _ratio(_TAIL, r - 1.6)
        if (far := np.flatnonzero(r > 5.0)).size:  # one number in 36,000,000,000, so hardly ever
            z[far] = _ratio(_FAR_TAIL, r[far] - 5.0)
        x[tail] = np.copysign(z, s)
    return x


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], r: Array) -> Array:
    numerator, denominator = (_polynomial(c, r) for c in coefficients)
    numerator /= denominator
    return numerator


def _polynomial(coefficients: Sequence[float], r: Array) -> Array:
    y = r * coefficients[0]
    y += coefficients[1]
    for c in coefficients[2:]:
        y *= r
        y += c
    return y


_ATANH = tuple(2.0 / n for n in range(23, 0, -2))


def _minus_log(p: Array) -> Array:
    """-log(p), from exactly rounded operations only."""
    m, e = np.frexp(p)
    low = m < math.sqrt(0.5)
    m = np.where(low, 2 * m, m)
    z = (m - 1) / (m + 1)  # |z| < 0.172, log m = 2 atanh z
    return (low - e) * math.log(2) - z * _polynomial(_ATANH, z * z)


def _multiply_high(words: Array, n: int) -> Array:
    """The upper 64 bits of words * n for 0 < n <= 2^64, from products of 32-bit halves."""
    mask, half = np.uint64(2**32 - 1), np.uint64(32)
    n1, n0 = np.uint64(n >> 32), np.uint64(n & (2**32 - 1))
    w1, w0 = words >> half, words & mask
    middle = w1 * n0 + (w0 * n0 >> half)
    return w1 * n1 + (middle >> half) + ((w0 * n1 + (middle & mask)) >> half)


# -- arguments ------------------------------------------------------------------------------------------------------
def _integer(value: Any, what: str) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise DtypeError(f"{what} must be an integer, got {value!r}") from None


def _floating(dtype: Any, caller: str) -> np.dtype[Any]:
    try:
        result = np.dtype(dtype)
    except TypeError:
        result = np.dtype(object)
    if result.kind != "f" or result.itemsize > 8:
        raise DtypeError(f"{caller}: dtype must be float64, float32 or float16, got {dtype!r}")
    return np.dtype(result.type)  # native order, and the one object that stands for this dtype
