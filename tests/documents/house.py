"""The figures of the house: what an import loads, what a walk through the code enters, and what modules hold.

    python -m tests.documents.house                    of this tree
    python -m tests.documents.house --before 355c9b53  beside those of a commit, or of a checkout
    python -m tests.documents.house --static --json    without running programs, as JSON

Static figures are read from the text of `autograd`, `collectives` and `parallel`:

closures        the files and lines that a module imports, directly or through others, at the top of modules
complexity      1, and 1 for each ``if``, conditional expression, loop, ``except``, ``case``, comprehension and its
                ``if``, and further operand of ``and`` and ``or``. A function inside another one is counted by itself
changes         statements at the top of a module that change a name imported from another module of the library, or
                call a function that does
caches          functions with `functools.cache` or `lru_cache`
node[k]         reads of a node by position outside `autograd/engine`
globals         names of modules that functions change: containers that they fill, and names bound by ``global``
errors          places that raise a `RingtapeError` without the program's line, and all such places
classes         those with more than 12 attributes, which are assigned on ``self`` or stand in the class
parameters      functions with more than 9 of them, besides ``self``, ``*args`` and ``**options``
fragments       private functions whose name occurs once besides, with at most 4 lines after their docstring; and all
                private functions

Walks run warm, on rank 0 of two ranks over MPI: calls of Python functions, files that were entered, and calls whose
file is not that of the call before. `import autograd` is counted in a Python of its own.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("autograd", "collectives", "parallel")
STARTS = {
    "closure of the engine": "autograd.engine.",
    "closure of all_reduce": "collectives.ops.sums",
    "closure of DataParallel": "parallel.data.data_parallel",
}
MUTATORS = frozenset((
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "setdefault", "update",
))  # fmt: skip
_CONTAINERS = frozenset((
    "Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "defaultdict", "deque", "dict",
    "list", "set",
))  # fmt: skip

Figures = dict[str, list[int]]


# -- from the text -----------------------------------------------------------------------------------------------------


class Tree:
    """The modules of a checkout, as syntax trees."""

    def __init__(self, root: Path):
        self.root = root
        self.text: dict[str, str] = {}
        self.tree: dict[str, ast.Module] = {}
        self.nodes: dict[str, list[ast.AST]] = {}  # of each tree, which takes seconds to walk
        self.packages: set[str] = set()
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if parts[-1] == "__init__":
                    self.packages.add(name)
                self.text[name] = path.read_text()
                self.tree[name] = ast.parse(self.text[name])
                self.nodes[name] = list(ast.walk(self.tree[name]))

    def imported(self, module: str, node: ast.stmt) -> dict[str, str]:
        """The names that an import statement binds, and the module of the library that each is or comes from."""
        found = {}
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in self.tree:
                    found[alias.asname or alias.name.split(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = (module if module in self.packages else module.rpartition(".")[0]).split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in self.tree or source in self.tree:
                    found[alias.asname or alias.name] = inner if inner in self.tree else source
        return found

    def functions(self, module: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods of a module."""
        return [x for x in self.nodes[module] if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]

    def closure(self, start: str) -> set[str]:
        """The modules that are loaded with one, or with all those below a package (``package.``)."""
        waiting = [name for name in self.tree if name == start or start[-1] == "." and name.startswith(start)]
        seen: set[str] = set()
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                for node in top_level(self.tree[module]):
                    waiting += self.imported(module, node).values()
        return seen

    def changes(self) -> list[str]:
        """Statements at the top of a module that change a name which it has imported from the library."""
        names: dict[str, dict[str, str]] = {}
        defined: dict[str, dict[str, ast.FunctionDef]] = {}
        for module, tree in self.tree.items():
            body = list(top_level(tree))
            names[module] = {name: home for node in body for name, home in self.imported(module, node).items()}
            defined[module] = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        found = []
        for module, tree in self.tree.items():
            for node in top_level(tree):
                changes = _changed(node) in names[module]
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                    called = _called(node.value)
                    home = module if called in defined[module] else names[module].get(called, "")
                    function = defined.get(home, {}).get(called)
                    if function is not None:
                        changes = any({_changed(x), _filled(x)} & {*names[home]} for x in ast.walk(function))
                if changes:
                    found.append(f"{module}: {ast.unparse(node).splitlines()[0]}")
        return found

    def mutable_globals(self) -> list[str]:
        """Names of modules that functions change."""
        found = []
        for module, tree in self.tree.items():
            held = {
                target.id
                for node in top_level(tree)
                if isinstance(node, ast.Assign | ast.AnnAssign) and _is_container(node.value)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name)
            }
            changed: set[str] = set()
            if not held and "global " not in self.text[module]:
                continue
            for function in self.functions(module):
                own = {a.arg for a in [*function.args.args, *function.args.kwonlyargs]}
                nodes = list(ast.walk(function))
                for x in nodes:
                    if isinstance(x, ast.Global):
                        changed.update(x.names)
                    elif isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
                        own.add(x.id)
                for x in nodes:
                    name = _changed(x) if isinstance(x, ast.stmt) else _filled(x)
                    if name in held - own:
                        changed.add(name)
            found += [f"{module}.{name}" for name in sorted(changed)]
        return found

    def errors(self) -> tuple[list[str], int]:
        """The places that raise an error of ringtape without the program's line, and the number of all."""
        kinds = {"RingtapeError"}
        classes = [x for nodes in self.nodes.values() for x in nodes if isinstance(x, ast.ClassDef)]
        for _ in range(5):  # the depth of the tree of classes
            kinds |= {c.name for c in classes if any(isinstance(b, ast.Name) and b.id in kinds for b in c.bases)}
        base = next(c for c in classes if c.name == "RingtapeError")
        adds_itself = "call_site" in ast.unparse(base)
        without, count = [], 0
        for module, nodes in self.nodes.items():
            for x in nodes:
                if isinstance(x, ast.Raise) and isinstance(x.exc, ast.Call) and _called(x.exc) in kinds:
                    count += 1
                    if not adds_itself and not any(
                        "site" in _called(y) for y in ast.walk(x) if isinstance(y, ast.Call)
                    ):
                        without.append(f"{module}:{x.lineno}")
        return without, count

    def positions(self) -> tuple[int, int]:
        """The places that read a node of a tape by position outside the engine, and all such places."""
        reads = {module: sum(map(_reads_a_node, nodes)) for module, nodes in self.nodes.items()}
        outside = sum(n for module, n in reads.items() if not module.startswith("autograd.engine"))
        return outside, sum(reads.values())

    def figures(self) -> Figures:
        """All static figures: [files, lines], [above 20, above 30], or one number."""
        found: Figures = {}
        for name, start in STARTS.items():
            closure = self.closure(start)
            found[f"{name}: files, lines"] = [len(closure), sum(self.text[module].count("\n") for module in closure)]
        every = [x for module in self.tree for x in self.functions(module)]
        sizes = list(map(complexity, every))
        found["complexity above 20, 30"] = [sum(n > most for n in sizes) for most in (20, 30)]
        found["changes of another module at import"] = [len(self.changes())]
        found["functions with a cache"] = [sum("cache" in ast.unparse(d) for x in every for d in x.decorator_list)]
        found["node[k] outside the engine, of all"] = [*self.positions()]
        found["globals that functions change"] = [len(self.mutable_globals())]
        without, count = self.errors()
        found["errors without the line, of all"] = [len(without), count]
        found["classes with more than 12 attributes"] = [len(self.large_classes())]
        found["functions with more than 9 parameters"] = [len(self.long_signatures())]
        fragments, count = self.fragments()
        found["private functions used once, of at most 4 lines; of all"] = [len(fragments), count]
        return found

    def large_classes(self, most: int = 12) -> list[str]:
        """The classes with more attributes than `most`, each with their number."""
        found = []
        for module, nodes in self.nodes.items():
            for c in nodes:
                if isinstance(c, ast.ClassDef) and (n := len(_attributes(c))) > most:
                    found.append(f"{module}.{c.name}: {n}")
        return sorted(found, key=lambda text: -int(text.rpartition(" ")[2]))

    def long_signatures(self, most: int = 9) -> list[str]:
        """The functions with more parameters than `most`, each with their number."""
        found = []
        for module in self.tree:
            for x in self.functions(module):
                names = [a.arg for a in [*x.args.posonlyargs, *x.args.args, *x.args.kwonlyargs]]
                if (n := len(names) - (names[:1] in (["self"], ["cls"]))) > most:
                    found.append(f"{module}:{x.lineno} {x.name}: {n}")
        return sorted(found, key=lambda text: -int(text.rpartition(" ")[2]))

    def fragments(self, most: int = 4) -> tuple[list[str], int]:
        """The private functions that are used once and have at most `most` lines, and the number of all."""
        uses: Counter[str] = Counter()
        for nodes in self.nodes.values():
            for x in nodes:
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load):
                    uses[x.id] += 1
                elif isinstance(x, ast.Attribute):
                    uses[x.attr] += 1
        found, count = [], 0
        for module in self.tree:
            for x in self.functions(module):
                if x.name.startswith("_") and not x.name.startswith("__") and x.name != "_":
                    count += 1
                    body = x.body[ast.get_docstring(x) is not None :]
                    lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
                    if uses[x.name] == 1 and lines <= most:
                        found.append(f"{module}:{x.lineno} {x.name}")
        return found, count


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those in blocks too; not what only type checkers read."""

    def visit(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            yield node
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from visit(node.orelse)
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for part in ("body", "orelse", "finalbody"):
                    yield from visit(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    yield from visit(handler.body)

    yield from visit(tree.body)


def _attributes(c: ast.ClassDef) -> set[str]:
    """The attributes of a class: those that stand in it, and those that its methods assign on their first argument."""
    found = set()
    for x in c.body:
        if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name):
            found.add(x.target.id)
        elif isinstance(x, ast.Assign):
            found |= {t.id for t in x.targets if isinstance(t, ast.Name)} - {"__slots__"}
        elif isinstance(x, ast.FunctionDef) and x.args.args:
            found |= {
                y.attr for y in ast.walk(x)
                if isinstance(y, ast.Attribute) and isinstance(y.ctx, ast.Store) and _root(y) == x.args.args[0].arg
                and isinstance(y.value, ast.Name)
            }  # fmt: skip
    return found


def complexity(function: ast.AST) -> int:
    """The cyclomatic complexity of a function, as the docstring of this file defines it."""
    count, waiting = 1, list(ast.iter_child_nodes(function))
    while waiting:
        x = waiting.pop()
        if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(
            x, ast.If | ast.For | ast.AsyncFor | ast.While | ast.IfExp | ast.ExceptHandler | ast.match_case
        ):
            count += 1
        elif isinstance(x, ast.BoolOp):
            count += len(x.values) - 1
        elif isinstance(x, ast.comprehension):
            count += 1 + len(x.ifs)
        waiting += ast.iter_child_nodes(x)
    return count


def _root(x: ast.expr) -> str:
    """The name that an expression of attributes and subscripts begins with."""
    while isinstance(x, ast.Attribute | ast.Subscript):
        x = x.value
    return x.id if isinstance(x, ast.Name) else ""


def _filled(x: ast.AST) -> str:
    """The name whose container a call such as ``name.append(x)`` or ``setattr(name, ...)`` changes, or ""."""
    if isinstance(x, ast.Call):
        if isinstance(x.func, ast.Attribute) and x.func.attr in MUTATORS:
            return _root(x.func.value)
        if isinstance(x.func, ast.Name) and x.func.id in ("setattr", "delattr") and x.args:
            return _root(x.args[0])
    return ""


def _changed(node: ast.AST) -> str:
    """The name whose attribute, element or content a statement changes, or ""."""
    if isinstance(node, ast.Expr):
        return _filled(node.value)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return node.target.id
    return next((_root(t) for t in targets if isinstance(t, ast.Attribute | ast.Subscript)), "")


def _called(x: ast.Call) -> str:
    return x.func.id if isinstance(x.func, ast.Name) else x.func.attr if isinstance(x.func, ast.Attribute) else ""


def _is_container(x: ast.expr | None) -> bool:
    literal = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
    return isinstance(x, literal) or (isinstance(x, ast.Call) and _called(x) in _CONTAINERS)


def _reads_a_node(x: ast.AST) -> bool:
    """Whether it is ``node[k]`` with a number."""
    return (
        isinstance(x, ast.Subscript) and isinstance(x.value, ast.Name) and x.value.id == "node"
        and isinstance(x.slice, ast.Constant) and isinstance(x.slice.value, int)
    )  # fmt: skip


# -- from a run --------------------------------------------------------------------------------------------------------

_IMPORT = """
import sys, {what}
own = [m for n, m in sys.modules.items() if n.split(".")[0] in {packages} and getattr(m, "__file__", None)]
print([len(own), sum(open(m.__file__).read().count("\\n") for m in own)])
"""


def loaded(tree: Path, what: str) -> list[int]:
    """The files and lines of the library that an import loads, in a Python of its own."""
    code = _IMPORT.format(what=what, packages=PACKAGES)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=_environment(tree), cwd=tree, capture_output=True, text=True, check=True)
    return [int(x) for x in json.loads(done.stdout)]


def walks(tree: Path) -> Figures:
    """The walks of a checkout, by name: calls, files, changes of file. {} where there is no mpiexec."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        return {}
    command = [mpiexec, "-n", "2", sys.executable, str(Path(__file__).resolve()), "--worker"]
    done = subprocess.run(
        command, env=_environment(tree), cwd=tree, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the walks of {tree} failed:\n{done.stdout}{done.stderr}")
    found: Figures = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}


