"""Data parallelism: each rank runs the whole module on its part of the batch.

`entry` records how parameters enter a computation, and synchronises their gradients by the adjoint of that operation.
`data_parallel` is the module that applies it.
"""

from __future__ import annotations

from .data_parallel import DataParallel
from .entry import enter

__all__ = ["DataParallel", "enter"]
