"""Programs on threads, as the ranks of a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import collectives as cc

__all__ = ["on", "on_mesh"]


def on(ranks: int, program: Callable[[cc.Mesh], Any], **sizes: int) -> list[Any]:
    """The results of ``program(mesh)`` on so many ranks; without sizes the mesh has the axis `dp`."""

    def main() -> Any:
        with cc.Mesh(**(sizes or {"dp": ranks})) as mesh:
            return program(mesh)

    return cc.run(main, ranks)


def on_mesh(program: Callable[[cc.Mesh], Any], **sizes: int) -> list[Any]:
    """The results of ``program(mesh)`` on all ranks of a mesh of these sizes."""
    return on(math.prod(sizes.values()), program, **sizes)
