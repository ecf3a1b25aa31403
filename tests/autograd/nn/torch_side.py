"""Reference values of torch, computed once by `torch_reference.py` with the interpreter RINGTAPE_PYTHON_TORCH."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn

_SCRIPT = Path(__file__).with_name("torch_reference.py")
_TRANSPOSED = ("weight_ih", "weight_hh", "in_proj_weight")  # besides every Linear's weight: stored [in, out] here


@cache
def _all() -> dict[str, Any] | str:
    python = os.environ.get("RINGTAPE_PYTHON_TORCH")
    if not python:
        return "RINGTAPE_PYTHON_TORCH names no interpreter that has torch"
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "found.npz")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        run = subprocess.run(
            [python, "-W", "ignore", str(_SCRIPT), target], env=environment, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        if run.returncode:
            raise RuntimeError(f"torch_reference.py failed under {python}:\n{run.stderr[-2000:]}")
        with numpy.load(target) as file:
            return {name.replace("|", "/"): file[name] for name in file.files}


def reference(prefix: str) -> dict[str, Any]:
    """The results of torch under a name: rest of the path -> array; skips the test where there is no torch."""
    found = _all()
    if isinstance(found, str):
        pytest.skip(found)
    mine = {name[len(prefix) + 1 :]: x for name, x in found.items() if name.startswith(prefix + "/")}
    assert mine, f"torch_reference.py has no entry {prefix!r}"
    return mine


def names(prefix: str, *, under: str) -> dict[str, Any]:
    """Return the names below a part of the path: ``names("Linear", under="param")``."""
    return {k[len(under) + 1 :]: x for k, x in reference(prefix).items() if k.startswith(under + "/")}


def ours(module: Any, path: str, array: Any) -> Any:
    """Convert a parameter of torch to the shape in which our module stores it."""
    owner, _, name = path.rpartition(".")
    for part in owner.split(".") if owner else []:
        module = module.layers[int(part)] if isinstance(module, nn.ModuleList) else getattr(module, part)
    turned = name.partition("_l")[0] in _TRANSPOSED or (name == "weight" and isinstance(module, nn.Linear))
    return array.T if turned else array


def load(module: Any, entry: str, rename: Any = lambda path: path) -> None:
    """Set the parameters of a module to torch's, by torch's names."""
    module.load_state_dict({
        **{k: v for k, v in module.state_dict().items() if k not in dict(module.named_parameters())},
        **{rename(k): ours(module, rename(k), x) for k, x in names(entry, under="param").items()},
    })  # fmt: skip


def close(got: Any, wanted: Any, what: str, rtol: float = 1e-10) -> None:
    """Equal within rtol times the larger of its norm and 1e-3 (a gradient that cancels has no digits)."""
    got, wanted = numpy.asarray(got), numpy.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, torch has {wanted.shape}"
    off = float(numpy.linalg.norm(got - wanted))
    scale = max(float(numpy.linalg.norm(wanted)), 1e-3)
    assert off <= rtol * scale, f"{what}: off by {off:.3g} of {scale:.3g}"


def compare(entry: str, f: Any, module: Any = None, rename: Any = lambda path: path) -> None:
    """Run `f` on torch's operands, and compare its values and the gradients of operands and parameters with torch's."""
    found = reference(entry)
    xs = [found[f"in/{i}"] for i in range(sum(k.startswith("in/") for k in found))]
    args = [ag.tensor(x, requires_grad=x.dtype == numpy.float64) if x.dtype.kind == "f" else x for x in xs]
    parameters = {} if module is None else dict(module.named_parameters())
    for p in parameters.values():
        p.zero_grad()
    with ag.Tape() as tape:
        y = f(*args)
        ys = y if isinstance(y, tuple) else (y,)
    tape.backward(list(ys), [found[f"ct/{i}"] for i in range(len(ys))])
    for i, value in enumerate(ys):
        close(value.numpy(), found[f"out/{i}"], f"{entry}: output {i}")
    for i, x in enumerate(args):
        if f"grad/in/{i}" in found:
            close(x.grad.numpy(), found[f"grad/in/{i}"], f"{entry}: gradient of operand {i}")
    theirs = {rename(k): ours(module, rename(k), x) for k, x in names(entry, under="grad/param").items()}
    assert theirs.keys() == parameters.keys()
    for name, p in parameters.items():
        assert p.grad is not None, f"{entry}: {name} has no gradient"
        close(p.grad.numpy(), theirs[name], f"{entry}: gradient of {name}")
