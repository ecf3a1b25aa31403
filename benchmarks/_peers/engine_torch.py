"""The steps of `benchmarks/engine.py` in PyTorch, eager, with its default settings."""

from __future__ import annotations

from typing import Any

import torch
from engine_worker import (
    CHAIN,
    MOMENTUM,
    RATE,
    Work,
    adam_state,
    block,
    images,
    logits,
    loss_only,
    norm,
    problem,
    serve,
)

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
assert torch.get_num_threads() == torch.get_num_interop_threads() == 1
F = torch.nn.functional


def mlp(sizes: tuple[int, ...], mode: str) -> Work:
    given = problem(sizes)
    layers: list[torch.nn.Module] = []
    for weight, bias in zip(given.weights, given.biases, strict=True):
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T))
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x, y = torch.from_numpy(given.x), torch.from_numpy(given.y)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Work(step, loss_only)


def chain(sizes: tuple[int, ...], mode: str) -> Work:
    (count,), (a, b) = sizes, CHAIN
    x = torch.tensor(1.0, requires_grad=True)

    def step() -> Any:
        x.grad = None
        y = x
        for _ in range(count // 2):
            y = y * a + b
        y.backward()
        return y

    return Work(step, lambda y: {"value": y.item(), "gradient": float(x.grad)})  # type: ignore[arg-type]


def gpt(sizes: tuple[int, ...], mode: str) -> Work:
    batch, tokens, width, heads = sizes
    x, ct, arrays = block(sizes)
    p = {n: torch.tensor(a.T.copy() if a.ndim == 2 else a, requires_grad=True) for n, a in arrays.items()}
    x, ct = torch.tensor(x, requires_grad=True), torch.tensor(ct)
    hidden = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1)
    scale = (width // heads) ** -0.5

    def step() -> Any:
        for leaf in (x, *p.values()):
            leaf.grad = None
        h = F.layer_norm(x, (width,), p["ln1.weight"], p["ln1.bias"])
        h = F.linear(h, p["qkv.weight"], p["qkv.bias"])
        q, k, v = (part.view(batch, tokens, heads, -1).transpose(1, 2) for part in h.split(width, dim=2))
        if mode == "sdpa":
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * scale
            h = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v
        h = h.transpose(1, 2).reshape(batch, tokens, width)
        y = x + F.linear(h, p["out.weight"], p["out.bias"])
        h = F.layer_norm(y, (width,), p["ln2.weight"], p["ln2.bias"])
        h = F.gelu(F.linear(h, p["up.weight"], p["up.bias"]), approximate="tanh")
        y = y + F.linear(h, p["down.weight"], p["down.bias"])
        y.backward(ct)
        return y

    def look(y: Any) -> dict[str, float]:
        found = {"output": norm(y.detach()), "x": norm(x.grad)}
        return found | {name: norm(leaf.grad) for name, leaf in p.items()}

    return Work(step, look)


def cross_entropy(sizes: tuple[int, ...], mode: str) -> Work:
    array, labels = logits(sizes)
    x, t = torch.tensor(array, requires_grad=True), torch.from_numpy(labels)

    def step() -> Any:
        x.grad = None
        loss = F.cross_entropy(x, t)
        loss.backward()
        return loss

    return Work(step, lambda loss: {"loss": loss.item(), "gradient": norm(x.grad)})


def cnn(sizes: tuple[int, ...], mode: str) -> Work:
    array, labels, arrays = images(sizes)
    p = {n: torch.tensor(a.T.copy() if a.ndim == 2 else a, requires_grad=True) for n, a in arrays.items()}
    optimizer = torch.optim.SGD(p.values(), lr=RATE, momentum=MOMENTUM)
    x, y = torch.from_numpy(array), torch.from_numpy(labels)

    def step() -> Any:
        optimizer.zero_grad()
        h = F.max_pool2d(F.relu(F.conv2d(x, p["0.weight"], p["0.bias"], padding=1)), 2)
        h = F.max_pool2d(F.relu(F.conv2d(h, p["1.weight"], p["1.bias"], padding=1)), 2)
        loss = F.cross_entropy(F.linear(h.flatten(1), p["2.weight"], p["2.bias"]), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Work(step, loss_only)


def adam(sizes: tuple[int, ...], mode: str) -> Work:
    array, gradient = adam_state(sizes)
    p = torch.tensor(array, requires_grad=True)
    p.grad = torch.from_numpy(gradient)
    optimizer = torch.optim.Adam([p], fused=True) if mode == "fused" else torch.optim.Adam([p])
    return Work(optimizer.step, lambda _: {"parameter": norm(p.detach())})


serve(mlp=mlp, chain=chain, gpt=gpt, cross_entropy=cross_entropy, cnn=cnn, adam=adam)
