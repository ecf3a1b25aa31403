r"""Gradient compression: approximations of the sum of gradients over the ranks that need fewer bytes.

A compression is a *reduction*, which takes the place of the all-reduce of a bucket of gradients (`DataParallel`): it
leaves an approximation of the *sum* in the bucket, with the same bits on all ranks. With p ranks, n elements of s bytes
in a bucket of f parameters, and q = (p-1)/p, a rank sends per reduction, in the mean over the ranks (all_reduce and
all_gather by a ring, all_to_all directly):

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

`docs/guides/data_parallel.md` ("Compression") has error feedback, state, values that are not finite, and equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import move, to_host
from autograd.arrays.pairs import real_dtype
from autograd.arrays.shape_only import Shaped
from autograd.errors import DtypeError, OptionError
from autograd.optim.hyperparameters import check_count
from collectives.transports.protocol import Array, Communicator, Request
from collectives.transports.request import whole_bytes
from collectives.transports.steps import Steps

from .error_feedback import GradientBucket, ParameterState, sizes_of, vectors_of
from .rank_states import of_all_ranks, of_this_rank, sizes_of_mesh

__all__ = ["SINGLE", "Compression", "New", "Shapes", "difference", "working_dtype", "write_sums"]

Shapes = Sequence[tuple[int, ...]]
New = Mapping[str, Sequence[Any]]
"""The new state of a bucket's parameters: by slot, one entry per parameter."""

SINGLE = np.dtype(np.float32)


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
    The arithmetic is done in the dtype of the bucket, and in float32 for float16. A complex gradient of shape s is
    compressed as a real one of shape ``(*s, 2)``.
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
        dtype = np.dtype(dtype)
        if dtype.kind == "c":
            shapes, dtype = _shapes_of_pairs(shapes), real_dtype(dtype)
        requests = self._requests(tuple(shapes), ranks, working_dtype(dtype))
        return sum(_sent(request, ranks) for request in requests)

    def compression_ratio(self, shapes: Shapes, ranks: int, dtype: Any = "float32") -> float:
        """The bytes of an all-reduce of the bucket, divided by those that this sends; 1 on one rank.

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
                "  fix: load_state_dict(state, mesh.axis('dp').group)"
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
                    "parameter\n  fix: the mesh of the run that saved it"
                )
            new = self.state.divided(known["ranks"], math.prod(here.values()))
        return lambda: vars(self.state).update(new)

    def _checked_method(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        state = dict(state_dict)
        method = state.pop("method", None)
        if method != type(self).__name__:
            raise OptionError(
                f"{type(self).__name__}.load_state_dict: the state of {method!r} was given; needed: one of the same "
                "method"
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
            Its dtype is float16, float32 or float64, or complex: then it is compressed as pairs of real numbers. One on
            a GPU is copied to the host, where the codes are made and the residuals are kept, and the sum is copied
            back.
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
            flat, n = to_host(bucket.flat), len(bucket.names)
            staged = _View(flat, bucket.names, bucket.shapes, bucket.offsets, flat[:-n], flat[-n:])
            yield from self.reduce(staged, group)
            bucket.flat[...] = move(staged.flat, bucket.flat)
            return
        if bucket.flat.dtype.kind == "c":  # to real numbers; the flags are the real parts of the last complex ones
            flat, n = bucket.flat.view(real_dtype(bucket.flat.dtype)), len(bucket.names)
            shapes, offsets = _shapes_of_pairs(bucket.shapes), tuple(2 * at for at in bucket.offsets)
            bucket = _View(flat, bucket.names, shapes, offsets, flat[: -2 * n], flat[-2 * n :: 2])
        if not group.dry and bucket.flat.dtype not in (np.float16, np.float32, np.float64):
            raise DtypeError(
                f"{type(self).__name__}: a bucket of {bucket.flat.dtype} was given; needed: float16, float32, float64, "
                "or complex numbers\n  fix: reduction=None for this model"
            )
        self._parts = group.size
        exact = self.is_exact(bucket.names)
        if exact:
            new = yield from self._reduce_exactly(bucket, group)
        elif group.dry:
            for request in self._requests(bucket.shapes, group.size, working_dtype(bucket.flat.dtype), group.index):
                yield group.start(request)
        else:
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


class _View(NamedTuple):
    """A bucket in other memory, or of another dtype."""

    flat: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    values: Any
    flags: Any


def _shapes_of_pairs(shapes: Shapes) -> tuple[tuple[int, ...], ...]:
    return tuple((*shape, 2) for shape in shapes)


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the arithmetic for a bucket of `dtype`."""
    return SINGLE if dtype == np.float16 else dtype


def write_sums(bucket: GradientBucket, sums: Sequence[Array]) -> None:
    """Write a sum for each parameter into a bucket."""
    with np.errstate(over="ignore"):  # what is too large for the dtype of the bucket becomes infinite
        for part, x in zip(vectors_of(bucket), sums, strict=True):
            part[:] = x.astype(part.dtype, copy=False)


def _sent(request: Request, ranks: int) -> float:
    """The bytes that a rank sends for a request, in the mean over the ranks: see `Compression.bytes_sent`."""
    twice = 2 if request.call == "all_reduce" else 1
    return twice * whole_bytes(request, 0, ranks) * (ranks - 1) / ranks


@np.errstate(invalid="ignore")
def difference(a: Array, b: Any) -> Array:
    """``a - b``, silent for infinities, which stay visible in the sums."""
    return a - b
