"""A vocabulary divided over the ranks: embedding, tied head and cross-entropy, and their style `Vocabulary`.

Each rank has some rows of the table. It looks up the tokens of its own rows, and the sum over the ranks is the
embedding. The head gives the logits of its own rows, which are never gathered: cross-entropy needs two numbers per
token from each rank, the logarithm of the sum of its exponentials and the logit of the label, if it has that.

    L_r = logsumexp(x_r),   t_r = x_r[label] or 0,   loss = logsumexp_r(L_r) - sum_r t_r

All ranks gather these numbers and compute the same loss. So backward sends nothing:

    dx_r = ct (exp(x_r) / sum exp(x) - one_hot_r(label))

Source: Shoeybi et al. 2019, *Megatron-LM*, section 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import collectives as cc
from autograd import nn, ops
from autograd.arrays.capture import checked, decided, recorded
from autograd.arrays.shape_only import Shaped
from autograd.engine.leaves import Parameter
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, DtypeError, LayoutError, OptionError, ShapeError, typed_errors
from autograd.layouts.layout import C, D, I, Label, R, Shard, V
from autograd.layouts.messages import describe
from autograd.nn.arguments import number
from autograd.ops.nn.cross_entropy import IGNORED, as_rows, class_terms, mean_of_targets
from autograd.ops.nn.embedding import require_range, take_own_rows
from autograd.random.keys import integer
from collectives.ops.arguments import operand
from collectives.ops.parts import ALL_GATHER

from ..plan import Shards
from .layers import Column
from .regions import axis_name, destination, enter, is_alone, leave

__all__ = [
    "Vocabulary", "VocabularyCrossEntropy", "VocabularyEmbedding", "VocabularyLinear", "vocabulary_cross_entropy",
]  # fmt: skip


@typed_errors
class VocabularyEmbedding(nn.Module):
    """C, I or R -> I or Shard(tokens): the rows of a table at indices, with this rank's rows of the table.

    Parameters
    ----------
    weight : Parameter, [rows, width] Shard(0)
    axis : str
    to : I or Shard
        The label of the output.
    padding_idx : int, optional
        As in `nn.Embedding`.

    Notes
    -----
    One all-reduce of the output, or with ``to=Shard(1)`` one reduce-scatter; backward nothing, or one all-gather. Each
    rank adds the rows that it has and zeros for the others.
    """

    def __init__(self, weight: Parameter, axis: str, to: Label = I, padding_idx: int | None = None):
        self.weight, self.axis, self.output_label, self.padding_idx = weight, axis, to, padding_idx

    def forward(self, input: Any) -> Tensor:
        """Return the rows, ``[*input.shape, width]``, of indices of the whole table.

        Raises
        ------
        LayoutError
            The ranks of the axis may hold different indices.
        DtypeError, ShapeError
            The indices are not integers of rows of the table.
        """
        if is_alone(self.weight):
            return nn.embedding(input, self.weight, self.padding_idx)
        index = same_integers(input, self.axis, "VocabularyEmbedding", "indices")
        extent, offset = _whole(self.weight, self.axis)
        if isinstance(index.array, np.ndarray):
            checked(require_range, index.array, int(extent), "VocabularyEmbedding: indices")
        at = _own_index(index, self.axis, offset, self.weight.array.shape[0])
        found = take_own_rows(cc.cast(self.weight, self.axis, to=V), at)
        if self.padding_idx is not None:
            padding = ops.reshape(at == self.padding_idx - offset, (*at.shape, 1))
            found = ops.where(padding, ops.stop_gradient(found), found)
        return leave(cc.declare_partial(found, self.axis), self.axis, self.output_label)

    def extra_repr(self) -> str:
        return f"{_shown(self.weight, self.axis)}, to={self.output_label!r}"


@typed_errors
class VocabularyLinear(nn.Module):
    """I or Shard(tokens) -> Shard(last): the logits ``x @ weight.T`` of this rank's rows of a table.

    Parameters
    ----------
    weight : Parameter, [rows, width] Shard(0)
        That of the embedding, a tied weight.
    axis : str

    Notes
    -----
    Forward nothing is sent (or one all-gather of the input), backward one all-reduce of the input (or one
    reduce-scatter).
    """

    def __init__(self, weight: Parameter, axis: str):
        self.weight, self.axis = weight, axis

    def forward(self, input: Any) -> Tensor:
        x = input if is_alone(self.weight) else enter(input, self.axis, "VocabularyLinear")
        y: Tensor = x @ ops.swapaxes(self.weight, 0, 1)
        return y

    def extra_repr(self) -> str:
        return _shown(self.weight, self.axis)


@typed_errors
class VocabularyCrossEntropy(nn.Module):
    """`vocabulary_cross_entropy` as a module.

    Parameters
    ----------
    axis : str
    ignore_index, reduction, label_smoothing
        As in `nn.CrossEntropyLoss`.
    """

    def __init__(
        self, axis: str, *, ignore_index: int = IGNORED, reduction: str = "mean", label_smoothing: float = 0.0
    ):
        self.axis, self.ignore_index, self.reduction = axis, ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Any, target: Any) -> Tensor:
        options: Any = {
            "ignore_index": self.ignore_index, "reduction": self.reduction, "label_smoothing": self.label_smoothing
        }  # fmt: skip
        if state.grid is None and getattr(input, "layout", None) is None:  # as in the serial run of `verify`
            return nn.cross_entropy(input, target, **options)
        return vocabulary_cross_entropy(input, target, self.axis, **options)


@typed_errors
def vocabulary_cross_entropy(
    input: Any, target: Any, axis: str, *, ignore_index: int = IGNORED, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Shard(1) -> I: cross-entropy of logits of which each rank has those of some classes.

    Formula: ``loss = logsumexp(x) - x[label]`` of each row x of the whole logits. Adjoint: ``ct (softmax(x) -
    one_hot(label))``, of which each rank computes its own part (I -> Shard(1)); nothing is sent.

    Parameters
    ----------
    input : Tensor, [n, classes] Shard(1)
        Logits. On other axes the rows may be sharded.
    target : Tensor of int, [n]
        Labels, numbers of the whole vocabulary; the same on all ranks of the axis.
    axis : str
    ignore_index : int
        Rows with this label have no loss and are not counted in a mean.
    reduction : {"mean", "sum", "none"}
    label_smoothing : float
        The part of each label's probability that is spread evenly over all classes.

    Returns
    -------
    Tensor
        I on the axis: one number, or with "none" a loss for each row. A sum or mean over rows that other axes divide is
        Partial there.

    Raises
    ------
    LayoutError
        The logits are not Shard of the classes (gathered ones need `nn.cross_entropy`), or the labels may differ
        between the ranks of the axis; or a mean over sharded rows, some of which are ignored.
    ShapeError
        The shapes do not fit, or a label is out of range.
    DtypeError
        The labels are not integers.
    OptionError
        `reduction` or `label_smoothing` is not allowed.

    Notes
    -----
    One all-gather of two numbers per row and rank: ``2 n (p-1)`` numbers received. The result is the same for any
    number of ranks but for rounding, and exact where the ranks have equal or different numbers of classes, or none.
    Differentiable to any order. Sources: Shoeybi et al. 2019, section 3; Szegedy et al. 2016, section 7 (smoothing).

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from parallel.tensor import vocabulary_cross_entropy
    >>> logits = numpy.random.default_rng(0).normal(size=(4, 5))
    >>> def program():
    ...     with cc.Mesh(tp=-1):
    ...         part = cc.shard(ag.constant(logits), "tp", dim=1)
    ...         labels = ag.constant(numpy.array([0, 4, 2, 2]))
    ...         return float(vocabulary_cross_entropy(part, labels, "tp").round(6))
    >>> cc.run(program, ranks=2) == cc.run(program, ranks=1) * 2
    True
    """
    name = "vocabulary_cross_entropy"
    if reduction not in ("none", "sum", "mean"):
        text = f"{name}: reduction={reduction!r} was given; needed: 'none', 'sum' or 'mean'"
        raise OptionError(text)
    smoothing = float(number(label_smoothing, f"{name}: label_smoothing", 0, 1))
    ignored = integer(ignore_index, f"{name}: ignore_index")
    logits, on = operand(input, axis, name)
    label = _class_label(logits, axis, name)
    classes, offset = label.extent, label.offset
    assert classes is not None and offset is not None
    labels = same_integers(target, axis, name, "labels")
    shape = tuple(logits.array.shape)
    if len(shape) != 2 or tuple(labels.array.shape) != shape[:1]:
        raise ShapeError(
            f"{name}: logits of shape {shape} and labels of shape {tuple(labels.array.shape)} were given; needed: "
            f"[n, classes] and [n]{as_rows(shape, tuple(labels.array.shape))}"
        )
    is_ignoring = isinstance(labels.array, np.ndarray) and decided(_occurs, labels.array, ignored)
    if isinstance(labels.array, np.ndarray):
        checked(_require_labels, labels.array, ignored, classes, f"{name}: labels")

    at = _own_index(labels, axis, offset, shape[1])
    terms = class_terms(cc.cast(logits, axis, to=V), at, options=(smoothing, classes))
    of_all = ALL_GATHER(terms, on.call(to=I, dim=0, extents=(2,) * on.size))
    losses: Tensor = ops.logsumexp(of_all[::2], 0) - ops.sum(of_all[1::2], 0)
    if is_ignoring:
        losses = ops.where(labels != ignored, losses, 0.0)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return ops.sum(losses)
    if not is_ignoring:
        return ops.mean(losses)
    if losses.layout is not None and losses.layout.special:
        raise LayoutError(mean_of_targets(losses, name, target, ignored))
    return ops.sum(losses) / float(decided(_count_of, labels.array, ignored))


