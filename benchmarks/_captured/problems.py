"""Initial parameters and batches of the programs of `benchmarks/captured.py`, the same for all engines.

`PROBLEMS` maps each name to a function that draws a `Problem` from a fixed seed. This module needs NumPy only, because
the peers' environments may have none of ringtape's other requirements. Weights are (in, out).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

__all__ = ["GRID", "HEADS", "MOMENTUM", "PROBLEMS", "Problem", "problem"]

Array = np.ndarray[Any, Any]

MOMENTUM = 0.9
"""That of the optimizer "momentum"."""

HEADS = 4
"""The heads of attention in `block` and `char-gpt`."""

GRID = 0.1
"""The time step of `neural-ode`, `leapfrog` and `wave`."""


@dataclass(frozen=True)
class Problem:
    """The numbers of a program.

    Attributes
    ----------
    parameters : dict of str to array
        Initial parameters, of one dtype.
    batches : list of tuple of array
        The arguments of the steps, in turn.
    optimizer : {"sgd", "momentum", "adam"}
    rate : float
    is_random : bool
        Whether a step draws random numbers, which differ between engines.
    """

    parameters: dict[str, Array]
    batches: list[tuple[Array, ...]]
    optimizer: str
    rate: float
    is_random: bool = False

    @property
    def dtype(self) -> Any:
        """That of the parameters."""
        return next(iter(self.parameters.values())).dtype

    @property
    def tolerance(self) -> float:
        """The relative difference between the losses of two engines that rounding may make, or another noise."""
        if self.is_random:
            return 3e-2
        return 1e-10 if self.dtype == np.float64 else 2e-5


class Draw:
    """Random arrays of one dtype."""

    def __init__(self, seed: int, dtype: Any = np.float32):
        self.random, self.dtype = np.random.default_rng(seed), dtype

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        """Normal values."""
        return (self.random.standard_normal(shape) * scale).astype(self.dtype)

    def weight(self, *shape: int) -> Array:
        """The weight of a layer, whose output has the variance of its input."""
        return self.normal(*shape, scale=shape[0] ** -0.5)

    def zeros(self, *shape: int) -> Array:
        """A bias."""
        return np.zeros(shape, self.dtype)

    def classes(self, count: int, rows: int, width: int, labels: int) -> list[tuple[Array, ...]]:
        """Batches of rows and labels."""
        return [(self.normal(rows, width), self.random.integers(0, labels, rows)) for _ in range(count)]

    def layers(self, *sizes: int) -> dict[str, Array]:
        """The weights ``w0``, ``w1``, ... and biases ``b0``, ``b1``, ... of a network."""
        found: dict[str, Array] = {}
        for i, (n, m) in enumerate(zip(sizes, sizes[1:], strict=False)):
            found |= {f"w{i}": self.weight(n, m), f"b{i}": self.zeros(m)}
        return found


def _mlp(optimizer: str) -> Problem:
    draw = Draw(0)
    return Problem(draw.layers(64, 64, 64, 10), draw.classes(8, 32, 64, 10), optimizer, _RATES[optimizer])


_RATES = {"sgd": 1e-2, "momentum": 1e-2, "adam": 1e-3}


def _logistic() -> Problem:
    draw = Draw(1)
    batches = [(draw.normal(128, 30), np.sign(draw.normal(128))) for _ in range(8)]
    return Problem({"w": draw.weight(30), "b": draw.zeros(1)}, batches, "sgd", 1e-2)


def _cnn() -> Problem:
    draw = Draw(2)
    parameters = {
        "kernel0": draw.normal(8, 1, 3, 3, scale=0.3), "bias0": draw.zeros(8),
        "kernel1": draw.normal(16, 8, 3, 3, scale=0.1), "bias1": draw.zeros(16),
        "w": draw.weight(400, 10), "b": draw.zeros(10),
    }  # fmt: skip
    batches: list[tuple[Array, ...]] = [(draw.normal(16, 1, 28, 28), draw.random.integers(0, 10, 16)) for _ in range(4)]
    return Problem(parameters, batches, "momentum", 1e-2)


def _sequences(draw: Draw) -> list[tuple[Array, ...]]:
    """16 sequences of 20 steps of 16 numbers, and their labels."""
    return [(draw.normal(16, 20, 16), draw.random.integers(0, 10, 16)) for _ in range(4)]


def _lstm() -> Problem:
    draw, hidden = Draw(3), 32
    parameters = {
        "of_x": draw.weight(16, 4 * hidden), "of_h": draw.weight(hidden, 4 * hidden), "bias": draw.zeros(4 * hidden),
        "w": draw.weight(hidden, 10), "b": draw.zeros(10),
    }  # fmt: skip
    return Problem(parameters, _sequences(draw), "adam", 1e-3)


def _gru() -> Problem:
    draw, hidden = Draw(4), 32
    parameters = {
        "of_x": draw.weight(16, 2 * hidden), "of_h": draw.weight(hidden, 2 * hidden), "bias": draw.zeros(2 * hidden),
        "new_of_x": draw.weight(16, hidden), "new_of_h": draw.weight(hidden, hidden), "new_bias": draw.zeros(hidden),
        "w": draw.weight(hidden, 10), "b": draw.zeros(10),
    }  # fmt: skip
    return Problem(parameters, _sequences(draw), "adam", 1e-3)


def _gpt(layers: int, width: int, tokens: int, rows: int, vocabulary: int = 65) -> Problem:
    draw = Draw(5)
    ones = np.ones(width, np.float32)
    parameters = {
        "tokens": draw.normal(vocabulary, width, scale=0.02),
        "places": draw.normal(tokens, width, scale=0.02),
    }
    for k in range(layers):
        parameters |= {
            f"{k}.gain0": ones, f"{k}.shift0": draw.zeros(width),
            f"{k}.qkv": draw.weight(width, 3 * width), f"{k}.qkv_bias": draw.zeros(3 * width),
            f"{k}.out": draw.weight(width, width), f"{k}.out_bias": draw.zeros(width),
            f"{k}.gain1": ones, f"{k}.shift1": draw.zeros(width),
            f"{k}.up": draw.weight(width, 4 * width), f"{k}.up_bias": draw.zeros(4 * width),
            f"{k}.down": draw.weight(4 * width, width), f"{k}.down_bias": draw.zeros(width),
        }  # fmt: skip
    parameters |= {"gain": ones, "shift": draw.zeros(width)}
    texts = [draw.random.integers(0, vocabulary, (rows, tokens + 1)) for _ in range(4)]
    batches: list[tuple[Array, ...]] = [(text[:, :-1].copy(), text[:, 1:].reshape(-1)) for text in texts]
    return Problem(parameters, batches, "adam", 1e-3)


def _norm_gelu() -> Problem:
    draw = Draw(6)
    parameters: dict[str, Array] = {}
    for k in range(3):
        parameters |= {f"gain{k}": np.ones(64, np.float32), f"shift{k}": draw.zeros(64)}
        parameters |= {f"w{k}": draw.weight(64, 64), f"b{k}": draw.zeros(64)}
    parameters |= {"w": draw.weight(64, 10), "b": draw.zeros(10)}
    return Problem(parameters, draw.classes(8, 32, 64, 10), "adam", 1e-3)


def _vae() -> Problem:
    draw = Draw(7)
    parameters = {
        "enter": draw.weight(784, 128), "enter_bias": draw.zeros(128),
        "mean": draw.weight(128, 16), "mean_bias": draw.zeros(16),
        "spread": draw.weight(128, 16), "spread_bias": draw.zeros(16),
        "leave": draw.weight(16, 128), "leave_bias": draw.zeros(128),
        "pixels": draw.weight(128, 784), "pixels_bias": draw.zeros(784),
    }  # fmt: skip
    batches: list[tuple[Array, ...]] = [((draw.random.random((32, 784)) < 0.3).astype(np.float32),) for _ in range(4)]
    return Problem(parameters, batches, "adam", 1e-3, is_random=True)


def _pinn() -> Problem:
    draw = Draw(8, np.float64)
    return Problem(draw.layers(1, 20, 20, 1), [(draw.random.random((64, 1)) * 3,) for _ in range(4)], "adam", 1e-3)


def _neural_ode() -> Problem:
    draw = Draw(9, np.float64)
    return Problem(draw.layers(2, 32, 2), [(draw.normal(16, 2), draw.normal(16, 2)) for _ in range(4)], "adam", 1e-3)


def _lotka() -> Problem:
    draw = Draw(10, np.float64)
    rates = {"growth": 1.1, "eaten": 0.4, "fed": 0.1, "death": 0.4}
    batches: list[tuple[Array, ...]] = [(np.abs(draw.normal(40, 2)),) for _ in range(2)]
    return Problem({name: np.array([rate]) for name, rate in rates.items()}, batches, "sgd", 1e-5)


def _leapfrog() -> Problem:
    draw = Draw(11, np.float64)
    spring = draw.weight(8, 8)
    batches = [tuple(draw.normal(4, 8) for _ in range(3)) for _ in range(2)]
    return Problem({"spring": spring @ spring.T + np.eye(8)}, batches, "sgd", 1e-5)


def _factorization() -> Problem:
    draw = Draw(12)
    integers = draw.random.integers
    batches = [(integers(0, 500, 256), integers(0, 300, 256), draw.normal(256)) for _ in range(4)]
    parameters = {"users": draw.normal(500, 16, scale=0.1), "films": draw.normal(300, 16, scale=0.1)}
    return Problem(parameters, batches, "sgd", 1.0)


def _gaussian_process() -> Problem:
    draw = Draw(13, np.float64)
    x = draw.random.random((60, 2))
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    batches: list[tuple[Array, ...]] = [(squares, draw.normal(60)) for _ in range(2)]
    return Problem({"height": np.array(0.0), "length": np.array(0.0), "noise": np.array(-2.0)}, batches, "sgd", 1e-4)


def _mixture_density() -> Problem:
    draw = Draw(14)
    parameters = draw.layers(1, 32) | {"w1": draw.normal(32, 15, scale=0.1), "b1": draw.zeros(15)}
    return Problem(parameters, [(draw.normal(64, 1), draw.normal(64, 1)) for _ in range(4)], "adam", 1e-3)


def _kalman() -> Problem:
    draw = Draw(15, np.float64)
    parameters = {"motion": np.array([[1.0, 0.1], [0.0, 1.0]]), "log_q": np.array([-1.0]), "log_r": np.array([-1.0])}
    return Problem(parameters, [(draw.normal(20, 1, 1),) for _ in range(2)], "sgd", 1e-6)


def _word2vec() -> Problem:
    draw = Draw(16)
    integers = draw.random.integers
    batches = [(integers(0, 1000, 128), integers(0, 1000, 128), integers(0, 1000, (128, 5))) for _ in range(4)]
    parameters = {"words": draw.normal(1000, 32, scale=0.1), "contexts": draw.normal(1000, 32, scale=0.1)}
    return Problem(parameters, batches, "sgd", 1.0)


def _graph() -> Problem:
    draw = Draw(17)
    edges = (draw.random.random((100, 100)) < 0.05) + np.eye(100)
    edges = (edges / edges.sum(1, keepdims=True)).astype(np.float32)
    batches: list[tuple[Array, ...]] = [(draw.normal(100, 32), edges, draw.random.integers(0, 4, 100))]
    return Problem(draw.layers(32, 16, 4), batches, "adam", 1e-3)


def _wave() -> Problem:
    draw = Draw(18, np.float64)
    batches = [(draw.normal(32, 32), draw.normal(32, 32)) for _ in range(2)]
    return Problem({"speed": np.ones((32, 32))}, batches, "sgd", 1e-5)


def _private() -> Problem:
    draw = Draw(19)
    return Problem(draw.layers(16, 32, 10), draw.classes(4, 32, 16, 10), "sgd", 1e-1)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mlp-linear-sgd": partial(_mlp, "sgd"),
    "mlp-linear-adam": partial(_mlp, "adam"),
    "mlp-maximum-sgd": partial(_mlp, "sgd"),
    "mlp-maximum-adam": partial(_mlp, "adam"),
    "mlp-tanh-sgd": partial(_mlp, "sgd"),
    "mlp-gelu-sgd": partial(_mlp, "sgd"),
    "logistic": _logistic,
    "cnn": _cnn,
    "lstm": _lstm,
    "gru": _gru,
    "block": partial(_gpt, 1, 64, 64, 1),
    "char-gpt": partial(_gpt, 2, 128, 64, 4),
    "norm-gelu": _norm_gelu,
    "vae": _vae,
    "pinn": _pinn,
    "neural-ode": _neural_ode,
    "lotka": _lotka,
    "leapfrog": _leapfrog,
    "factorization": _factorization,
    "gaussian-process": _gaussian_process,
    "mixture-density": _mixture_density,
    "kalman": _kalman,
    "word2vec": _word2vec,
    "graph": _graph,
    "wave": _wave,
    "private": _private,
}


def problem(name: str) -> Problem:
    """The numbers of a program."""
    return PROBLEMS[name]()
