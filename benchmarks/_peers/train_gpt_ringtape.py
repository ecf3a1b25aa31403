"""One rank of `benchmarks/train_gpt.py` in ringtape's public API: the model of `examples/gpt.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from data_parallel_case import BETAS, CASES, EPS, RATE, RotaryGPT, Worker, arguments, batches, serve, use_core, weights

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import gpt

import autograd as ag
import collectives as cc
from autograd import kernels, optim, random
from parallel import Column, Row, Vocabulary, parallelize

PLAN = {"*.table": Vocabulary("tp"), "*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.up": Column("tp"),
        "*.down": Row("tp"), "*.out": Vocabulary("tp")}  # fmt: skip


def build(args: Any) -> Worker:
    case = CASES[args.case]
    assert isinstance(case, RotaryGPT)
    world = cc.world()
    use_core(args, world.rank)
    kernels.keep_freed_memory()
    config = gpt.Config(case.vocabulary, case.width, case.heads, case.layers)
    model, total_loss = gpt.gpt(config, random.Key(0)), gpt.Loss()
    given = weights(case)
    for name, p in model.named_parameters():
        p.data = given[name]
    data: Any = batches(case, 0)
    count = data[0][1].size
    if world.size > 1:
        cc.Mesh(tp=-1).__enter__()  # for the life of the process
        parallelize(model, PLAN)
        parallelize(total_loss, {"rows": Vocabulary("tp")})
        data = [tuple(ag.tensor(a, {"tp": cc.R}) for a in pair) for pair in data]
    optimizer = optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.1)

    def step_of(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = total_loss(model(x), y) / count
        tape.backward(loss)
        optimizer.step()
        return loss

    of_batch = ag.capture(step_of) if args.mode == "capture" else step_of

    def step(i: int) -> Any:
        return of_batch(*data[i % len(data)])

    def total(loss: Any) -> float:
        return float(loss.item())

    return Worker(world.rank, world.size, "ringtape", step, total, world.barrier, {})


if __name__ == "__main__":
    given = arguments()
    serve(given, build(given))
