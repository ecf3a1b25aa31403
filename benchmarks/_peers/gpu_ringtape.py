"""The steps of `benchmarks/gpu.py` in ringtape's public API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from data_parallel_case import RotaryGPT, weights
from gpu_case import GPT, MLP, Adam, Attention, Case, Copy, Rows, Step, normal, serve

os.environ.setdefault("CUPY_TF32", "1")  # as the peer
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import gpt as example
import numpy as np

import autograd as ag
import autograd.numpy as anp
from autograd import kernels, nn, ops, optim, random

DEVICE = "cpu" if "--cpu" in sys.argv else "cuda"


def on_device(array: Any) -> Any:
    """A Tensor on the device."""
    return ag.tensor(array).to(DEVICE)


def copy(case: Copy) -> dict[str, Step]:
    x = on_device(np.zeros(case.bytes // 4, np.float32)).array
    out = x.copy()
    return {"step": lambda: np.copyto(out, x)}


def both_ways(function: Any, *operands: Any) -> dict[str, Step]:
    """A function without a tape, and its backward with all intermediate results kept."""
    with ag.Tape() as tape:
        y = function(*operands)
    ct = ag.tensor(anp.ones_like(y))

    def forward() -> None:
        with ag.no_grad():
            function(*operands)

    def backward() -> None:
        tape.backward(y, ct, wanted=operands, retain=True)

    return {"forward": forward, "backward": backward}


def rows(case: Rows) -> dict[str, Step]:
    x = ag.Parameter(on_device(normal(0, (case.rows, case.width), case.dtype)))
    one = [ag.Parameter(on_device(np.ones(case.width, case.dtype))) for _ in range(2)]
    if case.function == "cross_entropy":
        labels = on_device(np.arange(case.rows) % case.width)
        return both_ways(lambda x: ops.cross_entropy(x, labels), x)
    if case.function == "rotary":
        cos, sin = (on_device(table.astype(case.dtype)) for table in ops.rotary_angles(case.rows, case.width))
        return both_ways(lambda x: ops.rotary(x, cos, sin), x)
    if case.function in ("layer_norm", "rms_norm"):
        one = one[: 2 if case.function == "layer_norm" else 1]
        return both_ways(getattr(ops, case.function), x, *one)
    if case.function == "sum_of_rows":
        return {"forward": both_ways(lambda x: x.sum(0), x)["forward"]}
    if case.function == "activated_bias":
        return activated_bias(x, one[0])
    other = "float16" if case.dtype == "float32" else "float32"
    functions: dict[str, Any] = {
        "cast": lambda x: x.astype(other),
        "gelu": lambda x: ops.gelu(x, "tanh"), "silu": ops.silu, "softmax": ops.softmax, "log_softmax": ops.log_softmax,
        "dropout": lambda x: nn.dropout(x, 0.1, key=random.Key(0)),
    }  # fmt: skip
    return both_ways(functions[case.function], x)


def activated_bias(x: Any, b: Any) -> dict[str, Step]:
    """What a linear layer does after its product, where a device has the kernel: in the layer it is one with it."""
    biases = kernels.on_device("biases", x.array)
    if biases is None:
        return both_ways(lambda x, b: ops.gelu(x + b, "tanh"), x, b)
    y, ct = anp.empty_like(x.array), anp.ones_like(x.array)
    return {"forward": lambda: biases.activated(x.array, b.array, y, "GeluTanh"),
            "backward": lambda: biases.activated_backward(ct, x.array, b.array, y, "GeluTanh")}  # fmt: skip


def attention(case: Attention) -> dict[str, Step]:
    shape = (case.batch, case.heads, case.tokens, case.width)
    q, k, v = (ag.Parameter(on_device(normal(i, shape, "float16"))) for i in range(3))
    return both_ways(lambda q, k, v: ops.attention(q, k, v, causal=True), q, k, v)


def adam(case: Adam) -> dict[str, Step]:
    p = ag.Parameter(on_device(np.zeros(case.parameters, np.float32)))
    p.grad = on_device(np.ones(case.parameters, np.float32))
    return {"step": optim.AdamW([p], lr=1e-3).step}


def gpt(case: GPT) -> dict[str, Step]:
    config = example.Config(case.vocabulary, case.width, case.heads, case.layers)
    model, total = example.gpt(config, random.Key(0), np.dtype(case.dtype)), example.Loss()
    given = weights(RotaryGPT(case.layers, case.width, case.heads, case.context, case.vocabulary, case.batch))
    for name, p in model.named_parameters():
        p.data = given[name].astype(case.dtype)
    model.to(device=DEVICE)
    optimizer: Any = optim.AdamW(model.parameters(), lr=1e-4)
    if case.dtype == "float16":
        optimizer = optim.MasterWeights(optim.AdamW, model.parameters(), lr=1e-4)
    tokens = np.arange(case.batch * (case.context + 1)).reshape(case.batch, -1) * 7 % case.vocabulary
    x, y = on_device(np.ascontiguousarray(tokens[:, :-1])), on_device(np.ascontiguousarray(tokens[:, 1:]))
    count = case.batch * case.context

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = total(model(x), y) / count
            objective = optimizer.scale(loss) if case.dtype == "float16" else loss
        tape.backward(objective)
        optimizer.step()
        return loss

    return {"step": step}


def mlp(case: MLP) -> dict[str, Step]:
    layers: list[nn.Module] = []
    for at, (n, m) in enumerate(zip(case.widths, case.widths[1:], strict=False)):
        layers += [nn.Linear(n, m, key=random.Key(at)), nn.ReLU()]
    model, mean = nn.Sequential(*layers[:-1]).to(device=DEVICE), nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = on_device(normal(0, (case.batch, case.widths[0]), "float32"))
    y = on_device(np.arange(case.batch) % case.widths[-1])

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = mean(model(x), y)
        tape.backward(loss)
        optimizer.step()

    run = ag.capture(step) if case.is_captured and DEVICE == "cuda" else step
    for _ in range(4):  # the fourth call of a captured step captures it
        run(x, y)
    return {"step": lambda: run(x, y)}


MAKERS: Any = {Copy: copy, Rows: rows, Attention: attention, Adam: adam, GPT: gpt, MLP: mlp}


def make(case: Case, is_cpu: bool) -> dict[str, Step]:
    found: dict[str, Step] = MAKERS[type(case)](case)
    return found


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        from autograd.arrays import cuda

        cuda.runtime().current_stream().synchronize()


if __name__ == "__main__":
    serve("ringtape", make, synchronize)