def walk(f: Callable[[], Any], prepare: Callable[[], Any] = lambda: None, warm: int = 8, times: int = 7) -> list[int]:
    """Count what ``f()`` enters once it is warm: calls of Python functions, files, changes of file.

    The least of several times counts: a rank that waits for the other one may poll.
    """
    for _ in range(warm):  # the 1st, 2nd, 4th, 8th, 16th sum is compared, so those between are counted
        prepare()
        f()
    found = []
    for _ in range(times):
        prepare()
        found.append(_entered(f))
    return min(found)


def _entered(f: Callable[[], Any]) -> list[int]:
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_filename)

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        f()
    finally:
        sys.setprofile(None)
        gc.enable()
    here = [file for file in seen[1:] if file != __file__]  # without `f` and the program's own functions
    changes = sum(a != b for a, b in zip(here, here[1:], strict=False))
    return [len(here), len({*here}), changes]


def worker() -> None:
    """Run the walks on this rank, with the public names alone, so that every checkout can."""
    import numpy as np

    import autograd as ag
    import autograd.numpy as anp
    import collectives as cc
    from autograd import nn, random
    from parallel import DataParallel, Pipeline, checkpoint

    found: Figures = {}
    x = np.ones(512)
    with cc.Mesh(dp=2):
        w = ag.tensor(x, layout={"dp": cc.I}, requires_grad=True)
        v = ag.tensor(x, requires_grad=True)
        with ag.Tape():
            found["all_reduce(to=I)"] = walk(lambda: cc.all_reduce(v, "dp", to=cc.I))
            scalar = anp.sum(v)
            found["all_reduce(to=I) of a scalar loss"] = walk(lambda: cc.all_reduce(scalar, "dp", to=cc.I))
        held: list[Any] = []

        def record() -> None:
            held.clear()
            w.grad = None
            with ag.Tape() as tape:
                loss = cc.all_reduce(anp.sum(cc.cast(w, "dp", to=cc.R) * v), "dp", to=cc.I)
            held.extend((tape, loss))

        found["backward of cast, multiply, sum, all_reduce"] = walk(lambda: held[0].backward(held[1]), record)

        random.seed(0)
        model = DataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), "dp")
        rows = np.ones((4, 8), np.float32)

        def forward() -> None:
            held.append(model(rows))

        def begin() -> None:
            held.clear()
            model.zero_grad()
            held.append(ag.Tape())
            held[0].__enter__()

        def end() -> None:
            held[0].__exit__(None, None, None)

        def whole() -> None:
            begin()
            forward()
            held.append(cc.all_reduce(held[1].sum(), "dp", to=cc.I))
            end()

        outside = [0]

        def opened() -> None:
            if outside[0]:
                end()
            outside[0] = 1
            begin()

        found["DataParallel MLP, one bucket: forward"] = walk(forward, opened)
        end()
        found["DataParallel MLP, one bucket: backward"] = walk(lambda: held[0].backward(held[2]), whole)

        mine = tempfile.mkdtemp() if cc.world().rank == 0 else ""
        folder = cc.world().exchange(mine.encode())[0].decode()
        objects = {"model": model}
        found["checkpoint.save of the MLP"] = walk(lambda: checkpoint.save(folder, objects, 1, overwrite=True))
        found["checkpoint.load of the MLP"] = walk(lambda: checkpoint.load(folder, objects, 1))
        if cc.world().rank == 0:
            shutil.rmtree(folder)
    with cc.Mesh(pp=2):
        random.seed(0)
        layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()]
        pipeline = Pipeline(layers, lambda y: (y * y).sum(), axis="pp", microbatches=4)
        batch = np.ones((8, 8), np.float32)
        found["Pipeline.step, 4 microbatches, 2 stages"] = walk(lambda: pipeline.step(batch), pipeline.zero_grad)
    if cc.world().rank == 0:
        print(json.dumps(found), flush=True)


