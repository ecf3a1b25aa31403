"""Labels of unusual dtypes and values in cross-entropy, with the compiled loops and without."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy
import pytest

import autograd as ag
from autograd import nn

LOGITS = numpy.linspace(-1.0, 1.0, 12).reshape(4, 3)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("rows", [4, 20_000])
def test_labels_of_every_integer_dtype_have_one_gradient(dtype: str, rows: int) -> None:
    logits, labels = numpy.resize(LOGITS, (rows, 3)), numpy.resize([0, 1, 2, 1], rows)
    found = ag.grad(lambda x: nn.cross_entropy(x, labels.astype(dtype), reduction="sum"))(logits)
    numpy.testing.assert_array_equal(found, ag.grad(lambda x: nn.cross_entropy(x, labels, reduction="sum"))(logits))


PROGRAM = """
import numpy, autograd as ag
from autograd import nn
for rows in 4, 20_000:
    labels = numpy.full(rows, numpy.nan).astype("int64")
    assert labels[0] == -2**63
    try:
        nn.cross_entropy(ag.tensor(numpy.ones((rows, 3)), requires_grad=True), labels)
    except ag.errors.ShapeError as error:
        assert "-9223372036854775808" in str(error)
    else:
        raise SystemExit("accepted")
"""


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_nan_cast_to_an_integer_is_no_label(compiled: str) -> None:
    environment = {**os.environ, "RINGTAPE_COMPILED": compiled}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
