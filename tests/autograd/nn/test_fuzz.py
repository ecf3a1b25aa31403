"""Random calls of `autograd.nn` and `autograd.random` with wrong arguments: typed errors, and no silent nonsense."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn
from autograd.errors import ArgumentError, DtypeError, OptionError, RingtapeError, ShapeError

from . import fuzz

X = numpy.ones((2, 3))


def test_random_calls() -> None:
    counts, outcomes = fuzz.run(1500, seed=11)
    assert not outcomes, "\n".join(f"{o.kind} {o.text}" for o in outcomes[:20])
    assert counts["agreed"] == 1500


def test_the_fuzzer_finds_planted_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    legal = fuzz.CALLS["dropout"]
    faults: dict[str, Any] = {
        "internal": lambda x, p, training, key: x.missing,
        "accepted": lambda x, p, training, key: ag.tensor(X),
    }
    for kind, fault in faults.items():
        monkeypatch.setitem(fuzz.CALLS, "dropout", fuzz.Entry(fault, legal.kinds))
        assert fuzz.run(60, seed=1, only="dropout")[0][kind] > 10

    def refuses(x: Any, p: Any, training: Any, key: Any) -> None:
        raise OptionError("no")

    monkeypatch.setitem(fuzz.CALLS, "dropout", fuzz.Entry(refuses, legal.kinds))
    assert fuzz.run(60, seed=1, only="dropout")[0]["refused"] > 5


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: nn.Linear(-1, 3), ShapeError, "Linear: in_features=-1 was given; needed: an integer from 0 on"),
        (lambda: nn.Linear(2.0, 3), DtypeError, "Linear: in_features must be an integer, got 2.0"),
        (lambda: nn.LayerNorm(3, eps=-1.0), OptionError, "LayerNorm: eps=-1.0 was given; needed: a finite number, "),
        (lambda: nn.layer_norm(X, (3,), eps=-1.0), OptionError, "layer_norm: eps=-1.0"),
        (lambda: nn.BatchNorm1d(3, momentum=1.5), OptionError, "BatchNorm1d: momentum=1.5 .* from 0 to 1"),
        (lambda: nn.Dropout(1.5), OptionError, "Dropout: p=1.5"),
        (lambda: nn.dropout(X, float("nan")), OptionError, "dropout: p=nan"),
        (lambda: nn.MultiheadAttention(8, 3), ShapeError, "a multiple of num_heads"),
        (lambda: nn.Conv1d(4, 2, 3, stride=0), ShapeError, "Conv1d: stride=0"),
        (lambda: nn.MaxPool1d("x"), ShapeError, "MaxPool1d: kernel_size='x'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=-0.5), OptionError, "label_smoothing=-0.5"),
        (lambda: nn.SmoothL1Loss(beta=float("nan")), OptionError, "beta=nan"),
        (lambda: nn.softmax(X, None), ArgumentError, "axis=None was given; needed: one integer"),
        (lambda: nn.Flatten()("x"), RingtapeError, r"Flatten\('x'\)"),
        (lambda: nn.tanh("x"), DtypeError, r"tanh\(x: "),
        (lambda: nn.init.normal_(X), RingtapeError, r"normal_\(float64\[2, 3\]\): .*has no attribute"),
        (lambda: nn.Linear(3, 2, key=7), RingtapeError, "'int' object has no attribute 'fold'"),
        (lambda: ag.random.normal(ag.random.Key(0), 3, std="0.5"), DtypeError, "normal: std must be one real"),
        (lambda: ag.random.next_key(7), DtypeError, "next_key: name must be a string"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as error:
        call()
    assert isinstance(error.value, RingtapeError)


def test_an_error_of_a_users_module_is_left_alone() -> None:
    class Mine(nn.Module):
        def __init__(self, n: int):
            self.n = 1 // n

        def forward(self, x: Any) -> Any:
            return x.missing

    with pytest.raises(ZeroDivisionError):
        Mine(0)
    for module in (Mine(1), nn.Sequential(nn.Identity(), Mine(1))):
        with pytest.raises(AttributeError, match="missing") as error:
            module(X)
        assert not isinstance(error.value, RingtapeError)
