"""Serial references of gradient compression: each algorithm over the list of all ranks' gradients, in float64.

They are written from the papers' equations with loops over parameters and elements, and share no code with
`parallel.approximate` but the random keys. A reference is made for the shapes and the number of ranks; ``step`` takes
one list of flat gradients (by parameter) for each rank and returns the sums that are delivered.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autograd.random import Key, integers

Array = np.ndarray[Any, Any]


def labels_of(sizes: list[int], ranks: int, block: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """For each element of a bucket the rank that owns it, and the block that it is in: parameter, number, owner."""
    n = sum(sizes)
    groups = math.ceil(n / 8)
    owners: list[int] = []
    for r in range(ranks):
        owners += [r] * (groups // ranks + (r < groups % ranks)) * 8
    owners = owners[:n]
    blocks = [(i, j // block, 0) for i, size in enumerate(sizes) for j in range(size)]
    return owners, [(i, b, owner) for (i, b, _), owner in zip(blocks, owners, strict=True)]


def by_block(x: Array, labels: list[Any], rule: Any) -> Array:
    """Apply a rule to each block of elements."""
    y = np.empty_like(x)
    for label in set(labels):
        where = [k for k, other in enumerate(labels) if other == label]
        y[where] = rule(x[where])
    return y


def sign_rule(x: Array) -> Array:
    return np.float32(np.abs(x).mean()) * np.where(x >= 0, 1.0, -1.0)


def int8_rule(x: Array) -> Array:
    scale = float(np.float32(np.abs(x).max() / 127))
    return np.rint(x / scale) * scale if scale else x * 0


def float16_rule(x: Array) -> Array:
    return x.astype(np.float16).astype(float)


class Quantised:
    """Error feedback at the workers and at the owners of the shares, or none."""

    def __init__(self, sizes: list[int], ranks: int, rule: Any, block: int, feedback: bool, momentum: float = 0.0):
        self.sizes, self.ranks, self.rule, self.momentum, self.feedback = sizes, ranks, rule, momentum, feedback
        _, self.labels = labels_of(sizes, ranks, block)
        n = sum(sizes)
        self.workers, self.server, self.average = np.zeros((ranks, n)), np.zeros(n), np.zeros(n)

    def step(self, gradients: list[list[Array]]) -> list[Array]:
        b, total = self.momentum, self.server.copy()
        for r, parts in enumerate(gradients):
            given = b * self.average / self.ranks + (1 - b) * np.concatenate(parts) + self.workers[r]
            sent = by_block(given, self.labels, self.rule)
            self.workers[r] = given - sent if self.feedback else 0
            total += sent
        sent = by_block(total, self.labels, self.rule)
        self.server = total - sent if self.feedback else self.server
        delivered = (sent - b * self.average) / (1 - b)
        self.average = sent
        return np.split(delivered, np.cumsum(self.sizes)[:-1])


class TopK:
    """Top-k with error feedback; with momentum, Deep Gradient Compression."""

    def __init__(self, counts: list[int], sizes: list[int], ranks: int, momentum: float):
        self.counts, self.momentum = counts, momentum
        self.u = [[np.zeros(size) for size in sizes] for _ in range(ranks)]
        self.v = [[np.zeros(size) for size in sizes] for _ in range(ranks)]

    def chosen(self, i: int, v: Array, count: int) -> list[int]:
        return sorted(range(v.size), key=lambda k: -abs(v[k]))[:count]

    def step(self, gradients: list[list[Array]]) -> list[Array]:
        total = [np.zeros_like(g) for g in gradients[0]]
        for r, parts in enumerate(gradients):
            for i, g in enumerate(parts):
                u = self.u[r][i] = self.momentum * self.u[r][i] + g
                if not self.counts[i]:
                    total[i] += u
                    continue
                v = self.v[r][i] = self.v[r][i] + u
                for k in self.chosen(i, v, self.counts[i]):
                    total[i][k] += v[k]
                    v[k] = u[k] = 0.0
        return total


class RandomK(TopK):
    """Random-k: one element of each of k parts, drawn from the key of the parameter and the step."""

    def __init__(self, counts: list[int], names: tuple[str, ...], sizes: list[int], ranks: int, momentum: float):
        super().__init__(counts, sizes, ranks, momentum)
        self.names, self.at = names, -1

    def step(self, gradients: list[list[Array]]) -> list[Array]:
        self.at += 1
        return super().step(gradients)

    def chosen(self, i: int, v: Array, count: int) -> list[int]:
        draws = integers(Key(0, "random-k").fold(self.names[i]).at(self.at), count, 0, 2**31)
        lengths = [v.size // count + (k < v.size % count) for k in range(count)]
        return [sum(lengths[:k]) + int(draws[k]) * lengths[k] // 2**31 for k in range(count)]


class PowerSGD:
    """PowerSGD with LAPACK's QR factorisation."""

    def __init__(self, rank: int, names: tuple[str, ...], shapes: list[tuple[int, ...]], ranks: int):
        self.shapes = [(s[0], math.prod(s[1:])) if len(s) > 1 else None for s in shapes]
        self.shapes = [s if s and min(rank, *s) * sum(s) < math.prod(s) else None for s in self.shapes]
        self.q = [None if s is None else self.draw(name, (s[1], min(rank, *s)))
                  for name, s in zip(names, self.shapes, strict=True)]  # fmt: skip
        self.e: Any = [[0.0] * len(shapes) for _ in range(ranks)]

    def draw(self, name: str, shape: tuple[int, int]) -> Array:
        return integers(Key(0, "powersgd").fold(name), shape, -(2**31), 2**31).astype(float)

    def step(self, gradients: list[list[Array]]) -> list[Array]:
        total = []
        for i, shape in enumerate(self.shapes):
            gs = [parts[i] for parts in gradients]
            if shape is None:
                total.append(np.sum(gs, axis=0))
                continue
            ms = [g.reshape(shape) + e[i] for g, e in zip(gs, self.e, strict=True)]
            p, _ = np.linalg.qr(np.sum([m @ self.q[i] for m in ms], axis=0))
            self.q[i] = np.sum([m.T @ p for m in ms], axis=0)
            for m, e in zip(ms, self.e, strict=True):
                e[i] = m - p @ (m.T @ p).T
            total.append((p @ self.q[i].T).ravel())
        return total