class Vocabulary:
    """The style of the modules with a vocabulary: embedding, tied head, untied head, and cross-entropy.

    =====================  =========================  ==================================================
    module                 becomes                    output
    =====================  =========================  ==================================================
    `nn.Embedding`         `VocabularyEmbedding`      I, or `to`
    `nn.TiedLinear`        `VocabularyLinear`         Shard(last): logits of this rank's classes
    `nn.Linear`            `ColumnLinear`             the same
    `nn.CrossEntropyLoss`  `VocabularyCrossEntropy`   I; it takes these logits
    =====================  =========================  ==================================================

    Parameters
    ----------
    axis : str
    to : I or Shard
        The label of the output of an embedding, that of the residual stream: I, or ``Shard(1)`` for sequence parallel.

    Notes
    -----
    The vocabulary need not be a multiple of the ranks. An embedding and a head that share a table get the same part.

    Examples
    --------
    >>> from parallel import Vocabulary
    >>> plan = {"0.table": Vocabulary("tp"), "*.out": Vocabulary("tp")}     # the model
    >>> plan_of_the_loss = {"rows": Vocabulary("tp")}
    """

    def __init__(self, axis: str, to: Label = I):
        self.axis, self.to = axis_name(axis, "Vocabulary"), destination(to, "Vocabulary")

    def __repr__(self) -> str:
        return f"Vocabulary({self.axis!r}{'' if self.to is I else f', to={self.to!r}'})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The module that replaces one of a vocabulary."""
        if type(module) is nn.Embedding:
            weight = shards.divide(module.weight, self.axis, 0)
            return VocabularyEmbedding(weight, self.axis, self.to, module.padding_idx)
        if type(module) is nn.TiedLinear:
            return VocabularyLinear(shards.divide(module.weight, self.axis, 0), self.axis)
        if type(module) is nn.Linear:
            return Column(self.axis).apply(module, path, shards)
        if type(module) is nn.CrossEntropyLoss:
            shards.mesh.grid.axis(self.axis)
            if module.weight is not None:
                raise OptionError(
                    f"{self!r}: {path!r} is a CrossEntropyLoss with class weights; needed: one without, since these "
                    "have no parts\n  fix: weight the losses of the rows, reduction='none'"
                )
            return VocabularyCrossEntropy(
                self.axis, ignore_index=module.ignore_index, reduction=module.reduction,
                label_smoothing=module.label_smoothing,
            )  # fmt: skip
        raise ArgumentError(
            f"{self!r}: {path!r} is a {type(module).__name__}; needed: an nn.Embedding, nn.TiedLinear, nn.Linear or "
            "nn.CrossEntropyLoss\n  fix: a pattern that matches these modules only"
        )


