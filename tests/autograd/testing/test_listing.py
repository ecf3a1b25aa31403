"""``python -m autograd registry``: the registry as data, read from the declarations and recorded from the cases."""

from __future__ import annotations

import doctest
import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autograd.__main__ import main
from autograd.engine.primitive import op, registry
from autograd.testing.listing import names, record, row, source

from ...forks import run_program
from ...proofs.operations import CASES, WITHOUT_DERIVATIVE, Case, normal
from ...proofs.registry import facts

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def all_rows() -> dict[str, dict[str, Any]]:
    """All rows by name, as the command prints them: it takes a second, so all tests of a worker use one run of it."""
    command = [sys.executable, "-m", "autograd", "registry", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_operation_has_a_row_with_all_that_it_declares() -> None:
    assert set(all_rows()) == set(names()) and set(names()) >= {c.operation for c in CASES}
    for name, r in all_rows().items():
        declared = registry[name]
        assert r["word"].rstrip("*").split() == declared.words
        assert r["cases"] == sum(c.operation == name for c in CASES)
        assert r["cases"] or r["families"] or r["without_derivative"] == WITHOUT_DERIVATIVE[name]
        assert len(r["adjoint"]) == len(declared.adjoint)
        assert all(text for text in r["adjoint"].values())


def test_rules_are_as_they_are_written() -> None:
    assert all_rows()["multiply"]["adjoint"] == {"x": "lambda ct, y, a, b: ct * b", "y": "lambda ct, y, a, b: ct * a"}
    assert all_rows()["where"]["adjoint"]["condition"] == "no cotangent"
    assert "def _adjoint_of_a(ct" in all_rows()["matmul"]["adjoint"]["x"]
    text = (ROOT / "autograd" / "ops" / "elementwise.py").read_text()
    for name in ("divide", "maximum", "where", "exp"):
        for rule in all_rows()[name]["adjoint"].values():
            for part in rule.split(", where derivative = "):
                assert part == "no cotangent" or part in " ".join(text.split()), part
    first, second = (lambda x: x + 1), (lambda x: x + 2)  # two on one line
    assert (source(first), source(second)) == ("lambda x: x + 1", "lambda x: x + 2")


@pytest.mark.parametrize(("name", "expected"), [
    ("add", {"P P": "P", "R R": "R", "P R": None, "I R": None, "Shard(0) Shard(0)": "Shard(0)", "Shard(0) R": None}),
    ("multiply", {"P R": "P", "R P": "P", "P P": None, "I I": "I", "V R": "V", "P V": None}),
    ("exp", {"P": None, "R": "R", "Shard(1)": "Shard(1)"}), ("sum", {"P": "P", "Shard(0)": "P"}),
    ("mean", {"P": "P"}), ("where", {"P P P": "P", "R R R": "R"}), ("linear", {"P P P": None, "R R R": "R"}),
])  # fmt: skip
def test_layouts_are_what_inference_gives(name: str, expected: dict[str, str | None]) -> None:
    found = all_rows()[name]["layouts"]
    assert {k: found[k] for k in expected} == expected


def test_layouts_follow_the_declaration() -> None:
    """The same function declared with another word takes other layouts: nothing is written down."""
    given = {}
    for word in ("a", "N"):
        made = op("twice (planted)", word, lambda x: 2 * x, lambda ct, y, x: 2 * ct, operands="x",
                  dims=registry["exp"].dims)  # fmt: skip
        CASES.append(Case(made.name, "", made, lambda x: 2 * x, (normal(2, 3),)))
        try:
            given[word] = facts(made.name)["layouts"]["P"]
        finally:
            CASES.pop()
            del registry[made.name]
    assert given == {"a": "P", "N": None}


def test_the_command() -> None:
    found = all_rows()
    assert list(found) == [r["name"] for r in found.values()] == names()
    assert found["exp"] == json.loads(json.dumps(row("exp")))
    assert found["matmul"]["saves"] == ["x", "w"] and found["matmul"]["dims"][0]["to"][-1] == "sum"


def test_forms_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["registry", "log"]) == 0
    assert "refused" in capsys.readouterr().out
    assert main(["registry", "lgo"]) == 2
    assert "there is no operation lgo" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["registry", "--json", "--markdown"])


def test_the_record_is_not_stale() -> None:
    stale = [name for name in names() if record().get(name) != facts(name)]
    assert not stale and list(record()) == names(), f"write it anew: python -m tests.proofs.registry; stale: {stale}"


def test_docs_operations_is_not_stale() -> None:
    """Names and words only: the rest follows from them, or is looked at when it is written anew."""
    page = ROOT / "docs" / "operations.md"
    lines = [line.split(" | ")[:2] for line in page.read_text().splitlines() if line.startswith("| ")][1:]
    listed = {name.strip("| "): word.strip("` ") for name, word in lines}
    declared = {name: r["word"] for name, r in all_rows().items()}
    assert listed == declared, "stale; write it anew: python -m tests.proofs.registry"


def test_importing_the_engine_loads_no_tests() -> None:
    rare = {"autograd.testing", "autograd.testing.anomaly", "autograd.testing.listing"}
    code = f"import sys, autograd; RARE = {rare}; assert not RARE & set(sys.modules)"
    done = run_program(code, "program.py", limit_s=60)
    assert done.returncode == 0, done.stderr


def test_the_commands_own_example() -> None:
    module = importlib.import_module("autograd.__main__")
    assert doctest.testmod(module) == (0, 2)
