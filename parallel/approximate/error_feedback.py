"""`ParameterState`, the state of a gradient compression: per parameter, what was not delivered yet.

Error feedback (Seide et al. 2014; Karimireddy et al. 2019) adds what compression left out of one step to the gradient
of the next one. The sum of all that was delivered, plus what is left, is then the sum of all gradients. The state is
kept by the names of the parameters, because their buckets may change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from autograd.errors import OptionError, ShapeError
from collectives.transports.protocol import Array, Communicator, Request

__all__ = ["GradientBucket", "ParameterState", "gradients_of", "sizes_of", "split", "vectors_of"]


class GradientBucket(Protocol):
    """The part of a `Bucket` that a reduction uses: the gradients of some parameters in one array.

    Attributes
    ----------
    flat : array
        The gradients, possibly with zeros between them, and then one flag per parameter: 1 if this rank has used it,
        else 0.
    values, flags : array
        The two parts of `flat`.
    names, shapes, offsets : tuple
        The names and shapes of the parameters, and where their gradients begin.
    """

    @property
    def flat(self) -> Any: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def offsets(self) -> tuple[int, ...]: ...

    @property
    def values(self) -> Any: ...
    @property
    def flags(self) -> Any: ...


def sizes_of(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """The numbers of elements of arrays of these shapes."""
    return [math.prod(shape) for shape in shapes]


def split(flat: Array, sizes: Sequence[int]) -> list[Array]:
    """Views of parts of the given sizes, one after another."""
    parts, end = [], 0
    for size in sizes:
        start, end = end, end + size
        parts.append(flat[start:end])
    return parts


def vectors_of(bucket: GradientBucket) -> list[Any]:
    """Flat views of the gradients in a bucket, without what lies between them."""
    sizes = sizes_of(bucket.shapes)
    return [bucket.flat[start : start + size] for start, size in zip(bucket.offsets, sizes, strict=True)]


def gradients_of(bucket: GradientBucket, dtype: Any) -> Array:
    """A copy of the gradients in a bucket, one immediately after another."""
    return np.concatenate(vectors_of(bucket), dtype=dtype)


class ParameterState:
    """Vectors by parameter name, in *slots*: what a compression keeps between steps.

    Parameters
    ----------
    addends : sequence of str
        Slots of which each rank has an addend, like the residual of error feedback. What counts is the sum over the
        ranks: `state_dict` saves it, and `load_state_dict` gives each of the present ranks an equal part of it. So the
        sum is kept when the number of ranks changes, and with it the promise of error feedback.
    copies : sequence of str
        Slots that are equal on all ranks. They are saved as they are.

    Attributes
    ----------
    slots : dict of str to dict of str to array
        One-dimensional arrays by slot and name. Missing is zero.
    pieces : dict of str to (int, array)
        A further addend of the residual: a rank that sums a part of a parameter for all ranks, and compresses the sum,
        keeps the error of that. Each entry is the start of the part in the parameter and the error.
    steps : dict of str to int
        How often each parameter was reduced.
    compressed : dict of str to bool
        Whether the last reduction of each parameter was a compressed one.
    """

    def __init__(self, addends: Sequence[str] = (), copies: Sequence[str] = ()):
        self._addends, self._copies = tuple(addends), tuple(copies)
        self.slots: dict[str, dict[str, Array]] = {slot: {} for slot in (*addends, *copies)}
        self.pieces: dict[str, tuple[int, Array]] = {}
        self.steps: dict[str, int] = {}
        self.compressed: dict[str, bool] = {}

    def get(self, slot: str, name: str, size: int, dtype: Any) -> Array:
        """The vector of a parameter; zeros where there is none yet. It must not be written to.

        Raises
        ------
        ShapeError
            A vector that was loaded has another size.
        """
        found = self.slots[slot].get(name)
        if found is None:
            return np.zeros(size, dtype)
        if found.size != size:
            raise ShapeError(
                f"compression: the {slot} of {name!r} has {found.size} elements; needed: {size}, as the parameter has\n"
                "  fix: load the state of a run with the same model"
            )
        return found.astype(dtype, copy=False)

    def join(self, slot: str, bucket: GradientBucket, dtype: Any) -> Array:
        """The vectors of a bucket's parameters, one after another, as a new array."""
        sizes = sizes_of(bucket.shapes)
        return np.concatenate([self.get(slot, *named, dtype) for named in zip(bucket.names, sizes, strict=True)])

    def count(self, names: Sequence[str]) -> int:
        """The number of reductions of the parameters: the smallest of their counts."""
        return min((self.steps.get(name, 0) for name in names), default=0)

    def advance(self, names: Sequence[str], compressed: bool) -> None:
        """Count a reduction of the parameters, and note whether it was a compressed one."""
        for name in names:
            self.steps[name] = self.steps.get(name, 0) + 1
            self.compressed[name] = compressed

    def commit(self, bucket: GradientBucket, new: Mapping[str, Sequence[Any]]) -> None:
        """Take over the new vectors of a reduction whose sums are in the bucket.

        A parameter that no rank has used, or whose sum is not finite, keeps its state, as if the reduction had not
        been: the optimizer, or the loss scaler, drops its gradient. So a NaN is seen once and does not stay in the
        residual.

        Parameters
        ----------
        bucket : Bucket
            After the reduction. The values of parameters that no rank has used are set to zero.
        new : dict
            By slot (``pieces`` included), an entry for each parameter of the bucket. None removes the vector.
        """
        used = bucket.flags != 0
        delivered = used & self._are_finite(bucket)
        for i, name in enumerate(bucket.names):
            if not used[i]:
                vectors_of(bucket)[i][:] = 0
            if not delivered[i]:
                continue
            for slot, vectors in new.items():
                kept: Any = self.pieces if slot == "pieces" else self.slots[slot]
                if vectors[i] is None:
                    kept.pop(name, None)
                else:
                    kept[name] = vectors[i]

    @staticmethod
    @np.errstate(invalid="ignore", over="ignore")
    def _are_finite(bucket: GradientBucket) -> Any:
        """For each parameter of a bucket, whether its gradient is finite."""
        if np.isfinite(bucket.values.sum(dtype=np.float64)):  # which is faster than to look at each element
            return np.ones(len(bucket.names), bool)
        return np.array([np.isfinite(part).all() for part in vectors_of(bucket)])

    def fold(self, name: str) -> None:
        """Add a parameter's piece to its residual on this rank, where the piece no longer belongs to this rank."""
        start, piece = self.pieces.pop(name)
        self.slots["residual"][name][start : start + piece.size] += piece

    def own(self) -> dict[str, Any]:
        """A copy of the state of this rank."""
        pieces = {name: [start, piece.copy()] for name, (start, piece) in self.pieces.items()}
        return {"steps": dict(self.steps), "compressed": dict(self.compressed), "pieces": pieces,
                **{slot: {name: x.copy() for name, x in vectors.items()} for slot, vectors in self.slots.items()},
                }  # fmt: skip

    def checked(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that are those of a rank's state.

        Raises
        ------
        OptionError
            Entries are missing or unknown.
        """
        needed = {"steps", "compressed", "pieces", *self.slots}
        if set(own) != needed or not all(isinstance(x, dict) for x in own.values()):
            raise OptionError(
                f"load_state_dict of a compression: {sorted(own)} was given; needed: {sorted(needed)}, the state of "
                "the same method"
            )
        return {
            "steps": {name: int(n) for name, n in own["steps"].items()}, "compressed": dict(own["compressed"]),
            "pieces": {name: (int(start), np.array(piece)) for name, (start, piece) in own["pieces"].items()},
            "slots": {slot: {name: np.array(x) for name, x in own[slot].items()} for slot in self.slots},
        }  # fmt: skip

    def divided(self, owns: Sequence[Mapping[str, Any]], parts: int) -> dict[str, Any]:
        """The state of one of `parts` ranks, given those of all ranks of another mesh: see `addends`."""
        first = self.checked(owns[0])
        for own in map(self.checked, owns[1:]):
            for slot in self._addends:
                for name, x in own["slots"][slot].items():
                    first["slots"][slot][name] = first["slots"][slot].get(name, 0) + x
            first["pieces"] |= {(name, len(first["pieces"])): x for name, x in own["pieces"].items()}
        for name, (start, piece) in first.pop("pieces").items():
            first["slots"]["residual"][name if isinstance(name, str) else name[0]][start : start + piece.size] += piece
        for slot in self._addends:
            first["slots"][slot] = {name: x / x.dtype.type(parts) for name, x in first["slots"][slot].items()}
        return {**first, "pieces": {}}

    def state_dict(self, group: Communicator) -> dict[str, Any]:
        """The state, the same on all ranks. All ranks of the group call it: the addends are summed."""
        group.agree(lambda: "state_dict of a compression")
        found: dict[str, Any] = {"steps": dict(self.steps)}
        for slot, vectors in self.slots.items():
            found[slot] = {}
            for name in sorted(vectors):
                vector = vectors[name].copy()
                if slot == "residual" and name in self.pieces:
                    start, piece = self.pieces[name]
                    vector[start : start + piece.size] += piece
                found[slot][name] = group.run(Request("all_reduce", vector)) if slot in self._addends else vector
        return found

    def load_state_dict(self, state: dict[str, Any], group: Communicator) -> None:
        """Set the state from a `state_dict`, which may be of another number of ranks.

        Raises
        ------
        OptionError
            Entries are missing or unknown.
        """
        if set(state) != {"steps", *self.slots}:
            raise OptionError(
                f"load_state_dict of a compression: {sorted(state)} was given; needed: "
                f"{sorted({'steps', *self.slots})}, the state of the same method"
            )
        self.steps = dict(state["steps"])
        self.pieces, self.compressed = {}, {}
        for slot in self.slots:
            parts = group.size if slot in self._addends else 1
            self.slots[slot] = {name: np.array(vector) / parts for name, vector in state[slot].items()}
