"""Context parallelism: attention over sequences whose parts the ranks of an axis hold.

`Ring` and `Ulysses` are styles of `parallelize` for `nn.SelfAttention`. `zigzag` gives each rank its part of a batch in
the order that balances the work of causal ring attention.
"""

from .order import *
from .ring import ring_attention, ring_self_attention
