"""A vocabulary that is divided over the ranks: the embedding, the logits, and the loss without gathered logits.

| layer | input | table, logits | forward | output |
|---|---|---|---|---|
| embedding | indices, the same on all ranks | Shard(0) | rows of other ranks are zero, all-reduce P -> I | I |
| logits | I or Shard(dim) | Shard(0) | as a column layer | Shard(last) |
| loss | Shard(1), labels the same on all ranks | | largest logit, then sum of exponentials and the label's logit | I |

Source: Shoeybi et al. 2019, *Megatron-LM*, section 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import nn, ops
from autograd.arrays.shape_only import Shaped
from autograd.engine.parameter import Parameter
from autograd.engine.state import no_grad
from autograd.engine.tensor import Tensor
from autograd.errors import DtypeError, LayoutError, OptionError, ShapeError, call_site
from autograd.layouts.layout import I, R, Shard, V
from autograd.layouts.messages import describe
from collectives import all_max, all_reduce, cast, declare_partial
from collectives.ops.arguments import to_tensor

from ..plan import Shards
from .layers import check_to, entered, reduced, require

__all__ = ["Vocabulary", "VocabularyEmbedding", "VocabularyLogits", "VocabularyLoss"]


class VocabularyEmbedding(nn.Module):
    """Indices -> I or Shard(dim): an embedding of which each rank has a part of the rows. Made by `Vocabulary`."""

    def __init__(self, weight: Parameter, axis: str, to: Any = I):
        self.weight, self.axis, self.output = weight, axis, to

    def forward(self, input: Any) -> Tensor:
        weight, axis = self.weight, self.axis
        index = to_tensor(input, "Vocabulary")
        array, layout = index.array, index.layout
        label: Any = weight.layout[axis] if weight.layout is not None else None
        if array.dtype.kind not in "iu":
            raise DtypeError(f"Vocabulary: indices of dtype {array.dtype}; needed: integers" + call_site())
        if type(array) is not Shaped and array.size and not 0 <= array.min() <= array.max() < label.extent:
            raise ShapeError(
                f"Vocabulary: indices from {array.min()} to {array.max()} were given for {label.extent} rows; needed: "
                f"indices in 0..{label.extent - 1}" + call_site()
            )
        divided = None if layout is None else layout[axis]
        if isinstance(divided, Shard):
            raise LayoutError(
                f"Vocabulary: the indices are {describe(array, array.shape, layout)}\n  axis {axis!r}: needed: the "
                f"same indices on all ranks, which each look up their own rows\n  fix: cc.all_gather(x, {axis!r}, "
                f"dim={divided.dim})" + call_site()
            )
        own = None if layout is None else layout.replace((axis,), V)
        mine, place = own_rows(array, label, weight.array.shape[0])
        rows = ops.take_rows(cast(weight, axis, to=V), Tensor(place, own))
        kept = rows * Tensor(mine.astype(weight.array.dtype)[..., None], own)
        return reduced(declare_partial(kept, axis), axis, self.output)


def own_rows(index: Any, label: Any, rows: int) -> tuple[Any, Any]:
    """Whether each index is one of this rank's rows, and its place among them (0 where it is not)."""
    place = index - label.offset
    mine = (place >= 0) & (place < rows)
    return mine, place * mine


class VocabularyLogits(nn.Module):
    """I or Shard(dim) -> Shard(last): the logits of which each rank has a part. Made by `Vocabulary`."""

    def __init__(self, weight: Parameter, axis: str):
        self.weight, self.axis = weight, axis

    def stores_transposed(self, attribute: str) -> bool:
        return False

    def forward(self, input: Any) -> Tensor:
        return entered(input, self.axis, "Vocabulary") @ ops.swapaxes(self.weight, 0, 1)


