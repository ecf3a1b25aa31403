"""``dim=`` and ``axis=`` are one argument, and ``keepdim=`` and ``keepdims=``; both names at once are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn

X = numpy.random.default_rng(0).standard_normal((2, 3, 4))
REDUCTIONS = (
    "all", "any", "argmax", "argmin", "count_nonzero", "max", "mean", "median", "min", "nansum", "prod", "std", "sum",
    "var",
)  # fmt: skip
ALONG = ("argsort", "cumprod", "cumsum", "diff", "flip", "sort")
METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "max", "mean", "min", "prod", "std", "sum", "var",
)  # fmt: skip


def same(f: Callable[..., Any], ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    numpy.testing.assert_array_equal(numpy.asarray(f(**theirs)), numpy.asarray(f(**ours)))
    name, other = next(iter(ours)), next(iter(theirs))
    with pytest.raises(TypeError, match=f"{name}= and {other}= were given|{other}= and {name}= were given") as caught:
        f(**ours, **theirs)
    assert isinstance(caught.value, ag.ArgumentError)


@pytest.mark.parametrize("x", [X, ag.tensor(X), ag.Parameter(X)], ids=["array", "Tensor", "Parameter"])
def test_functions(x: Any) -> None:
    for name in (*REDUCTIONS, *ALONG):
        same(partial(getattr(np, name), x), {"axis": 1}, {"dim": 1})
        with pytest.raises(ag.ArgumentError, match="axis= and dim= were given"):
            getattr(np, name)(*((x, 1, 1) if name == "diff" else (x, 1)), dim=1)
    for name in REDUCTIONS:
        same(partial(getattr(np, name), x, 1), {"keepdims": True}, {"keepdim": True})
    for f in np.stack, np.concatenate:
        same(partial(f, [x, x]), {"axis": 0}, {"dim": 0})
    for f in nn.softmax, nn.log_softmax:
        same(partial(f, x), {"axis": -1}, {"dim": -1})
    same(partial(np.expand_dims, x), {"axis": 1}, {"dim": 1})
    same(partial(np.squeeze, x[:, :1]), {"axis": 1}, {"dim": 1})
    same(lambda **words: nn.Softmax(**words)(x), {"axis": -1}, {"dim": -1})
    numpy.testing.assert_array_equal(np.swapaxes(x, dim0=0, dim1=2), X.swapaxes(0, 2))


def test_methods() -> None:
    x = ag.tensor(X)
    for name in METHODS:
        numpy.testing.assert_array_equal(getattr(x, name)(dim=1).numpy(), getattr(X, name)(axis=1), name)
    assert x.mean(dim=(0, 2), keepdim=True).shape == (1, 3, 1)
    for name, given in ("unsqueeze", ()), ("split", (1,)), ("chunk", (3,)):
        same(partial(getattr(x, name), *given), {"axis": 0}, {"dim": 0})
    numpy.testing.assert_array_equal(x.transpose(dim0=0, dim1=2), X.swapaxes(0, 2))
    numpy.testing.assert_array_equal(x.diagonal(dim1=1, dim2=2), X.diagonal(0, 1, 2))


def test_flatten_takes_torchs_arguments_and_numpys() -> None:
    x = ag.tensor(X)
    for shape, words in ((2, 12), {"start_dim": 1}), ((6, 4), {"end_dim": 1}), ((24,), {"order": "F"}):
        assert x.flatten(**words).shape == shape
    assert x.flatten(1).shape == (2, 12) and x.flatten(0, 1).shape == (6, 4) and ag.tensor(1.0).flatten().shape == (1,)
    numpy.testing.assert_array_equal(x.flatten("F"), X.flatten("F"))
    with pytest.raises(ag.ArgumentError, match="start_dim before end_dim"):
        x.flatten(2, 1)


def test_torchs_positional_arguments_are_refused_where_numpys_mean_something_else() -> None:
    x = ag.tensor(X)
    for name in "sum", "mean", "max", "argmax", "prod", "std", "cumsum":  # torch's keepdim, or dtype
        with pytest.raises(ag.RingtapeError):
            getattr(x, name)(0, True)


def test_a_gradient_flows_by_either_name() -> None:
    w = ag.Parameter(X)
    found = [ag.grad(lambda w, k=k: (np.std(w, **{k: 1}) ** 2 * w.sum(**{k: 1})).sum())(w) for k in ("axis", "dim")]
    numpy.testing.assert_array_equal(found[0], found[1])


def test_an_exchange_of_two_dimensions_that_numpy_reads_as_none_is_refused() -> None:
    x = ag.tensor(numpy.arange(6.0).reshape(2, 3))
    for axes in ((0, 1), (-2, -1)):
        with pytest.raises(ag.ArgumentError, match=r"fix: x\.T, or x itself"):
            x.transpose(*axes)
    assert x.transpose(1, 0).shape == x.transpose().shape == x.transpose((1, 0)).shape == (3, 2)
    assert x.transpose((0, 1)).shape == (2, 3)
