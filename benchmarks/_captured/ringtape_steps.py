"""The programs of `benchmarks/captured.py` in ringtape's public names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy

import autograd as ag
import autograd.numpy as np
from autograd import nn, ops, optim
from autograd.scipy.linalg import solve_triangular
from autograd.scipy.special import logsumexp

from .problems import GRID, HEADS, MOMENTUM, PROBLEMS, Problem, problem

__all__ = ["STEPS", "Program", "program"]

Parameters = dict[str, Any]


class Program(NamedTuple):
    """A training step, and what it trains.

    Attributes
    ----------
    step : callable
        ``step(*batch)`` returns the loss, a Tensor. It may be captured.
    batches : list of tuple of Tensor
    parameters : list of Parameter
    optimizer : Optimizer
    """

    step: Callable[..., Any]
    batches: list[tuple[Any, ...]]
    parameters: list[Any]
    optimizer: Any


def program(name: str) -> Program:
    """A program, from its initial state."""
    of = problem(name)
    ag.random.seed(0)
    batches = [tuple(map(ag.tensor, batch)) for batch in of.batches]
    step, optimizer = STEPS[name](of)
    return Program(step, batches, list(optimizer.parameters), optimizer)


def optimizer_of(parameters: list[Any], of: Problem) -> Any:
    """The optimizer of a problem."""
    if of.optimizer == "adam":
        return optim.Adam(parameters, lr=of.rate)
    return optim.SGD(parameters, lr=of.rate, momentum=MOMENTUM if of.optimizer == "momentum" else 0.0)


def training(loss: Callable[..., Any], optimizer: Any) -> tuple[Any, Any]:
    """A training step."""

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            value = loss(*batch)
        tape.backward(value)
        optimizer.step()
        return value

    return step, optimizer


def of_loss(loss: Callable[..., Any], of: Problem) -> tuple[Any, Any]:
    """The step of a loss ``loss(parameters, *batch)``."""
    parameters = {name: ag.Parameter(a.copy(), name=name) for name, a in of.parameters.items()}
    return training(partial(loss, parameters), optimizer_of(list(parameters.values()), of))


# -- networks ----------------------------------------------------------------------------------------------------------
def mlp_of_modules(of: Problem) -> tuple[Any, Any]:
    """A step of a network of modules, ``Linear`` and ``ReLU``."""
    layers: list[nn.Module] = []
    for i in range(len(of.parameters) // 2):
        layer = nn.Linear(*of.parameters[f"w{i}"].shape)
        layer.weight.data[...], layer.bias.data[...] = of.parameters[f"w{i}"], of.parameters[f"b{i}"]
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    return training(lambda x, y: nn.cross_entropy(model(x), y), optimizer_of(model.parameters(), of))


def mlp(activation: Callable[[Any], Any], p: Parameters, x: Any, y: Any) -> Any:
    """A network written by hand."""
    h = activation(x @ p["w0"] + p["b0"])
    h = activation(h @ p["w1"] + p["b1"])
    return nn.cross_entropy(h @ p["w2"] + p["b2"], y)


def logistic(p: Parameters, x: Any, y: Any) -> Any:
    """Logistic regression with labels -1 and 1."""
    return np.log1p(np.exp(-y * (x @ p["w"] + p["b"]))).mean() + 1e-4 * (p["w"] * p["w"]).sum()


def cnn(p: Parameters, x: Any, y: Any) -> Any:
    """Two convolutions with pooling, and a linear layer."""
    h = ops.max_pool(nn.relu(ops.convolution(x, p["kernel0"], p["bias0"])), 2)
    h = ops.max_pool(nn.relu(ops.convolution(h, p["kernel1"], p["bias1"])), 2)
    return nn.cross_entropy(ops.linear(h.reshape(len(x), -1), p["w"], p["b"]), y)


def lstm(p: Parameters, x: Any, y: Any) -> Any:
    """An LSTM by hand, and a linear layer at its last state."""
    n = p["of_h"].shape[0]
    h = c = numpy.zeros((len(x), n), numpy.float32)
    for t in range(x.shape[1]):
        g = x[:, t] @ p["of_x"] + h @ p["of_h"] + p["bias"]
        enters, forgets = nn.sigmoid(g[:, :n]), nn.sigmoid(g[:, n : 2 * n])
        leaves, new = nn.sigmoid(g[:, 2 * n : 3 * n]), np.tanh(g[:, 3 * n :])
        c = forgets * c + enters * new
        h = leaves * np.tanh(c)
    return nn.cross_entropy(h @ p["w"] + p["b"], y)


def gru(p: Parameters, x: Any, y: Any) -> Any:
    """A GRU by hand, and a linear layer at its last state."""
    n = p["of_h"].shape[0]
    h = numpy.zeros((len(x), n), numpy.float32)
    for t in range(x.shape[1]):
        g = nn.sigmoid(x[:, t] @ p["of_x"] + h @ p["of_h"] + p["bias"])
        resets, keeps = g[:, :n], g[:, n:]
        new = np.tanh(x[:, t] @ p["new_of_x"] + (resets * h) @ p["new_of_h"] + p["new_bias"])
        h = keeps * h + (1 - keeps) * new
    return nn.cross_entropy(h @ p["w"] + p["b"], y)


def gpt(layers: int, p: Parameters, text: Any, y: Any) -> Any:
    """A GPT with tied embeddings."""
    rows, tokens = text.shape
    h = nn.embedding(text, p["tokens"]) + p["places"]
    width = h.shape[-1]
    for k in range(layers):
        qkv = ops.linear(ops.layer_norm(h, p[f"{k}.gain0"], p[f"{k}.shift0"]), p[f"{k}.qkv"], p[f"{k}.qkv_bias"])
        a = ops.self_attention(qkv.reshape(rows, tokens, 3, HEADS, width // HEADS), causal=True)
        h = h + ops.linear(a.reshape(rows, tokens, width), p[f"{k}.out"], p[f"{k}.out_bias"])
        a = ops.linear(ops.layer_norm(h, p[f"{k}.gain1"], p[f"{k}.shift1"]), p[f"{k}.up"], p[f"{k}.up_bias"])
        h = h + ops.linear(nn.gelu(a), p[f"{k}.down"], p[f"{k}.down_bias"])
    h = ops.layer_norm(h, p["gain"], p["shift"])
    return nn.cross_entropy(h.reshape(-1, width) @ p["tokens"].T, y)


def norm_gelu(p: Parameters, x: Any, y: Any) -> Any:
    """Residual layers of layer norm, linear and GELU."""
    h = x
    for k in range(3):
        normed = ops.layer_norm(h, p[f"gain{k}"], p[f"shift{k}"])
        h = h + nn.gelu(ops.linear(normed, p[f"w{k}"], p[f"b{k}"]))
    return nn.cross_entropy(ops.linear(h, p["w"], p["b"]), y)


def vae(p: Parameters, x: Any) -> Any:
    """A variational autoencoder of black and white images."""
    h = nn.relu(x @ p["enter"] + p["enter_bias"])
    mean, spread = h @ p["mean"] + p["mean_bias"], h @ p["spread"] + p["spread_bias"]
    noise = ag.random.normal(ag.random.next_key("noise"), mean.shape, dtype=numpy.float32)
    z = mean + np.exp(0.5 * spread) * noise
    o = nn.relu(z @ p["leave"] + p["leave_bias"]) @ p["pixels"] + p["pixels_bias"]
    of_pixels = (np.maximum(o, 0) - o * x + np.log1p(np.exp(-np.abs(o)))).sum()
    return (of_pixels - 0.5 * (1 + spread - mean * mean - np.exp(spread)).sum()) / len(x)


def mixture_density(p: Parameters, x: Any, y: Any) -> Any:
    """A network whose outputs are a mixture of five normal densities."""
    o = np.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]
    heights, means, spreads = o[:, :5], o[:, 5:10], o[:, 10:]
    of_each = nn.log_softmax(heights, -1) - spreads - 0.5 * ((y - means) * np.exp(-spreads)) ** 2
    return -logsumexp(of_each, axis=1).mean()


def graph(p: Parameters, x: Any, edges: Any, y: Any) -> Any:
    """A graph convolution network of two layers."""
    h = nn.relu(edges @ (x @ p["w0"]) + p["b0"])
    return nn.cross_entropy(edges @ (h @ p["w1"]) + p["b1"], y)


def private(of: Problem) -> tuple[Any, Any]:
    """A step with each example's gradient clipped to norm 1.

    One sweep gives each example's gradient, as that of a copy of the parameters; with factors for the examples a second
    one gives the sum of the clipped gradients.
    """
    p = {name: ag.Parameter(a.copy(), name=name) for name, a in of.parameters.items()}
    optimizer = optimizer_of(list(p.values()), of)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        rows = len(x)
        with ag.Tape() as tape:
            w0, b0, w1, b1 = copies = [np.broadcast_to(a, (rows, *a.shape)) for a in p.values()]
            h = nn.relu((x[:, None] @ w0)[:, 0] + b0)
            losses = nn.cross_entropy((h[:, None] @ w1)[:, 0] + b1, y, reduction="none")
            loss = losses.sum()
        of_examples = [ag.tensor(g) for g in tape.backward(loss, wanted=copies, retain=True)]
        squares = sum((g * g).reshape(rows, -1).sum(1) for g in of_examples)
        factors = np.minimum(1.0, 1 / np.sqrt(squares)) / rows
        tape.backward(losses, factors)
        optimizer.step()
        return loss / rows

    return step, optimizer


# -- tables of embeddings ----------------------------------------------------------------------------------------------
def factorization(p: Parameters, users: Any, films: Any, ratings: Any) -> Any:
    """Matrix factorization: ratings of films by users."""
    error = (nn.embedding(users, p["users"]) * nn.embedding(films, p["films"])).sum(1) - ratings
    return (error * error).mean()


def word2vec(p: Parameters, words: Any, contexts: Any, others: Any) -> Any:
    """Skip-gram with negative samples."""
    of_words = nn.embedding(words, p["words"])
    near = (of_words * nn.embedding(contexts, p["contexts"])).sum(1)
    far = (of_words[:, None] * nn.embedding(others, p["contexts"])).sum(2)
    return nn.softplus(-near).mean() + nn.softplus(far).sum(1).mean()


# -- differential equations, filters -----------------------------------------------------------------------------------
def pinn(p: Parameters, x: Any) -> Any:
    """A network that solves ``u'' = -sin x``."""

    def u(x: Any) -> Any:
        h = np.tanh(np.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])
        return (h @ p["w2"] + p["b2"]).sum()

    second = ag.grad(lambda x: ag.grad(u)(x).sum())(x)
    return ((second + np.sin(x)) ** 2).mean()


def neural_ode(p: Parameters, start: Any, end: Any) -> Any:
    """Ten steps of Runge and Kutta along a network."""

    def slope(y: Any) -> Any:
        return np.tanh(y @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]

    y = start
    for _ in range(10):
        k1 = slope(y)
        k2 = slope(y + GRID / 2 * k1)
        k3 = slope(y + GRID / 2 * k2)
        k4 = slope(y + GRID * k3)
        y = y + GRID / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return ((y - end) ** 2).mean()


def lotka(p: Parameters, seen: Any) -> Any:
    """The rates of Lotka and Volterra, fitted to observations."""
    prey, hunters, loss = 1.0, 0.5, 0.0
    for t in range(40):
        of_prey = p["growth"] * prey - p["eaten"] * prey * hunters
        of_hunters = p["fed"] * prey * hunters - p["death"] * hunters
        prey, hunters = prey + 0.05 * of_prey, hunters + 0.05 * of_hunters
        loss = loss + (prey - seen[t, 0]) ** 2 + (hunters - seen[t, 1]) ** 2
    return loss.sum()  # type: ignore[attr-defined]


def leapfrog(p: Parameters, place: Any, speed: Any, end: Any) -> Any:
    """Twenty leapfrog steps of coupled springs."""
    for _ in range(20):
        speed = speed - GRID / 2 * (place @ p["spring"])
        place = place + GRID * speed
        speed = speed - GRID / 2 * (place @ p["spring"])
    return ((place - end) ** 2).sum()


def wave(p: Parameters, start: Any, end: Any) -> Any:
    """Twenty steps of the wave equation on a periodic grid, with a speed at each point."""
    u, before = start, start
    for _ in range(20):
        curvature = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
        u, before = 2 * u - before + GRID * (p["speed"] * p["speed"]) * curvature, u
    return ((u - end) ** 2).sum()


EYE = numpy.eye(60)  # made in the step it would be refused: with other arguments the matrix has no root


def gaussian_process(p: Parameters, squares: Any, y: Any) -> Any:
    """The negative log likelihood of a Gaussian process."""
    kernel = np.exp(p["height"]) * np.exp(-0.5 * squares * np.exp(p["length"])) + np.exp(p["noise"]) * EYE
    root = np.linalg.cholesky(kernel)
    a = solve_triangular(root, y, lower=True)
    return 0.5 * (a * a).sum() + np.log(np.diagonal(root)).sum()


def kalman(p: Parameters, seen: Any) -> Any:
    """The negative log likelihood of a Kalman filter."""
    motion, eye, look = p["motion"], numpy.eye(2), numpy.array([[1.0, 0.0]])
    mean, spread, loss = numpy.zeros((2, 1)), numpy.eye(2), 0.0
    for t in range(20):
        mean = motion @ mean
        spread = motion @ spread @ motion.T + np.exp(p["log_q"]) * eye
        error = seen[t] - look @ mean
        of_error = look @ spread @ look.T + np.exp(p["log_r"])
        gain = spread @ look.T / of_error
        mean, spread = mean + gain @ error, spread - gain @ look @ spread
        loss = loss + (np.log(of_error) + error * error / of_error).sum()
    return loss


STEPS: dict[str, Callable[[Problem], tuple[Any, Any]]] = {
    "mlp-linear-sgd": mlp_of_modules,
    "mlp-linear-adam": mlp_of_modules,
    "mlp-maximum-sgd": partial(of_loss, partial(mlp, lambda h: np.maximum(h, 0))),
    "mlp-maximum-adam": partial(of_loss, partial(mlp, lambda h: np.maximum(h, 0))),
    "mlp-tanh-sgd": partial(of_loss, partial(mlp, np.tanh)),
    "mlp-gelu-sgd": partial(of_loss, partial(mlp, nn.gelu)),
    "logistic": partial(of_loss, logistic),
    "cnn": partial(of_loss, cnn),
    "lstm": partial(of_loss, lstm),
    "gru": partial(of_loss, gru),
    "block": partial(of_loss, partial(gpt, 1)),
    "char-gpt": partial(of_loss, partial(gpt, 2)),
    "norm-gelu": partial(of_loss, norm_gelu),
    "vae": partial(of_loss, vae),
    "pinn": partial(of_loss, pinn),
    "neural-ode": partial(of_loss, neural_ode),
    "lotka": partial(of_loss, lotka),
    "leapfrog": partial(of_loss, leapfrog),
    "factorization": partial(of_loss, factorization),
    "gaussian-process": partial(of_loss, gaussian_process),
    "mixture-density": partial(of_loss, mixture_density),
    "kalman": partial(of_loss, kalman),
    "word2vec": partial(of_loss, word2vec),
    "graph": partial(of_loss, graph),
    "wave": partial(of_loss, wave),
    "private": private,
}
assert STEPS.keys() == PROBLEMS.keys()
