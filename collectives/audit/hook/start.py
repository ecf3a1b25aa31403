"""The parameters with which a run of an audit begins: in float64, moved by a last bit, or those of another run."""

from __future__ import annotations

import math
import os
import zlib
from typing import Any

import numpy as np


def slices(box: Any) -> Any:
    """The slices of a box in its piece and in the global array."""
    at, extents, start = box
    return tuple(tuple(slice(a, a + e) for a, e in zip(of, extents)) for of in (at, start))  # noqa: B905


def install(collector: Any) -> None:
    """Set the parameters of a program when the first forward of a step begins."""
    torch, options = collector.torch, collector.options
    begun = -1

    def entered(module: Any, args: Any) -> Any:
        nonlocal begun
        if torch.compiler.is_compiling():
            return None
        if begun < collector.step and begin(collector):
            begun = collector.step
        if not options.get("float64"):
            return None
        return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args)

    torch.nn.modules.module.register_module_forward_pre_hook(entered)
    if options.get("float64"):
        torch.set_default_dtype(torch.float64)


def begin(collector: Any) -> bool:
    """Set the parameters before a step. Whether there are any: those of lazy modules come later."""
    torch, options = collector.torch, collector.options
    if not collector.names:
        collector.find()
    if collector.step == 0 and options.get("float64"):
        for root in collector.roots:
            root.double()
    if options.get("reset"):
        for name, start in reference(options["reset"], collector.step).items():
            if (p := collector.names.get(name)) is not None:
                mine, whole = collector.local(p), [([0] * start.ndim, start.shape, [0] * start.ndim)]
                for box in collector.boxes(p) or options["boxes"].get(str(collector.place()[0]), {}).get(name) or whole:
                    here, there = slices(box)
                    mine[here] = torch.from_numpy(start)[there].to(mine)
    if collector.step == 0 and options.get("ulp"):
        for name, p in collector.names.items():
            mine = collector.local(p).real if p.is_complex() else collector.local(p)
            random = np.random.default_rng([options["ulp"], zlib.crc32(name.encode())])
            up = torch.from_numpy(random.random(tuple(mine.shape)) < 0.5).to(mine.device)
            rounded = mine.to(computes_in(torch) or mine.dtype)
            bit = torch.nextafter(rounded, torch.full_like(rounded, math.inf)).to(mine.dtype) - rounded.to(mine.dtype)
            mine.add_(torch.where(up, bit, -bit))
    return bool(collector.names)


def computes_in(torch: Any) -> Any:
    """The type in which autocast computes, of which a last bit is moved; None without it."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    return None


def reference(folder: str, step: int) -> dict[str, Any]:
    """The parameters of a run before a step: the first ones, and the updates since; none after its end."""
    found: dict[str, Any] = {}
    for t in range(step + 1):
        if not os.path.exists(path := os.path.join(folder, "rank-0", f"step-{t}.npz")):
            return {}
        with np.load(path) as arrays:
            for kind, _, name in (key.partition(":") for key in arrays):
                if kind == "before":
                    found[name] = arrays[f"before:{name}"]
                elif kind == "update" and t < step and name in found:
                    found[name] = found[name] + arrays[f"update:{name}"]
    return found
