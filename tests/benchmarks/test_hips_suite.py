"""The benchmark that runs HIPS autograd's own tests: what it counts, and that it does what it says.

The whole run needs an interpreter that has HIPS autograd, SciPy and pytest (RINGTAPE_PYTHON_HIPS) and a checkout of it
(RINGTAPE_HIPS_SUITE).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def suite() -> Any:
    spec = importlib.util.spec_from_file_location("hips_suite", ROOT / "benchmarks" / "hips_suite.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TESTS = """
import autograd.numpy as np
from autograd import grad


def test_right():
    assert grad(lambda x: np.sum(x * x))(np.ones(2)).tolist() == [2.0, 2.0]


def test_wrong():
    assert 1 == 2, "one is not two"


def test_private():
    from autograd.core import make_vjp

    assert make_vjp(np.sin, 0.0)[1] == 0
"""


def test_runs_and_counts_a_suite_from_the_outside(suite: Any, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_few.py").write_text(TESTS)
    (tmp_path / "tests" / "test_none.py").write_text("import no_such_module\n")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    where, found = suite.run(sys.executable, tmp_path, 100.0, ours=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before, "something was written into the checkout"
    assert Path(where).parent == ROOT / "autograd"
    kinds = {test: outcome.kind for (file, test), outcome in found.items() if file == "test_few"}
    assert kinds == {"test_right": "passed", "test_wrong": "failed", "test_private": "passed"}
    assert "one is not two" in found["test_few", "test_wrong"].reason
    tests = [("test_few", test) for test in kinds]
    assert suite.privates(tmp_path, tests) == {("test_few", "test_private"): {"autograd.core"}}


def test_a_module_imported_at_the_top_makes_every_test_private(suite: Any, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("from autograd import core, grad\nimport autograd.util\ndef test_a(): pass\n")
    top, functions = suite.private_imports(tmp_path / "t.py")
    assert top == {"autograd.core", "autograd.util"} and functions == {"test_a": set()}


def test_the_interpreters_must_not_share_a_package(suite: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needed: HIPS autograd's"):
        suite.run(sys.executable, tmp_path, 100.0, ours=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_95_per_cent_of_hips_autograds_tests_pass(suite: Any) -> None:
    python, checkout = os.environ.get("RINGTAPE_PYTHON_HIPS"), os.environ.get("RINGTAPE_HIPS_SUITE")
    if not python or not checkout:
        pytest.skip("needs RINGTAPE_PYTHON_HIPS, an interpreter, and RINGTAPE_HIPS_SUITE, a checkout of HIPS autograd")
    result = suite.measured(Path(checkout).resolve(), python, sys.executable, 900.0)
    print(suite.table(result))
    assert result["all"]["peer"] >= 600
    assert result["all"]["ratio"] >= 0.95 and result["without private"]["ratio"] >= 0.95
