"""Linear layers of which each rank has some columns or some rows, and their styles `Column` and `Row`.

A product ``x @ A`` divided by columns needs the whole x and gives parts of the features; a product ``h @ B`` divided by
rows takes parts of the features and gives addends. So a column layer and a row layer after it need one sum for both,
and whatever stands between them and treats each feature, or each head, by itself runs on parts without communication.
"""

from __future__ import annotations

from typing import Any

import collectives as cc
from autograd import nn, ops
from autograd.engine.leaves import Parameter
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, typed_errors
from autograd.layouts.layout import I, Label, P, Shard, V
from autograd.nn.arguments import count

from ..plan import Shards
from .regions import axis_name, destination, enter, features, is_alone, leave

__all__ = ["Column", "ColumnLinear", "Row", "RowLinear"]


@typed_errors
class ColumnLinear(nn.Module):
    """I or Shard(tokens) -> Shard(last): ``x @ weight + bias`` with this rank's columns of the weight.

    Parameters
    ----------
    weight : Parameter, [inputs, outputs] Shard(1), or [inputs, blocks, width] Shard(2)
    bias : Parameter or None, [outputs] Shard(0), or [blocks, width] Shard(1)
    axis : str

    Notes
    -----
    Formula: ``y_r = x @ A_r + b_r``. The adjoint for x is the sum over the ranks of ``ct_r @ A_r'``: an all-reduce of
    the input's size, or a reduce-scatter if the input is ``Shard`` of the tokens, which is gathered forward.

    With blocks the output is [..., blocks, width]: a reshape of that of the serial layer, whose parts follow each other
    within each block. So a part of a fused projection has queries, keys and values of the same heads.
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, axis: str):
        self.weight, self.bias, self.axis = weight, bias, axis

    def stores_transposed(self, attribute: str) -> bool:
        return attribute == "weight" and self.weight.array.ndim == 2

    def blocks_of(self, attribute: str) -> int:
        return 1 if self.weight.array.ndim == 2 else int(self.weight.array.shape[1])

    def forward(self, input: Any) -> Tensor:
        x = input if is_alone(self.weight) else enter(input, self.axis, _caller(self, "ColumnLinear"))
        if self.weight.array.ndim == 2:
            return x @ self.weight if self.bias is None else ops.linear(x, self.weight, self.bias)
        return blockwise(x, self.weight, self.bias, self.axis)

    def extra_repr(self) -> str:
        return _shown(self.weight, self.bias, self.axis)


def blockwise(x: Tensor, weight: Tensor, bias: Tensor | None, axis: str) -> Tensor:
    """``x @ weight + bias`` for a weight [inputs, blocks, width], as one product: [..., blocks, width].

    The parts of all blocks are columns of one matrix. They do not follow each other in the whole one, so they count as
    Varying until the blocks are apart again.
    """
    inputs, blocks, _ = weight.array.shape
    label = None if weight.layout is None else weight.layout[axis]
    if label is not None:
        weight, bias = cc.cast(weight, axis, to=V), None if bias is None else cc.cast(bias, axis, to=V)
    columns = ops.reshape(weight, (inputs, -1))
    y = x @ columns if bias is None else ops.linear(x, columns, ops.reshape(bias, -1))
    y = ops.reshape(y, (*y.shape[:-1], blocks, -1))
    return cc.cast(y, axis, to=label.on(y.array.ndim - 1)) if isinstance(label, Shard) else y


@typed_errors
class RowLinear(nn.Module):
    """Shard(last) -> I or Shard(tokens): ``x @ weight + bias`` with this rank's rows of the weight.

    Parameters
    ----------
    weight : Parameter, [inputs, outputs] Shard(0)
    bias : Parameter or None, [outputs]
        I (or R, if it has entered along the axis).
    axis : str
    to : I or Shard
        The label of the output.

    Notes
    -----
    Formula: ``y = sum_r x_r @ B_r + b``, an all-reduce, or with ``to=Shard(1)`` a reduce-scatter. The bias is added to
    the addend of the first rank, so that it counts once, and its gradient needs no sum. The adjoint for x_r is
    ``ct @ B_r'``, free, or after an all-gather.
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, axis: str, to: Label = I):
        self.weight, self.bias, self.axis, self.output_label = weight, bias, axis, to

    def stores_transposed(self, attribute: str) -> bool:
        return attribute == "weight"

    def forward(self, input: Any) -> Tensor:
        if is_alone(self.weight):
            return input @ self.weight if self.bias is None else ops.linear(input, self.weight, self.bias)
        y = features(input, self.axis, _caller(self, "RowLinear")) @ self.weight
        if self.bias is not None:
            y = y + cc.cast(self.bias, self.axis, to=P)
        return leave(y, self.axis, self.output_label)

    def extra_repr(self) -> str:
        return f"{_shown(self.weight, self.bias, self.axis)}, to={self.output_label!r}"


