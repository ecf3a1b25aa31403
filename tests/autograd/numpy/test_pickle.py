"""Functions, operations and Tensors can be pickled and copied, as by a pool of processes."""

from __future__ import annotations

import copy
import pickle

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import ops
from autograd.errors import OptionError


def test_functions_are_pickled_by_their_names() -> None:
    functions = {name: getattr(np, name) for name in np.__all__ if callable(getattr(np, name)) and name != "test"}
    assert len(functions) > 400
    for name, function in functions.items():
        assert pickle.loads(pickle.dumps(function)) is function, name
        assert copy.deepcopy(function) is function, name


def test_an_operation_of_the_user() -> None:
    made = ag.op("pickled example", "N", lambda x: x * 1.0, lambda ct, y, x: ct, saves="0")
    assert pickle.loads(pickle.dumps(made)) is made
    with pytest.raises(OptionError):
        ag.op("sin", "N", lambda x: x)
    assert copy.deepcopy({"act": ops.relu})["act"] is ops.relu


def test_tensors() -> None:
    w = ag.Parameter(numpy.arange(3.0), name="w")
    again = pickle.loads(pickle.dumps(w))
    assert again.name == "w" and again.requires_grad and again.numpy().tolist() == [0, 1, 2]
