"""Sequence parallelism: between the divided layers each rank computes with a part of the sequence.

Norms and dropout then do no work twice, and their activations take a part of the memory. The stream is Shard(1) where
it was I: `Column` gathers it and ``Row(to=Shard(1))`` scatters the sum, which sends the bytes of the all-reduces that
they replace. Source: Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*,
section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autograd import nn
from autograd.engine.parameter import Parameter
from autograd.layouts.layout import R
from collectives import cast

from ..plan import Shards

__all__ = ["EnteredModule", "Sequence"]


class Sequence:
    """A style for layers, such as norms, whose input is a part of the sequence: their parameters enter by a cast.

    The parameters are I on `axis` and meet values that differ between its ranks, so they enter by the cast I -> R,
    whose adjoint sums their gradients over the ranks (`EnteredModule`).

    Parameters
    ----------
    axis : str
    """

    def __init__(self, axis: str):
        self.axis = axis

    def __repr__(self) -> str:
        return f"Sequence({self.axis!r})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        return EnteredModule(module, self.axis)


class EnteredModule(nn.Module):
    """A module whose parameters are cast from I to R along `axis` at each call. They keep their names."""

    def __init__(self, module: nn.Module, axis: str):
        self.module, self.axis = module, axis
        self._owners()  # found now: while `DataParallel` runs the model, entered Tensors are in the parameters' places

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, nn.Module, str, Parameter]]:
        yield from self.module.named_owners(prefix)

    def named_buffer_owners(self, prefix: str = "") -> Iterator[tuple[str, nn.Module, str]]:
        yield from self.module.named_buffer_owners(prefix)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        held = [(vars(owner), name, vars(owner)[name]) for owner, name in self._owners()]
        try:
            for attributes, name, p in held:
                attributes[name] = cast(p, self.axis, to=R)
            return self.module.forward(*args, **kwargs)
        finally:
            for attributes, name, p in held:
                attributes[name] = p

    def _owners(self) -> list[tuple[nn.Module, str]]:
        found = vars(self).get("_places")
        if found is None:
            found = [(owner, name) for _, owner, name, _ in self.module.named_owners()]
            vars(self)["_places"] = found
        return found
