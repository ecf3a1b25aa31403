"""Random calls of every public name end by a result or a typed error, and the fuzzer sees faults that are planted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
import parallel
from autograd import nn, optim
from autograd.engine import primitive
from autograd.optim import schedules
from autograd.testing import check_grads
from autograd.util import quick_grad_check
from collectives.inspect.plan import plan
from parallel import context, pipeline

from . import fuzz, summary

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, limit_s: float) -> Any:
    """The report of a run in a process of its own: a call may exhaust the memory, hang, or end its process."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", "--json", *arguments]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert found.returncode == 0, found.stderr[-4000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("calls", "seed"), [(3000, 7), pytest.param(30_000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_no_internal_error(calls: int, seed: int) -> None:
    report = run("--calls", str(calls), "--seed", str(seed), limit_s=200 if calls < 10_000 else 1700)
    for outcome, number in report["counts"].items():
        summary.count("fuzzed calls of public names", outcome, number)
    assert not report["faults"], "\n".join(report["faults"])
    assert report["names"] > 1400
    assert report["counts"]["returned"] > 0.25 * calls and report["counts"]["refused"] > 0.25 * calls


def test_every_name_that_is_left_out_has_a_reason_and_exists() -> None:
    every = {f"{module}.{name}" for module in fuzz.modules() for name in fuzz.load(module).__all__}
    classes = [t for t in fuzz.targets(with_skipped=True) if isinstance(t.value, type)]
    every |= {f"{t.name}.{name}" for t in classes for name in dir(t.value)} | set(fuzz.modules())
    unused = [pattern for pattern in fuzz.SKIPPED if not any(fnmatchcase(name, pattern) for name in every)]
    assert not unused
    assert all(fuzz.SKIPPED.values())


def test_methods_have_an_instance_to_be_called_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some instances are of files
    monkeypatch.setattr(primitive, "registry", dict(primitive.registry))  # an operation joins it, which other tests see
    found = fuzz.targets()
    makers = fuzz.instances(found)
    with cc.Mesh(dp=1):
        d = fuzz.Draw(random.Random(0), (cc.V,), makers)
        for owner in {t.owner for t in found if t.owner is not None}:
            assert owner in makers, f"no instance of {owner} can be made; needed: a maker in INSTANCES of tests/fuzz.py"
            assert isinstance(makers[owner](d), owner)


@dataclass(frozen=True)
class Unhashable:
    values: list[Any]


class LikeTensor:
    """As a record of an operation, it has some names of a Tensor, and no array."""

    tape, layout, shape = None, None, (1,)


X, P = ag.tensor(np.ones(3)), ag.Parameter(np.ones(3))
EXAMPLES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "endless recursion": (lambda: anp.mean(None, X, slice(None), ag.Parameter(2.0)), ag.RingtapeError, "out="),
    "a Tensor for a mask": (lambda: anp.mean(np.ones(3), where=X), ag.NotDifferentiable, "where="),
    "a list in itself": (lambda: anp.ravel(_endless()), ag.RingtapeError, "given"),
    "a list in itself, of a Tensor": (lambda: anp.dot(X, _endless()), ag.RingtapeError, "recursion"),
    "a state": (lambda: ag.random.set_state(5), TypeError, r"set_state\(5\).*needed: set_state\(state: State\)"),
    "arrays": (lambda: ag.optim.global_norm(np.ones((2, 3))), TypeError, "needed: global_norm"),
    "no declaration": (lambda: ag.extend.op("a (fuzz)", "N", np.sin, saves=3), TypeError, "saves=3"),
    "no tape": (lambda: parallel.saved_bytes(X), TypeError, "needed: saved_bytes"),
    "no schedule": (lambda: pipeline.simulate(X), TypeError, "needed: simulate"),
    "nothing to draw": (lambda: pipeline.draw(3), TypeError, "needed: draw"),
    "nothing to plot": (lambda: pipeline.plot([1], "a.png"), TypeError, "needed: plot"),
    "an endless schedule": (lambda: pipeline.gpipe(2, 10**80), ValueError, "at most 10000000 actions"),
    "no function": (lambda: ag.grad(3), TypeError, "grad: 3 was given; needed: a function"),
    "a list for a Tensor": (lambda: ag.Tensor([1.0]), TypeError, r"fix: autograd.tensor\(x"),
    "a mapping for a Layout": (lambda: ag.Tensor(np.ones(2), {"dp": cc.V}), TypeError, "layout={axis: label}"),
    "data for a mode": (lambda: nn.Tanh().train(np.ones(3)), TypeError, "needed: True or False"),
    "a key": (lambda: nn.ModuleDict({"a": nn.Tanh()})["b"], KeyError, "there is no key 'b'"),
    "a key that cannot be one": (lambda: nn.ModuleDict({"a": nn.Tanh()}).pop(Unhashable([])), TypeError, "unhashable"),
    "an array for a switch": (lambda: optim.AdamW([P], amsgrad=np.ones(2)), TypeError, "amsgrad=.*True or False"),
    "a number for a switch": (lambda: optim.SGD([P], 0.1, 0.9, 0.0, 0.0, 1e-4), TypeError, "nesterov=.*True or False"),
    "a switch of a group": (lambda: optim.RMSprop([{"params": [P], "centered": "no"}]), TypeError, "centered='no'"),
    "a number above all floats": (lambda: optim.clip_grad_value_(P, 10**400), ValueError, "clip_value="),
    "a norm above all floats": (lambda: optim.clip_grad_norm_(P, 10**400), OverflowError, "clip_grad_norm_"),
    "a list in itself, to differentiate": (lambda: ag.hessian(anp.sum)(_endless()), TypeError, "contains itself"),
    "a list in itself, for a choice": (lambda: anp.where(True, X, _endless()), TypeError, "contains itself|recursion"),
    "a list in itself, for a number": (lambda: ag.random.Key(_endless()), TypeError, "contains itself"),
    "a module for an array": (lambda: anp.permute_dims(np, (0, 1)), ValueError, "0 dimensions"),
    "a step that is none": (lambda: schedules.multi_step_lr(0.1, [2])("a"), TypeError, "multi_step_lr.*'a'"),
    "dates for axes": (lambda: X.transpose(np.zeros(2, "M8[D]")), TypeError, "axes|axis"),
    "an old name of texts": (lambda: ag.random.normal(ag.random.Key(0), (2,), dtype="a"), TypeError, "got 'a'"),
    "no tape to plan": (lambda: plan(X, None, (1,)), TypeError, "needed: plan"),
    "no array for a result": (lambda: cc.Pending.done(1.0).into({1}), cc.CommunicationError, "result of {1}"),
    "a mask for a number": (lambda: nn.init.constant_(P, np.ma.masked), TypeError, "a masked array"),
    "a mask for an array": (lambda: ag.testing.norm(np.ma.masked), TypeError, "norm: x: a masked array"),
    "a mask for a result": (
        lambda: ag.testing.compare("x", np.ma.masked, np.ones(2), 0.1, 0.1), TypeError, "expected: a masked array"),
    "an array for a flag": (lambda: ag.capture(verify=np.empty((3, 0))), ValueError, "needed: True or False"),
    "a mask for a number of rows": (
        lambda: parallel.NoiseScale().update(np.ma.masked, 1), TypeError, "rows"),
    "another shape for that of the root": (
        lambda: cc.run(lambda: cc.Mesh(dp=1).__enter__() and cc.scatter(-0.5, "dp", like=np.ones((2, 3))), 1),
        ValueError, "the root's value has the shape"),
    "a mask for a position": (lambda: context.zigzag_order(np.ma.masked, 2), TypeError, "tokens: int"),
    "more runs than there is time": (
        lambda: pipeline.measured_costs([nn.Tanh()], X, repeats=10**90), ValueError, "from 1 to 1,000,000"),
    "an object with the names of a Tensor": (lambda: anp.bitwise_invert(LikeTensor()), TypeError, "bad operand"),
    "a layer without a number": (lambda: ag.nn.ModuleList([nn.Tanh()])["a"], TypeError, "needed: ModuleList"),
}  # fmt: skip


def _endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_wrong_argument_is_refused(name: str) -> None:
    call, kind, text = EXAMPLES[name]
    with pytest.raises(kind, match=f"(?s){text}") as error:
        call()
    assert isinstance(error.value, ag.RingtapeError)


def test_an_error_of_the_program_passes_unchanged() -> None:
    class Mine(KeyError):
        pass

    def fails(*_: Any) -> Any:
        raise Mine("of the program")

    calls = (lambda: check_grads(fails, np.ones(2)), lambda: ag.vjp(fails, 1.0), lambda: nn.Tanh().apply(fails),
             lambda: schedules.lambda_lr(0.1, fails)(1), lambda: cc.run(fails, 1))  # fmt: skip
    for call in calls:
        with pytest.raises(Mine) as error:
            call()
        assert type(error.value) is Mine


def test_a_generator_and_the_line_of_a_warning() -> None:
    with pytest.raises(ag.ArgumentError, match="Module.named_modules"):
        list(nn.Tanh().named_modules(prefix=5))
    with pytest.warns(DeprecationWarning) as seen:
        quick_grad_check(anp.sin, 0.5)
    assert seen[0].filename == __file__


def test_broadcast_arrays_are_recorded_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = ag.Parameter(np.ones(3))
        rows, _ = np.broadcast_arrays(np.ones((1, 3)), np.ones((2, 3)))
        with ag.Tape() as tape:
            loss = (w * rows).sum()
        tape.backward(loss)
    assert w.grad.numpy().tolist() == [2.0, 2.0, 2.0]


# Each program is compiled as a file of the library, where only typed errors may begin.
PLANTED = {
    "an attribute": ("return x.missing", "internal"),
    "an index": ("return [][1]", "internal"),
    "a name that is not bound": ("if False: y = 1\n    return y", "internal"),
    "an assertion": ("assert x is None", "internal"),
    "endless recursion": ("return f(x)", "internal"),
    "a division": ("return 1 / 0", "internal"),
    "an exit": ("raise SystemExit(0)", "internal"),
    "a warning": ("import warnings\n    warnings.warn('old', DeprecationWarning)", "internal"),
    "a thread": ("import threading\n    t = threading.Thread(target=lambda: {}[0]); t.start(); t.join()", "internal"),
    "a finalizer": ("type('T', (), {'__del__': lambda self: {}[0]})()", "internal"),
    "an endless loop": ("while True: pass", "hang"),
    "a process": ("import os\n    os.system('true')", "forbidden"),
    "a file": ("open('/etc/ringtape-fuzz', 'w')", "forbidden"),
    "a typed error": ("from autograd.errors import OptionError\n    raise OptionError('no')", "refused"),
    "a result": ("return None", "returned"),
}
PROGRAM = """
import json, os, sys
from tests import fuzz
outcomes = {}
os.chdir(sys.argv[2])
fuzzer = fuzz.Fuzzer(0, 1.0, "autograd.grad")
fuzzer.guard()
for name, (text, _) in json.loads(sys.argv[1]).items():
    file = os.path.join(str(fuzz.ROOT), "autograd", "planted.py")
    scope = {"__name__": "autograd.planted"}
    exec(compile(f"def f(x=None):\\n    {text}\\n", file, "exec"), scope)
    fuzzer.counts.clear()
    fuzzer.targets = [fuzz.Target("autograd.planted.f", scope["f"])]
    fuzzer.run(1)
    outcomes[name] = dict(fuzzer.counts)
print(json.dumps(outcomes), flush=True)
os._exit(0)
"""


def test_planted_faults_are_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(PLANTED), str(tmp_path)]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert found.returncode == 0, found.stderr
    outcomes = json.loads(found.stdout.splitlines()[-1])
    assert {name: list(counts) for name, counts in outcomes.items()} == {
        name: [outcome] for name, (_, outcome) in PLANTED.items()
    }