class Column:
    """The style of an `nn.Linear` whose outputs are divided: `ColumnLinear`.

    The input is I on the axis, or ``Shard`` of the tokens (sequence parallel); the output is Shard of the last
    dimension. A layer of style `Row` takes it.

    Parameters
    ----------
    axis : str
    blocks : int
        The layer computes this number of values of equal width side by side, such as 3 for queries, keys and values,
        and each of them is divided. The output is [..., blocks, width].
    unit : int
        The number of features of each rank is a multiple of it, such as the width of a head. Only needed where the
        heads are not a multiple of the ranks.

    Notes
    -----
    Forward nothing is sent (or one all-gather of the input), backward one all-reduce of the input (or one
    reduce-scatter). Memory: ``1/p`` of the parameters and of the output. Source: Shoeybi et al. 2019, section 3.

    Examples
    --------
    >>> from parallel import Column, Row
    >>> plan = {"*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.up": Column("tp"), "*.down": Row("tp")}
    """

    def __init__(self, axis: str, blocks: int = 1, unit: int = 1):
        self.axis, self.blocks = axis_name(axis, "Column"), count(blocks, "Column: blocks", 1)
        self.unit = count(unit, "Column: unit", 1)

    @property
    def followed_by(self) -> str:
        """The style of the layer that takes the parts of the features, for messages."""
        return f"Row({self.axis!r})"

    def __repr__(self) -> str:
        more = f", blocks={self.blocks}" * (self.blocks != 1) + f", unit={self.unit}" * (self.unit != 1)
        return f"Column({self.axis!r}{more})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The `ColumnLinear` that replaces an `nn.Linear`."""
        linear = _linear(module, path, self)
        weight = shards.divide(linear.weight, self.axis, 1, self.blocks, self.unit)
        bias = None if linear.bias is None else shards.divide(linear.bias, self.axis, 0, self.blocks, self.unit)
        return ColumnLinear(weight, bias, self.axis)


class Row:
    """The style of an `nn.Linear` whose inputs are divided: `RowLinear`.

    The input is Shard of the last dimension, as a layer of style `Column` gives it.

    Parameters
    ----------
    axis : str
    to : I or Shard
        The label of the output: I, or ``Shard(1)`` for sequence parallel, where each rank keeps its part of the tokens
        of [rows, tokens, width].
    unit : int
        As for the `Column` before it.

    Notes
    -----
    Forward one all-reduce of the output (or one reduce-scatter), backward nothing (or one all-gather). Memory: ``1/p``
    of the weight; the bias is whole. Sources: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.

    Examples
    --------
    >>> from collectives import Shard
    >>> from parallel import Row
    >>> Row("tp", to=Shard(1))
    Row('tp', to=Shard(1))
    """

    def __init__(self, axis: str, to: Label = I, unit: int = 1):
        self.axis, self.to = axis_name(axis, "Row"), destination(to, "Row")
        self.unit = count(unit, "Row: unit", 1)

    def __repr__(self) -> str:
        more = f", to={self.to!r}" * (self.to is not I) + f", unit={self.unit}" * (self.unit != 1)
        return f"Row({self.axis!r}{more})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The `RowLinear` that replaces an `nn.Linear`."""
        linear = _linear(module, path, self)
        return RowLinear(shards.divide(linear.weight, self.axis, 0, unit=self.unit), linear.bias, self.axis, self.to)


def _linear(module: nn.Module, path: str, style: Any) -> nn.Linear:
    if type(module) is nn.Linear:
        return module
    made = isinstance(module, ColumnLinear | RowLinear)
    fix = "one style for each layer" if made else "a pattern that matches linear layers only"
    raise ArgumentError(
        f"{style!r}: {path!r} is a {type(module).__name__}{', which is divided already' * made}; needed: an nn.Linear\n"
        f"  fix: {fix}"
    )


def _caller(module: Any, kind: str) -> str:
    """The module in messages, with its path in the model, which is the name of its weight without the last part."""
    path = module.weight.name.rpartition(".")[0]
    return f"{kind} {path!r}" if path else kind


def _shown(weight: Any, bias: Any, axis: str) -> str:
    shape = ", ".join(str(int(n)) for n in weight.array.shape)
    return f"[{shape}] of this rank, axis={axis!r}{'' if bias is not None else ', bias=False'}"
