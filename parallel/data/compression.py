r"""Gradient compression: approximations of the sum of gradients over the ranks that need fewer bytes.

A compression is a *reduction*: it replaces the all-reduce of a bucket of gradients, which is the adjoint of the entry
of the parameters (`DataParallel`). It leaves an approximation of the *sum* over the ranks in the bucket, with the same
bits on all ranks; nothing is averaged. The used-flags of the bucket are summed exactly.

With p ranks, n elements of s bytes in a bucket of f parameters, and q = (p-1)/p, a rank sends per reduction, in the
mean over the ranks (all_reduce and all_gather by a ring, all_to_all directly):

====================  =====================================  =====================================================
method                bytes                                  what is sent
====================  =====================================  =====================================================
none                  2 q (n + f) s                          all-reduce
`Float16`             2 q (2 n) + F                          all-to-all of float16, sum in float32, all-gather
`Int8`                2 q (n + 4 b) + F                      the same with int8 and b scales of 4 bytes
`OneBit`              2 q (n/8 + 4 b) + F                    the same with signs and b scales
`TopK`                q p k (4 + s) + D + F                  all-gather of k indices and values
`RandomK`             2 q k s + D + F                        all-reduce of k values
`PowerSGD`            2 q r (rows + columns) s + D + F       all-reduce of two factors of each matrix
====================  =====================================  =====================================================

Here F = 2 q f s are the flags, D = 2 q d s the d elements of small parameters, which `TopK`, `RandomK` and `PowerSGD`
sum exactly, and b is about n / `block`. `Compression.bytes_sent` computes the bytes of a bucket, to the byte.

What a method leaves out of one step it adds to the next one (*error feedback*), and so every gradient arrives in the
end. The residuals are state and belong in the checkpoint: `Compression.state_dict`. State is kept by parameter name, so
each model needs an object of its own.

Not-finite values stay visible: the sum of a parameter in which a rank has a NaN or an infinity is not finite, on all
ranks. The state of that parameter remains as it was before the step, because the optimizer skips it.

Where the arithmetic is repeated on all ranks, it uses operations whose result IEEE 754 determines: elementwise ones,
and sums in a fixed order. So hosts whose BLAS libraries differ get the same bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import move, to_host
from autograd.arrays.shape_only import DRY, Shaped
from autograd.errors import DtypeError, OptionError, call_site, typed_errors
from autograd.optim.hyperparameters import check_count, check_numbers
from autograd.random import Key, integers
from collectives.algorithms.steps import Steps, even_bounds
from collectives.transports.protocol import Array, Communicator, Request
from collectives.transports.request import whole_bytes

from .error_feedback import GradientBucket, ParameterState, gradients_of, sizes_of, split, vectors_of
from .rank_states import of_all_ranks, of_this_rank, sizes_of_mesh

__all__ = ["Compression", "Float16", "Int8", "OneBit", "PowerSGD", "RandomK", "TopK"]

Shapes = Sequence[tuple[int, ...]]
New = Mapping[str, Sequence[Any]]
"""The new state of a bucket's parameters: by slot, one entry per parameter."""

_SINGLE = np.dtype(np.float32)


