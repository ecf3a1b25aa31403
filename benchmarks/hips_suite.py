"""Run HIPS autograd's own test suite, unmodified, under HIPS autograd and under ringtape.

    git clone https://github.com/HIPS/autograd && git -C autograd checkout v1.9.1
    python benchmarks/hips_suite.py --suite autograd --python-hips /an/environment/with/autograd,scipy,pytest/bin/python

Both environments need pytest and SciPy. HIPS autograd must be installed in the second one only, because both packages
have the same name. Only tests that pass under HIPS autograd count. Nothing is written into the checkout. A test is
private if it or its file imports a module that HIPS autograd does not document (see PRIVATE); totals are printed with
and without private tests. The exit status is 1 if fewer than ``--need`` per cent pass.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

PRIVATE = {
    "autograd.core": "the tracing core; what users need of it is in autograd.extend",
    "autograd.tracer": "the tracing core; what users need of it is in autograd.extend",
    "autograd.util": "helpers of the package itself",
    "autograd.wrap_util": "helpers of the package itself",
    "autograd.numpy.numpy_boxes": "how HIPS autograd wraps arrays",
    "autograd.numpy.numpy_jvps": "HIPS autograd's rules",
    "autograd.numpy.numpy_vjps": "HIPS autograd's rules",
    "autograd.numpy.numpy_vspaces": "HIPS autograd's vector spaces",
    "autograd.numpy.numpy_wrapper": "how HIPS autograd wraps NumPy",
}
"""Undocumented modules of HIPS autograd, and their contents."""


class Outcome(NamedTuple):
    """The outcome of one test."""

    kind: str  # passed, failed, skipped
    reason: str = ""


def run(python: str, suite: Path, limit_s: float, ours: bool) -> tuple[str, dict[tuple[str, str], Outcome]]:
    """Run the suite in an interpreter: the path of its autograd, and the outcome of each (file, test)."""
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", MPLBACKEND="Agg"
    )
    environment["PYTHONPATH"] = str(ROOT) if ours else ""
    with tempfile.TemporaryDirectory() as folder:  # so that the checkout's own package is not on the path
        found = subprocess.run(
            [python, "-c", "import autograd; print(autograd.__file__, hasattr(autograd, 'Tape'))"],
            check=False, cwd=folder, env=environment, text=True, capture_output=True,
        )  # fmt: skip
        where, _, is_ringtape = found.stdout.strip().rpartition(" ")
        is_right = Path(where).parent == ROOT / "autograd" if ours else is_ringtape == "False"
        if found.returncode or not is_right:
            needed = "this checkout's" if ours else "HIPS autograd's (pip install autograd scipy pytest)"
            raise SystemExit(f"{python} imports {where or found.stderr.strip()}; needed: {needed}")
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [python, "-m", "pytest", "-q", str(suite / "tests"), "-p", "no:cacheprovider", "-c", os.devnull,
             "--rootdir", str(suite), "--continue-on-collection-errors", "--tb=short", f"--junitxml={report}"],
            check=False, cwd=folder, env=environment, text=True, capture_output=True, timeout=limit_s,
        )  # fmt: skip
        if not report.exists():
            raise SystemExit(f"pytest of {python} wrote no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return where, outcomes(report)


def outcomes(report: Path) -> dict[tuple[str, str], Outcome]:
    """Read a JUnit report."""
    table = {}
    for case in xml.parse(report).iter("testcase"):
        bad = [e for e in case if e.tag in ("failure", "error", "skipped")]
        name = case.get("classname", "").rpartition(".")[2], case.get("name", "")
        if not bad:
            table[name] = Outcome("passed")
        else:
            said = [line[4:].strip() for line in (bad[0].text or "").splitlines() if line.startswith("E   ")]
            reason = said[0] if said else (bad[0].get("message") or "").partition("\n")[0]
            table[name] = Outcome("skipped" if bad[0].tag == "skipped" else "failed", reason)
    return table


def private_imports(file: Path) -> tuple[set[str], dict[str, set[str]]]:
    """The private modules that a test file imports at its top, and in each test function."""

    def imported(nodes: list[ast.stmt], inside: bool) -> set[str]:
        found: set[str] = set()
        for top in nodes:
            if not inside and isinstance(top, ast.FunctionDef):
                continue
            for node in ast.walk(top):
                if isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
                    found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return found & PRIVATE.keys()

    body = ast.parse(file.read_text()).body
    functions = {node.name: imported(node.body, True) for node in body if isinstance(node, ast.FunctionDef)}
    return imported(body, False), functions


def privates(suite: Path, tests: list[tuple[str, str]]) -> dict[tuple[str, str], set[str]]:
    """The tests that import private modules, with these modules."""
    files = {file: private_imports(suite / "tests" / f"{file}.py") for file, _ in dict.fromkeys(tests)}
    found = {}
    for file, test in tests:
        top, functions = files[file]
        modules = top | functions.get(test.partition("[")[0], set())
        if modules:
            found[file, test] = modules
    return found


def measured(suite: Path, python_hips: str, python: str, limit_s: float) -> dict[str, Any]:
    """Run the suite under both packages, and count the outcomes."""
    where_hips, hips = run(python_hips, suite, limit_s, ours=False)
    where_ours, ours = run(python, suite, limit_s, ours=True)
    tests = sorted(test for test, outcome in hips.items() if outcome.kind == "passed")
    passed = {test for test in tests if ours.get(test, Outcome("failed")).kind == "passed"}
    private = privates(suite, tests)
    files = {}
    for file in sorted({file for file, _ in tests}):
        of_file = [test for test in tests if test[0] == file]
        why = Counter(module for test in of_file for module in private.get(test, ()))
        files[file] = {
            "hips": len(of_file),
            "ringtape": sum(test in passed for test in of_file),
            "private": sum(test in private for test in of_file),
            "imports": dict(why),
        }
    public = [test for test in tests if test not in private]
    missing = Outcome("failed", "not collected")
    return {
        "hips": where_hips,
        "ringtape": where_ours,
        "files": files,
        "all": total(len(passed), len(tests)),
        "without private": total(sum(test in passed for test in public), len(public)),
        "failed": {"::".join(test): ours.get(test, missing).reason for test in tests if test not in passed},
        "skipped by hips": sum(outcome.kind == "skipped" for outcome in hips.values()),
    }


def total(ours: int, peer: int) -> dict[str, Any]:
    """A figure in the format of all benchmarks."""
    return {"ours": ours, "peer": peer, "ratio": round(ours / max(peer, 1), 4)}


def table(result: dict[str, Any]) -> str:
    """Format the counts per file, the totals, and the reasons for failures, the most frequent first."""
    lines = [f"{'file':24}{'HIPS':>6}{'ringtape':>10}{'private':>9}  imports"]
    for file, row in result["files"].items():
        imports = ", ".join(f"{module.removeprefix('autograd.')} {n}" for module, n in row["imports"].items())
        lines.append(f"{file:24}{row['hips']:6}{row['ringtape']:10}{row['private']:9}  {imports}".rstrip())
    for name in ("all", "without private"):
        figure = result[name]
        lines.append(f"{name:24}{figure['peer']:6}{figure['ours']:10}   {100 * figure['ratio']:.1f} %")
    reasons = Counter(re.sub(r"\d[\d.e+-]*", "#", reason)[:100] for reason in result["failed"].values())
    lines += [f"  {n:4}  {reason}" for reason, n in reasons.most_common(20)]
    return "\n".join(lines)


def main() -> int:
    """Run, print the table, and compare with `--need`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", type=Path, required=True, help="a checkout of HIPS autograd")
    parser.add_argument("--python-hips", required=True, metavar="PATH", help="interpreter that has HIPS autograd")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter for ringtape")
    parser.add_argument("--limit-s", type=float, default=900.0, help="time limit of each run")
    parser.add_argument("--need", type=float, default=95.0, help="per cent of the tests that must pass")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    result = measured(options.suite.resolve(), options.python_hips, options.python, options.limit_s)
    print(json.dumps(result, indent=1) if options.json else table(result))
    return 0 if 100 * result["all"]["ratio"] >= options.need else 1


if __name__ == "__main__":
    raise SystemExit(main())
