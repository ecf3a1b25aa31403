"""One rank of `benchmarks/data_parallel.py` in PyTorch: DistributedDataParallel over gloo, with the fused Adam."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from data_parallel_case import (
    BETAS,
    CASES,
    EPS,
    GPT,
    MLP,
    RATE,
    Small,
    Worker,
    arguments,
    batches,
    serve,
    use_core,
    weights,
)

F = torch.nn.functional


class Weights(torch.nn.Module):
    """A module with the weights of a case as parameters; matrices are (out, in), as torch's own layers have them."""

    case: Any

    def __init__(self, arrays: dict[str, Any]):
        super().__init__()
        for name, a in arrays.items():
            is_matrix = a.ndim == 2 and name not in ("tokens", "positions")
            p = torch.nn.Parameter(torch.from_numpy(a.T.copy() if is_matrix else a.copy()))
            self.register_parameter(name.replace(".", "_"), p)


class MLPModel(Weights):
    def forward(self, x: Any, y: Any) -> Any:
        p, layers = self._parameters, len(self.case.widths) - 1
        for i in range(layers):
            x = F.linear(x, p[f"{i}_weight"], p[f"{i}_bias"])
            x = F.relu(x) if i < layers - 1 else x
        return F.cross_entropy(x, y)


class GPTModel(Weights):
    def forward(self, tokens: Any, y: Any) -> Any:
        case, p = self.case, self._parameters
        assert isinstance(case, GPT)
        batch, width = tokens.shape[0], case.width
        h = F.embedding(tokens, p["tokens"]) + p["positions"]
        for i in range(case.layers):
            w = {name.partition("_")[2]: p[name] for name in p if name.startswith(f"{i}_")}
            z = F.linear(F.layer_norm(h, (width,), w["ln1_weight"], w["ln1_bias"]), w["qkv_weight"], w["qkv_bias"])
            q, k, v = (part.view(batch, case.context, case.heads, -1).transpose(1, 2) for part in z.split(width, dim=2))
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            h = h + F.linear(z.reshape(batch, case.context, width), w["out_weight"], w["out_bias"])
            z = F.linear(F.layer_norm(h, (width,), w["ln2_weight"], w["ln2_bias"]), w["up_weight"], w["up_bias"])
            h = h + F.linear(F.gelu(z, approximate="tanh"), w["down_weight"], w["down_bias"])
        logits = F.linear(F.layer_norm(h, (width,), p["ln_weight"], p["ln_bias"]), p["head_weight"])
        return F.cross_entropy(logits.view(-1, case.vocabulary), y.view(-1))


class SmallModel(Weights):
    def forward(self) -> Any:
        return [p.view_as(p) for p in self._parameters.values()]  # the gradients must pass through a recorded operation


def build(args: Any) -> Worker:
    case = CASES[args.case]
    use_core(args, int(os.environ["RANK"]))
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    assert torch.get_num_threads() == torch.get_num_interop_threads() == 1
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    cls = {MLP: MLPModel, GPT: GPTModel, Small: SmallModel}[type(case)]
    cls.case = case
    options: dict[str, Any] = {"bucket_cap_mb": float(args.mode) / 2**20} if args.mode else {}
    model = torch.nn.parallel.DistributedDataParallel(
        cls(weights(case)), gradient_as_bucket_view=True, static_graph=True, **options
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, fused=True)
    data = [tuple(map(torch.from_numpy, pair)) for pair in batches(case, rank)]
    cotangents = list(data[0][0]) if isinstance(case, Small) else []
    clock = time.perf_counter

    def step(i: int) -> Any:
        x, y = data[i % len(data)]
        optimizer.zero_grad(set_to_none=True)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def exchange(i: int) -> Any:
        """Average given cotangents of the parameters over the ranks."""
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(model(), cotangents)
        return model.parameters()

    def profile(count: int) -> Any:
        parts = []
        for i in range(count):
            x, y = data[i % len(data)]
            begin = clock()
            optimizer.zero_grad(set_to_none=True)
            loss = model(x, y)
            forward = clock()
            loss.backward()
            backward = clock()
            optimizer.step()
            parts.append([forward - begin, backward - forward, clock() - backward])
        return np.median(parts, axis=0).tolist()

    def total(loss: Any) -> float:
        if isinstance(case, Small):  # the ranks' gradients are averaged, and the other library sums them
            return size * sum(p.grad.double().sum().item() for p in loss)
        value = loss.double().clone()
        distributed.all_reduce(value)
        return value.item() / size

    chosen = exchange if isinstance(case, Small) else step
    about = f"DDP over gloo of torch {torch.__version__}"
    return Worker(rank, size, about, chosen, total, distributed.barrier, {"profile": profile})


if __name__ == "__main__":
    given = arguments()
    serve(given, build(given))
    os._exit(0)  # gloo's threads may not end by themselves
