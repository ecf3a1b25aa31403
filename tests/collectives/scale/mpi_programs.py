"""Run as a job: right and wrong programs one after the other, each with the verdict that all ranks come to."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import collectives as cc
from autograd.errors import GradientWarning, RingtapeError

from .layers import LAYERS
from .meshes import ROWS
from .programs import RIGHT, WRONG, program

__all__ = ["NAMES", "programs_of", "verdicts"]

_RIGHT = ("readme", "sum by the rows of all", "mean of means", "weighted by len", "tokens with ignored labels",
          "penalty after the sum", "gradient penalty")  # fmt: skip
_WRONG = ("ddp", "mean of sums by all rows", "all rows by the size", "mean of a cast Shard",
          "penalty after a sum of means", "ddp, len", "global_shape times the size", "gan, mixed")  # fmt: skip
_LAYERS = (("DataParallel", 0, 0), ("microbatches, labelled", 0, 0), ("ZeRO 2, labelled", 0, 0))
_STAGES = ("1f1b", "zero bubble")


def programs_of(n: int) -> dict[str, Any]:
    """The programs on n ranks, by name: those of an axis dp, and pipelines with one rank along dp."""
    found: dict[str, tuple[dict[str, int], Any]] = {}
    for name in _RIGHT:
        found[f"right: {name}"] = {"dp": n}, program(RIGHT[name][0])
    for name in _WRONG:
        found[f"wrong: {name}"] = {"dp": n}, program(WRONG[name].loss)
    for name, right, wrong in _LAYERS:
        row = LAYERS[name]
        found[f"right: {name}"] = {"dp": n}, lambda mesh, row=row, i=right: row.program(mesh, row.right[i])
        found[f"wrong: {name}"] = {"dp": n}, lambda mesh, row=row, i=wrong: row.program(mesh, row.wrong[i].how)
    for name in ("ragged", "estimator"):
        lines = ROWS[name]
        found[f"right: {name}"] = {"dp": n}, lines.program(lines.right[0])
        found[f"wrong: {name}"] = {"dp": n}, lines.program(lines.wrong[0].how)
    for name in _STAGES:
        row = LAYERS[name]
        axes = {"dp": 1, "pp": n} if n % 2 else {"dp": n // 2, "pp": 2}
        found[f"right: {name}"] = axes, lambda mesh, row=row: row.program(mesh, row.right[0])
        found[f"wrong: {name}, microbatches"] = axes, lambda mesh, row=row: row.program(mesh, row.wrong[2].how)
    return found


NAMES = tuple(programs_of(2))


def verdicts(n: int) -> dict[str, list[str]]:
    """For each program the error of this rank with ``scale="error"``, and its warnings on this rank without."""
    found = {}
    for name, (axes, run) in programs_of(n).items():
        said = []
        for setting in ("error", "warn"):
            cc.check(scale=setting)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                text = ""
                with cc.Mesh(**axes) as mesh:
                    try:
                        run(mesh)
                    except RingtapeError as error:
                        text = type(error).__name__
            told = sorted({each.category.__name__ for each in caught if issubclass(each.category, GradientWarning)})
            said.append(" ".join([text, *(told if setting == "warn" else ())]))
        found[name] = said
    cc.check(scale="warn")
    return found


if __name__ == "__main__":
    size = int(cc.world().size)
    mine = verdicts(size)
    sys.stdout.write(f"rank {int(cc.world().index)} {json.dumps(mine)}\n")
