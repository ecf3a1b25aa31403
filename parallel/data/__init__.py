"""Data parallelism: each rank runs the whole module on its part of the batch.

==================  ================================================================================================
`data_parallel`     `DataParallel`, the module that applies the rest
`entry`             how parameters enter a computation; the adjoint of the entry sums their gradients
`buckets`           the sums, in flat buffers that start while backward goes on
`sharded`           parameters of which each rank owns a part (ZeRO)
`layers`            layers whose parameters are gathered where they are called, and freed afterwards
`memory`            the bytes that a model and its optimizer take
`compression`       sums that send less; `error_feedback` keeps what they leave out; `compressed_adam` is an optimizer
`local_sgd`         copies that are averaged every few steps; `own_copies` labels them
`parameter_server`  asynchronous training and bounded staleness
`noise_scale`       an estimator of the gradient noise scale: what a larger batch buys
`overlap`           a model of the overlap of communication and backward
==================  ================================================================================================
"""

from __future__ import annotations

from .data_parallel import DataParallel
from .entry import enter

__all__ = ["DataParallel", "enter"]
