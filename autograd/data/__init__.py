"""Data sets, batches and augmentation. The batches do not depend on the number of ranks.

`DataLoader` iterates over the batches of a data set. Each batch is a *global* batch: with an axis, the ranks of the
axis share its rows, and any number of ranks sees the same rows in the same order. A random choice (the order of an
epoch, which examples are flipped) is a function of a `random.Key` and of the position of the example in the data set or
in the whole batch.

`batches` and `share` are the same without a data set: indices of examples, and this rank's part of them. `random_flip`
and `random_crop` change the examples of a batch. Use a new key for each draw: ``key.at(epoch)``, ``key.at(step)``. On
a mesh, give them a batch as a Tensor whose layout says which part of the batch it is, as that of a `DataLoader`, or one
of ``collectives.from_local(rows, {"dp": Shard(0)})``. A plain array is Varying there, and is refused with one key for
all ranks (see `random`).
"""

from __future__ import annotations

from .augmentation import random_crop, random_flip
from .datasets import Dataset, Subset, TensorDataset, default_collate, random_split
from .loader import DataLoader
from .sampling import batches, share

__all__ = [
    "DataLoader", "Dataset", "Subset", "TensorDataset", "batches", "default_collate", "random_crop", "random_flip",
    "random_split", "share",
]  # fmt: skip