# -- integers of the whole vocabulary, and of this rank's part --------------------------------------------------------


def same_integers(x: Any, axis: str, caller: str, what: str) -> Tensor:
    """Integers as a Tensor; LayoutError if they may differ between the ranks of the axis."""
    x, _ = operand(x, axis, caller)
    assert x.layout is not None
    if x.array.dtype.kind not in "iu":
        raise DtypeError(f"{caller}: {what} of dtype {x.array.dtype} were given; needed: integers")
    have = x.layout[axis]
    if not (have is C or have is I or have is R or have is D):
        plain = "a plain array has no label, so they" if have is V else "they"
        raise LayoutError(
            f"{caller}({what}: {describe(x.array, x.array.shape, x.layout)})\n  axis {axis!r}: the {what} are {have!r}"
            f": {plain} may differ between its ranks, which compute parts of the same rows; needed: the same {what} on "
            f"all of them\n  fix: cc.from_local({what}, {{{axis!r}: I, ...}}), or ag.constant({what}), where they are "
            "made"
        )
    return x


def _whole(p: Tensor, axis: str) -> tuple[int, int]:
    """The number of rows of the whole table, and that of the first row of this rank."""
    label = None if p.layout is None or axis not in p.layout.grid.names else p.layout[axis]
    if not isinstance(label, Shard) or label.extent is None or label.offset is None:
        raise LayoutError(
            f"the table of a vocabulary, {describe(p.array, p.array.shape, p.layout)}\n  axis {axis!r}: needed: rows "
            "that are split along it\n  fix: make the module inside `with mesh:`, and use it there"
        )
    return label.extent, label.offset


