"""The programs of `benchmarks/captured.py` in PyTorch, eager, with its default settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .problems import GRID, HEADS, MOMENTUM, PROBLEMS, Problem, problem

__all__ = ["step", "version"]

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
F = torch.nn.functional
Parameters = dict[str, Any]
version = f"torch {torch.__version__}"


def step(name: str) -> Callable[[int], Any]:
    """The step of a program, from its initial state; ``step(i)`` takes the i-th batch and returns the loss."""
    of = problem(name)
    torch.manual_seed(0)
    batches = [tuple(map(torch.tensor, batch)) for batch in of.batches]
    if name == "private":
        return private(of, batches)
    if name.startswith("mlp-linear"):
        model = modules(of)
        loss: Callable[..., Any] = lambda x, y: F.cross_entropy(model(x), y)
        parameters = list(model.parameters())
    else:
        p = {name: torch.nn.Parameter(torch.tensor(a)) for name, a in of.parameters.items()}
        loss, parameters = partial(LOSSES[name], p), list(p.values())
    optimizer = optimizer_of(parameters, of)

    def run(i: int) -> Any:
        optimizer.zero_grad()
        value = loss(*batches[i % len(batches)])
        value.backward()
        optimizer.step()
        return value.detach()

    return run


def optimizer_of(parameters: list[Any], of: Problem) -> Any:
    if of.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=of.rate)
    return torch.optim.SGD(parameters, lr=of.rate, momentum=MOMENTUM if of.optimizer == "momentum" else 0.0)


# -- networks ----------------------------------------------------------------------------------------------------------
def modules(of: Problem) -> Any:
    layers: list[Any] = []
    for i in range(len(of.parameters) // 2):
        layer = torch.nn.Linear(*of.parameters[f"w{i}"].shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(of.parameters[f"w{i}"].T))
            layer.bias.copy_(torch.from_numpy(of.parameters[f"b{i}"]))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def mlp(activation: Callable[[Any], Any], p: Parameters, x: Any, y: Any) -> Any:
    h = activation(x @ p["w0"] + p["b0"])
    h = activation(h @ p["w1"] + p["b1"])
    return F.cross_entropy(h @ p["w2"] + p["b2"], y)


def logistic(p: Parameters, x: Any, y: Any) -> Any:
    return torch.log1p(torch.exp(-y * (x @ p["w"] + p["b"]))).mean() + 1e-4 * (p["w"] * p["w"]).sum()


def cnn(p: Parameters, x: Any, y: Any) -> Any:
    h = F.max_pool2d(torch.relu(F.conv2d(x, p["kernel0"], p["bias0"])), 2)
    h = F.max_pool2d(torch.relu(F.conv2d(h, p["kernel1"], p["bias1"])), 2)
    return F.cross_entropy(h.flatten(1) @ p["w"] + p["b"], y)


def lstm(p: Parameters, x: Any, y: Any) -> Any:
    n = p["of_h"].shape[0]
    h = c = torch.zeros(len(x), n)
    for t in range(x.shape[1]):
        g = x[:, t] @ p["of_x"] + h @ p["of_h"] + p["bias"]
        enters, forgets = torch.sigmoid(g[:, :n]), torch.sigmoid(g[:, n : 2 * n])
        leaves, new = torch.sigmoid(g[:, 2 * n : 3 * n]), torch.tanh(g[:, 3 * n :])
        c = forgets * c + enters * new
        h = leaves * torch.tanh(c)
    return F.cross_entropy(h @ p["w"] + p["b"], y)


def gru(p: Parameters, x: Any, y: Any) -> Any:
    n = p["of_h"].shape[0]
    h = torch.zeros(len(x), n)
    for t in range(x.shape[1]):
        g = torch.sigmoid(x[:, t] @ p["of_x"] + h @ p["of_h"] + p["bias"])
        resets, keeps = g[:, :n], g[:, n:]
        new = torch.tanh(x[:, t] @ p["new_of_x"] + (resets * h) @ p["new_of_h"] + p["new_bias"])
        h = keeps * h + (1 - keeps) * new
    return F.cross_entropy(h @ p["w"] + p["b"], y)


def layer_norm(x: Any, gain: Any, shift: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], gain, shift)


def gpt(layers: int, p: Parameters, text: Any, y: Any) -> Any:
    rows, tokens = text.shape
    h = F.embedding(text, p["tokens"]) + p["places"]
    for k in range(layers):
        a = layer_norm(h, p[f"{k}.gain0"], p[f"{k}.shift0"]) @ p[f"{k}.qkv"] + p[f"{k}.qkv_bias"]
        q, keys, values = a.view(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, keys, values, is_causal=True).transpose(1, 2).reshape(h.shape)
        h = h + a @ p[f"{k}.out"] + p[f"{k}.out_bias"]
        a = layer_norm(h, p[f"{k}.gain1"], p[f"{k}.shift1"]) @ p[f"{k}.up"] + p[f"{k}.up_bias"]
        h = h + F.gelu(a) @ p[f"{k}.down"] + p[f"{k}.down_bias"]
    h = layer_norm(h, p["gain"], p["shift"])
    return F.cross_entropy(h.reshape(rows * tokens, -1) @ p["tokens"].T, y)


def norm_gelu(p: Parameters, x: Any, y: Any) -> Any:
    h = x
    for k in range(3):
        h = h + F.gelu(layer_norm(h, p[f"gain{k}"], p[f"shift{k}"]) @ p[f"w{k}"] + p[f"b{k}"])
    return F.cross_entropy(h @ p["w"] + p["b"], y)


def vae(p: Parameters, x: Any) -> Any:
    h = torch.relu(x @ p["enter"] + p["enter_bias"])
    mean, spread = h @ p["mean"] + p["mean_bias"], h @ p["spread"] + p["spread_bias"]
    z = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
    o = torch.relu(z @ p["leave"] + p["leave_bias"]) @ p["pixels"] + p["pixels_bias"]
    of_pixels = (torch.clamp_min(o, 0) - o * x + torch.log1p(torch.exp(-torch.abs(o)))).sum()
    return (of_pixels - 0.5 * (1 + spread - mean * mean - torch.exp(spread)).sum()) / len(x)


def mixture_density(p: Parameters, x: Any, y: Any) -> Any:
    o = torch.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]
    heights, means, spreads = o[:, :5], o[:, 5:10], o[:, 10:]
    of_each = torch.log_softmax(heights, -1) - spreads - 0.5 * ((y - means) * torch.exp(-spreads)) ** 2
    return -torch.logsumexp(of_each, 1).mean()


def graph(p: Parameters, x: Any, edges: Any, y: Any) -> Any:
    h = torch.relu(edges @ (x @ p["w0"]) + p["b0"])
    return F.cross_entropy(edges @ (h @ p["w1"]) + p["b1"], y)


def private(of: Problem, batches: list[Any]) -> Callable[[int], Any]:
    p = {name: torch.nn.Parameter(torch.tensor(a)) for name, a in of.parameters.items()}
    optimizer = optimizer_of(list(p.values()), of)

    def of_one(p: Parameters, x: Any, y: Any) -> Any:
        return F.cross_entropy((torch.relu(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])[None], y[None])

    of_each = torch.func.vmap(torch.func.grad_and_value(of_one), (None, 0, 0))

    def run(i: int) -> Any:
        x, y = batches[i % len(batches)]
        optimizer.zero_grad()
        gradients, losses = of_each({name: a.detach() for name, a in p.items()}, x, y)
        squares = sum((g * g).reshape(len(x), -1).sum(1) for g in gradients.values())
        factors = torch.clamp_max(1 / torch.sqrt(squares), 1) / len(x)
        for name, a in p.items():
            a.grad = torch.tensordot(factors, gradients[name], 1)
        optimizer.step()
        return losses.mean()

    return run


# -- tables of embeddings ----------------------------------------------------------------------------------------------
def factorization(p: Parameters, users: Any, films: Any, ratings: Any) -> Any:
    error = (F.embedding(users, p["users"]) * F.embedding(films, p["films"])).sum(1) - ratings
    return (error * error).mean()


def word2vec(p: Parameters, words: Any, contexts: Any, others: Any) -> Any:
    of_words = F.embedding(words, p["words"])
    near = (of_words * F.embedding(contexts, p["contexts"])).sum(1)
    far = (of_words[:, None] * F.embedding(others, p["contexts"])).sum(2)
    return F.softplus(-near).mean() + F.softplus(far).sum(1).mean()


# -- differential equations, filters -----------------------------------------------------------------------------------
def pinn(p: Parameters, x: Any) -> Any:
    x = x.requires_grad_()
    h = torch.tanh(torch.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])
    u = (h @ p["w2"] + p["b2"]).sum()
    (first,) = torch.autograd.grad(u, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return ((second + torch.sin(x.detach())) ** 2).mean()


def neural_ode(p: Parameters, start: Any, end: Any) -> Any:
    def slope(y: Any) -> Any:
        return torch.tanh(y @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]

    y = start
    for _ in range(10):
        k1 = slope(y)
        k2 = slope(y + GRID / 2 * k1)
        k3 = slope(y + GRID / 2 * k2)
        k4 = slope(y + GRID * k3)
        y = y + GRID / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return ((y - end) ** 2).mean()


def lotka(p: Parameters, seen: Any) -> Any:
    prey: Any = 1.0
    hunters: Any = 0.5
    loss: Any = 0.0
    for t in range(40):
        of_prey = p["growth"] * prey - p["eaten"] * prey * hunters
        of_hunters = p["fed"] * prey * hunters - p["death"] * hunters
        prey, hunters = prey + 0.05 * of_prey, hunters + 0.05 * of_hunters
        loss = loss + (prey - seen[t, 0]) ** 2 + (hunters - seen[t, 1]) ** 2
    return loss.sum()


def leapfrog(p: Parameters, place: Any, speed: Any, end: Any) -> Any:
    for _ in range(20):
        speed = speed - GRID / 2 * (place @ p["spring"])
        place = place + GRID * speed
        speed = speed - GRID / 2 * (place @ p["spring"])
    return ((place - end) ** 2).sum()


def wave(p: Parameters, start: Any, end: Any) -> Any:
    u, before = start, start
    for _ in range(20):
        curvature = torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + torch.roll(u, 1, 1) + torch.roll(u, -1, 1) - 4 * u
        u, before = 2 * u - before + GRID * (p["speed"] * p["speed"]) * curvature, u
    return ((u - end) ** 2).sum()


def gaussian_process(p: Parameters, squares: Any, y: Any) -> Any:
    eye = torch.eye(len(y), dtype=y.dtype)
    kernel = torch.exp(p["height"]) * torch.exp(-0.5 * squares * torch.exp(p["length"])) + torch.exp(p["noise"]) * eye
    root = torch.linalg.cholesky(kernel)
    a = torch.linalg.solve_triangular(root, y[:, None], upper=False)
    return 0.5 * (a * a).sum() + torch.log(torch.diagonal(root)).sum()


def kalman(p: Parameters, seen: Any) -> Any:
    double = partial(torch.tensor, dtype=torch.float64)
    motion, eye, look = p["motion"], torch.eye(2, dtype=torch.float64), double([[1.0, 0.0]])
    mean, spread, loss = torch.zeros(2, 1, dtype=torch.float64), eye, double(0.0)
    for t in range(20):
        mean = motion @ mean
        spread = motion @ spread @ motion.T + torch.exp(p["log_q"]) * eye
        error = seen[t] - look @ mean
        of_error = look @ spread @ look.T + torch.exp(p["log_r"])
        gain = spread @ look.T / of_error
        mean, spread = mean + gain @ error, spread - gain @ look @ spread
        loss = loss + (torch.log(of_error) + error * error / of_error).sum()
    return loss


def relu(h: Any) -> Any:
    return torch.clamp_min(h, 0)


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp-maximum-sgd": partial(mlp, relu),
    "mlp-maximum-adam": partial(mlp, relu),
    "mlp-tanh-sgd": partial(mlp, torch.tanh),
    "mlp-gelu-sgd": partial(mlp, F.gelu),
    "logistic": logistic,
    "cnn": cnn,
    "lstm": lstm,
    "gru": gru,
    "block": partial(gpt, 1),
    "char-gpt": partial(gpt, 2),
    "norm-gelu": norm_gelu,
    "vae": vae,
    "pinn": pinn,
    "neural-ode": neural_ode,
    "lotka": lotka,
    "leapfrog": leapfrog,
    "factorization": factorization,
    "gaussian-process": gaussian_process,
    "mixture-density": mixture_density,
    "kalman": kalman,
    "word2vec": word2vec,
    "graph": graph,
    "wave": wave,
}
assert {*LOSSES, "mlp-linear-sgd", "mlp-linear-adam", "private"} == {*PROBLEMS}
