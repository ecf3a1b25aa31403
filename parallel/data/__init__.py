"""Data parallelism: each rank runs the whole module on its part of the batch.

The sums of gradients are exact here. `parallel.approximate` has the methods that send less.

==================  ================================================================================================
`data_parallel`     `DataParallel`, the module that applies the rest
`entry`             how parameters enter a computation; the adjoint of the entry sums their gradients
`buckets`           the sums, in flat buffers that start while backward goes on
`sharded`           parameters of which each rank owns a part (ZeRO)
`layers`            layers whose parameters are gathered where they are called, and freed afterwards
`gradient_tree`     sums of the gradients of microbatches, with the same bits on any number of ranks
`settings`          `Bucketing` and `Zero`: settings of `DataParallel` that belong together
`memory`            the bytes that a model and its optimizer take
`link`              when each bucket is sent by a link that carries one at a time
`overlap`           predictions of the overlap of communication and backward
==================  ================================================================================================
"""

from __future__ import annotations

from .data_parallel import DataParallel
from .entry import enter

__all__ = ["DataParallel", "enter"]