class VocabularyLoss(nn.Module):
    """Logits Shard(1) and labels -> I: `nn.cross_entropy` of logits that are divided by classes. Made by `Vocabulary`.

    With z the logits minus the largest one of all ranks: ``log(sum_r sum exp(z_r)) - z[label]``. Forward the ranks
    exchange the largest logit of each row, and then two numbers of each row are summed; backward sends nothing.
    """

    def __init__(self, axis: str, ignore_index: int, reduction: str, label_smoothing: float):
        self.axis = axis
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Any, target: Any) -> Tensor:
        x, labels = to_tensor(input, "Vocabulary"), to_tensor(target, "Vocabulary")
        layout, axis = x.layout, self.axis
        label = None if layout is None else layout[axis]
        if x.array.ndim != 2 or labels.array.shape != x.array.shape[:1]:
            raise ShapeError(
                f"Vocabulary: logits of shape {x.array.shape} and labels of shape {labels.array.shape}; needed: "
                "[n, classes] and [n]" + call_site()
            )
        if layout is None or not isinstance(label, Shard) or label.dim != 1 or label.extent is None:
            raise LayoutError(
                f"Vocabulary: the logits are {describe(x.array, x.array.shape, layout)}\n  axis {axis!r}: needed: "
                f"Shard(1), the logits of a divided layer\n  fix: Vocabulary({axis!r}), or Column({axis!r}), for the "
                "layer that computes the logits" + call_site()
            )
        array = labels.array
        counted = array != self.ignore_index
        if type(array) is not Shaped:
            wrong = counted & ((array < 0) | (array >= label.extent))
            if wrong.any():
                raise ShapeError(
                    f"Vocabulary: the label {array[wrong][0]} was given for {label.extent} classes; needed: labels in "
                    f"0..{label.extent - 1}, or ignore_index={self.ignore_index}" + call_site()
                )
        with no_grad():
            top = all_max(Tensor(np.max(x.array, axis=1, keepdims=True), layout.replace((axis,), V)), axis, to=R)
        z = x - Tensor(top.array, top.layout)
        mine, place = own_rows(array, label, x.array.shape[1])
        chosen = np.zeros_like(x.array)
        if type(chosen) is not Shaped:
            chosen[np.arange(len(place)), place] = mine
        addends = [ops.sum(ops.exp(z), 1), ops.sum(z * Tensor(chosen, layout), 1)]
        if self.label_smoothing:
            addends.append(ops.sum(z, 1))
        total = all_reduce(ops.stack(addends), axis, to=I)
        log = ops.log(total[0])
        losses = log - total[1]
        if self.label_smoothing:
            s = self.label_smoothing
            losses = losses * (1 - s) + (log - total[2] / label.extent) * s
        is_whole = type(array) is Shaped or bool(counted.all())
        if self.reduction == "mean" and is_whole:
            return ops.mean(losses)
        if self.reduction == "mean":
            raise OptionError(
                f"Vocabulary: reduction='mean', and some labels are ignore_index={self.ignore_index}\n  fix: "
                "reduction='sum', divided by the global number of the other labels" + call_site()
            )
        if not is_whole:
            losses = losses * Tensor(counted.astype(x.array.dtype), losses.layout)
        return ops.sum(losses) if self.reduction == "sum" else losses


class Vocabulary:
    """A style: the vocabulary is divided along `axis`, in an embedding, in the logits, and in the loss.

    It divides `nn.Embedding`, `nn.TiedLinear` and `nn.CrossEntropyLoss`. The last linear layer of a model without tied
    weights gets `Column`.

    Parameters
    ----------
    axis : str
    to : I or Shard
        The label of an embedding's output: I, or ``Shard(1)`` for sequence parallelism.
    """

    def __init__(self, axis: str, to: Any = I):
        self.axis, self.to = axis, check_to(to, "Vocabulary")

    def __repr__(self) -> str:
        return f"Vocabulary({self.axis!r}{'' if self.to is I else f', to={self.to!r}'})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        require(module, (nn.Embedding, nn.TiedLinear, nn.CrossEntropyLoss), self, path)
        if isinstance(module, nn.Embedding):
            if module.padding_idx is not None:
                raise OptionError(
                    f"parallelize: {path!r} is an embedding with padding_idx={module.padding_idx}, which Vocabulary "
                    "does not divide; needed: padding_idx=None" + call_site()
                )
            return VocabularyEmbedding(shards.divide(module.weight, self.axis, 0), self.axis, self.to)
        if isinstance(module, nn.TiedLinear):
            return VocabularyLogits(shards.divide(module.weight, self.axis, 0), self.axis)
        assert isinstance(module, nn.CrossEntropyLoss)
        if module.weight is not None:
            raise OptionError(
                f"parallelize: {path!r} has weights of classes, which Vocabulary does not take; needed: weight=None"
                + call_site()
            )
        return VocabularyLoss(self.axis, module.ignore_index, module.reduction, module.label_smoothing)
