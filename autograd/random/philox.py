"""The random bit generator Philox4x64-10, and `draw`, which turns its words into a rank's part of a logical tensor.

Philox computes four 64-bit words from each value of a counter, so setting the counter gives access to any position of
a stream. On the host the words come from `numpy.random.Philox`. Everything that is made of them is computed by this
package. Numbers for a Tensor on a device are drawn there by a kernel, bitwise the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays.capture import current_capture, recorded
from ..arrays.device import dtype_named, move
from ..arrays.shape_only import DRY, Shaped
from ..digests import blake2b
from ..engine.leaves import Leaf, Parameter
from ..engine.recording import FREE
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import DependencyError, DtypeError, ShapeError
from ..kernels import functions, stands_for
from ..layouts.layout import D, I, Layout, R, Shard, V
from .keys import Key, Place, check_key
from .placement import Part, coordinates, of_shape, of_tensor, pieces_of, used_places

__all__ = ["BLOCK", "Numbers", "Source", "capturing", "draw", "floating", "source_of", "whole_capture", "words_of",
           "write_words"]  # fmt: skip


Array = np.ndarray[Any, Any]
BLOCK = 16384
"""Number of words transformed at a time, so that the temporaries of a transform fit into the second level cache."""
JUMP = 512
"""Number of words whose generation takes as long as setting the counter once."""


class _Thread(threading.local):
    # per thread, because ranks may be threads of one process
    # Kept: creating a generator takes 16 times as long as setting its counter.
    philox: np.random.Philox | None = None
    state: Any = None  # what it is set to, with the arrays of its counter and key


_thread = _Thread()


class Numbers(NamedTuple):
    """The number that is made of each word: by a function of this package on the host, by a kernel on a device.

    Attributes
    ----------
    kind : str
        "uniform", "normal", "truncated_normal", "integers" or "booleans".
    values : tuple of float or int
        Up to six parameters of real numbers: scale, shift, low, high, width and start, see the kernel. Of integers, the
        number of them, and the least. Of booleans, the limit below which the upper 53 bits of a word are.
    """

    kind: str
    values: tuple[Any, ...]


class Source(NamedTuple):
    """Where the words of an array come from.

    Attributes
    ----------
    stream : tuple of int
        The key of the generator, two words.
    extents : tuple of int
        The shape of the logical tensor.
    pieces : tuple of pairs
        Where a piece is in the array, and where in the logical tensor: (start, stop) of each dimension.
    """

    stream: tuple[int, int]
    extents: tuple[int, ...]
    pieces: tuple[tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]], ...]


def _stream(key: Key) -> tuple[int, int]:
    """The key of the generator: a hash of the stream's name."""
    text = f"{key.seed}\0{key.step}\0{key.name}"  # injective, because the two integers contain no zero byte
    person = b"ringtape"
    if key.axes:
        text, person = f"{coordinates(key.axes)!a}\0{text}", b"ringtape along"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=person).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def write_words(out: Array, key: Key | tuple[int, int], shape: tuple[int, ...], part: Part) -> None:
    """Write the words of one part of a logical tensor into `out`, a contiguous array of the part's shape.

    `key` may be that of the generator, as in `Source`.
    """
    if out.size == 0:
        return
    if _thread.philox is None:
        _thread.philox = np.random.Philox(0)
    if _thread.state is None:
        _thread.state = {
            "bit_generator": "Philox",
            "state": {"counter": np.zeros(4, np.uint64), "key": np.zeros(2, np.uint64)},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,  # the buffer is empty: the next word is the first of the counter's four
            "has_uint32": 0,
            "uinteger": 0,
        }  # fmt: skip
    philox, state = _thread.philox, _thread.state
    counter, words = state["state"]["counter"], state["state"]["key"]
    words[0], words[1] = key if isinstance(key, tuple) else _stream(key)

    def run(target: Array, start: int) -> None:
        """Write words start, start + 1, ... of the stream."""
        counter[0], skip = divmod(start, 4)
        philox.state = state
        if skip:
            philox.random_raw(skip)
        for i in range(0, target.size, BLOCK):
            block = target[i : i + BLOCK]
            block[:] = philox.random_raw(block.size)

    def write(target: Array, start: int, shape: tuple[int, ...], part: Part) -> None:
        """Write the part of a tensor of that shape, whose first element has word `start`."""
        inner = math.prod(shape[1:])
        first, last = part[0].start, part[0].stop
        if target.size == (last - first) * inner:
            run(target.reshape(-1), start + first * inner)
        elif inner <= JUMP:  # rows are short: generating them whole costs less than setting the counter for each
            rows = BLOCK // inner
            for row in range(first, last, rows):
                whole = np.empty((min(rows, last - row), *shape[1:]), np.uint64)
                run(whole.reshape(-1), start + row * inner)
                target[row - first : row - first + len(whole)] = whole[(slice(None), *part[1:])]
        else:
            for row in range(first, last):
                write(target[row - first], start + row * inner, shape[1:], part[1:])

    if shape:
        write(out, 0, shape, part)
    else:
        run(out.reshape(-1), 0)


