"""Random calls of every public name end by a result or a typed error, and the fuzzer sees faults that are planted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

import collectives as cc

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


def test_methods_have_an_instance_to_be_called_of() -> None:
    found = fuzz.targets()
    makers = fuzz.instances(found)
    with cc.Mesh(dp=1):
        d = fuzz.Draw(random.Random(0), (cc.V,), makers)
        for owner in {t.owner for t in found if t.owner is not None}:
            assert owner in makers, f"no instance of {owner} can be made; needed: a maker in INSTANCES of tests/fuzz.py"
            assert isinstance(makers[owner](d), owner)


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


def test_planted_faults_are_seen() -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(PLANTED)]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert found.returncode == 0, found.stderr
    outcomes = json.loads(found.stdout.splitlines()[-1])
    assert {name: list(counts) for name, counts in outcomes.items()} == {
        name: [outcome] for name, (_, outcome) in PLANTED.items()
    }
