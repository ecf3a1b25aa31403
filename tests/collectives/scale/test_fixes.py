"""Every fix that a message about scale offers is applied, literally, and the gradient is the serial one.

The wrong programs are texts, of which the fixes replace a part.
"""

from __future__ import annotations

import itertools
import linecache
import re
import warnings
from typing import Any, NamedTuple

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.errors import ScaleError
from collectives import I, R, Shard, V

from .test_programs import scale

_random = numpy.random.default_rng(13)
DATA, W = _random.normal(size=(60, 4)), _random.normal(size=3)
LOSSES = "losses = (rows[:, :3] @ w - rows[:, 3]) ** 2"
ONES = float((DATA[:, 0] > 0).sum())
NAMES = {"ONES": ONES, "ag": ag, "cc": cc, "np": np, "nn": nn, "numpy": numpy, "I": I, "R": R, "Shard": Shard, "V": V}
_numbers = itertools.count()


class Fix(NamedTuple):
    """A kind of fix: the words of the message that offer it, and the changes of the program: a pattern, and by what it
    is replaced, where ``{0}``, ``{1}`` are groups of the words.
    """

    offers: str
    changes: tuple[tuple[str, str], ...]


_SUM = r"cc\.all_reduce\(\w+, 'dp', to=I\)"
FIXES = {
    "mean": Fix(r"(cc\.mean\(\w+, 'dp', to=I\)) in place of the sum", ((_SUM, "{0}"),)),
    "label": Fix(
        r"(rows = cc\.from_local\(rows, .*?\}\)), whose (mean\(\)) divides by the rows of all ranks",
        ((r"(?m)^losses", "{0}\nlosses"),)),
    "label, mean": Fix(
        r"(rows = cc\.from_local\(rows, .*?\}\)), whose (mean\(\)) in place of the sum by the number of",
        ((r"(?m)^losses", "{0}\nlosses"), (r"losses\.sum\(\) / len\(rows\)", "losses.{1}"))),
    "declare": Fix(
        r"all_reduce\((cc\.declare_partial\(\w+, 'dp'\)), 'dp', to=I\), if the sum of different losses",
        ((r"cc\.all_reduce\(\w+, 'dp'", "cc.all_reduce({0}, 'dp'"),)),
    "leave out": Fix(r"leave the (?:division|product) .*? out", ((r" [/*] size", ""),)),
    "count": Fix(
        r"ranks: (rows = .*?\}\)), and (all_reduce\(\w+, 'dp', to=I\) / rows\.global_shape\[0\])",
        ((r"(?m)^losses", "{0}\nlosses"), (_SUM + r" / len\(rows\)", "cc.{1}"))),
    "ones": Fix(
        r"(all_reduce\(\w+ \* n, 'dp', to=I\) / all_reduce\(ag\.tensor\(float\(n\)\), 'dp', to=I\)), where n is the "
        "number of elements", ((_SUM, "cc.{0}"), (r"/ all_reduce", "/ cc.all_reduce"))),
    "int": Fix(
        r"(int\(size\)) in place of the size of axis 'dp', if the function is meant", ((r" ([/*]) size", r" \1 {0}"),)),
    "sum": Fix(
        r"(all_reduce\(\w+, 'dp', to=I\)) in place of the mean over ranks",
        ((r"cc\.mean\(\w+, 'dp', to=I\)", "cc.{0}"),)),
    "Shard": Fix(
        r"take the mean of the Shard itself, in place of that of its cast to V",
        ((r"cc\.cast\(losses, 'dp', to=V\)\.mean\(\)", "losses.mean()"),)),
}  # fmt: skip
"""The kinds of fixes, in no order."""


class Wrong(NamedTuple):
    """A wrong program, the fixes that its message offers, in order, and whether a mean over all rows is meant; a sum
    if not.
    """

    text: str
    fixes: tuple[str, ...]
    is_mean: bool = True
    is_even: bool = True


