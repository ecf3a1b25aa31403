"""The small programs of `benchmarks/captured.py` in NumPy, with derivatives by hand: as a person would write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .problems import GRID, Problem, problem

__all__ = ["STEPS", "step", "version"]

version = f"NumPy {np.__version__}"


def step(name: str) -> Callable[[int], Any]:
    """The step of a program, from its initial state; ``step(i)`` takes the i-th batch and returns the loss."""
    of = problem(name)
    run = STEPS[name](of)
    return lambda i: run(*of.batches[i % len(of.batches)])


def updating(of: Problem, parameters: list[Any]) -> Callable[[list[Any]], None]:
    """The update of parameters by their gradients."""
    if of.optimizer == "sgd":

        def descend(gradients: list[Any]) -> None:
            for p, g in zip(parameters, gradients, strict=True):
                p -= of.rate * g

        return descend
    first, second = ([np.zeros_like(p) for p in parameters] for _ in range(2))
    steps = 0

    def adam(gradients: list[Any]) -> None:
        nonlocal steps
        steps += 1
        rate, scale = of.rate / (1 - 0.9**steps), (1 - 0.999**steps) ** -0.5
        for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
            m *= 0.9
            m += 0.1 * g
            v *= 0.999
            v += 0.001 * (g * g)
            p -= rate * m / (np.sqrt(v) * scale + 1e-8)

    return adam


def mlp(is_tanh: bool, of: Problem) -> Callable[..., Any]:
    parameters = [a.copy() for a in of.parameters.values()]
    w0, b0, w1, b1, w2, b2 = parameters
    update = updating(of, parameters)

    def activate(z: Any) -> Any:
        return np.tanh(z, out=z) if is_tanh else np.maximum(z, 0, out=z)

    def slope(h: Any) -> Any:
        return 1 - h * h if is_tanh else h > 0

    def run(x: Any, y: Any) -> Any:
        h0 = activate(x @ w0 + b0)
        h1 = activate(h0 @ w1 + b1)
        z = h1 @ w2 + b2
        z -= z.max(1, keepdims=True)
        rows = np.arange(len(y))
        picked = z[rows, y]
        np.exp(z, out=z)
        sums = z.sum(1, keepdims=True)
        loss = (np.log(sums).sum() - picked.sum()) / np.float32(len(y))
        z /= sums
        z[rows, y] -= 1
        z /= np.float32(len(y))
        of_h1 = (z @ w2.T) * slope(h1)
        of_h0 = (of_h1 @ w1.T) * slope(h0)
        update([x.T @ of_h0, of_h0.sum(0), h0.T @ of_h1, of_h1.sum(0), h1.T @ z, z.sum(0)])
        return loss

    return run


def logistic(of: Problem) -> Callable[..., Any]:
    w, b = parameters = [a.copy() for a in of.parameters.values()]
    update = updating(of, parameters)
    decay = np.float32(1e-4)

    def run(x: Any, y: Any) -> Any:
        e = np.exp(-y * (x @ w + b))
        loss = np.log1p(e).mean() + decay * (w @ w)
        of_margin = -y * e / (1 + e) / np.float32(len(y))
        update([of_margin @ x + 2 * decay * w, of_margin.sum(keepdims=True)])
        return loss

    return run


def factorization(of: Problem) -> Callable[..., Any]:
    users, films = (a.copy() for a in of.parameters.values())

    def run(i: Any, j: Any, ratings: Any) -> Any:
        of_users, of_films = users[i], films[j]
        error = (of_users * of_films).sum(1) - ratings
        scaled = (-of.rate * 2 / len(error) * error)[:, None]
        np.add.at(users, i, scaled * of_films)  # the tables are not passed over
        np.add.at(films, j, scaled * of_users)
        return (error * error).mean()

    return run


def leapfrog(of: Problem) -> Callable[..., Any]:
    (spring,) = parameters = [a.copy() for a in of.parameters.values()]
    update = updating(of, parameters)

    def run(place: Any, speed: Any, end: Any) -> Any:
        places = [place]
        for _ in range(20):
            speed = speed - GRID / 2 * (place @ spring)
            place = place + GRID * speed
            speed = speed - GRID / 2 * (place @ spring)
            places.append(place)
        error = place - end
        of_place, of_speed = 2 * error, np.zeros_like(speed)
        gradient = np.zeros_like(spring)
        for k in range(20, 0, -1):
            gradient -= GRID / 2 * (places[k].T @ of_speed)
            of_place = of_place - GRID / 2 * (of_speed @ spring.T)
            of_speed = of_speed + GRID * of_place
            gradient -= GRID / 2 * (places[k - 1].T @ of_speed)
            of_place = of_place - GRID / 2 * (of_speed @ spring.T)
        update([gradient])
        return (error * error).sum()

    return run


def curvature(u: Any) -> Any:
    """The sum of the four neighbours, less four times the point: its own adjoint."""
    return np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u


def wave(of: Problem) -> Callable[..., Any]:
    (speed,) = parameters = [a.copy() for a in of.parameters.values()]
    update = updating(of, parameters)

    def run(start: Any, end: Any) -> Any:
        squares = GRID * (speed * speed)
        u, before, curvatures = start, start, []
        for _ in range(20):
            curvatures.append(curvature(u))
            u, before = 2 * u - before + squares * curvatures[-1], u
        error = u - end
        of_u, of_before = 2 * error, np.zeros_like(u)
        of_squares = np.zeros_like(speed)
        for each in reversed(curvatures):
            of_squares += of_u * each
            of_u, of_before = 2 * of_u + curvature(squares * of_u) + of_before, -of_u
        update([2 * GRID * speed * of_squares])
        return (error * error).sum()

    return run


STEPS: dict[str, Callable[[Problem], Callable[..., Any]]] = {
    "mlp-linear-sgd": partial(mlp, False),
    "mlp-linear-adam": partial(mlp, False),
    "mlp-maximum-sgd": partial(mlp, False),
    "mlp-maximum-adam": partial(mlp, False),
    "mlp-tanh-sgd": partial(mlp, True),
    "logistic": logistic,
    "factorization": factorization,
    "leapfrog": leapfrog,
    "wave": wave,
}
