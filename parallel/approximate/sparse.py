"""Compressions that send some elements of a gradient and keep the others as the residual: `TopK`, `RandomK`."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.shape_only import DRY, Shaped
from autograd.errors import OptionError, typed_errors
from autograd.optim.hyperparameters import check_count, check_numbers
from autograd.random import Key, integers
from collectives.transports.protocol import Array, Communicator, Request
from collectives.transports.steps import Steps, even_bounds

from .compression import Compression, New, Shapes, working_dtype, write_sums
from .error_feedback import GradientBucket, sizes_of, split, vectors_of

__all__ = ["RandomK", "TopK"]


class _Sparse(Compression):
    """Methods that send some elements of each parameter, and keep the others as the residual."""

    _addends = ("residual", "velocity")
    error_feedback = True

    def __init__(self, ratio: float, momentum: float, smallest: int, start_step: int):
        name = type(self).__name__
        super().__init__(start_step)
        check_numbers(name, ratio=ratio)
        if not 0 < ratio <= 1:
            raise OptionError(f"{name}: ratio={ratio} was given; needed: above 0 and at most 1")
        check_numbers(name, below=1.0, momentum=momentum)
        check_count(name, smallest=smallest)
        self.ratio, self.momentum, self.smallest = float(ratio), float(momentum), smallest

    def count_sent(self, size: int) -> int:
        """The number of elements that are sent of a parameter of `size` elements; 0 if it is summed exactly."""
        return 0 if size < max(self.smallest, 1) else max(1, round(self.ratio * size))

    def _moved(self, bucket: GradientBucket) -> tuple[list[Array], list[Array]]:
        """For each parameter the velocity, and what is to be sent with the residual in it. Both are new arrays."""
        dtype = working_dtype(bucket.flat.dtype)
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
        write_sums(bucket, velocities)
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
        dtype, p = working_dtype(bucket.flat.dtype), group.size
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
                with np.errstate(invalid="ignore", over="ignore"):
                    total[where] += np.frombuffer(got[indices.nbytes :].tobytes(), dtype)  # no index occurs twice
        yield exact
        *summed, flags = split(exact.wait(), [*(x.size for x in dense), len(sizes)])
        bucket.flags[:] = flags
        exactly = iter(summed)
        write_sums(bucket, [next(exactly) if index is None else part
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
                "momentum correction accumulates what was not sent"
            )
        self.error_feedback, self.key = error_feedback, Key(seed, "random-k")

    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        sent = sum(self.count_sent(size) or size for size in sizes_of(shapes))
        return [Request("all_reduce", Shaped((sent + len(shapes),), dtype, DRY))]

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        dtype = working_dtype(bucket.flat.dtype)
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
        write_sums(bucket, wholes)
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
