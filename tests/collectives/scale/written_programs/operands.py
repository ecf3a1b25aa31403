"""Products with, and divisions by, the number of ranks and the number of rows: each operator with its operands in both
orders, by ringtape's NumPy and by NumPy itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy

import autograd.numpy as np
import collectives as cc
from collectives import I

from .harness import Program, Rank, Reading, X, Y, mean, right, total, wrong


def in_place(x: Any, c: Any) -> Any:
    x *= c
    return x


def in_place_by(x: Any, c: Any) -> Any:
    x /= c
    return x


Form = Callable[[Any, Any], Any]
TIMES: dict[str, Form] = {
    "x * c": lambda x, c: x * c,
    "c * x": lambda x, c: c * x,
    "-c * x": lambda x, c: -(-c * x),
    "x * -c": lambda x, c: -(x * -c),
    "+c * x": lambda x, c: +c * x,
    "abs(c) * x": lambda x, c: abs(c) * x,
    "np.multiply(x, c)": lambda x, c: np.multiply(x, c),
    "np.multiply(c, x)": lambda x, c: np.multiply(c, x),
    "numpy.multiply(x, c)": lambda x, c: numpy.multiply(x, c),
    "numpy.multiply(c, x)": lambda x, c: numpy.multiply(c, x),
    "x *= c": in_place,
    "operator.mul(c, x)": lambda x, c: operator.mul(c, x),
    "math.prod([c, x])": lambda x, c: math.prod([c, x]),
    "(c * 1.0) * x": lambda x, c: (c * 1.0) * x,
    "c * 2 * x / 2": lambda x, c: c * 2 * x / 2,
    "2 * (c * x) / 2": lambda x, c: 2 * (c * x) / 2,
    "c * 3 * x / 3": lambda x, c: c * 3 * x / 3,
    "c * 2 * x * 0.5": lambda x, c: c * 2 * x * 0.5,
    "c * 6 * x / 3 / 2": lambda x, c: c * 6 * x / 3 / 2,
    "c * (x * 0.7) / 0.7": lambda x, c: c * (x * 0.7) / 0.7,
    "c**2 * x / c": lambda x, c: c**2 * x / c,
    "c**0.5 * (c**0.5 * x)": lambda x, c: c**0.5 * (c**0.5 * x),
    "x / (1 / c)": lambda x, c: x / (1 / c),
    "x / c**-1": lambda x, c: x / c**-1,
    "np.divide(x, 1 / c)": lambda x, c: np.divide(x, 1 / c),
    "np.dot(c, x)": lambda x, c: np.dot(c, x),
}
BY: dict[str, Form] = {
    "x / c": lambda x, c: x / c,
    "np.divide(x, c)": lambda x, c: np.divide(x, c),
    "np.true_divide(x, c)": lambda x, c: np.true_divide(x, c),
    "numpy.divide(x, c)": lambda x, c: numpy.divide(x, c),
    "x /= c": in_place_by,
    "operator.truediv(x, c)": lambda x, c: operator.truediv(x, c),
    "-x / -c": lambda x, c: -x / -c,
    "x * (1 / c)": lambda x, c: x * (1 / c),
    "(1 / c) * x": lambda x, c: (1 / c) * x,
    "-(1 / c) * -x": lambda x, c: -(1 / c) * -x,
    "np.multiply(1 / c, x)": lambda x, c: np.multiply(1 / c, x),
    "numpy.multiply(1 / c, x)": lambda x, c: numpy.multiply(1 / c, x),
    "x * c**-1": lambda x, c: x * c**-1,
    "c**-1 * x": lambda x, c: c**-1 * x,
    "c**-1.0 * x": lambda x, c: c**-1.0 * x,
    "pow(c, -1) * x": lambda x, c: pow(c, -1) * x,
    "(2 / c) * (0.5 * x)": lambda x, c: (2 / c) * (0.5 * x),
    "2 * x / c / 2": lambda x, c: 2 * x / c / 2,
    "3 * x / (3 * c)": lambda x, c: 3 * x / (3 * c),
    "x / c**2 * c": lambda x, c: x / c**2 * c,
    "x / c**0.5 / c**0.5": lambda x, c: x / c**0.5 / c**0.5,
    "x / (c / 1)": lambda x, c: x / (c / 1),
    "x / (c * 1.0)": lambda x, c: x / (c * 1.0),
}


def rows(e: Rank) -> Any:
    x, y = e.labelled(X, Y)
    return (x @ e.p("w") - y) ** 2


def own(e: Rank) -> Any:
    return (e.own(X) @ e.p("w") - e.own(Y)) ** 2


def penalty(w: Any) -> Any:
    return 0.03 * (w * w).sum()


def serial(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def serial_with_penalty(p: Any, n: int) -> Any:
    return serial(p, n) + penalty(p["w"])


WRONG_TIMES: dict[str, tuple[Callable[[Rank, Form], Any], Any]] = {
    "a Shard's mean": (lambda e, f: f(total(rows(e).mean()), e.size), serial),
    "a Shard's losses": (lambda e, f: total(f(rows(e), e.size).mean()), serial),
    "a mean over the ranks": (lambda e, f: f(mean(own(e).mean()), e.size), serial),
    "the penalty": (
        lambda e, f: total(rows(e).mean()) + f(penalty(cc.cast(e.p("w"), "dp", to=I)), e.size), serial_with_penalty),
    "the penalty, plain rows": (
        lambda e, f: mean(own(e).mean()) + f(penalty(cc.cast(e.p("w"), "dp", to=I)), e.size), serial_with_penalty),
    "a Shard's residuals": (
        lambda e, f: total((f(e.labelled(X) @ e.p("w") - e.labelled(Y), e.size) ** 2).mean()) / e.size, serial),
}  # fmt: skip
WRONG_BY: dict[str, tuple[Callable[[Rank, Form], Any], Any]] = {
    "a Shard's mean": (lambda e, f: f(total(rows(e).mean()), e.size), serial),
    "a Shard's losses": (lambda e, f: total(f(rows(e), e.size).mean()), serial),
    "a mean over the ranks": (lambda e, f: f(mean(own(e).mean()), e.size), serial),
    "the rows of this rank, before the sum": (lambda e, f: total(f(own(e).sum(), len(e.own(X)))), serial),
    "the rows of this rank, behind the sum": (lambda e, f: f(total(own(e).sum()), len(e.own(X))), serial),
    "the rows of this rank, before the sums": (lambda e, f: total(f(own(e), len(e.own(X))).sum()), serial),
    "the penalty": (
        lambda e, f: total(rows(e).mean()) + f(penalty(cc.cast(e.p("w"), "dp", to=I)), e.size), serial_with_penalty),
}  # fmt: skip
RIGHT_TIMES: dict[str, tuple[Callable[[Rank, Form], Any], Any]] = {
    "a mean of sums by all rows": (lambda e, f: mean(f(own(e).sum() / 60, e.size)), serial),
    "a mean of sums by all rows, outside": (lambda e, f: f(mean(own(e).sum() / 60), e.size), serial),
    "the penalty beside a mean": (lambda e, f: mean(own(e).mean() + f(penalty(e.p("w")) / e.size, e.size)),
                                  serial_with_penalty),
}  # fmt: skip
RIGHT_BY: dict[str, tuple[Callable[[Rank, Form], Any], Any]] = {
    "local means": (lambda e, f: total(f(own(e).mean(), e.size)), serial),
    "local means, outside": (lambda e, f: f(total(own(e).mean()), e.size), serial),
    "all rows": (lambda e, f: total(f(own(e).sum(), 60)), serial),
    "all rows, outside": (lambda e, f: f(total(own(e).sum()), 60), serial),
    "the penalty of each rank": (
        lambda e, f: total(own(e).sum() / 60 + f(penalty(e.p("w")), e.size)), serial_with_penalty),
}  # fmt: skip

# Forms that make a plain number of a size first. It is a weight of the loss as well, which is a reading of all of them.
PLAIN_TIMES: dict[str, Form] = {
    "int(c) * x": lambda x, c: int(c) * x,
    "x * float(c)": lambda x, c: x * float(c),
    "(1.0 * c) * x": lambda x, c: (1.0 * c) * x,  # Python's product of a float with an int asks the float
    "x * numpy.sqrt(float(c))**2": lambda x, c: x * numpy.sqrt(float(c)) ** 2,
    "numpy.float64(c) * x": lambda x, c: numpy.float64(c) * x,
    "x * numpy.int64(c)": lambda x, c: x * numpy.int64(c),
    "numpy.asarray(float(c)) * x": lambda x, c: numpy.asarray(float(c)) * x,
}
PLAIN_BY: dict[str, Form] = {
    "x / int(c)": lambda x, c: x / int(c),
    "1 / int(c) * x": lambda x, c: 1 / int(c) * x,
    "numpy.float64(1 / int(c)) * x": lambda x, c: numpy.float64(1 / int(c)) * x,
    "1.0 / float(c) * x": lambda x, c: 1.0 / float(c) * x,
    "numpy.reciprocal(float(c)) * x": lambda x, c: numpy.reciprocal(float(c)) * x,
    "x / numpy.float64(c)": lambda x, c: x / numpy.float64(c),
}


def weighted(power: int) -> Callable[[Any, int], Any]:
    return lambda p, n: n**power * serial(p, n)


# of a plain number they are constants
OF_SIZES = ("(2 / c) * (0.5 * x)", "2 * x / c / 2", "3 * x / (3 * c)", "x / c**2 * c", "x / c**0.5 / c**0.5")
# On two ranks a factor of 2 may be their number, so that one of size beside it is a weight; 3 on three ranks likewise.
OF_NUMBERS: dict[str, tuple[int, tuple[int, ...]]] = {
    "c * 2 * x / 2": (1, (2,)), "2 * (c * x) / 2": (1, (2,)), "c * 2 * x * 0.5": (1, (2,)), "c * 3 * x / 3": (1, (3,)),
    "c * 6 * x / 3 / 2": (1, (2, 3)), "(2 / c) * (0.5 * x)": (-1, (2,)), "2 * x / c / 2": (-1, (2,)),
    "3 * x / (3 * c)": (-1, (3,)),
}  # fmt: skip


def reading_of_numbers(text: str, site: str) -> Reading | None:
    if text not in OF_NUMBERS or site == "a Shard's residuals":
        return None
    power, at = OF_NUMBERS[text]

    def of(p: Any, n: int) -> Any:
        c = float(n) ** power
        return serial(p, n) + c * penalty(p["w"]) if "penalty" in site else c * serial(p, n)

    return Reading("a number is that of the ranks, and their number a weight", of, at)


PROGRAMS: dict[str, Program] = {}
for forms, wrongs, rights in ((TIMES, WRONG_TIMES, RIGHT_TIMES), (BY, WRONG_BY, RIGHT_BY)):
    for text, form in forms.items():
        for make, sites in ((wrong, wrongs), (right, rights)):
            for site, (of, s) in sites.items():
                if text in OF_SIZES and ("rows of this rank" in site or "all rows" in site):
                    continue
                PROGRAMS[f"{text}, x = {site}" + (", right" if make is right else "")] = make(
                    lambda e, of=of, form=form: of(e, form), s,
                    reading=reading_of_numbers(text, site) if make is wrong else None)
for forms, power, rights in ((PLAIN_TIMES, 1, RIGHT_TIMES), (PLAIN_BY, -1, RIGHT_BY)):
    for text, form in forms.items():
        for site in ("a Shard's mean", "a mean over the ranks"):
            of, s = WRONG_TIMES[site]
            PROGRAMS[f"{text}, x = {site}"] = wrong(
                lambda e, of=of, form=form: of(e, form), s, reading=Reading("a weight of the loss", weighted(power)))
        for site, (of, s) in rights.items():
            PROGRAMS[f"{text}, x = {site}, right"] = right(lambda e, of=of, form=form: of(e, form), s)
