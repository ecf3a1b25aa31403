"""Compressions that send every element of a gradient with few bits: `Float16`, `Int8`, `OneBit`.

Every rank owns a share of the bucket and adds the decoded values of all ranks in it; encoded values are never added.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.shape_only import DRY, Shaped
from autograd.errors import typed_errors
from autograd.optim.hyperparameters import check_count, check_numbers
from collectives.transports.protocol import Array, Communicator, Request
from collectives.transports.steps import Steps, even_bounds

from .compression import SINGLE, Compression, New, Shapes, difference, working_dtype, write_sums
from .error_feedback import GradientBucket, gradients_of, sizes_of, split

__all__ = ["Float16", "Int8", "OneBit"]


class _Cuts(NamedTuple):
    """The division of the elements of a bucket: into a share per rank, and into blocks that have one scale each.

    Shares begin at multiples of 8 elements, so that bits fill whole bytes. No block extends over two parameters or two
    shares. `bounds`, `code_bounds` and `scale_bounds` are the bounds of the shares in elements, bytes and scales.
    """

    bounds: list[int]
    code_bounds: list[int]
    scale_bounds: list[int]
    starts: Array
    lengths: Array

    @property
    def message_bytes(self) -> list[int]:
        """The size of each share's message."""
        codes, scales = np.diff(self.code_bounds), np.diff(self.scale_bounds)
        return [int(code + 4 * scale) for code, scale in zip(codes, scales, strict=True)]

    def block_lengths(self, rank: int) -> Array:
        """The lengths of the blocks in a rank's share."""
        return self.lengths[self.scale_bounds[rank] : self.scale_bounds[rank + 1]]


