"""The training step of `benchmarks/engine.py` in PyTorch, eager, with its default settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from engine_worker import MOMENTUM, RATE, Problem, serve


def build(problem: Problem, mode: str) -> Callable[[], Any]:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    assert torch.get_num_threads() == torch.get_num_interop_threads() == 1
    layers: list[torch.nn.Module] = []
    for weight, bias in zip(problem.weights, problem.biases, strict=True):
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T))
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


serve(build)