def capturing() -> Any:
    """The capture that records a whole draw as one call of a step; None while none is recorded, and under a mesh."""
    capture = current_capture()
    return capture if capture is not None and capture.records and state.grid is None else None


def whole_capture(*numbers: Any) -> Any:
    """As `capturing`, where some parameter of a distribution is no plain number, so that a row must read it anew."""
    return None if all(x.__class__ in (bool, int, float) for x in numbers) else capturing()


def draw(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    part: Part | None,
    dtype: np.dtype[Any],
    transform: Callable[..., Array],
    caller: str,
    made: Numbers,
    *,
    choices: bool = False,
    numbers: tuple[float, ...] = (),
) -> Any:
    """Generate this rank's part of a logical tensor: its words, transformed elementwise.

    Parameters
    ----------
    transform : callable
        From a vector of words (uint64), `dtype` and the values of `made` to a vector of numbers; a function that stays.
    caller : str
        Name of the public function, for errors.
    made : Numbers
    choices : bool
        Whether programs decide by these numbers. If so, a draw of a shape is a plain array, with values in a dry run
        too.
    numbers : tuple of float
        The parameters of the distribution, which the ranks compare where the draw is for a Tensor.
    """
    check_key(key, caller)
    places: list[Place] = []
    like: Any = None
    if isinstance(shape, Tensor):
        if part is not None:
            raise ShapeError(
                f"{caller}: a Tensor and part={part!r} were given; needed: one of them. The Tensor's layout determines "
                "the part"
            )
        like = shape.array
        extents, box, layout, places = _place_of(key, shape, caller, numbers)
    else:
        extents, box, layout = of_shape(shape, key.axes, part, caller)
        if choices:
            layout = None
    if state.dry and not (choices and layout is None):
        values: Any = Shaped([s.stop - s.start for s in box], dtype, DRY)
        return values if layout is None else _labelled(values, layout)
    on_device = None if like is None or type(like) in (np.ndarray, Shaped) else functions("philox", type(like))
    if on_device is not None:
        drawn = tuple(s.stop - s.start for s in box)
        out = on_device.draw(like, drawn, dtype, made, *_source(key, extents, box, places))
        return out if layout is None else _labelled(out, layout)
    if (capture := current_capture()) is not None and capture.records:  # the places of elements stay; the key may not
        words = recorded(_words_of_key, key, extents, box, tuple(places), name="words of a draw")
        out = recorded(_transformed, words, transform, dtype, *made.values)
        return out if layout is None else _labelled(out, layout)
    words = words_of(_source(key, extents, box, places), tuple(s.stop - s.start for s in box))
    # A result of 8 bytes per element is written over its words: each block is read before it is written.
    out = words.view(dtype) if dtype.itemsize == 8 else None
    out = _transformed(words, transform, dtype, *made.values, out=out)
    if isinstance(shape, Tensor) and type(shape.array) is not Shaped:
        out = move(out, shape.array)
    return out if layout is None else _labelled(out, layout)


def _words_of_key(key: Key, extents: tuple[int, ...], box: Part, places: tuple[Place, ...]) -> Array:
    return words_of(_source(key, extents, box, places), tuple(s.stop - s.start for s in box))


