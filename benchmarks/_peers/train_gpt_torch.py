"""One rank of `benchmarks/train_gpt.py` in PyTorch: eager or compiled on one rank, DTensor on several."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as distributed
from data_parallel_case import BETAS, CASES, EPS, RATE, RotaryGPT, Worker, arguments, batches, serve, use_core, weights
from gpt_torch import GPT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

F = torch.nn.functional


def divide(model: GPT, ranks: int) -> None:
    """Divide the model over the ranks, logits and loss included."""
    mesh = init_device_mesh("cpu", (ranks,))
    column, row = ColwiseParallel(), RowwiseParallel()
    for block in model.blocks:
        plan = {"q": column, "k": column, "v": column, "proj": row, "up": column, "down": row}
        parallelize_module(block, mesh, plan)
    logits = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"embed": RowwiseParallel(input_layouts=Replicate()), "head": logits})
    model.head.weight = model.embed.weight


def build(args: Any) -> Worker:
    case = CASES[args.case]
    assert isinstance(case, RotaryGPT)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_core(args, rank)
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    assert torch.get_num_threads() == torch.get_num_interop_threads() == 1
    distributed.init_process_group("gloo")
    model = GPT(weights(case), case.heads, apart=size > 1)
    if size > 1:
        divide(model, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.1, fused=size == 1)
    data = [tuple(map(torch.from_numpy, pair)) for pair in batches(case, 0)]
    turns = model.turns(case.context, torch.float32)
    is_compiled = args.mode == "compile"
    logits, turns = (torch.compile(model), torch.view_as_real(turns)) if is_compiled else (model, turns)

    def step(i: int) -> Any:
        x, y = data[i % len(data)]
        optimizer.zero_grad(set_to_none=True)
        if size > 1:
            with loss_parallel():
                loss = F.cross_entropy(model(x, turns).flatten(0, 1), y.view(-1))
                loss.backward()
        else:
            loss = F.cross_entropy(logits(x, turns).flatten(0, 1), y.view(-1))
            loss.backward()
        optimizer.step()
        return loss.detach()

    def total(loss: Any) -> float:
        return float(getattr(loss, "full_tensor", lambda: loss)())

    about = f"torch {torch.__version__}, {args.mode or 'eager'}" + (", DTensor over gloo" if size > 1 else "")
    return Worker(rank, size, about, step, total, distributed.barrier, {})


if __name__ == "__main__":
    given = arguments()
    serve(given, build(given))
    os._exit(0)  # gloo's threads may not end by themselves
