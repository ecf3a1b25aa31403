"""`Recompute`: a style for layers whose activations are not stored but computed again in backward."""

from __future__ import annotations

from typing import Any

from autograd.nn import Module
from autograd.transforms.rematerialise import checkpoint

from .plan import Shards

__all__ = ["Recompute", "Recomputed"]


class Recompute:
    """A style: a layer keeps its inputs only, and backward computes it again (activation checkpointing).

    Applied to whole blocks (``"[0-9]*": Recompute()``) it stores one activation per block; applied to a part of each
    block (``"*.attend"``, ``"*.mlp"``) it saves the memory of that part and computes only it again.

    Notes
    -----
    The layer's communications run once more in backward, on all ranks in the same order. Random numbers are those of
    the first run. Sources: T. Chen et al. 2016; Korthikanti et al. 2022, section 5 (selective).

    Examples
    --------
    >>> from autograd import nn
    >>> import collectives as cc
    >>> from parallel import Recompute, parallelize
    >>> with cc.Mesh(tp=1):
    ...     model = nn.Sequential(nn.Linear(2, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    ...     model = parallelize(model, {"1": Recompute()})
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '1.0.weight', '1.0.bias']
    """

    def __repr__(self) -> str:
        return "Recompute()"

    def apply(self, module: Module, path: str, shards: Shards) -> Module:
        return Recomputed(module)


class Recomputed(Module):
    """A module that is computed again in backward. Its parameters keep their names."""

    _keeps_names = "module"

    def __init__(self, module: Module):
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.module.forward)(*args, **kwargs)
