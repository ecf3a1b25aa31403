"""Linear layers whose matrix is divided over the ranks of an axis, by columns or by rows.

| layer | input | weight | forward | output | backward |
|---|---|---|---|---|---|
| column | I | Shard(1) | cast I -> R, free | Shard(last) | all-reduce of the input's cotangent |
| column | Shard(dim) | Shard(1) | all-gather | Shard(last) | reduce-scatter of it |
| row | Shard(last) | Shard(0) | all-reduce P -> I | I | cast I -> R, free |
| row, ``to=Shard(dim)`` | Shard(last) | Shard(0) | reduce-scatter | Shard(dim) | all-gather |

A column layer, an elementwise function and a row layer need one all-reduce forward and one backward. Source: Shoeybi et
al. 2019, *Megatron-LM*, section 3; the forms with Shard(dim): Korthikanti et al. 2022, section 4.
"""

from __future__ import annotations

from typing import Any

from autograd import nn, ops
from autograd.engine.parameter import Parameter
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, LayoutError, call_site
from autograd.layouts.layout import C, I, R, Shard
from autograd.layouts.messages import describe
from collectives import all_gather, all_reduce, cast, reduce_scatter
from collectives.ops.arguments import to_tensor

from ..plan import Shards

__all__ = ["Column", "ColumnLinear", "Row", "RowLinear", "check_to", "entered", "reduced"]


def entered(x: Any, axis: str, caller: str) -> Tensor:
    """The input of a layer whose output is divided: R on the axis, from I by a cast, from Shard(dim) by a gather."""
    x = to_tensor(x, caller)
    layout = x.layout
    label = None if layout is None else layout[axis]
    if label is I or label is C:
        return cast(x, axis, to=R)
    if isinstance(label, Shard) and label.dim != x.array.ndim - 1:
        return all_gather(x, axis, dim=label.dim, to=R)
    if label is R:
        return x
    raise LayoutError(
        f"{caller}: the input is {describe(x.array, x.array.shape, layout)}\n  axis {axis!r}: it is "
        f"{'without a label' if label is None else label.word}; needed: Invariant, or Shard of a dimension before the "
        f"last one (sequence parallel)\n  fix: {_fix(label, axis)}" + call_site()
    )


def _fix(label: Any, axis: str) -> str:
    if isinstance(label, Shard):
        return f"Row({axis!r}), the style of a layer whose input is divided by features"
    return f"ag.tensor(x, {{..., {axis!r}: cc.I}}), if the ranks of {axis!r} hold the same input"


def check_to(to: Any, caller: str) -> Any:
    """Check the label of a layer's output: I or Shard(dim)."""
    if to is not I and not isinstance(to, Shard):
        raise ArgumentError(f"{caller}: to={to!r} was given; needed: cc.I, or cc.Shard(dim)" + call_site())
    return to


def reduced(x: Tensor, axis: str, to: Any) -> Tensor:
    """The sum over the ranks: P -> I, or P -> Shard(dim)."""
    if isinstance(to, Shard):
        return reduce_scatter(x, axis, dim=to.dim)
    return all_reduce(x, axis, to=I)


class ColumnLinear(nn.Module):
    """I or Shard(dim) -> Shard(last): a linear layer of which each rank computes a part of the outputs.

    Made by the style `Column`. With blocks the output is [..., blocks, out / (blocks p)].
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, axis: str):
        self.weight, self.bias, self.axis = weight, bias, axis

    def stores_transposed(self, attribute: str) -> bool:
        return attribute == "weight"

    def forward(self, input: Any) -> Tensor:
        x = entered(input, self.axis, "Column")
        if self.weight.array.ndim == 2:
            return x @ self.weight if self.bias is None else ops.linear(x, self.weight, self.bias)
        y: Tensor = ops.contract(x, self.weight, options=(1,))
        return y if self.bias is None else y + self.bias


class RowLinear(nn.Module):
    """Shard(last) -> I or Shard(dim): a linear layer of which each rank has a part of the inputs.

    Made by the style `Row`. The bias is added once, after the sum over the ranks.
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, axis: str, to: Any = I):
        self.weight, self.bias, self.axis, self.output = weight, bias, axis, to

    def stores_transposed(self, attribute: str) -> bool:
        return attribute == "weight"

    def forward(self, input: Any) -> Tensor:
        x = to_tensor(input, "Row")
        label = None if x.layout is None else x.layout[self.axis]
        if not isinstance(label, Shard) or label.dim != x.array.ndim - 1:
            raise LayoutError(
                f"Row: the input is {describe(x.array, x.array.shape, x.layout)}\n  axis {self.axis!r}: it is "
                f"{'without a label' if label is None else label.word}; needed: Shard({x.array.ndim - 1}), the "
                f"features that a column layer has computed\n  fix: Column({self.axis!r}) for the layer before, or "
                f"cc.shard(x, {self.axis!r}, dim={x.array.ndim - 1})" + call_site()
            )
        y = reduced(x @ self.weight, self.axis, self.output)
        if self.bias is None:
            return y
        return y + (cast(self.bias, self.axis, to=R) if isinstance(self.output, Shard) else self.bias)


class Column:
    """A style: each rank of `axis` computes a part of a linear layer's outputs (`ColumnLinear`).

    Parameters
    ----------
    axis : str
    blocks : int
        The number of blocks of outputs that are each divided: 3 for queries, keys and values in one layer.
    """

    def __init__(self, axis: str, blocks: int = 1):
        if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
            raise ArgumentError(f"Column: blocks={blocks!r} was given; needed: an int of at least 1" + call_site())
        self.axis, self.blocks = axis, blocks

    def __repr__(self) -> str:
        return f"Column({self.axis!r}{f', blocks={self.blocks}' if self.blocks > 1 else ''})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        require(module, nn.Linear, self, path)
        assert isinstance(module, nn.Linear)
        weight, bias = module.weight, module.bias
        return ColumnLinear(
            shards.divide(weight, self.axis, 1, self.blocks),
            None if bias is None else shards.divide(bias, self.axis, 0, self.blocks), self.axis,
        )  # fmt: skip


class Row:
    """A style: each rank of `axis` has a part of a linear layer's inputs, and the ranks add up (`RowLinear`).

    Parameters
    ----------
    axis : str
    to : I or Shard
        The label of the output: I, or ``Shard(1)`` for sequence parallelism.
    """

    def __init__(self, axis: str, to: Any = I):
        self.axis, self.to = axis, check_to(to, "Row")

    def __repr__(self) -> str:
        return f"Row({self.axis!r}{'' if self.to is I else f', to={self.to!r}'})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        require(module, nn.Linear, self, path)
        assert isinstance(module, nn.Linear)
        return RowLinear(shards.divide(module.weight, self.axis, 0), module.bias, self.axis, self.to)


def require(module: Any, kinds: Any, style: Any, path: str) -> None:
    """Raise ArgumentError unless a style divides this kind of module."""
    if not isinstance(module, kinds):
        names = " or ".join(f"nn.{kind.__name__}" for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise ArgumentError(
            f"parallelize: {style!r} was given for {path!r}, which is {type(module).__name__}; needed: {names}"
            + call_site()
        )
