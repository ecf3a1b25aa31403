"""One rank of `benchmarks/data_parallel.py` in ringtape's public API."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy
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

import autograd as ag
import collectives as cc
from autograd import kernels, nn, ops, optim
from collectives.inspect.observing import observing
from collectives.transports.steps import finish, give, take
from parallel import DataParallel

Array = Any
LINK_BYTES = 8 << 20
SIZES = ("measured",)


class Weights(nn.Module):
    """A module with the weights of a case as attributes, which are read by their names with dots."""

    case: Any

    def __init__(self, arrays: dict[str, Array]):
        for name, a in arrays.items():
            setattr(self, name.replace(".", "_"), ag.Parameter(a))

    def entered(self) -> dict[str, Any]:
        """The parameters by name, as they are inside a parallel model: `vars` would give those outside of it."""
        return {name: getattr(self, name) for name in vars(self)}


class MLPModel(Weights):
    def forward(self, x: Any, y: Any) -> Any:
        p = self.entered()
        last = self.case.widths[1:]
        for i in range(len(last)):
            x = ops.linear(x, p[f"{i}_weight"], p[f"{i}_bias"])
            x = ops.relu(x) if i < len(last) - 1 else x
        return nn.cross_entropy(x, y, reduction="sum")


class GPTModel(Weights):
    def forward(self, tokens: Any, y: Any) -> Any:
        case, p = self.case, self.entered()
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
    def forward(self) -> Any:
        return list(self.entered().values())


def step_of(step: Any, data: Any, captures: bool) -> Any:
    """The step of a number, given that of a batch."""
    of_batch = ag.capture(step) if captures else step
    return lambda i: of_batch(*data[i % len(data)])


def build(args: Any) -> Worker:
    case = CASES[args.case]
    world = cc.world()
    use_core(args, world.rank)
    forms = args.mode.split(",") if args.mode else []
    sizes: list[Any] = [int(form) if form.isdigit() else form for form in forms if form in SIZES or form.isdigit()]
    algorithms = [form for form in forms if form not in (*SIZES, "capture") and not form.isdigit()]
    mesh = cc.Mesh(dp=-1, algorithm=algorithms[0] if algorithms else "native")
    mesh.__enter__()  # for the life of the process
    kernels.keep_freed_memory()
    cls = {MLP: MLPModel, GPT: GPTModel, Small: SmallModel}[type(case)]
    cls.case = case
    model = DataParallel(cls(weights(case)), "dp", bucket_bytes=sizes[0] if sizes else 25 << 20)
    parameters = model.parameters()
    optimizer = optim.Adam(parameters, lr=RATE, betas=BETAS, eps=EPS)
    given = batches(case, world.rank)
    if isinstance(case, Small):
        cotangents = [ag.tensor(a, {"dp": cc.P}) for a in given[0][0]]
    else:
        data = [tuple(cc.from_local(a, {"dp": cc.Shard(0)}) for a in pair) for pair in given]
        rows = world.size * given[0][1].size
    clock = time.perf_counter

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = model(x, y) / rows
        tape.backward(loss)
        optimizer.step()
        return loss

    def exchange(i: int) -> Any:
        """Sum given cotangents of the parameters over the ranks, and return their sum."""
        optimizer.zero_grad()
        with ag.Tape() as tape:
            inside = model()
        tape.backward(inside, cotangents)
        return parameters

    def timed_step(i: int) -> tuple[float, float, float, float]:
        """The times at which the parts of a step begin, and its end."""
        x, y = data[i % len(data)]
        begin = clock()
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = model(x, y) / rows
        forward = clock()
        tape.backward(loss)
        backward = clock()
        optimizer.step()
        return begin, forward, backward, clock()

    def profile(count: int) -> Any:
        return numpy.median([numpy.diff(timed_step(i)) for i in range(count)], axis=0).tolist()

    def ready(count: int) -> Any:
        """Of each step: its time, those of forward and optimizer, when each bucket was complete, and its bytes."""
        seen: list[tuple[float, int]] = []

        def observe(group: Any, request: Any, started: bool, run: Any) -> Any:
            if started and request.call == "all_reduce":
                seen.append((clock(), request.x.nbytes))
            return run()

        found = []
        for i in range(count):
            seen.clear()
            with observing(observe):
                begin, forward, backward, end = timed_step(i)
            times = [t - forward for t, _ in seen]
            found.append((end - begin, forward - begin, end - backward, times, [n for _, n in seen]))
        return found

    def link() -> Any:
        """Bytes per second and latency in seconds of messages between the first two ranks."""

        def there(x: Any) -> None:  # the receiver answers, so that the time includes the arrival
            if world.rank == 0:
                finish(give(world, x, 1))
                world.recv(numpy.empty(1, x.dtype), 1)
            elif world.rank == 1:
                finish(take(world, numpy.empty_like(x), 0))
                world.send(x[:1], 0)

        def took(x: Any) -> float:
            world.barrier()
            begin = clock()
            there(x)
            return clock() - begin

        long, short = (numpy.zeros(n, numpy.uint8) for n in (LINK_BYTES, 1))
        latency = statistics.median(took(short) for _ in range(20)) / 2
        return LINK_BYTES / (statistics.median(took(long) for _ in range(5)) - latency), latency

    def total(loss: Any) -> float:
        if isinstance(case, Small):
            return sum(float(p.grad.data.sum(dtype="f8")) for p in loss)
        return float(world.all_reduce(numpy.array([float(loss.local)]))[0])

    chosen = exchange if isinstance(case, Small) else step_of(step, data, "capture" in forms)
    more = {"profile": profile, "ready": ready, "link": link}
    return Worker(world.rank, world.size, "ringtape", chosen, total, world.barrier, more)


if __name__ == "__main__":
    given = arguments()
    serve(given, build(given))