class Compression:
    """Base class of the methods. A subclass implements `_requests` and `_reduce`.

    Parameters
    ----------
    start_step : int
        The number of reductions of each parameter that are exact, before the first compressed one.

    Attributes
    ----------
    state : ParameterState
        Residuals and other state, by parameter name.

    Notes
    -----
    The arithmetic is done in the dtype of the bucket, and in float32 for float16.
    """

    _addends: tuple[str, ...] = ("residual",)
    _copies: tuple[str, ...] = ()

    def __init__(self, start_step: int = 0):
        check_count(type(self).__name__, start_step=start_step)
        self.start_step = start_step
        self.state = ParameterState(self._addends, self._copies)
        self._parts = 1  # ranks that sum a gradient, in the last reduction

    # -- for users -------------------------------------------------------------------------------------------------
    def bytes_sent(self, shapes: Shapes, ranks: int, dtype: Any = "float32") -> float:
        """The bytes that a rank sends for one compressed reduction of a bucket, in the mean over the ranks.

        Parameters
        ----------
        shapes : sequence of tuple of int
            Of the parameters in the bucket.
        ranks : int
        dtype : dtype
            Of the bucket.

        Returns
        -------
        float
            With an all-reduce and an all-gather by a ring, and direct messages in an all-to-all. Headers are not
            counted. The module has the formulas.

        Examples
        --------
        >>> from parallel import PowerSGD
        >>> PowerSGD(rank=2).bytes_sent([(512, 512)], ranks=4)  # 2 (3/4) (2 (512 + 512) 4 + 4): two factors, one flag
        12294.0
        """
        requests = self._requests(tuple(shapes), ranks, _working(np.dtype(dtype)))
        return sum(_sent(request, ranks) for request in requests)

    def compression_ratio(self, shapes: Shapes, ranks: int, dtype: Any = "float32") -> float:
        """How many times fewer bytes than an all-reduce of the bucket this sends; 1 on one rank.

        Examples
        --------
        >>> from parallel import OneBit
        >>> round(OneBit().compression_ratio([(1024, 1024)], ranks=4), 1)
        31.5
        """
        exact = Request("all_reduce", Shaped((sum(sizes_of(shapes)) + len(shapes),), dtype))
        return _sent(exact, ranks) / self.bytes_sent(shapes, ranks, dtype) if ranks > 1 else 1.0

    def state_dict(self, group: Communicator | None = None) -> dict[str, Any]:
        """The state for a checkpoint, the same on all ranks. All ranks of the mesh call this, or those of `group`.

        Parameters
        ----------
        group : Communicator, optional
            The ranks over which gradients are summed, like ``mesh.axis("dp").group``: the state is the sum over them.
            By default it is that of each rank of the current mesh, with which a run continues bitwise.

        Returns
        -------
        dict
            ``method``, the name of the class; and ``ranks``, the states of all ranks, with the axes of the ``mesh``
            and the number of ranks that sum a gradient, ``parts``. Of a group it is ``steps``, a count by parameter
            name; and for each kind of state a dictionary from parameter name to a one-dimensional array.

        Notes
        -----
        Residuals are addends: only their sum over the ranks enters later sums. Where the number of ranks changes, each
        rank gets an equal part of the sum, so no gradient is lost. The states of all ranks are as many bytes as all
        residuals together, on each rank. `nn.save` of the `DataParallel` model includes them.
        """
        if group is not None:
            return {"method": type(self).__name__, **self.state.state_dict(group)}
        own = self.state.own()
        if not own["steps"]:
            return {"method": type(self).__name__, "mesh": sizes_of_mesh(), "ranks": [], "parts": 1}
        caller = f"{type(self).__name__}.state_dict, the state of a compression"
        found = of_all_ranks(own, caller, self._parts)
        return {"method": type(self).__name__, **found, "parts": self._parts}

    def load_state_dict(self, state_dict: dict[str, Any], group: Communicator | None = None) -> None:
        """Set the state from a `state_dict` of the same method, which may be of another number of ranks.

        Parameters
        ----------
        state_dict : dict
        group : Communicator, optional
            Needed for the state of a group, which may have had another number of ranks.

        Raises
        ------
        OptionError
            The state is one of another method, or entries are missing; or it is one of a mesh with other axes, on
            which parameters may be divided in another way.
        """
        if "ranks" in state_dict:
            self.prepare_state_dict(state_dict)()
            return
        state = self._checked_method(state_dict)
        if group is None:
            raise OptionError(
                f"{type(self).__name__}.load_state_dict: the state of a group was given without a group\n"
                "  fix: load_state_dict(state, mesh.axis('dp').group)" + call_site()
            )
        self.state.load_state_dict(state, group)

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict` of the states of all ranks, and return the function that sets it. `nn.load` calls it."""
        known, caller = self._checked_method(state_dict), f"{type(self).__name__}.load_state_dict"
        own = of_this_rank(known, caller)
        if not known["ranks"]:
            new: dict[str, Any] = vars(ParameterState(self._addends, self._copies))
        elif own is not None:
            new = self.state.checked(own)
        else:
            here = sizes_of_mesh()
            if any(sum(n > 1 for n in sizes.values()) > 1 for sizes in (here, known["mesh"])) or known["parts"] not in (
                1, len(known["ranks"])
            ):  # fmt: skip
                raise OptionError(
                    f"{caller}: the state is that of a mesh {known['mesh']}, and the mesh is {here}; needed: the same, "
                    "or meshes with ranks along one axis only, as ranks along another may have other parts of a "
                    "parameter\n  fix: the mesh of the run that saved it" + call_site()
                )
            new = self.state.divided(known["ranks"], math.prod(here.values()))
        return lambda: vars(self.state).update(new)

    def _checked_method(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        state = dict(state_dict)
        method = state.pop("method", None)
        if method != type(self).__name__:
            raise OptionError(
                f"{type(self).__name__}.load_state_dict: the state of {method!r} was given; needed: one of the same "
                "method" + call_site()
            )
        return state

    def is_exact(self, names: Sequence[str]) -> bool:
        """Whether the next reduction of these parameters is exact (`start_step`)."""
        return self.state.count(names) < self.start_step

    def reduce(self, bucket: GradientBucket, group: Communicator) -> Steps[None]:
        """Replace a bucket's gradients by the approximation of their sum over the ranks, and its flags by their sum.

        Parameters
        ----------
        bucket : Bucket
            Its dtype is float16, float32 or float64. One on a GPU is copied to the host, where the codes are made and
            the residuals are kept, and the sum is copied back.
        group : Communicator
            The channel of the gradients. All ranks reduce the same buckets in the same order on it.

        Yields
        ------
        Pending
            Each communication that must be complete before the next step.

        Raises
        ------
        DtypeError
            The bucket is of another dtype.
        """
        if not group.dry and not isinstance(bucket.flat, np.ndarray):
            staged = _OnHost(to_host(bucket.flat), bucket.names, bucket.shapes, bucket.offsets)
            yield from self.reduce(staged, group)
            bucket.flat[...] = move(staged.flat, bucket.flat)
            return
        self._parts = group.size
        exact = self.is_exact(bucket.names)
        if exact:
            new = yield from self._reduce_exactly(bucket, group)
        elif group.dry:
            for request in self._requests(bucket.shapes, group.size, _working(bucket.flat.dtype), group.index):
                yield group.start(request)
        else:
            _check_bucket(bucket.flat, type(self).__name__)
            new = yield from self._reduce(bucket, group, self.state.count(bucket.names))
        self.state.advance(bucket.names, not exact)
        if not group.dry:
            self.state.commit(bucket, new)

    # -- for subclasses --------------------------------------------------------------------------------------------
    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        """The requests of one rank for a compressed reduction, with operands that have shapes only."""
        raise NotImplementedError

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        """Reduce a bucket, and return the new state of its parameters."""
        raise NotImplementedError

    def _reduce_exactly(self, bucket: GradientBucket, group: Communicator) -> Steps[New]:
        """Sum a bucket as without compression, and return the new state of its parameters."""
        pending = group.start(Request("all_reduce", bucket.flat))
        yield pending
        bucket.flat[:] = pending.wait()
        return {}


class _OnHost(NamedTuple):
    """The copy of a bucket on a GPU."""

    flat: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]

    @property
    def values(self) -> Any:
        return self.flat[: -len(self.names)]

    @property
    def flags(self) -> Any:
        return self.flat[-len(self.names) :]


def _working(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the arithmetic for a bucket of `dtype`."""
    return _SINGLE if dtype == np.float16 else dtype


def _check_bucket(flat: Any, method: str) -> None:
    if flat.dtype not in (np.float16, np.float32, np.float64):
        raise DtypeError(
            f"{method}: a bucket of {flat.dtype} was given; needed: float16, float32 or float64\n"
            "  fix: reduction=None for this model" + call_site()
        )


def _write(bucket: GradientBucket, sums: Sequence[Array]) -> None:
    """Write a sum for each parameter into a bucket."""
    for part, x in zip(vectors_of(bucket), sums, strict=True):
        part[:] = _narrow(x, part.dtype)


@np.errstate(over="ignore")
def _narrow(x: Array, dtype: np.dtype[Any]) -> Array:
    """Round to the dtype of the bucket; what is too large becomes infinite."""
    return x.astype(dtype, copy=False)


def _sent(request: Request, ranks: int) -> float:
    """The bytes that a rank sends for a request, in the mean over the ranks: see `Compression.bytes_sent`."""
    twice = 2 if request.call == "all_reduce" else 1
    return twice * whole_bytes(request, 0, ranks) * (ranks - 1) / ranks


# -- quantisation ------------------------------------------------------------------------------------------------------


class _Cuts(NamedTuple):
    """How the elements of a bucket are divided: into a share per rank, and into blocks that have one scale each.

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


@functools.lru_cache(maxsize=256)
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
        dtype, p, me = _working(bucket.flat.dtype), group.size, group.index
        sizes = tuple(sizes_of(bucket.shapes))
        cuts = _cuts(sizes, p, self._bits, self.block)
        counts, begin, end = cuts.message_bytes, cuts.bounds[me], cuts.bounds[me + 1]
        flags = group.start(Request("all_reduce", bucket.flags))

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
            residual = _difference(given, self._decode(codes, scales, cuts.lengths, given.size, dtype))
        yield exchange

        total = np.zeros(end - begin, dtype) if owed is None else owed
        own_lengths, own_codes = cuts.block_lengths(me), at[me + 1] - at[me]
        for message in split(exchange.wait(), [counts[me]] * p):
            total += self._decode(message[:own_codes], _floats(message[own_codes:]), own_lengths, total.size, dtype)
        codes, scales = self._encode(total, cuts.starts[scale_at[me] : scale_at[me + 1]] - begin, own_lengths)
        gather = group.start(Request("all_gather", np.concatenate([codes, scales.view(np.uint8)]), counts=counts))
        if self.error_feedback:
            error = _difference(total, self._decode(codes, scales, own_lengths, total.size, dtype))
        yield gather

        messages = split(gather.wait(), counts)
        lengths_in_bytes = np.diff(at).tolist()
        codes = np.concatenate([m[:n] for m, n in zip(messages, lengths_in_bytes, strict=True)])
        scales = np.concatenate([_floats(m[n:]) for m, n in zip(messages, lengths_in_bytes, strict=True)])
        delivered = self._decode(codes, scales, cuts.lengths, given.size, dtype)
        yield flags
        bucket.flags[:] = flags.wait()
        total = _difference(delivered, average) / dtype.type(1 - self.momentum) if self.momentum else delivered
        _write(bucket, split(total, sizes))
        new: dict[str, list[Any]] = {}
        if self.error_feedback:
            new["residual"] = split(residual, sizes)
            new["pieces"] = [(start, piece) if piece.size else None for start, piece in _overlaps(error, sizes, begin)]
        if self.momentum:
            new["momentum"] = split(delivered, sizes)
        return new

    def _pieces(self, bucket: GradientBucket, sizes: Sequence[int], begin: int, end: int, dtype: Any) -> Array:
        """What is owed to the sum of this rank's share; pieces of other shares are folded into the residual."""
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
    return np.frombuffer(data.tobytes(), _SINGLE)


@np.errstate(invalid="ignore")
def _difference(a: Array, b: Any) -> Array:
    """``a - b``, silent for infinities, which stay visible in the sums."""
    return a - b


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
        return x.astype(np.float16).view(np.uint8), np.empty(0, _SINGLE)

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
            return np.empty(0, np.uint8), np.empty(0, _SINGLE)
        largest = np.maximum.reduceat(np.abs(x), starts)  # NaN where the block has one
        scales = (largest / 127).astype(_SINGLE)
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
            return np.empty(0, np.uint8), np.empty(0, _SINGLE)
        scales = (np.add.reduceat(np.abs(x), starts) / lengths).astype(_SINGLE)
        return np.packbits(x >= 0), scales

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
        dtype = _working(bucket.flat.dtype)
        average = self.state.join("momentum", bucket, dtype)
        average *= self.momentum
        average += (1 - self.momentum) * gradients_of(bucket, dtype)
        return {"momentum": split(average, sizes_of(bucket.shapes))}


# -- sparsification ----------------------------------------------------------------------------------------------------


class _Sparse(Compression):
    """Methods that send some elements of each parameter, and keep the others as the residual."""

    _addends = ("residual", "velocity")
    error_feedback = True

    def __init__(self, ratio: float, momentum: float, smallest: int, start_step: int):
        name = type(self).__name__
        super().__init__(start_step)
        check_numbers(name, ratio=ratio)
        if not 0 < ratio <= 1:
            raise OptionError(f"{name}: ratio={ratio} was given; needed: above 0 and at most 1" + call_site())
        check_numbers(name, below=1.0, momentum=momentum)
        check_count(name, smallest=smallest)
        self.ratio, self.momentum, self.smallest = float(ratio), float(momentum), smallest

    def count_sent(self, size: int) -> int:
        """How many elements of a parameter of `size` elements are sent; 0 if it is summed exactly."""
        return 0 if size < max(self.smallest, 1) else max(1, round(self.ratio * size))

    def _moved(self, bucket: GradientBucket) -> tuple[list[Array], list[Array]]:
        """For each parameter the velocity, and what is to be sent with the residual in it. Both are new arrays."""
        dtype = _working(bucket.flat.dtype)
        velocities, sums = [], []
        for name, g in zip(bucket.names, vectors_of(bucket), strict=True):
            u = g.astype(dtype)
            if self.momentum:
                u += self.momentum * self.state.get("velocity", name, u.size, dtype)
            velocities.append(u)
            is_sparse = self.count_sent(u.size) and self.error_feedback
            sums.append(u + self.state.get("residual", name, u.size, dtype) if is_sparse else u.copy())
        return velocities, sums

    def _reduce_exactly(self, bucket: GradientBucket, group: Communicator) -> Steps[New]:
        if not self.momentum or group.dry:
            return (yield from super()._reduce_exactly(bucket, group))
        velocities, _ = self._moved(bucket)
        _write(bucket, velocities)
        yield from super()._reduce_exactly(bucket, group)
        return {"velocity": velocities}

    def _new(self, velocities: list[Array], sums: list[Array], chosen: list[Array | None]) -> New:
        """The new state: what was sent is removed from the residual and from the velocity."""
        new: dict[str, list[Any]] = {}
        if self.error_feedback:
            new["residual"] = [None if index is None else x for x, index in zip(sums, chosen, strict=True)]
        if self.momentum:
            new["velocity"] = velocities
        for x, u, index in zip(sums, velocities, chosen, strict=True):
            if index is not None:
                x[index] = 0
                u[index] = 0
        return new


class TopK(_Sparse):
    """Send the elements of largest magnitude of each parameter, with error feedback.

    Each rank chooses its own elements, sends their indices and values to all ranks, and keeps the others for the next
    step. The values are added in order of rank.

    Parameters
    ----------
    ratio : float
        The share of each parameter's elements that is sent: 0.01 for the top 1 %.
    momentum : float
        The factor of *momentum correction*, see the notes. Use it with an optimizer that has no momentum of its own.
    smallest : int
        Parameters of fewer elements are summed exactly.
    start_step : int
        The number of exact reductions before the first compressed one.

    Notes
    -----
    With momentum correction (Lin et al. 2018, Deep Gradient Compression, section 3) rank r accumulates velocities in
    the place of gradients, ``u_r = momentum u_r + g_r`` and ``v_r = v_r + u_r``. It sends the largest elements of v_r,
    and sets those elements of both to zero (*momentum factor masking*). Parameters that are summed exactly, and the
    first `start_step` steps, get the sum of u_r, which is SGD with momentum.

    The bytes grow with the number of ranks p, since each rank's choice differs: they are about ``p * ratio`` of those
    of an all-reduce of float32.

    Examples
    --------
    >>> from parallel import TopK
    >>> TopK(0.01).bytes_sent([(100, 100)], ranks=2)  # (1/2) 2 (100 * 8) + 2 (1/2) 4: indices, values and a flag
    804.0
    """

    def __init__(self, ratio: float = 0.01, momentum: float = 0.0, smallest: int = 1024, start_step: int = 0):
        super().__init__(ratio, momentum, smallest, start_step)

    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        sizes = sizes_of(shapes)
        sent = sum(map(self.count_sent, sizes))
        dense = sum(size for size in sizes if not self.count_sent(size))
        each = sent * (_index_dtype(sum(sizes)).itemsize + dtype.itemsize)
        found = [Request("all_reduce", Shaped((dense + len(shapes),), dtype, DRY))]
        if sent:
            found.append(Request("all_gather", Shaped((each,), np.uint8, DRY), counts=[each] * ranks))
        return found

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        dtype, p = _working(bucket.flat.dtype), group.size
        velocities, sums = self._moved(bucket)
        chosen = [_largest(x, count) if (count := self.count_sent(x.size)) else None for x in sums]
        dense = [x for x, index in zip(sums, chosen, strict=True) if index is None]
        exact = group.start(Request("all_reduce", np.concatenate([*dense, bucket.flags.astype(dtype)])))

        sizes = [x.size for x in sums]
        offsets = np.cumsum([0, *sizes])[:-1].tolist()
        sent = [(index + offset, x[index]) for x, index, offset in zip(sums, chosen, offsets, strict=True)
                if index is not None]  # fmt: skip
        total = np.zeros(sum(sizes), dtype)
        if sent:
            indices = np.concatenate([index for index, _ in sent]).astype(_index_dtype(total.size))
            values = np.concatenate([x for _, x in sent])
            message = np.concatenate([indices.view(np.uint8), values.view(np.uint8)])
            gather = group.start(Request("all_gather", message, counts=[message.size] * p))
            yield gather
            for got in split(gather.wait(), [message.size] * p):
                where = np.frombuffer(got[: indices.nbytes].tobytes(), indices.dtype)
                _add_at(total, where, np.frombuffer(got[indices.nbytes :].tobytes(), dtype))
        yield exact
        *summed, flags = split(exact.wait(), [*(x.size for x in dense), len(sizes)])
        bucket.flags[:] = flags
        exactly = iter(summed)
        _write(bucket, [next(exactly) if index is None else part
                        for part, index in zip(split(total, sizes), chosen, strict=True)])  # fmt: skip
        return self._new(velocities, sums, chosen)


@typed_errors
class RandomK(_Sparse):
    """Send random elements of each parameter, the same on all ranks, with error feedback.

    The ranks draw the same elements from a key of `seed`, the parameter's name and the step, so that only values are
    sent, by one all-reduce. Of each of k nearly equal parts of a parameter one element is drawn, uniformly.

    Parameters
    ----------
    ratio : float
        The share of each parameter's elements that is sent.
    error_feedback : bool
        Whether to keep what was not sent for the next step. If False, an element that is sent is multiplied by the
        length of its part, which makes the sum unbiased, and there is no residual.
    momentum, smallest, start_step
        See `TopK`.
    seed : int
        The same on all ranks.

    Examples
    --------
    >>> from parallel import RandomK
    >>> RandomK(0.01).bytes_sent([(100, 100)], ranks=2)  # 2 (1/2) (100 * 4 + 4): values and a flag
    404.0
    """

    def __init__(
        self, ratio: float = 0.01, error_feedback: bool = True, momentum: float = 0.0, smallest: int = 1024,
        start_step: int = 0, seed: int = 0,
    ):  # fmt: skip
        super().__init__(ratio, momentum, smallest, start_step)
        if momentum and not error_feedback:
            raise OptionError(
                f"RandomK: momentum={momentum} and error_feedback=False were given; needed: error feedback, since "
                "momentum correction accumulates what was not sent" + call_site()
            )
        self.error_feedback, self.key = error_feedback, Key(seed, "random-k")

    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        sent = sum(self.count_sent(size) or size for size in sizes_of(shapes))
        return [Request("all_reduce", Shaped((sent + len(shapes),), dtype, DRY))]

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        dtype = _working(bucket.flat.dtype)
        velocities, sums = self._moved(bucket)
        chosen: list[Any] = []
        parts = []
        for name, x in zip(bucket.names, sums, strict=True):
            count = self.count_sent(x.size)
            index, lengths = self._draw(name, step, x.size, count) if count else (None, np.ones(1, np.int64))
            sent = x if index is None else x[index]
            if index is not None and not np.isfinite(x).all():
                sent[:] = np.nan  # or an element that was not drawn would hide it
            chosen.append(index)
            parts.append(sent if self.error_feedback or index is None else sent * lengths.astype(dtype))
        pending = group.start(Request("all_reduce", np.concatenate([*parts, bucket.flags.astype(dtype)])))
        yield pending

        *summed, flags = split(pending.wait(), [*(part.size for part in parts), len(bucket.names)])
        bucket.flags[:] = flags
        wholes = [part if index is None else np.zeros(x.size, dtype)
                  for part, index, x in zip(summed, chosen, sums, strict=True)]  # fmt: skip
        for whole, index, part in zip(wholes, chosen, summed, strict=True):
            if index is not None:
                whole[index] = part
        _write(bucket, wholes)
        return self._new(velocities, sums, chosen)

    def _draw(self, name: str, step: int, size: int, count: int) -> tuple[Array, Array]:
        """The indices of the elements to send, and the lengths of the parts from which they are drawn."""
        bounds = np.array(even_bounds(size, count))
        lengths = np.diff(bounds)
        # Integers, and not uniform numbers, because a mesh gives those a layout. Their products are below 2^63.
        draws = integers(self.key.fold(name).at(step), count, 0, 2**31)
        return bounds[:-1] + (draws * lengths >> 31), lengths


def _index_dtype(elements: int) -> np.dtype[Any]:
    return np.dtype(np.uint32 if elements <= 2**32 else np.uint64)


def _largest(x: Array, count: int) -> Array:
    """The indices of the `count` elements of largest magnitude, in ascending order. NaN is larger than all."""
    return np.sort(np.argpartition(np.abs(x), x.size - count)[x.size - count :])


@np.errstate(invalid="ignore", over="ignore")
def _add_at(total: Array, index: Array, x: Array) -> None:
    total[index] += x  # no index occurs twice


# -- low rank ----------------------------------------------------------------------------------------------------------


class PowerSGD(Compression):
    """Send each matrix as the product of two thin ones, by one step of power iteration, with error feedback.

    A parameter of several dimensions is a matrix of its first dimension by all others. Vectors, and matrices for which
    `rank` times rows plus columns is no fewer elements than the matrix has, are summed exactly.

    Parameters
    ----------
    rank : int
        The rank of the approximation.
    start_step : int
        The number of exact reductions before the first compressed one.
    seed : int
        The same on all ranks.

    Notes
    -----
    For M_r, the gradient and residual of rank r, and Q, the result of the step before (Vogels, Karimireddy and Jaggi
    2019, algorithms 1 and 2):

    1. P = sum_r M_r orth(Q), one all-reduce; P = orth(P).
    2. Q_r = M_r^T P; Q = sum_r Q_r, one all-reduce.
    3. The sum of the gradients is approximated by P Q^T; the residual of rank r is M_r - P Q_r^T.

    The first Q is random, and so are columns of Q that have become zero, which otherwise would stay zero. Q is made
    orthonormal before it is used, too: its columns have the magnitude of the gradient, and the product would have its
    square, which can underflow.

    Examples
    --------
    >>> from parallel import PowerSGD
    >>> round(PowerSGD(rank=2).compression_ratio([(512, 512), (512,)], ranks=4), 1)
    102.5
    """

    _copies = ("factor",)

    def __init__(self, rank: int = 2, start_step: int = 0, seed: int = 0):
        super().__init__(start_step)
        check_count("PowerSGD", 1, rank=rank)
        self.rank, self.key = rank, Key(seed, "powersgd")

    def factors(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """Rows, columns and rank of the approximation of a parameter; None if it is summed exactly."""
        if len(shape) < 2 or not math.prod(shape):
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        rank = min(self.rank, rows, columns)
        return (rows, columns, rank) if rank * (rows + columns) < rows * columns else None

    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        factors = [sides for shape in shapes if (sides := self.factors(shape))]
        dense = sum(math.prod(shape) for shape in shapes if not self.factors(shape))
        first = sum(r * rows for rows, _, r in factors) + dense + len(shapes)
        found = [Request("all_reduce", Shaped((first,), dtype, DRY))]
        if factors:
            second = sum(r * columns for _, columns, r in factors)
            found.append(Request("all_reduce", Shaped((second,), dtype, DRY)))
        return found

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        dtype, sizes = _working(bucket.flat.dtype), sizes_of(bucket.shapes)
        given = [g.astype(dtype) for g in vectors_of(bucket)]
        factors = [self.factors(shape) for shape in bucket.shapes]
        matrices = {}
        for i, (name, sides) in enumerate(zip(bucket.names, factors, strict=True)):
            if sides:
                given[i] += self.state.get("residual", name, sizes[i], dtype)
                matrices[i] = given[i].reshape(sides[:2])
        left = {i: _product(m, self._start(bucket.names[i], factors[i], step, dtype)) for i, m in matrices.items()}
        dense = [g for i, g in enumerate(given) if i not in matrices]
        flags = bucket.flags.astype(dtype)
        first = np.concatenate([*(p.ravel() for p in left.values()), *dense, flags])
        pending = group.start(Request("all_reduce", first))
        yield pending

        found = split(pending.wait(), [*(p.size for p in left.values()), *(g.size for g in dense), len(given)])
        thin, exactly = found[: len(left)], iter(found[len(left) : -1])
        bucket.flags[:] = found[-1]
        left = {i: orthonormal(p.reshape(left[i].shape)) for i, p in zip(left, thin, strict=True)}
        right = {i: _product(m.T, left[i]) for i, m in matrices.items()}
        sums: list[Array] = [given[i] if i in matrices else next(exactly) for i in range(len(given))]
        new: dict[str, list[Any]] = {"residual": [None] * len(given), "factor": [None] * len(given)}
        if matrices:
            pending = group.start(Request("all_reduce", np.concatenate([q.ravel() for q in right.values()])))
            for i, m in matrices.items():
                new["residual"][i] = _difference(m, _product(left[i], right[i].T)).ravel()
            yield pending
            for i, q in zip(matrices, split(pending.wait(), [q.size for q in right.values()]), strict=True):
                new["factor"][i] = q
                _outer(left[i], q.reshape(right[i].shape), matrices[i])  # the memory of the sum's part of this rank
        _write(bucket, sums)
        return new

    def _start(self, name: str, factors: Any, step: int, dtype: np.dtype[Any]) -> Array:
        """An orthonormal basis of the columns of Q, in which columns of zeros are replaced by random ones."""
        _, columns, rank = factors
        q = self.state.get("factor", name, columns * rank, dtype).reshape(columns, rank)
        lost = ~q.any(axis=0)
        if lost.any():
            draws = integers(self.key.fold(name).at(step), (columns, rank), -(2**31), 2**31)
            q = np.where(lost, draws.astype(dtype), q)
        return orthonormal(q)


@np.errstate(invalid="ignore", over="ignore")
def _product(a: Array, b: Array) -> Array:
    return a @ b


@np.errstate(invalid="ignore", over="ignore")
def _outer(left: Array, right: Array, out: Array) -> None:
    """``out = left @ right.T`` for thin matrices, as a sum of outer products: the same bits on every machine."""
    np.multiply.outer(left[:, 0], right[:, 0], out=out)
    for j in range(1, left.shape[1]):
        out += np.multiply.outer(left[:, j], right[:, j])


@np.errstate(invalid="ignore", over="ignore")
def orthonormal(a: Array) -> Array:
    """Orthonormal columns that span those of `a`, by Gram-Schmidt in float64, with the same bits on every machine.

    A column that depends on the columns before it becomes zero.
    """
    q = np.zeros(a.shape)
    least = 100 * float(np.finfo(a.dtype).eps)
    for j in range(a.shape[1]):
        column = a[:, j].astype(np.float64)
        norm = math.sqrt(_dot(column, column))
        if norm == 0:
            continue
        column /= norm
        for _ in range(2):  # the second pass removes what rounding has left
            for i in range(j):
                column -= _dot(column, q[:, i]) * q[:, i]
        rest = math.sqrt(_dot(column, column))
        if not rest <= least:  # which NaN is not, so that it stays visible
            q[:, j] = column / rest
    return q.astype(a.dtype)


def _dot(a: Array, b: Array) -> float:
    """The dot product, added from the first element to the last one."""
    return float(np.add.accumulate(a * b)[-1])
