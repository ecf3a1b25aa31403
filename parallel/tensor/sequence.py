"""Modules between tensor-parallel regions where the ranks hold parts of the sequence, and their style `Sequence`.

With tensor parallelism alone the residual stream between the regions is the same on all ranks (I): norms and dropout
are computed by each rank, and the parameters of the norms are I, too. With sequence parallelism the stream is
``Shard`` of the tokens, so each rank has ``1/p`` of its memory and of this work. A norm's parameters are then used
by each rank for its own tokens: they enter by the cast I -> R, whose adjoint sums their gradients over the ranks.
Dropout needs no style: the mask of a part is that part of the mask, since random numbers depend on the place of an
element in the whole.

Source: Korthikanti et al. 2022, *Reducing activation recomputation*, section 4.2.
"""

from __future__ import annotations

from typing import Any

import collectives as cc
from autograd import nn
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS
from autograd.errors import OptionError, typed_errors
from autograd.layouts.layout import I, R, Shard, V
from autograd.nn.substitution import substitutable, substituted

from ..plan import Shards
from .regions import axis_name

__all__ = ["Sequence", "SequenceModule"]


@typed_errors
class SequenceModule(nn.Module):
    """A module whose parameters enter along an axis, by the cast I -> R, where its input is in parts along it.

    If the input is I, the parameters stay as they are, so that one plan serves both forms of the stream.

    Parameters
    ----------
    module : Module
        Its parameters are I along the axis. Those that are R have entered already, and stay as they are.
    axis : str

    Notes
    -----
    Backward one all-reduce of the size of each parameter. A parameter that no rank uses in a call gets zeros.
    """

    _keeps_names = "module"

    def __init__(self, module: nn.Module, axis: str):
        self.module, self.axis = module, axis
        self._places = [(owner, attribute) for _, owner, attribute, _ in module.named_owners()]
        for owner, attribute in self._places:
            substitutable(owner, attribute)

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        grid = state.grid
        if grid is None or input.__class__ not in TENSORS:
            return self.module.forward(input, *args, **kwargs)
        label = (input.layout or input.labelled(grid))[self.axis]
        if not (isinstance(label, Shard) or label is V):
            return self.module.forward(input, *args, **kwargs)
        values: dict[Any, Any] = {}
        for owner, attribute in self._places:
            p, key = getattr(owner, attribute), vars(owner)[attribute]  # p may have entered along other axes
            if key not in values and (p.layout or p.labelled(grid))[self.axis] is I:
                values[key] = cc.cast(p, self.axis, to=R)
        with substituted(values):
            return self.module.forward(input, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"axis={self.axis!r}"


class Sequence:
    """The style of a module with parameters that works on parts of the sequence, such as a norm: `SequenceModule`.

    Parameters
    ----------
    axis : str

    Notes
    -----
    It is needed for all modules outside the tensor-parallel regions that have parameters. Without it their parameters
    (I) meet the stream (Shard), which is a LayoutError. Source: Korthikanti et al. 2022, section 4.2.

    Where many parameters enter, their sums are fewer if all of them enter together, in buckets: ``DataParallel(model,
    ("dp", "tp"))`` casts those that are I along both axes, and this style then casts nothing.

    Examples
    --------
    >>> from collectives import Shard
    >>> from parallel import Column, Row, Sequence, Vocabulary
    >>> plan = {
    ...     "0.table": Vocabulary("tp", to=Shard(1)), "*.norm*": Sequence("tp"), "*.qkv": Column("tp", blocks=3),
    ...     "*.proj": Row("tp", to=Shard(1)), "*.up": Column("tp"), "*.down": Row("tp", to=Shard(1)),
    ...     "*.out": Vocabulary("tp"),
    ... }
    """

    def __init__(self, axis: str):
        self.axis = axis_name(axis, "Sequence")

    def __repr__(self) -> str:
        return f"Sequence({self.axis!r})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The module, in a `SequenceModule`."""
        shards.mesh.grid.axis(self.axis)
        made = SequenceModule(module, self.axis)
        for name, _, _, p in module.named_owners():
            label = p.labelled(shards.mesh.grid)[self.axis]
            if label is not I:
                raise OptionError(
                    f"{self!r}: {path!r} has the parameter {name!r}, which is {label!r} along {self.axis!r}; needed: "
                    "parameters that are Invariant\n  fix: leave this module out of the pattern, if it is divided"
                )
        return made