LABELLED = "rows = cc.from_local(rows, {'dp': Shard(0)})\n" + LOSSES
WRONG = {
    "a masked mean": Wrong(
        f"{LOSSES}\nmask = (rows[:, 0] > 0) * 1.0\nn = mask.sum()\nloss = (losses * mask).sum() / n\n"
        "total = cc.all_reduce(loss, 'dp', to=I)", ("ones", "declare")),
    "a masked mean, by a condition": Wrong(
        f"{LOSSES}\nmask = rows[:, 0] > 0\nn = mask.sum()\nloss = np.where(mask, losses, 0.0).sum() / float(n)\n"
        "total = cc.all_reduce(loss, 'dp', to=I)", ("ones", "declare"), is_even=False),
    "a mean of parts of a masked sum": Wrong(
        f"{LOSSES}\nmask = (rows[:, 0] > 0) * 1.0\nloss = (losses * mask).sum() / ONES\n"
        "total = cc.mean(loss, 'dp', to=I)", ("sum",)),
    "declared, times the size": Wrong(
        f"{LABELLED}\nloss = cc.declare_partial(losses, 'dp').sum() * size\ntotal = cc.all_reduce(loss, 'dp', to=I)",
        ("leave out",), is_mean=False, is_even=False),
    "a function of a mean by the size": Wrong(
        f"{LABELLED}\nloss = losses.mean()\ntotal = np.log1p(cc.all_reduce(loss, 'dp', to=I) / size)",
        ("leave out", "int"), is_even=False),
    "a function of a mean times the size": Wrong(
        f"{LABELLED}\nloss = losses.mean()\ntotal = np.log1p(cc.all_reduce(loss, 'dp', to=I) * size)",
        ("leave out", "int"), is_even=False),
    "mean": Wrong(
        f"{LOSSES}\nloss = losses.mean()\ntotal = cc.all_reduce(loss, 'dp', to=I)", ("label", "mean", "declare")),
    "mean, uneven": Wrong(
        f"{LOSSES}\nloss = losses.mean()\ntotal = cc.all_reduce(loss, 'dp', to=I)", ("label", "declare"),
        is_even=False),
    "len": Wrong(
        f"{LOSSES}\nloss = losses.sum() / len(rows)\ntotal = cc.all_reduce(loss, 'dp', to=I)",
        ("label, mean", "mean", "declare")),
    "len, uneven": Wrong(
        f"{LOSSES}\nloss = losses.sum() / len(rows)\ntotal = cc.all_reduce(loss, 'dp', to=I)",
        ("label, mean", "declare"),
        is_even=False),
    "mean twice": Wrong(
        f"{LOSSES}\nloss = losses.mean()\ntotal = cc.mean(loss, 'dp', to=I) / size", ("leave out",)),
    "labelled, by the size": Wrong(
        f"{LABELLED}\nloss = losses.mean()\ntotal = cc.all_reduce(loss, 'dp', to=I) / size", ("leave out",),
        is_even=False),
    "labelled, times the size": Wrong(
        f"{LABELLED}\nloss = losses.sum() / 60 * size\ntotal = cc.all_reduce(loss, 'dp', to=I)", ("leave out",),
        is_even=False),
    "all rows by the size": Wrong(
        f"{LABELLED}\nloss = losses.sum()\ntotal = cc.all_reduce(loss, 'dp', to=I) / 60 / size", ("leave out",),
        is_even=False),
    "the rows of one rank": Wrong(
        f"{LOSSES}\nloss = losses.sum()\ntotal = cc.all_reduce(loss, 'dp', to=I) / len(rows)", ("count",)),
    "mean of parts": Wrong(
        f"{LOSSES}\nloss = losses.sum() / 60\ntotal = cc.mean(loss, 'dp', to=I)", ("sum",), is_even=False),
    "mean of sums of a cast": Wrong(
        f"{LABELLED}\nown = cc.cast(losses, 'dp', to=V)\nloss = own.sum()\ntotal = cc.mean(loss, 'dp', to=I)", ("sum",),
        is_mean=False, is_even=False),
    "mean of a cast": Wrong(
        f"{LABELLED}\nloss = cc.cast(losses, 'dp', to=V).mean()\ntotal = cc.all_reduce(loss, 'dp', to=I)",
        ("Shard",), is_even=False),
    "an unequal term": Wrong(
        f"{LOSSES}\nloss = losses.mean()\ntotal = cc.all_reduce(loss, 'dp', to=I) + (w0 * w0).sum()",
        ("label", "mean", "declare")),
    "an unequal term of parts": Wrong(
        f"{LOSSES}\nloss = losses.sum() / 60\ntotal = cc.mean(loss, 'dp', to=I) + (w0 * w0).sum()", ("sum",),
        is_even=False),
    "an unequal term of a Shard": Wrong(
        f"{LABELLED}\nloss = losses.mean()\ntotal = cc.all_reduce(loss, 'dp', to=I) / size + (w0 * w0).sum()",
        ("leave out",), is_even=False),
}  # fmt: skip
"""Wrong programs: a text after ``rows``, ``w`` and ``size`` are known, which ends with ``total``."""


