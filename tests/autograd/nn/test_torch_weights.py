"""Weights to and from torch by `.safetensors`: each layer that has weights computes what torch's computes with them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
from autograd import nn

from . import torch_weights
from .torch_weights import CASES, DTYPES

library = pytest.importorskip("safetensors.numpy", reason="safetensors is in the extra checkpoint")
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def torch(what: str, folder: Path) -> None:
    """Run `torch_weights.py` with the interpreter that has torch, or skip the test."""
    python = os.environ.get("RINGTAPE_PYTHON_TORCH")
    if not python:
        pytest.skip("RINGTAPE_PYTHON_TORCH names no interpreter that has torch")
    command = [python, "-W", "ignore", torch_weights.__file__, what, str(folder)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    if "No module named 'safetensors'" in run.stderr:
        pytest.skip("the interpreter RINGTAPE_PYTHON_TORCH has no safetensors")
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("torch")
    torch("write", made)
    yield made


def module_of(case: str, dtype: str) -> Any:
    return eval("nn." + case, {"nn": nn}).to(dtype).eval()


def results(module: Any, case: str, dtype: str) -> list[Any]:
    with ag.no_grad():
        y = module(*torch_weights.inputs(case, dtype))
    return [x.numpy() if isinstance(x, ag.Tensor) else x for x in torch_weights.leaves(y)]


def agree(ours: list[Any], theirs: dict[str, Any], dtype: str) -> None:
    assert len(ours) == len(theirs) > 0
    for i, x in enumerate(ours):
        wanted = theirs[str(i)]
        assert x.dtype == wanted.dtype == dtype and np.abs(wanted).max() > 0.01
        np.testing.assert_allclose(x, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_weights_of_torch_give_torchs_values(folder: Path, case: str, dtype: str) -> None:
    base = folder / f"{list(CASES).index(case)}.{dtype}"
    module, state = module_of(case, dtype), library.load_file(f"{base}.state.safetensors")
    nn.load(module, f"{base}.state.safetensors", names="torch")
    agree(results(module, case, dtype), library.load_file(f"{base}.out.safetensors"), dtype)
    nn.save(module, folder / "again.safetensors", names="torch")
    again = library.load_file(folder / "again.safetensors")
    assert again.keys() == state.keys() and all((again[name] == x).all() for name, x in state.items())


def test_torch_computes_ours_with_our_weights(folder: Path) -> None:
    modules: dict[tuple[str, str], Any] = {}
    for i, case in enumerate(CASES):
        for dtype in DTYPES:
            module = modules[case, dtype] = module_of(case, dtype)
            nn.save(module, folder / f"{i}.{dtype}.ours.safetensors", names="torch")
    tied = Tied()
    nn.save(tied, folder / "tied.ours.safetensors", names="torch")
    torch("read", folder)
    for i, case in enumerate(CASES):
        for dtype in DTYPES:
            found = library.load_file(folder / f"{i}.{dtype}.again.safetensors")
            agree(results(modules[case, dtype], case, dtype), found, dtype)
    assert (library.load_file(folder / "tied.again.safetensors")["w"] == tied.wte.weight.numpy()).all()


class Tied(nn.Module):
    def __init__(self) -> None:
        self.wte, self.body = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.lm_head = nn.TiedLinear(self.wte)


def test_a_tied_weight_of_torch_under_one_name_and_under_two(folder: Path) -> None:
    one, two = Tied(), Tied()
    held = library.load_file(folder / "tied.safetensors")
    assert len({"wte.weight", "lm_head.weight"} & held.keys()) == 1  # safetensors chooses
    nn.load(one, folder / "tied.safetensors", names="torch")
    nn.load(two, folder / "both.safetensors", names=nn.torch_names(two, prefix="model."))
    for name, x in one.state_dict().items():
        assert (x == two.state_dict()[name]).all()
    assert (held["body.weight"] == one.body.weight.numpy().T).all()


def test_bfloat16_of_torch(folder: Path) -> None:
    pytest.importorskip("ml_dtypes")
    layer = nn.Linear(4, 4).bfloat16()
    nn.load(layer, folder / "half.safetensors", names="torch")
    held = library.load_file(folder / "half.safetensors")
    assert (held["weight"] == layer.weight.numpy().T).all() and layer.weight.dtype == held["weight"].dtype


def test_every_layer_with_weights_is_a_case() -> None:
    made = {type(m).__name__ for case in CASES for m in module_of(case, "float32").modules()}
    layers = {name for name in nn.__all__ if isinstance(getattr(nn, name), type)
              and issubclass(getattr(nn, name), nn.Module) and not name.endswith("Loss") and "Pool" not in name}
    plain = {"Dropout", "Flatten", "GELU", "Identity", "LeakyReLU", "LogSoftmax", "Module", "ModuleDict", "ModuleList",
             "ParameterList", "ReLU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"}  # fmt: skip
    only_here = {"SelfAttention", "TiedLinear"}
    assert layers - plain - only_here <= made