def measure(tree: Path, static: bool = False) -> Figures:
    """All figures of a checkout."""
    found = Tree(tree).figures()
    for what in ("autograd", "autograd.engine"):
        found[f"import {what}: files, lines"] = loaded(tree, what)
    if not static:
        found |= {f"{name}: calls, files, changes of file": x for name, x in walks(tree).items()}
    return found


def before(name: str, static: bool) -> Figures:
    """All figures of a folder, or of a commit, which is unpacked for them."""
    if (Path(name) / "autograd").is_dir():
        return measure(Path(name).resolve(), static)
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", name], check=False, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"--before {name}: no checkout, and no commit: {packed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=packed.stdout)
        return measure(Path(folder), static)


def table(columns: dict[str, Figures]) -> str:
    """Figures side by side."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    width = max(map(len, names))
    lines = [" " * width + "".join(f"{title:>18}" for title in columns)]
    for name in names:
        shown = (", ".join(f"{n:,}" for n in figures.get(name, ())) or "-" for figures in columns.values())
        lines.append(f"{name:<{width}}" + "".join(f"{text:>18}" for text in shown))
    return "\n".join(lines)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="another checkout, or a commit, whose figures stand beside those of this one")
    parser.add_argument("--static", action="store_true", help="read the text alone, and run no walks")
    parser.add_argument("--list", action="store_true", help="list what is counted, too")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker()
    columns = {} if args.before is None else {"before": before(args.before, args.static)}
    columns["now"] = measure(ROOT, args.static)
    print(json.dumps(columns) if args.json else table(columns))
    if args.list:
        tree = Tree(ROOT)
        for title, lines in (("changes", tree.changes()), ("globals", tree.mutable_globals()),
                             ("errors", tree.errors()[0]), ("classes", tree.large_classes()),
                             ("parameters", tree.long_signatures()), ("fragments", tree.fragments()[0])):  # fmt: skip
            print(f"\n{title}:", *lines, sep="\n  ")
    return None


if __name__ == "__main__":
    main()
