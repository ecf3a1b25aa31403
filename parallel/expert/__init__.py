"""Expert parallelism: layers of which each token uses a few experts, which the ranks divide among themselves.

===============  ===========================================================================================
`mixture`        `MixtureOfExperts`, the layer, and `Experts`, the style that divides it along a mesh axis
`router`         the experts of each token, and the losses that keep their load even
`dispatch`       tokens to the ranks of their experts and back, by an all_to_all of uneven parts
`side_losses`    the collector of the losses that layers add to the objective
`load`           a report of the load of each expert and rank
===============  ===========================================================================================
"""

from __future__ import annotations

from .load import Load
from .mixture import Experts, MixtureOfExperts
from .router import Router, balance_loss, z_loss
from .side_losses import add_side_loss, side_losses

__all__ = [
    "Experts", "Load", "MixtureOfExperts", "Router", "add_side_loss", "balance_loss", "side_losses", "z_loss",
]  # fmt: skip
