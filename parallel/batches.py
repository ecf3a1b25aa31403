"""The division of a whole batch among the ranks of a mesh: into microbatches, rows and tokens; for `Trainer`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import autograd as ag
from autograd import nn
from autograd.arrays.device import as_array
from autograd.errors import ShapeError
from autograd.layouts.layout import I, Label, Shard, V
from collectives import Mesh, cast, declare_partial
from collectives.checks.sanitizer import digest_of

from .context.order import zigzag_draws, zigzag_pieces
from .expert.side_losses import side_losses
from .pipeline import Microbatches

__all__ = ["Batches"]


@dataclass(frozen=True)
class Batches:
    """The division of each batch among the ranks of a mesh.

    Parameters
    ----------
    mesh : Mesh
    rows : tuple of str
        The axes along which rows are divided.
    sequence : str or None
        The axis along which tokens are divided.
    stages : str or None
        The axis of the stages, each of which gets the whole batch, for its first and its last layer.
    is_zigzag : bool
        Whether a rank has the tokens of two pieces of the sequence; see `context.order`.
    microbatches : int
    device : str or None
        Where the ranks' parts are; None for where the batch is.
    """

    mesh: Mesh
    rows: tuple[str, ...]
    sequence: str | None
    stages: str | None
    is_zigzag: bool
    microbatches: int
    device: str | None

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that divide rows or tokens, in the order of the mesh."""
        return tuple(a for a in self.mesh.names if a in self.rows or a == self.sequence)

    @property
    def number_of_stages(self) -> int:
        """The number of ranks along the axis of the stages; 1 without it."""
        return 1 if self.stages is None else self.mesh.axis(self.stages).size

    def share(self, array: Any) -> Microbatches:
        """This rank's parts of the microbatches of a whole batch; see `Trainer.share`."""
        return Microbatches(self._part(rows) for rows in np.array_split(self.whole(array), self.microbatches))

    def whole(self, array: Any) -> Any:
        """A whole batch as an array with enough rows, and tokens if they are divided."""
        array = as_array(array)
        if array.ndim < (1 if self.sequence is None else 2) or len(array) < self.microbatches:
            raise ShapeError(
                f"Trainer: a batch of shape {array.shape} was given; needed: at least {self.microbatches} rows, one "
                f"for each microbatch{'' if self.sequence is None else ', of tokens'}"
            )
        return array

    def _part(self, rows: Any) -> Any:
        mesh, labels = self.mesh, dict[str, Label]()
        shape = list(rows.shape)
        part = rows
        for axis, size, at in zip(mesh.names, mesh.sizes, mesh.place, strict=True):
            if axis in self.rows:
                part = np.array_split(part, size)[int(at)]
                labels[axis] = Shard(0)
            elif axis != self.sequence:
                labels[axis] = V if axis == self.stages else I
        if self.sequence is not None:
            on = mesh.axis(self.sequence)
            if self.is_zigzag:
                pieces = zigzag_pieces(part.shape[1], int(on.rank), on.size)
                part = np.concatenate([part[:, piece] for piece in pieces], axis=1)
                shape[1] = part.shape[1]
                labels[self.sequence] = V
            else:
                part = np.array_split(part, on.size, axis=1)[int(on.rank)]
                labels[self.sequence] = Shard(1)
        part = part if part.flags.c_contiguous else part.copy()
        return ag.tensor(part, labels, global_shape=shape, device=self.device)

    def compare(self, inputs: Any, targets: Any) -> None:
        """Compare the batch between the ranks, each of which takes its part of it, while calls are compared."""

        def call() -> str:
            x, y = map(as_array, (inputs, targets))
            return (
                f"Trainer: the whole batch, the same on all ranks: inputs {x.dtype}{list(x.shape)} with digest "
                f"{digest_of(x):08x}, targets {y.dtype}{list(y.shape)} with digest {digest_of(y):08x}"
            )

        self.mesh.ranks.agree(call)

    @contextmanager
    def draws(self, inputs: Any) -> Iterator[None]:
        """Random draws for the tokens of this rank, where they are in zigzag order."""
        if not self.is_zigzag or self.sequence is None:
            yield
            return
        with zigzag_draws(self.sequence, as_array(inputs).shape[1]):
            yield

    @contextmanager
    def side_losses(self) -> Iterator[Any]:
        """A collector of side losses. Like the loss, they are addends of the sums over the whole sequence."""
        axis = self.sequence
        with side_losses() as found:
            yield found if axis is None else (_addend(loss, axis) for loss in found)  # read when the layers have run

    def addend(self, loss: nn.Module) -> nn.Module:
        """The loss of this rank's tokens, an addend of the loss of the whole sequence, if tokens are divided."""
        return loss if self.sequence is None else _Addend(loss, self.sequence)


class _Addend(nn.Module):
    """The loss of this rank's tokens, an addend of the loss of the whole sequence.

    The loss may merge rows and tokens, so the tokens are not Shard for it, but Varying.
    """

    def __init__(self, loss: nn.Module, axis: str):
        self.loss, self.axis = loss, axis

    def forward(self, *args: Any) -> Any:
        return _addend(self.loss(*(cast(x, self.axis, to=V) for x in args)), self.axis)


def _addend(loss: Any, axis: str) -> Any:
    """A sum over this rank's tokens, as an addend of the sum over all: V -> P."""
    return declare_partial(loss, axis) if loss.layout[axis] is V else loss
