"""Context parallelism: attention over sequences whose parts the ranks of an axis hold.

`Ring` and `Ulysses` are styles of `parallelize` for `nn.SelfAttention`. `zigzag` gives each rank its part of a batch in
the order that balances the work of causal ring attention.
"""

from .order import *
from .ring import ring_attention, ring_self_attention
from .styles import Ring, RingAttention, Ulysses, UlyssesAttention
from .ulysses import ulysses_self_attention

__all__ = [
    "Block", "Order", "Ring", "RingAttention", "Ulysses", "UlyssesAttention", "ring_attention", "ring_self_attention",
    "ulysses_self_attention", "unzigzag", "zigzag", "zigzag_draws", "zigzag_inverse", "zigzag_order", "zigzag_pieces",
    "zigzag_positions",
]  # fmt: skip