@functools.lru_cache(maxsize=256)  # a bucket of 65,000 elements took 30 us without it, one of 2 million 550 us
def _cuts(sizes: tuple[int, ...], ranks: int, bits: int, block: int | None) -> _Cuts:
    n = sum(sizes)
    bounds = [min(8 * bound, n) for bound in even_bounds(-(-n // 8), ranks)]
    starts = np.empty(0, np.int64)
    if block is not None:
        ends = np.cumsum(sizes).tolist()
        within = [np.arange(end - size, end, block) for size, end in zip(sizes, ends, strict=True)]
        starts = np.unique(np.concatenate([*within, bounds]).astype(np.int64))
        starts = starts[starts < n]
    lengths = np.diff(starts, append=n) if starts.size else starts
    scale_bounds = np.searchsorted(starts, bounds).tolist()
    return _Cuts(bounds, [-(-bound * bits // 8) for bound in bounds], scale_bounds, starts, lengths)


class _Quantised(Compression):
    """Methods that send all elements with few bits each.

    Every rank owns a share of the bucket. It receives this share of all ranks, adds the decoded values in order of
    rank, encodes the sum again, and sends it to all. Encoded values are never added.
    """

    _bits: int
    block: int | None = None
    error_feedback = True
    momentum = 0.0

    def _encode(self, x: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """The codes, as bytes, and the scales of the blocks."""
        raise NotImplementedError

    def _decode(self, codes: Array, scales: Array, lengths: Array, n: int, dtype: np.dtype[Any]) -> Array:
        """The `n` values for which codes and scales stand."""
        raise NotImplementedError

    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        cuts = _cuts(tuple(sizes_of(shapes)), ranks, self._bits, self.block)
        counts = cuts.message_bytes
        return [
            Request("all_reduce", Shaped((len(shapes),), dtype, DRY)),
            Request("all_to_all", Shaped((sum(counts),), np.uint8, DRY), counts=counts,
                    receive_counts=[counts[rank]] * ranks),
            Request("all_gather", Shaped((counts[rank],), np.uint8, DRY), counts=counts),
        ]  # fmt: skip

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        dtype, p, me = working_dtype(bucket.flat.dtype), group.size, group.index
        sizes = tuple(sizes_of(bucket.shapes))
        cuts = _cuts(sizes, p, self._bits, self.block)
        counts, begin, end = cuts.message_bytes, cuts.bounds[me], cuts.bounds[me + 1]
        flags = group.start(Request("all_reduce", np.ascontiguousarray(bucket.flags)))

        given = gradients_of(bucket, dtype)
        average: Any = 0
        if self.momentum:
            average = self.momentum * self.state.join("momentum", bucket, dtype)
            given *= 1 - self.momentum
            given += average / p
        owed: Any = None
        if self.error_feedback:
            owed = self._pieces(bucket, sizes, begin, end, dtype)
            given += self.state.join("residual", bucket, dtype)

        codes, scales = self._encode(given, cuts.starts, cuts.lengths)
        at, scale_at = cuts.code_bounds, cuts.scale_bounds
        parts = [part for r in range(p) for part in (
            codes[at[r] : at[r + 1]], scales[scale_at[r] : scale_at[r + 1]].view(np.uint8))]  # fmt: skip
        exchange = group.start(
            Request("all_to_all", np.concatenate(parts), counts=counts, receive_counts=[counts[me]] * p)
        )
        if self.error_feedback:
            residual = difference(given, self._decode(codes, scales, cuts.lengths, given.size, dtype))
        yield exchange

        total = np.zeros(end - begin, dtype) if owed is None else owed
        own_lengths, own_codes = cuts.block_lengths(me), at[me + 1] - at[me]
        for message in split(exchange.wait(), [counts[me]] * p):
            total += self._decode(message[:own_codes], _floats(message[own_codes:]), own_lengths, total.size, dtype)
        codes, scales = self._encode(total, cuts.starts[scale_at[me] : scale_at[me + 1]] - begin, own_lengths)
        gather = group.start(Request("all_gather", np.concatenate([codes, scales.view(np.uint8)]), counts=counts))
        if self.error_feedback:
            error = difference(total, self._decode(codes, scales, own_lengths, total.size, dtype))
        yield gather

        messages = split(gather.wait(), counts)
        lengths_in_bytes = np.diff(at).tolist()
        codes = np.concatenate([m[:n] for m, n in zip(messages, lengths_in_bytes, strict=True)])
        scales = np.concatenate([_floats(m[n:]) for m, n in zip(messages, lengths_in_bytes, strict=True)])
        delivered = self._decode(codes, scales, cuts.lengths, given.size, dtype)
        yield flags
        bucket.flags[:] = flags.wait()
        total = difference(delivered, average) / dtype.type(1 - self.momentum) if self.momentum else delivered
        write_sums(bucket, split(total, sizes))
        new: dict[str, list[Any]] = {}
        if self.error_feedback:
            new["residual"] = split(residual, sizes)
            new["pieces"] = [(start, piece) if piece.size else None for start, piece in _overlaps(error, sizes, begin)]
        if self.momentum:
            new["momentum"] = split(delivered, sizes)
        return new

    def _pieces(self, bucket: GradientBucket, sizes: Sequence[int], begin: int, end: int, dtype: Any) -> Array:
        """The amount owed to the sum of this rank's share; pieces of other shares are folded into the residual."""
        owed = np.zeros(end - begin, dtype)
        for name, (start, part) in zip(bucket.names, _overlaps(owed, sizes, begin), strict=True):
            if name in self.state.pieces:
                known, piece = self.state.pieces[name]
                if known == start and piece.size == part.size:
                    part[:] = piece
                else:
                    self.state.fold(name)
        return owed


def _overlaps(share: Array, sizes: Sequence[int], begin: int) -> list[tuple[int, Array]]:
    """For each parameter, the part of it in a share that begins at `begin`: its start, and a view of the share."""
    ends = np.cumsum(sizes) - begin
    return [
        (max(size - end, 0), share[max(end - size, 0) : max(end, 0)])
        for size, end in zip(sizes, ends.tolist(), strict=True)
    ]


def _floats(data: Array) -> Array:
    """The float32 numbers in bytes at any address."""
    return np.frombuffer(data.tobytes(), SINGLE)


class Float16(_Quantised):
    """Send gradients as float16: half the bytes of float32.

    The shares are added in float32, and the sum is rounded once more. Rounding is to nearest, and there is no error
    feedback. Values above 65504 become infinite, and values below 3e-8 become zero; a loss scaler sees the infinities
    and skips the step, and scaling the loss avoids the zeros.

    Parameters
    ----------
    start_step : int
        The number of exact reductions before the first compressed one.

    Examples
    --------
    >>> from parallel import Float16
    >>> Float16().bytes_sent([(1000,)], ranks=2)  # 2 (1/2) (2 * 1000 + 4): the values and one flag
    2004.0
    """

    _addends = ()
    _bits = 16
    error_feedback = False

    @np.errstate(over="ignore")
    def _encode(self, x: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
        return x.astype(np.float16).view(np.uint8), np.empty(0, SINGLE)

    def _decode(self, codes: Array, scales: Array, lengths: Array, n: int, dtype: np.dtype[Any]) -> Array:
        return np.frombuffer(codes.tobytes(), np.float16).astype(dtype)


@typed_errors
class Int8(_Quantised):
    """Send gradients as int8 with a scale for each block: a quarter of the bytes of float32.

    In a block, ``scale = max |x| / 127`` and ``code = round(x / scale)``.

    Parameters
    ----------
    block : int
        The most elements that have one scale. A block does not extend over two parameters.
    error_feedback : bool
        Whether to add rounding errors to the next gradient. It costs the memory of a gradient.
    start_step : int
        The number of exact reductions before the first compressed one.

    Examples
    --------
    >>> from parallel import Int8
    >>> round(Int8().compression_ratio([(1000, 1000)], ranks=4), 2)
    3.99
    """

    _bits = 8

    def __init__(self, block: int = 2048, error_feedback: bool = True, start_step: int = 0):
        super().__init__(start_step)
        check_count("Int8", 1, block=block)
        self.block, self.error_feedback = block, error_feedback

    @np.errstate(invalid="ignore", divide="ignore", over="ignore")
    def _encode(self, x: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
        if not x.size:
            return np.empty(0, np.uint8), np.empty(0, SINGLE)
        largest = np.maximum.reduceat(np.abs(x), starts)  # NaN where the block has one
        scales = (largest / 127).astype(SINGLE)
        scales[~np.isfinite(scales)] = np.nan
        each = np.repeat(np.where(scales > 0, scales, 1), lengths)
        return np.clip(np.rint(x / each), -127, 127).astype(np.int8).view(np.uint8), scales

    def _decode(self, codes: Array, scales: Array, lengths: Array, n: int, dtype: np.dtype[Any]) -> Array:
        x = codes.view(np.int8).astype(dtype)
        x *= np.repeat(scales, lengths)
        return x


class OneBit(_Quantised):
    """Send the signs of the gradients with a scale for each block, with error feedback: 1/32 of the bytes of float32.

    In a block, x is sent as ``mean |x| * sign(x)`` with sign(0) = +1. The rank that owns a share sends the sum of it in
    the same way, with an error feedback of its own.

    Parameters
    ----------
    block : int
        The most elements that have one scale. A block does not extend over two parameters.
    momentum : float
        Compress the moving average of the gradients in the place of the gradients, as 1-bit Adam does: the momentum of
        `SGD`, or beta1 of `CompressedAdam`. See the notes.
    start_step : int
        The number of exact reductions before the first compressed one. 1-bit Adam uses about a sixth of all steps.

    Notes
    -----
    Of all multiples of sign(x), ``mean |x|`` is nearest to x. The squared error, ``|x|_2^2 - |x|_1^2 / n``, is below
    that of sending nothing, so error feedback converges (Karimireddy et al. 2019, section 4). The scale
    ``|x|_2 / sqrt(n)`` of some implementations has an error larger than x where most elements are small, and then the
    residual grows.

    With `momentum` b, rank r of p sends ``x_r = b m / p + (1 - b) g_r + e_r``. The decoded sum over the ranks is the
    new m, the same on all ranks, and the gradient that is delivered is

        ``g = (m_new - b m) / (1 - b)``.

    So an optimizer that computes ``m = b m + (1 - b) g`` has m_new as its moving average (Tang et al. 2021,
    algorithm 1), and ``.grad`` still is an approximation of the sum of gradients, with the error of m divided by 1 - b.
    Clipping by a norm would see this error: do not clip after `start_step`. The momentum of `SGD`, ``u = b u + g``, is
    m / (1 - b). So this is better than the compression of gradients for SGD with momentum, too, which would add the
    errors of 1 / (1 - b) steps.

    Examples
    --------
    >>> from parallel import OneBit
    >>> OneBit(block=1000).bytes_sent([(8000,)], ranks=2)  # 2 (1/2) (1000 + 8 * 4 + 4); 4 blocks a share, and a flag
    1036.0
    """

    _copies = ("momentum",)
    _bits = 1

    def __init__(self, block: int = 2048, momentum: float = 0.0, start_step: int = 0):
        super().__init__(start_step)
        check_count("OneBit", 1, block=block)
        check_numbers("OneBit", below=1.0, momentum=momentum)
        self.block, self.momentum = block, float(momentum)

    @np.errstate(over="ignore")
    def _encode(self, x: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
        if not x.size:
            return np.empty(0, np.uint8), np.empty(0, SINGLE)
        return np.packbits(x >= 0), (np.add.reduceat(np.abs(x), starts) / lengths).astype(SINGLE)

    @np.errstate(invalid="ignore")
    def _decode(self, codes: Array, scales: Array, lengths: Array, n: int, dtype: np.dtype[Any]) -> Array:
        x = np.unpackbits(codes, count=n).astype(dtype)
        x *= 2
        x -= 1
        x *= np.repeat(scales, lengths)
        return x

    def _reduce_exactly(self, bucket: GradientBucket, group: Communicator) -> Steps[New]:
        yield from super()._reduce_exactly(bucket, group)
        if not self.momentum or group.dry:
            return {}
        dtype = working_dtype(bucket.flat.dtype)
        average = self.state.join("momentum", bucket, dtype)
        average *= self.momentum
        average += (1 - self.momentum) * gradients_of(bucket, dtype)
        return {"momentum": split(average, sizes_of(bucket.shapes))}
