"""The training step of `benchmarks/engine.py` in ringtape, by its public names: on a mesh, or as a plain module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from engine_worker import BATCH, MOMENTUM, RATE, Problem, serve

import autograd as ag
import collectives as cc
from autograd import nn, optim
from parallel import DataParallel


def module(problem: Problem) -> nn.Module:
    layers: list[nn.Module] = []
    for weight, bias in zip(problem.weights, problem.biases, strict=True):
        linear = nn.Linear(*weight.shape)
        for p in linear.parameters():
            # Weights are (in, out). Of a square one the shape does not tell, but the driver compares the losses.
            p.data[...] = bias if p.data.ndim == 1 else weight
            assert p.data.dtype == numpy.float32, p.data.dtype
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build(problem: Problem, mode: str) -> Callable[[], Any]:
    return {"mesh": on_mesh, "plain": plain}[mode](problem)


def on_mesh(problem: Problem) -> Callable[[], Any]:
    mesh = cc.Mesh(dp=1)
    mesh.__enter__()  # for the life of the process
    model = DataParallel(module(problem), "dp")
    optimizer = optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x = ag.tensor(problem.x, layout={"dp": cc.Shard(0)})
    y = ag.tensor(problem.y, layout={"dp": cc.Shard(0)})

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum"), "dp", to=cc.I) / BATCH
        tape.backward(loss)
        optimizer.step()
        return loss.data

    return step


def plain(problem: Problem) -> Callable[[], Any]:
    model = module(problem)
    optimizer = optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x, y = ag.tensor(problem.x), ag.tensor(problem.y)

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum") / BATCH
        tape.backward(loss)
        optimizer.step()
        return loss.data

    return step


serve(build)
