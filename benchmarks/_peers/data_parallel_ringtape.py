"""One rank of `benchmarks/data_parallel.py` in ringtape's public API."""

from __future__ import annotations

import inspect
import time
from typing import Any

import numpy
from data_parallel_case import BETAS, CASES, EPS, GPT, MLP, RATE, Small, Worker, arguments, batches, serve, use_core, weights

import autograd as ag
import collectives as cc
from autograd import kernels, nn, ops, optim
from parallel import DataParallel

Array = Any


class Weights(nn.Module):
    """A module with the weights of a case as attributes, which are read by their names with dots."""

    def __init__(self, arrays: dict[str, Array]):
        for name, a in arrays.items():
            setattr(self, name.replace(".", "_"), ag.Parameter(a))


class MLPModel(Weights):
    def forward(self, x: Any, y: Any) -> Any:
        p = vars(self)
        last = CASES["mlp"].widths[1:]
        for i in range(len(last)):
            x = ops.linear(x, p[f"{i}_weight"], p[f"{i}_bias"])
            x = ops.relu(x) if i < len(last) - 1 else x
        return nn.cross_entropy(x, y, reduction="sum")


class GPTModel(Weights):
    def forward(self, tokens: Any, y: Any) -> Any:
        case, p = CASES["gpt"], vars(self)
        assert isinstance(case, GPT)
        batch, width = tokens.shape[0], case.width
        h = nn.functional.embedding(tokens, p["tokens"]) + p["positions"]
        for i in range(case.layers):
            w = {name.partition("_")[2]: p[name] for name in p if name.startswith(f"{i}_")}
            z = ops.linear(ops.layer_norm(h, w["ln1_weight"], w["ln1_bias"]), w["qkv_weight"], w["qkv_bias"])
            z = ops.self_attention(ops.reshape(z, (batch, case.context, 3, case.heads, -1)), causal=True)
            h = h + ops.linear(ops.reshape(z, (batch, case.context, width)), w["out_weight"], w["out_bias"])
            z = ops.linear(ops.layer_norm(h, w["ln2_weight"], w["ln2_bias"]), w["up_weight"], w["up_bias"])
            h = h + ops.linear(ops.gelu(z, "tanh"), w["down_weight"], w["down_bias"])
        logits = ops.layer_norm(h, p["ln_weight"], p["ln_bias"]) @ p["head_weight"]
        return nn.cross_entropy(ops.reshape(logits, (-1, case.vocabulary)), ops.reshape(y, (-1,)), reduction="sum")


class SmallModel(Weights):
    def forward(self, x: Any, y: Any) -> Any:
        return (ops.concatenate(list(self.parameters())) * x).sum()


def build(args: Any) -> Worker:
    case = CASES[args.case]
    world = cc.world()
    use_core(args, world.rank)
    mesh = cc.Mesh(dp=-1)
    mesh.__enter__()  # for the life of the process
    kernels.keep_freed_memory()
    cls = {"mlp": MLPModel, "gpt": GPTModel, "small": SmallModel}[args.case]
    options = {"bucket_bytes": int(args.mode)} if args.mode else {}
    model = DataParallel(cls(weights(case)), "dp", **options)
    parameters = model.parameters()
    optimizer = optim.Adam(parameters, lr=RATE, betas=BETAS, eps=EPS)
    layout = {"dp": cc.V} if isinstance(case, Small) else {"dp": cc.Shard(0)}
    data = [tuple(cc.from_local(a, layout) for a in pair) for pair in batches(case, world.rank)]
    rows = world.size * (case.batch if isinstance(case, MLP) else case.batch * case.context if isinstance(case, GPT) else 1)
    clock = time.perf_counter
    parts: list[list[float]] = []

    def step(i: int) -> Any:
        x, y = data[i % len(data)]
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = model(x, y) / rows
        tape.backward(loss)
        optimizer.step()
        return loss

    def exchange(i: int) -> Any:
        """A step without the optimizer."""
        x, y = data[i % len(data)]
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.declare_partial(model(x, y), "dp")
        tape.backward(loss)
        return loss / rows

    def timed_step(i: int) -> None:
        x, y = data[i % len(data)]
        begin = clock()
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = model(x, y) / rows
        forward = clock()
        tape.backward(loss)
        backward = clock()
        optimizer.step()
        parts.append([forward - begin, backward - forward, clock() - backward])

    def profile(count: int) -> Any:
        parts.clear()
        for i in range(count):
            timed_step(i)
        return numpy.median(parts, axis=0).tolist()

    def total(loss: Any) -> float:
        return float(world.all_reduce(numpy.array([float(loss.local)]))[0])

    chosen = exchange if isinstance(case, Small) else step
    return Worker(world.rank, world.size, "ringtape", chosen, total, world.barrier, {"profile": profile})


if __name__ == "__main__":
    given = arguments()
    serve(given, build(given))
