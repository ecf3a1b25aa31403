"""Plant faults in the library, one at a time, and report which tests fail for which of them.

    python -m tests.mutants autograd/ops/sums.py --tests tests/autograd/ops/test_operations.py --number 20

A fault is a change of one place inside a function: another operator, comparison or sign, a negated condition, a number
or the bound of a slice off by one, another axis or root, a sum or a collective left out, an update that is not made.
The places are drawn at random from the files. Each fault is planted in a copy of the tree, where the tests then run.

The report has a row for each set of faults that some tests see and others do not. Tests in one row never differ: they
pass and fail together for all of these faults. A case of a table (`tests.tables.each`) counts as a test. `--json`
writes, for each fault, the tests that failed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Fault", "drawn", "faults_of", "planted", "run"]

ROOT = Path(__file__).resolve().parents[1]
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_SUMS = ("sum", "all_reduce", "reduce_scatter", "all_gather", "conj", "reduce", "broadcast")  # f(x, ...) becomes x


class Fault(NamedTuple):
    """A change of one place: the characters of the file from `start` to `end` become `text`."""

    file: str
    line: int
    start: int
    end: int
    before: str
    text: str

    def __str__(self) -> str:
        shown = [" ".join(text.split())[:60] for text in (self.before, self.text)]
        return f"{self.file}:{self.line}: {shown[0]} -> {shown[1]}"


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one change, for each change there is."""
    new = copy.deepcopy(node)
    match new:
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(new.op) in _OPERATORS:
            new.op = _OPERATORS[type(new.op)]()  # type: ignore[assignment]
            yield new
        case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
            new.ops = [_OPERATORS[type(op)]()]  # type: ignore[list-item]
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.If() | ast.IfExp() | ast.While():
            yield ast.UnaryOp(ast.Not(), new.test)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.keyword(arg="axis" | "root" | "dim", value=value) if not isinstance(value, ast.Constant):
            yield ast.keyword(new.arg, ast.BinOp(value, ast.Add(), ast.Constant(1)))
        case ast.Slice(lower=lower) if lower is not None and not isinstance(lower, ast.Constant):
            new.lower = ast.BinOp(lower, ast.Add(), ast.Constant(1))
            yield new
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if name in _SUMS:
            if not isinstance(first, ast.Starred | ast.GeneratorExp):
                yield first
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _places(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """The nodes inside functions and lambdas that run; not annotations, texts of errors or formatted strings."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if inside:
        yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children: list[ast.AST] = [*node.decorator_list, *(d for d in node.args.kw_defaults if d), *node.args.defaults]
        for child in children:
            yield from _places(child, inside)
        for child in node.body:
            yield from _places(child, True)
        return
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _places(child, inside or isinstance(node, ast.Lambda))


def faults_of(file: str, text: str) -> list[Fault]:
    """All faults that can be planted in the text of a file."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _places(ast.parse(text)):
        place = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else node
        for new in _changed(node):
            start = starts[place.lineno - 1] + place.col_offset  # type: ignore[attr-defined]
            end = starts[place.end_lineno - 1] + place.end_col_offset  # type: ignore[attr-defined]
            shown = ast.unparse(new)
            if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Slice):
                shown = f"({shown})"
            before = text.encode()[start:end].decode()
            found.append(Fault(file, place.lineno, start, end, before, shown))  # type: ignore[attr-defined]
    return found


def planted(fault: Fault, text: str) -> str:
    """The text of the file with the fault."""
    data = text.encode()
    return (data[: fault.start] + fault.text.encode() + data[fault.end :]).decode()


def drawn(files: Sequence[str], number: int, seed: int, root: Path = ROOT) -> list[Fault]:
    """Faults of these files, drawn at random; the same for the same files and seed."""
    every = [fault for file in files for fault in faults_of(file, (root / file).read_text())]
    return sorted(random.Random(seed).sample(every, min(number, len(every))))


_LISTENER = """
import pytest
failed, ran = set(), set()
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    names = {}
    if hasattr(getattr(item, "function", None), "cases_of"):
        names = {name: f"{item.nodeid}::{name}" for name in item.function.cases_of(item.callspec.id)}
    ran.update(names.values() or [item.nodeid])
    if report.failed:
        error = call.excinfo.value
        told = [note for each in getattr(error, "exceptions", [error]) for note in getattr(each, "__notes__", [])]
        found = [names[note[10:]] for note in told if note[10:] in names]
        failed.update(found or names.values() or [item.nodeid])
    return report
def pytest_sessionfinish():
    open("mutants.txt", "w").write("\\n".join(["-".join(("F" if i in failed else "P", i)) for i in sorted(ran)]))
"""


def run(tree: Path, tests: Sequence[str], options: Sequence[str] = (), limit_s: float = 600) -> dict[str, bool] | None:
    """Run tests in a tree. Returns which of them pass, or None if they did not end in time, or were not found."""
    (tree / "mutants_listener.py").write_text(_LISTENER)
    (tree / "mutants.txt").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "mutants_listener", "-p", "no:cacheprovider",
               "--tb=no", "--timeout", "60", *options, *tests]  # fmt: skip
    try:
        subprocess.run(command, cwd=tree, timeout=limit_s, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**os.environ, "PYTHONPATH": str(tree)}, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    lines = (tree / "mutants.txt").read_text().splitlines() if (tree / "mutants.txt").exists() else []
    return {line[2:]: line[0] == "P" for line in lines} or None


def main(arguments: Sequence[str] | None = None) -> None:
    """Plant faults, run the tests and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="files of the library")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is given")
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", nargs="*", default=[], help="more options of pytest, such as --options=-mslow")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.splitlines()):
            if (ROOT / name).exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        correct = run(tree, args.tests, args.options)
        if correct is None or not any(correct.values()):
            raise SystemExit(f"the tests {args.tests} do not pass without a fault")
        print(f"{len(correct)} tests, of which {len(correct) - sum(correct.values())} fail without a fault", flush=True)
        matrix: dict[str, list[str]] = {}
        for fault in drawn(args.files, args.number, args.seed):
            path, text = tree / fault.file, (ROOT / fault.file).read_text()
            path.write_text(planted(fault, text))
            passed = run(tree, args.tests, args.options)
            path.write_text(text)
            failed = [name for name, ok in correct.items() if ok and not (passed or {}).get(name)]
            matrix[str(fault)] = failed
            print(f"{len(failed):6d} fail  {fault}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"tests": sorted(correct), "faults": matrix}, indent=1))
    seen = [fault for fault in matrix if matrix[fault]]
    print(f"{len(seen)} of {len(matrix)} faults are seen")
    rows = defaultdict(list)
    for name in correct:
        rows[tuple(i for i, fault in enumerate(matrix) if name in matrix[fault])].append(name)
    for row, members in sorted(rows.items(), key=lambda item: -len(item[1])):
        print(f"{len(members):6d} tests see {len(row)}: {members[0]}" + (" ..." if len(members) > 1 else ""))


if __name__ == "__main__":
    main()
