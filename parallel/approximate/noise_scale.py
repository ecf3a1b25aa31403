r"""The gradient noise scale: the batch size up to which a larger batch pays.

The gradient of one example has the mean G, the gradient of the loss, and a covariance. Its trace is S. The mean of B
examples then has the expected squared norm ``|G|^2 + S / B``. The *simple noise scale* is ``B_noise = S / |G|^2``: at
this batch size noise and gradient are equally large. A step with batch B makes about ``1 / (1 + B_noise / B)`` of the
progress of a step with the exact gradient. So ``1 + B_noise / B`` times as many steps are needed, and
``1 + B / B_noise`` times as many examples.

Two batch sizes are enough to estimate both numbers, and data parallelism has two: the rows of a rank, before the sum of
the gradients, and the global batch, after it.

Source: McCandlish, Kaplan, Amodei & OpenAI Dota Team 2018 (arXiv 1812.06162), sections 2.2 and 2.3 and appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np

from autograd.arrays.capture import refuse_recorded
from autograd.arrays.shape_only import Shaped
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, LayoutError, OptionError, ShapeError, typed_errors
from autograd.layouts.rank_values import rank_axes
from autograd.optim.hyperparameters import check_count, check_numbers
from autograd.optim.norms import local_norm
from collectives.transports.protocol import Communicator, Request
from collectives.transports.steps import Steps

from ..data.buckets import Bucket, Reduction
from .rank_states import of_all_ranks, of_this_rank, sizes_of_mesh

__all__ = ["NoiseScale", "gradient_noise_scale"]


@typed_errors
def gradient_noise_scale(
    small_norms_sq: float | Sequence[float],
    small_batches: int | Sequence[int],
    big_norm_sq: float,
    big_batch: int,
) -> tuple[float, float]:
    """Estimate ``|G|^2`` and S, the trace of the covariance of one example's gradient, from batches of two sizes.

    Parameters
    ----------
    small_norms_sq : float or sequence of float
        Squared norms of the mean gradients of small batches.
    small_batches : int or sequence of int
        The number of examples in each of them.
    big_norm_sq : float
        Squared norm of the mean gradient of a big batch, such as all small ones together.
    big_batch : int

    Returns
    -------
    gradient_sq, variance : float
        Unbiased estimates of ``|G|^2`` and S; their ratio ``S / |G|^2`` is the noise scale. One estimate is noisy, and
        either may be negative. The ratio of two noisy numbers is biased, so average each over many steps, and then
        divide: see `NoiseScale`.

    Raises
    ------
    OptionError
        A number is out of range, or the small batches are not smaller than the big one.
    ShapeError
        There are not as many norms as batches, or none.

    Notes
    -----
    With small batches of sizes b_i, ``sum(b_i |g_i|^2) / sum(b_i)`` has the mean ``|G|^2 + S / b`` with
    ``b = mean(b_i)``, so unequal sizes give unbiased estimates, too. With B the big batch::

        gradient_sq = (B |g_B|^2 - b |g_b|^2) / (B - b)
        variance    = (|g_b|^2 - |g_B|^2) / (1 / b - 1 / B)

    Source: McCandlish et al. 2018, appendix A.1, equations A.2 and A.3, which have equal small batches.

    Examples
    --------
    A gradient with ``|G|^2 = 4`` and S = 120, if the squared norms are their means:

    >>> from parallel import gradient_noise_scale
    >>> gradient_noise_scale([4 + 120 / 10, 4 + 120 / 30], [10, 30], 4 + 120 / 40, 40)
    (4.0, 120.0)
    """
    norms = [small_norms_sq] if isinstance(small_norms_sq, int | float | np.number) else list(small_norms_sq)
    batches = [small_batches] if isinstance(small_batches, int | np.integer) else list(small_batches)
    if not norms or len(norms) != len(batches):
        raise ShapeError(
            f"gradient_noise_scale: {len(norms)} norms and {len(batches)} small batches were given; needed: as many"
        )
    check_numbers("gradient_noise_scale", big_norm_sq=big_norm_sq)
    check_count("gradient_noise_scale", 1, big_batch=big_batch)
    for norm, batch in zip(norms, batches, strict=True):
        check_numbers("gradient_noise_scale", small_norms_sq=norm)
        check_count("gradient_noise_scale", 1, small_batches=batch)
    b = sum(batches) / len(batches)
    if not b < big_batch:
        raise OptionError(
            f"gradient_noise_scale: small batches of {b:g} examples and a big one of {big_batch} were given; needed: "
            "smaller ones than the big one\n  fix: the gradients of single ranks, or of microbatches"
        )
    small = math.fsum(n * k for n, k in zip(norms, batches, strict=True)) / sum(batches)
    return _estimates(small, b, float(big_norm_sq), big_batch)


def _estimates(small: float, b: float, big: float, n: float) -> tuple[float, float]:
    return (n * big - b * small) / (n - b), (small - big) / (1 / b - 1 / n)


@typed_errors
class NoiseScale:
    """A reduction of gradients that measures their noise scale; the sum is that of the reduction that it wraps.

    Give it to `DataParallel` and call `update` after each backward pass.

    Parameters
    ----------
    reduction : Reduction, optional
        How a bucket is summed. By default exactly, by an all-reduce.
    decay : float
        Of the exponential moving averages of the two estimates, per update. The first updates count fully.

    Attributes
    ----------
    gradient_sq, variance : float
        The averages of the estimates of ``|G|^2`` and S; NaN before the first update.

    Notes
    -----
    The loss of the global batch is divided by its N rows, so the gradient of a rank, before the sum, is
    ``l_r = (b_r / N) g_r``: ``g_r``, the mean over its ``b_r`` rows, times its share of the rows. Therefore
    ``|g_r|^2 = (N / b_r)^2 |l_r|^2``. After the sum it is the mean over the global batch. A loss that is multiplied by
    a constant, such as a sum over the rows, changes both estimates by one factor, and not their ratio.

    All gradients of the axis's entry count, those that this rank holds: if parameters are sharded along another axis,
    the estimate is that of the parts, and each rank of that axis has its own.

    An update sends 4 numbers by an all-reduce. A bucket with a reduction lies outside of shared memory, so the sums on
    one host are slower than without. An update is left out where fewer than two ranks have rows, as on one process, and
    where gradients are not finite. Source: McCandlish et al. 2018, appendix A.1.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import nn
    >>> from parallel import DataParallel
    >>> from parallel import NoiseScale
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         noise = NoiseScale()
    ...         model = DataParallel(nn.Linear(1, 1, bias=False), "dp", reduction=noise)
    ...         x = cc.from_local(numpy.full((1, 1), 1.0 + mesh.axis("dp").rank, "float32"), {"dp": cc.Shard(0)})
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_reduce(model(x).sum() / 2, "dp", to=cc.I)
    ...         tape.backward(loss)
    ...         noise.update(x.shape[0], x.global_shape[0])
    ...         return noise.gradient_sq, noise.variance, noise.value
    >>> cc.run(program, ranks=2)[0]
    (2.0, 0.5, 0.25)
    """

    def __init__(self, reduction: Reduction | None = None, decay: float = 0.95):
        check_numbers("NoiseScale", below=1.0, decay=decay)
        if reduction is not None and not hasattr(reduction, "reduce"):
            raise ArgumentError(
                f"NoiseScale: reduction={reduction!r} was given; needed: an object with reduce(bucket, group), or None"
            )
        self.reduction, self.decay = reduction, decay
        self._sums = np.zeros(2)  # of the estimates, exponentially weighted
        self._weight = 0.0
        self._norms: dict[tuple[int, int], tuple[float, float]] = {}  # of each bucket, before and after the sum
        self._group: Communicator | None = None

    def reduce(self, bucket: Bucket, group: Communicator) -> Steps[None]:
        """Sum a bucket over the ranks, and measure its norms before and after; see `Reduction`."""
        local = _norm_sq(bucket.values)
        if self.reduction is None:
            pending = group.start(Request("all_reduce", bucket.flat, out=bucket.flat))
            yield pending
            pending.wait()
        else:
            yield from self.reduction.reduce(bucket, group)
        self._group = group
        self._norms[id(group), bucket.index] = local, _norm_sq(bucket.values)

    @property
    def gradient_sq(self) -> float:
        return float(self._sums[0] / self._weight) if self._weight else math.nan

    @property
    def variance(self) -> float:
        return float(self._sums[1] / self._weight) if self._weight else math.nan

    @property
    def value(self) -> float:
        """The noise scale ``S / |G|^2``, in examples; infinite while the estimate of ``|G|^2`` is not positive."""
        g, s = self.gradient_sq, self.variance
        return math.nan if math.isnan(g) else s / g if g > 0 else math.inf

    def update(self, rows: int, global_rows: int, *, loss_scale: float = 1.0) -> None:
        """Add the estimates of the latest backward pass to the averages. All ranks of the axis call it.

        Parameters
        ----------
        rows : int
            The rows of this rank, ``x.shape[0]``; 0 where it has none. With `DataParallel.accumulate`, those of all
            microbatches.
        global_rows : int
            Those of all ranks, ``x.global_shape[0]``, by which the loss was divided.
        loss_scale : float
            A factor of the loss, as in mixed precision; the same on all ranks.

        Raises
        ------
        OptionError
            The rows of the ranks do not add up to `global_rows`, or no gradients were summed since the last update.
        LayoutError
            `global_rows` depends on the rank.
        """
        refuse_recorded("NoiseScale.update")
        if axes := rank_axes(global_rows):
            raise LayoutError(
                f"NoiseScale.update(global_rows={global_rows!r})\n  axis {min(axes)!r}: it depends on the rank; "
                "needed: the rows of all ranks\n  fix: x.global_shape[0]"
            )
        rows = index(rows)
        check_count("NoiseScale.update", rows=rows, global_rows=global_rows)
        check_numbers("NoiseScale.update", loss_scale=loss_scale)
        n, group = int(global_rows), self._group
        norms, self._norms = list(self._norms.values()), {}
        mesh = state.mesh
        if group is None and (mesh is None or 1 in mesh.sizes):  # along an axis of one rank nothing is summed
            return
        if group is None or not norms:
            raise OptionError(
                "NoiseScale.update: no gradients were summed since the last update\n  fix: "
                "DataParallel(model, axis, reduction=noise), and update after backward; with model.accumulate(), after "
                "the block"
            )
        if group.size == 1:
            return
        local, total = (math.fsum(each) for each in zip(*norms, strict=True))
        mine = np.array([local * n / rows if rows else 0.0, rows > 0, rows, total])
        group.agree(lambda: "NoiseScale.update")
        small, count, found, total = group.run(Request("all_reduce", mine)).tolist()
        if group.dry:
            return
        if found != n:
            raise OptionError(
                f"NoiseScale.update: global_rows={n} was given, and the ranks have {found:g} rows together\n  fix: "
                "update(x.shape[0], x.global_shape[0])"
            )
        if count > 1 and math.isfinite(small) and math.isfinite(total):
            pair = _estimates(small, n / count, total / group.size, n)
            self._sums = self.decay * self._sums + (1 - self.decay) * np.array(pair) / loss_scale**2
            self._weight = self.decay * self._weight + (1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, and the state of the reduction that it wraps, the same on all ranks.

        On a mesh with ranks along several axes all of them call it: the averages may differ, and are those of all.
        """
        found: dict[str, Any] = {"sums": self._sums.tolist(), "weight": self._weight}
        if sum(n > 1 for n in sizes_of_mesh().values()) > 1 and self._weight:
            found = of_all_ranks(found, "NoiseScale.state_dict")
        wrapped: Any = self.reduction
        if hasattr(wrapped, "state_dict"):
            found["reduction"] = wrapped.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the averages from a `state_dict`.

        Raises
        ------
        OptionError
            Entries are missing or unknown, or the state is one of another mesh.
        """
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        known, caller = dict(state_dict), "NoiseScale.load_state_dict"
        of_reduction = known.pop("reduction", None)
        if "ranks" in known:
            given, known = known["mesh"], of_this_rank(known, caller)
            if known is None:
                raise OptionError(
                    f"{caller}: the state is that of a mesh {given}, and the mesh is {sizes_of_mesh()}; needed: the "
                    "same, as the averages may be those of parts"
                )
        if set(known) != {"sums", "weight"}:
            raise OptionError(f"{caller}: {sorted(known)} was given; needed: ['sums', 'weight']")
        new = {"_sums": np.array(known["sums"], float), "_weight": float(known["weight"])}
        wrapped: Any = self.reduction
        commit: Callable[[], None] | None = None
        if of_reduction is not None and hasattr(wrapped, "prepare_state_dict"):
            commit = wrapped.prepare_state_dict(of_reduction)
        elif of_reduction is not None and hasattr(wrapped, "load_state_dict"):
            commit = partial(wrapped.load_state_dict, of_reduction)

        def both() -> None:
            if commit is not None:
                commit()
            vars(self).update(new)

        return both

    def __repr__(self) -> str:
        return f"NoiseScale(value={self.value:.4g}, gradient_sq={self.gradient_sq:.4g}, variance={self.variance:.4g})"


def _norm_sq(values: Any) -> float:
    return 0.0 if type(values) is Shaped else local_norm([Tensor(values)]) ** 2
