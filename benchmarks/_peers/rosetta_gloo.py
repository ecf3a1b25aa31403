"""What the workers of `benchmarks/rosetta.py` over gloo share: one rank of three, its operand and its cotangent."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from rosetta_cases import CASES, data, serve


def torch_gradients(name: str, rank: int, call: Callable[[str, Any], Any]) -> dict[int, Any]:
    """The gradient of this rank's operand, and its result. ``call(case, x)`` returns the result."""
    xs, cts = data(name)
    x = torch.from_numpy(xs[rank]).requires_grad_()
    y = call(name, x)
    if rank not in CASES[name].unused:
        y.backward(torch.zeros_like(y) if cts[rank] is None else torch.from_numpy(cts[rank]))
    g = torch.zeros_like(x) if x.grad is None else x.grad
    return {rank: (g.numpy(), None if cts[rank] is None else y.detach().numpy())}


def serve_gloo(call: Callable[[str, Any], Any]) -> None:
    """Run a worker of a library over gloo."""

    def gradients(name: str) -> dict[int, Any]:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
        return torch_gradients(name, int(os.environ["RANK"]), call)

    serve(gradients)