def _transformed(
    words: Array, transform: Callable[..., Array], dtype: np.dtype[Any], *values: Any, out: Any = None
) -> Array:
    """The numbers that are made of words, block by block; traced, as one loop."""
    source = words.reshape(-1)
    if stands_for.has_loops:
        return transform(source, dtype, *values).astype(dtype, copy=False).reshape(words.shape)
    out = np.empty(words.shape, dtype) if out is None else out
    target = out.reshape(-1)
    for i in range(0, source.size, BLOCK):
        target[i : i + BLOCK] = transform(source[i : i + BLOCK], dtype, *values)
    return out


def words_of(source: Source, shape: tuple[int, ...]) -> Array:
    """The words of an array of a shape."""
    words = np.empty(shape, np.uint64)
    for at, where in source.pieces:
        part = tuple(slice(*ends) for ends in where)
        if len(source.pieces) == 1:
            write_words(words, source.stream, source.extents, part)
        else:
            piece = np.empty([stop - start for start, stop in where], np.uint64)
            write_words(piece, source.stream, source.extents, part)
            words[tuple(slice(*ends) for ends in at)] = piece
    return words


def source_of(key: Key, x: Tensor, caller: str, numbers: tuple[float, ...] = ()) -> Source:
    """Where the words of a draw for a Tensor come from. The ranks compare the key, and the numbers, as in `draw`."""
    check_key(key, caller)
    extents, box, _, places = _place_of(key, x, caller, numbers)
    return _source(key, extents, box, places)


def _source(key: Key, extents: tuple[int, ...], box: Part, places: Sequence[Place]) -> Source:
    if not places:
        where = tuple([(s.start, s.stop) for s in box])
        return Source(_stream(key), extents, ((tuple([(0, stop - start) for start, stop in where]), where),))
    pairs = pieces_of(box, places)
    return Source(
        _stream(key), extents, tuple((tuple((s.start, s.stop) for s in at), tuple((s.start, s.stop) for s in where))
                                     for at, where in pairs),
    )  # fmt: skip


def _place_of(
    key: Key, x: Tensor, caller: str, numbers: tuple[float, ...]
) -> tuple[tuple[int, ...], Part, Layout | None, list[Place]]:
    """The logical shape of a draw for a Tensor, this rank's part of it, its layout, and the places that its key has."""
    axes = (*key.axes, *key.apart)
    extents, box, layout = of_tensor(x, axes, caller, key.places)
    places = used_places(key.places, layout, axes)
    if layout is not None and max(layout.grid.sizes) > 1:
        # Parameters may be drawn from other keys on each rank, and then be broadcast from one.
        if not isinstance(x, Parameter):
            _declare(key, layout)
        if numbers:
            _compare_numbers(numbers, layout, caller, isinstance(x, Parameter))
    return extents, box, layout, places


def _compare_numbers(numbers: tuple[Any, ...], layout: Layout, caller: str, is_initial: bool) -> None:
    """Let the ranks compare the numbers of a draw for a Tensor: where they draw parts of one draw, or for one value.

    Equal draws (D) are compared themselves where they meet a value of all ranks, and so are Invariant parameters that
    are made of them. Their numbers are not compared: the stages of a pipeline may initialize layers of other widths.
    """
    same = [R if isinstance(x, Shard) else V if x is D and is_initial else R if x is D else x for x in layout.labels]
    state.distribution.note_constant(caller, layout.grid.layout(same), numbers)


def _declare(key: Key, layout: Layout) -> None:
    """Let the ranks compare the key of a draw along the axes on which its numbers are not V."""
    same = layout.grid.layout([V if label is V else I for label in layout.labels])
    named = Leaf(np.frombuffer(repr(key).encode(), np.uint8), same, name=repr(key))
    state.distribution.note_declaration("key", named)


def _labelled(array: Any, layout: Layout) -> Tensor:
    return Tensor(array, layout, None, -1 if state.recording is None else FREE)


def floating(dtype: Any, caller: str) -> np.dtype[Any]:
    """Return the dtype of random real numbers; raise DtypeError unless it is float64, float32 or float16."""
    try:
        result = dtype_named(dtype)
    except (TypeError, DependencyError):
        result = np.dtype(object)
    if result.kind != "f" or result.itemsize > 8:
        fix = "\n  fix: module.to('bfloat16') of a module of float32" if str(dtype).endswith("bfloat16") else ""
        raise DtypeError(f"{caller}: dtype must be float64, float32 or float16, got {dtype!r}" + fix)
    return np.dtype(result.type)  # in native byte order
