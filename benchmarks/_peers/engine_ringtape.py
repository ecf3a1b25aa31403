"""The steps of `benchmarks/engine.py` in ringtape's public API; training runs on a mesh, or as a plain module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import numpy
from before import check_tree
from engine_worker import (
    BATCH,
    CHAIN,
    MOMENTUM,
    RATE,
    Problem,
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

import autograd as ag
from autograd import kernels, nn, ops, optim


def module(problem: Problem) -> nn.Module:
    layers: list[nn.Module] = []
    for weight, bias in zip(problem.weights, problem.biases, strict=True):
        linear = nn.Linear(*weight.shape)
        for p in linear.parameters():
            # Weights are (in, out). A square weight could be transposed unnoticed here; the driver compares losses.
            p.data[...] = bias if p.data.ndim == 1 else weight
            assert p.data.dtype == numpy.float32, p.data.dtype
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp(sizes: tuple[int, ...], mode: str) -> Work:
    if mode.startswith("captured"):
        return Work(ag.capture(plain(problem(sizes), reads=False)), lambda loss: loss_only(loss.data))
    return Work({"mesh": on_mesh, "plain": plain}[mode](problem(sizes)), loss_only)


def on_mesh(problem: Problem) -> Callable[[], Any]:
    import collectives as cc
    from parallel import DataParallel

    mesh = cc.Mesh(dp=1)
    mesh.__enter__()  # for the life of the process
    model = DataParallel(module(problem), "dp")
    optimizer = optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x = cc.from_local(problem.x, {"dp": cc.Shard(0)})
    y = cc.from_local(problem.y, {"dp": cc.Shard(0)})

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum"), "dp", to=cc.I) / BATCH
        tape.backward(loss)
        optimizer.step()
        return loss.data

    return step


def plain(problem: Problem, reads: bool = True) -> Callable[[], Any]:
    model = module(problem)
    optimizer = optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x, y = ag.tensor(problem.x), ag.tensor(problem.y)

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum") / BATCH
        tape.backward(loss)
        optimizer.step()
        return loss.data if reads else loss

    return step


def chain(sizes: tuple[int, ...], mode: str) -> Work:
    (count,), (a, b) = sizes, CHAIN
    x = ag.Parameter(numpy.float32(1.0))

    def step() -> Any:
        x.zero_grad()
        with ag.Tape() as tape:
            y = x
            for _ in range(count // 2):
                y = y * a + b
        tape.backward(y)
        return y

    return Work(step, lambda y: {"value": float(y), "gradient": float(x.grad)})  # type: ignore[arg-type]


def gpt(sizes: tuple[int, ...], mode: str) -> Work:
    batch, tokens, width, heads = sizes
    array, ct, arrays = block(sizes)
    p = {name: ag.Parameter(a) for name, a in arrays.items()}
    x = ag.tensor(array, requires_grad=True)

    def step() -> Any:
        for leaf in (x, *p.values()):
            leaf.zero_grad()
        with ag.Tape() as tape:
            h = ops.layer_norm(x, p["ln1.weight"], p["ln1.bias"])
            h = ops.linear(h, p["qkv.weight"], p["qkv.bias"])
            h = ops.self_attention(h.reshape(batch, tokens, 3, heads, -1), causal=True)
            y = x + ops.linear(h.reshape(batch, tokens, width), p["out.weight"], p["out.bias"])
            h = ops.layer_norm(y, p["ln2.weight"], p["ln2.bias"])
            h = ops.gelu(ops.linear(h, p["up.weight"], p["up.bias"]), "tanh")
            y = y + ops.linear(h, p["down.weight"], p["down.bias"])
        tape.backward(y, ct)
        return y

    def look(y: Any) -> dict[str, float]:
        found = {"output": norm(y.numpy()), "x": norm(x.grad)}
        return found | {name: norm(leaf.grad) for name, leaf in p.items()}

    return Work(step, look)


def cnn(sizes: tuple[int, ...], mode: str) -> Work:
    array, labels, arrays = images(sizes)
    p = {name: ag.Parameter(a) for name, a in arrays.items()}
    optimizer = optim.SGD(list(p.values()), lr=RATE, momentum=MOMENTUM)
    x, y = ag.tensor(array), ag.tensor(labels)

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            h = ops.max_pool(ops.relu(ops.convolution(x, p["0.weight"], p["0.bias"], padding=1)), 2)
            h = ops.max_pool(ops.relu(ops.convolution(h, p["1.weight"], p["1.bias"], padding=1)), 2)
            loss = nn.cross_entropy(ops.linear(h.reshape(len(array), -1), p["2.weight"], p["2.bias"]), y)
        tape.backward(loss)
        optimizer.step()
        return loss.data

    return Work(step, loss_only)


def cross_entropy(sizes: tuple[int, ...], mode: str) -> Work:
    array, labels = logits(sizes)
    x, t = ag.tensor(array, requires_grad=True), ag.tensor(labels)

    def step() -> Any:
        x.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(x, t, reduction="sum") / sizes[0]
        tape.backward(loss)
        return loss

    return Work(step, lambda loss: {"loss": float(loss), "gradient": norm(x.grad)})


def adam(sizes: tuple[int, ...], mode: str) -> Work:
    array, gradient = adam_state(sizes)
    p = ag.Parameter(array)
    p.grad = ag.tensor(gradient)
    optimizer = optim.Adam([p])
    keeps = "keep" in signature(optimizer.step).parameters  # a gradient that is used again is told, in later trees
    step = partial(optimizer.step, keep=True) if keeps else optimizer.step
    return Work(step, lambda _: {"parameter": norm(p.numpy())})


check_tree()
if hasattr(kernels, "keep_freed_memory"):  # trees without it keep freed memory in any case, as torch's allocator does
    kernels.keep_freed_memory()
serve(mlp=mlp, chain=chain, gpt=gpt, cross_entropy=cross_entropy, cnn=cnn, adam=adam)