def _own_index(index: Tensor, axis: str, offset: int, count: int) -> Tensor:
    """The indices into this rank's part, -1 for those of other ranks. They vary along the axis."""
    array = index.array
    if type(array) is not Shaped:
        array = recorded(_within, array, int(offset), int(count), name="index of a vocabulary")
    assert index.layout is not None
    labels = [C if x is R or x is I else x for x in index.layout.labels]
    return Tensor(array, index.layout.grid.layout(labels).replace((axis,), V))


def _within(index: Any, offset: int, count: int) -> Any:
    index = index.astype(np.int64) - offset
    return np.where((index >= 0) & (index < count), index, -1)


def _occurs(labels: Any, ignored: int) -> bool:
    return bool((labels == ignored).any())


def _count_of(labels: Any, ignored: int) -> int:
    return int(np.count_nonzero(labels != ignored))


def _require_labels(labels: Any, ignored: int, classes: int, what: str) -> None:
    require_range(labels[labels != ignored], classes, what)


def _class_label(logits: Tensor, axis: str, name: str) -> Shard:
    """The label of the classes; LayoutError if the logits are not divided by classes, into parts of known extents."""
    assert logits.layout is not None
    have, last = logits.layout[axis], logits.array.ndim - 1
    if isinstance(have, Shard) and have.dim == last and have.extent is not None:
        return have
    if isinstance(have, Shard) and have.dim == last:
        why, fix = "the ranks have not agreed on the number of classes of each", "cc.from_local where they are made"
    elif have is R or have is I or have is C or have is D:
        why, fix = "every rank has the logits of all classes", "nn.cross_entropy, for whole logits; or do not gather"
    elif isinstance(have, Shard):
        why, fix = f"its parts lie along dimension {have.dim}", f"nn.cross_entropy, or all_gather(..., {axis!r})"
    else:
        why, fix = "its parts are no parts of one value", f"a head of style Vocabulary({axis!r}) before it"
    raise LayoutError(
        f"{name}(logits: {describe(logits.array, logits.array.shape, logits.layout)})\n  axis {axis!r}: the logits are "
        f"{have!r}: {why}; needed: Shard({last}), with agreed extents\n  fix: {fix}"
    )


def _shown(weight: Any, axis: str) -> str:
    rows, width = weight.array.shape
    label = None if weight.layout is None else weight.layout[axis]
    of = f" of {label.extent}" if isinstance(label, Shard) else ""
    return f"{int(rows)}{of} rows, {int(width)}, axis={axis!r}"
