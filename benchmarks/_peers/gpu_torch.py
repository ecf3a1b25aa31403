"""The steps of `benchmarks/gpu.py` in PyTorch, eager."""

from __future__ import annotations

import sys
from typing import Any

import torch
from data_parallel_case import RotaryGPT, weights
from gpt_torch import GPT as Model
from gpu_case import GPT, MLP, Adam, Attention, Case, Copy, Rows, Step, normal, serve
from torch.nn.attention import SDPBackend, sdpa_kernel

F = torch.nn.functional
DEVICE = "cpu" if "--cpu" in sys.argv else "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True

FUNCTIONS = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "dropout": lambda x: F.dropout(x, 0.1),
    "cast": lambda x: x.to(torch.float16 if x.dtype == torch.float32 else torch.float32),
}


def copy(case: Copy) -> dict[str, Step]:
    x = torch.zeros(case.bytes // 4, device=DEVICE)
    out = torch.empty_like(x)
    return {"step": lambda: out.copy_(x)}


def rows(case: Rows) -> dict[str, Step]:
    x = torch.from_numpy(normal(0, (case.rows, case.width), case.dtype)).to(DEVICE).requires_grad_()
    dtype, shape = x.dtype, (case.width,)
    function: Any = FUNCTIONS.get(case.function)
    if case.function == "cross_entropy":
        labels = torch.arange(case.rows, device=DEVICE) % case.width
        function = lambda x: F.cross_entropy(x, labels, reduction="none")
    elif case.function == "layer_norm":
        weight, bias = (torch.ones(shape, dtype=dtype, device=DEVICE, requires_grad=True) for _ in range(2))
        function = lambda x: F.layer_norm(x, shape, weight, bias)
    elif case.function == "rms_norm":
        weight = torch.ones(shape, dtype=dtype, device=DEVICE, requires_grad=True)
        function = lambda x: F.rms_norm(x, shape, weight)
    elif case.function == "activated_bias":
        bias = torch.ones(shape, dtype=dtype, device=DEVICE, requires_grad=True)
        function = lambda x: F.gelu(x + bias, approximate="tanh")
    elif case.function == "rotary":
        return {}  # eager PyTorch has no such function
    elif case.function == "sum_of_rows":
        function = lambda x: x.sum(0)
    y = function(x)
    ct = torch.ones_like(y)
    operands = [x, *(p for p in (locals().get("weight"), locals().get("bias")) if p is not None)]

    def forward() -> None:
        with torch.no_grad():
            function(x)

    return {"forward": forward, "backward": lambda: torch.autograd.grad(y, operands, ct, retain_graph=True)}


def attention(case: Attention) -> dict[str, Step]:
    shape = (case.batch, case.heads, case.tokens, case.width)
    q, k, v = (torch.from_numpy(normal(i, shape, "float16")).to(DEVICE).requires_grad_() for i in range(3))
    backend = SDPBackend.MATH if DEVICE == "cpu" else SDPBackend.FLASH_ATTENTION

    def run() -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    y = run()
    ct = torch.ones_like(y)

    def forward() -> None:
        with torch.no_grad():
            run()

    return {"forward": forward, "backward": lambda: torch.autograd.grad(y, (q, k, v), ct, retain_graph=True)}


def adam(case: Adam) -> dict[str, Step]:
    p = torch.nn.Parameter(torch.zeros(case.parameters, device=DEVICE))
    p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW([p], lr=1e-3, fused=True)
    return {"step": lambda: optimizer.step()}


def gpt(case: GPT) -> dict[str, Step]:
    sizes = RotaryGPT(case.layers, case.width, case.heads, case.context, case.vocabulary, case.batch)
    model: Any = Model(weights(sizes), case.heads).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.arange(case.batch * (case.context + 1), device=DEVICE).view(case.batch, -1) * 7 % case.vocabulary
    x, y = tokens[:, :-1], tokens[:, 1:].reshape(-1)
    turns = model.turns(case.context, torch.float32).to(DEVICE)
    scaler = torch.amp.GradScaler(DEVICE, enabled=case.dtype == "float16")

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.float16, enabled=case.dtype == "float16"):
            loss = F.cross_entropy(model(x, turns).flatten(0, 1), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return {"step": step}


def mlp(case: MLP) -> dict[str, Step]:
    layers: list[torch.nn.Module] = []
    for n, m in zip(case.widths, case.widths[1:], strict=False):
        layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.from_numpy(normal(0, (case.batch, case.widths[0]), "float32")).to(DEVICE)
    y = torch.arange(case.batch, device=DEVICE) % case.widths[-1]

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return {"step": step}  # eager also where ours is captured


MAKERS: Any = {Copy: copy, Rows: rows, Attention: attention, Adam: adam, GPT: gpt, MLP: mlp}


def make(case: Case, is_cpu: bool) -> dict[str, Step]:
    found: dict[str, Step] = MAKERS[type(case)](case)
    return found


if __name__ == "__main__":
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    serve(f"torch {torch.__version__}", make, torch.cuda.synchronize if DEVICE == "cuda" else lambda: None)
