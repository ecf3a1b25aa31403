"""Names where programs of before the core was divided looked for them."""

from __future__ import annotations

from typing import Any

from . import (
    deferred,
    describe,
    entries,
    explain,
    grid,
    hooks,
    inference,
    layout,
    leaves,
    parts,
    primitive,
    ranklabels,
    ranknumbers,
    saved,
    tape,
    tensor,
)

_HOMES: dict[Any, dict[Any, tuple[str, ...]]] = {
    layout: {describe: ("describe",), explain: ("fixes", "require_one_number"), grid: ("Grid",),
             inference: ("combine", "infer"), leaves: ("resolve",), parts: ("level", "parts"),
             ranklabels: ("layout_of",), ranknumbers: ("RankFloat", "RankInt")},
    primitive: {ranknumbers: ("rank_axes",)},
    tape: {deferred: ("refuse_pending",), hooks: ("EFFECT", "MARK", "scope"), layout: ("may_relabel",),
           entries: ("IMPORT", "LEAF"), saved: ("guarded", "step_check", "_locked")},
    tensor: {deferred: ("Deferred",), leaves: ("Constant", "Leaf", "Parameter", "constant", "tensor")},
}  # fmt: skip
for _module, _found in _HOMES.items():
    for _home, _names in _found.items():
        for _name in _names:
            setattr(_module, _name, getattr(_home, _name))