def parts(n: int, is_even: bool) -> list[Any]:
    if is_even:
        return [numpy.arange(60)[rank::n] for rank in range(n)]
    return numpy.split(numpy.arange(60), [10 + 7 * rank for rank in range(n - 1)])


def gradients(text: str, n: int, is_even: bool) -> list[Any]:
    """The gradients of a text on all ranks. Its lines are known to tracebacks, and so to messages."""
    name = f"<fixes {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    code = compile(text, name, "exec")

    def main() -> Any:
        with cc.Mesh(dp=n) as mesh:
            axis = mesh.axis("dp")
            names = NAMES | {"rows": DATA[parts(n, is_even)[int(axis.rank)]], "size": axis.size}
            with ag.Tape() as tape:
                names["w0"] = ag.Parameter(W.copy(), name="w0")
                names["w"] = cc.cast(names["w0"], "dp", to=R)
                exec(code, names)
            tape.backward(names["total"])
            return names["w0"].grad.numpy()

    return cc.run(main, n)


def expected(row: Wrong, n: int, fix: str) -> Any:
    d = 2 * DATA[:, :3] * (DATA[:, :3] @ W - DATA[:, 3])[:, None]
    penalty = 2 * W if "w0" in row.text else 0
    if "mask" in row.text:
        mask = DATA[:, 0] > 0
        if fix == "declare":
            return sum(d[mine][mask[mine]].mean(axis=0) for mine in parts(n, row.is_even))
        return d[mask].mean(axis=0)
    if "log1p" in row.text:
        mean = ((DATA[:, :3] @ W - DATA[:, 3]) ** 2).mean()
        inside = 1 if fix == "leave out" else n if "* size" in row.text else 1 / n
        return inside * d.mean(axis=0) / (1 + inside * mean)
    if fix == "declare":  # the sum of different losses
        return sum(d[mine].mean(axis=0) for mine in parts(n, row.is_even)) + penalty
    return d.sum(axis=0) / (60 if row.is_mean else 1) + penalty


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("name", WRONG)
def test_fixes(name: str, n: int) -> None:
    row = WRONG[name]
    with scale("error"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unequal means are told, too
        with pytest.raises(ScaleError) as caught:
            gradients(row.text, n, row.is_even)
        offered = [line.split(":  ", 1)[-1].split("fix: ", 1)[-1] for line in str(caught.value).splitlines()
                   if re.match(r"  (fix: |or:  )", line)]  # fmt: skip
        found = [next(kind for kind, fix in FIXES.items() if re.search(fix.offers, line)) for line in offered]
        assert tuple(found) == row.fixes, str(caught.value)
    for kind, line in zip(found, offered, strict=True):
        fix = FIXES[kind]
        words = re.search(fix.offers, line)
        assert words is not None
        text = row.text
        for pattern, by in fix.changes:
            text = re.sub(pattern, by.format(*words.groups()), text)
        assert text != row.text
        with scale("error"), warnings.catch_warnings():
            warnings.simplefilter("error")
            for gradient in gradients(text, n, row.is_even):
                numpy.testing.assert_allclose(gradient, expected(row, n, kind), atol=1e-12, err_msg=f"{kind}:\n{text}")
