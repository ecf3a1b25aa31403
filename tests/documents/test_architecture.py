"""The import graph of the library: no circles, imports go down only, and no folder with too many files.

The graph is read from the text of the modules, so that it holds all imports: at the top of a module, inside functions,
and those that only type checkers follow. What a module loads by its name, with `import_module`, is not in the graph:
`BY_NAME` declares each.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("autograd", "collectives", "parallel")
"""From the lowest to the highest: a package may import from those before it."""
MOST_FILES = 20
BY_NAME = {
    ("autograd.engine.first_use", "autograd.ops.everything"): "Tensors take their operators from there at first use",
    ("autograd.layouts.names", "autograd.nn.module"): "is looked at only if the program has loaded it",
    ("autograd.numpy", "autograd.builtins"): "HIPS autograd's `autograd.numpy.builtins`",
    ("collectives", "autograd"): "its version",
    ("collectives.transports.job", "collectives.transports."): "the job of the world's kind",
}
"""The modules that are loaded or asked for by name, with their importers, beside what a package loads of its own files.
Some stand above their importers, for the reason given, and run only when a user asks for what they have."""


class Import(NamedTuple):
    """One import: of which module, by which, where, and under which condition."""

    importer: str
    imported: str
    place: str
    condition: str

    def __str__(self) -> str:
        return f"{self.place}: {self.importer} imports {self.imported}{self.condition}"


class Library:
    """The modules below a folder and their imports of each other."""

    def __init__(self, root: Path, packages: Iterable[str] = PACKAGES):
        self.root = root
        self.packages = tuple(packages)
        self.files = {
            _name(path.relative_to(root)): path
            for package in self.packages
            for path in sorted((root / package).rglob("*.py"))
        }
        self.imports = [found for module in self.files for found in self._imports_of(module)]

    def is_package(self, module: str) -> bool:
        return self.files[module].name == "__init__.py"

    def room(self, module: str) -> str:
        """The folder of a module. A file at the top of a package, beside its folders, is a room of its own."""
        if self.is_package(module):
            return module
        parent = module.rpartition(".")[0]
        return module if parent in self.packages else parent

    def _imports_of(self, module: str) -> Iterator[Import]:
        path = self.files[module]
        package = module if self.is_package(module) else module.rpartition(".")[0]

        def visit(node: ast.AST, condition: str) -> Iterator[Import]:
            for child in ast.iter_child_nodes(node):
                inner = condition
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    inner = " (inside a function)"
                elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    inner = " (for type checkers)"
                if isinstance(child, ast.Import | ast.ImportFrom):
                    for name in dict.fromkeys(_imported(child, package, self.files)):
                        if name != module:
                            place = f"{path.relative_to(self.root)}:{child.lineno}"
                            yield Import(module, name, place, condition)
                else:
                    yield from visit(child, inner)

        yield from visit(ast.parse(path.read_text()), "")

    def by_name(self) -> list[Import]:
        """The modules that others load or ask for by name, without those that a package loads of its own files.

        A name whose end is computed is that of its known part, with a dot at the end.
        """
        found = []
        for module, path in self.files.items():
            package = module if self.is_package(module) else module.rpartition(".")[0]
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).strip("_").endswith(_LOADERS) and node.args:
                    name = _known_part(node.args[0], module, package)
                    own = self.is_package(module) and name.startswith(f"{module}.")
                    if name.split(".")[0] in self.packages and name != module and not own:
                        place = f"{path.relative_to(self.root)}:{node.lineno}"
                        found.append(Import(module, name, place, " (by its name)"))
        return found

    def circles(self) -> list[Import]:
        """The imports that are part of a circle of modules."""
        edges: dict[str, set[str]] = {module: set() for module in self.files}
        for found in self.imports:
            edges[found.importer].add(found.imported)
        return _within(self.imports, components(edges), lambda module: module)

    def circles_of_rooms(self, room: Callable[[str], str] | None = None) -> list[Import]:
        """The imports between rooms that are part of a circle of rooms. A `room` is by default a folder.

        A folder's `__init__` gathers the names of what lies below it, which is no import from another room.
        """
        room = self.room if room is None else room
        crossing = [
            found
            for found in self.imports
            if room(found.importer) != room(found.imported)
            and not (self.is_package(found.importer) and found.imported.startswith(found.importer + "."))
        ]
        edges: dict[str, set[str]] = {room(module): set() for module in self.files}
        for found in crossing:
            edges[room(found.importer)].add(room(found.imported))
        return _within(crossing, components(edges), room)

    def upward(self) -> list[Import]:
        """The imports of a package that is not below the importer's."""
        level = {package: i for i, package in enumerate(self.packages)}
        return [i for i in self.imports if level[i.imported.split(".")[0]] > level[i.importer.split(".")[0]]]

    def crowded(self) -> dict[str, int]:
        """The folders with too many files beside their `__init__`, and how many."""
        counts: dict[str, int] = {}
        for path in self.files.values():
            folder = str(path.parent.relative_to(self.root))
            counts[folder] = counts.get(folder, 0) + (path.name != "__init__.py")
        return {folder: count for folder, count in counts.items() if count > MOST_FILES}


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_LOADERS = ("import_module", "sys.modules.get")


def _known_part(text: ast.expr, module: str, package: str) -> str:
    """The name of a module in an expression, as far as the text of the program tells it."""
    known = {"__name__": module, "__package__": package}
    name = ""
    for part in text.values if isinstance(text, ast.JoinedStr) else [text]:
        if isinstance(part, ast.Constant):
            name += str(part.value)
        elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) in known:
            name += known[ast.unparse(part.value)]
        else:
            break
    return package + name if name.startswith(".") else name


def _imported(node: ast.Import | ast.ImportFrom, package: str, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the library that a statement names. ``from package import name`` may name a module."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        parents = package.split(".")
        base = parents[: len(parents) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        names = [f"{source}.{a.name}" if f"{source}.{a.name}" in files else source for a in node.names]
    yield from (name for name in names if name in files)


def _within(imports: Iterable[Import], parts: list[set[str]], node_of: Callable[[str], str]) -> list[Import]:
    """The imports whose two ends are in the same component."""
    return [i for i in imports if any({node_of(i.importer), node_of(i.imported)} <= part for part in parts)]


def components(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components with more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(part)

    for node in edges:
        if node not in index:
            visit(node)
    return found


# -- the library -------------------------------------------------------------------------------------------------------


def refuse(imports: Iterable[Import], what: str) -> None:
    """Fail with every import, one a line."""
    lines = [str(found) for found in imports]
    if lines:
        pytest.fail(f"{len(lines)} imports {what}:\n" + "\n".join(lines), pytrace=False)


def test_no_circle_of_modules(library: Library) -> None:
    assert len(library.files) > 200 and len(library.imports) > 1000
    refuse(library.circles(), "are part of a circle of modules")


def test_no_circle_of_rooms(library: Library) -> None:
    refuse(library.circles_of_rooms(), "are part of a circle of rooms (folders, and files at the top of a package)")


def test_no_circle_of_rooms_with_all_that_they_contain(library: Library) -> None:
    circles = library.circles_of_rooms(lambda module: ".".join(module.split(".")[:2]))
    refuse(circles, "are part of a circle of the folders directly below a package, subfolders included")


def test_the_map_names_what_exists() -> None:
    """Every path in docs/architecture.md leads to a file or folder."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"`((?:autograd|collectives|parallel|tests|benchmarks|docs|examples)/[\w/.]*)`", text))
    assert len(paths) > 30
    assert not {path for path in paths if not (ROOT / path).exists()}


def test_packages_import_from_those_below(library: Library) -> None:
    refuse(library.upward(), "are of a package above the importer's")


def test_kernels_have_one_door(library: Library) -> None:
    """Code outside imports the package `autograd.kernels`, and no file of it."""
    inside = [
        i for i in library.imports
        if i.imported.startswith("autograd.kernels.") and not i.importer.startswith("autograd.kernels")
    ]  # fmt: skip
    assert len([i for i in library.imports if i.imported == "autograd.kernels"]) > 5
    refuse(inside, "enter a file of autograd.kernels")


def test_what_is_loaded_by_name_is_declared(library: Library) -> None:
    assert {(i.importer, i.imported) for i in library.by_name()} == {*BY_NAME}


def test_no_folder_has_too_many_files(library: Library) -> None:
    assert library.crowded() == {}


# -- that faults are found ---------------------------------------------------------------------------------------------

SOUND = {
    "low/__init__.py": "from .engine import *\nfrom .ops.add import add\n",
    "low/errors.py": "",
    "low/engine/__init__.py": "from .tape import Tape\n",
    "low/engine/tape.py": "from ..errors import Error\nfrom . import node\n",
    "low/engine/node.py": "import math\n",
    "low/ops/__init__.py": "from .nn import relu\n",
    "low/ops/add.py": "from ..engine.tape import Tape\n",
    "low/ops/nn/__init__.py": "from .relu import relu\n",
    "low/ops/nn/relu.py": "from ..add import add\n",
    "high/__init__.py": "from low import Tape\n",
    "high/mesh.py": "import low.engine.tape\n",
}


def planted(folder: Path, **changes: str) -> Library:
    """A small library with two packages, with text added to some of its files."""
    for name, text in {**SOUND, **{name: SOUND.get(name, "") + added for name, added in changes.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Library(folder, ("low", "high"))


def test_a_sound_library_has_no_faults(tmp_path: Path) -> None:
    sound = planted(tmp_path)
    found = {(i.importer, i.imported) for i in sound.imports}
    assert {("low.engine.tape", "low.engine.node"), ("low.ops.nn.relu", "low.ops.add"), ("high", "low"),
            ("high.mesh", "low.engine.tape")} <= found  # fmt: skip
    assert sound.circles() == sound.circles_of_rooms() == sound.upward() == [] and sound.crowded() == {}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("from .tape import Tape\n", ""),
        ("def f():\n    from low.engine import tape\n", " (inside a function)"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .tape import Tape\n", " (for type checkers)"),
        ("try:\n    import low.engine.tape as tape\nexcept ImportError:\n    pass\n", ""),
    ],
    ids=["module", "function", "type checking", "inside a try"],
)
def test_a_circle_is_found_with_every_kind_of_import(tmp_path: Path, text: str, condition: str) -> None:
    circle = planted(tmp_path, **{"low/engine/node.py": text}).circles()
    assert [(i.importer, i.imported) for i in circle] == [
        ("low.engine.node", "low.engine.tape"), ("low.engine.tape", "low.engine.node")]  # fmt: skip
    line = 1 + text[: text.index("tape")].count("\n") + SOUND["low/engine/node.py"].count("\n")
    assert str(circle[0]) == f"low/engine/node.py:{line}: low.engine.node imports low.engine.tape{condition}"


def test_a_circle_through_a_package_is_found(tmp_path: Path) -> None:
    """`low.engine.node` asks the package for a name that the package takes from a module above it."""
    circle = planted(tmp_path, **{"low/engine/node.py": "from low import add\n"}).circles()
    assert ("low.engine.node", "low") in {(i.importer, i.imported) for i in circle}


def test_a_circle_of_rooms_without_a_circle_of_modules_is_found(tmp_path: Path) -> None:
    library = planted(tmp_path, **{"low/ops/names.py": "", "low/engine/node.py": "from ..ops import names\n"})
    assert library.circles() == []
    assert {str(i) for i in library.circles_of_rooms()} == {
        "low/engine/node.py:2: low.engine.node imports low.ops.names",
        "low/ops/add.py:1: low.ops.add imports low.engine.tape",
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import_module('high.mesh')", "high.mesh"),
        ("importlib.import_module(f'{__package__}.ops.add')", "low.engine.ops.add"),
        ("import_module(f'.{kind}', __package__)", "low.engine."),
        ("sys.modules.get('high.mesh')", "high.mesh"),
        ("import_module('numpy')", None),
        ("import_module(name)", None),
    ],
)
def test_a_module_loaded_by_its_name_is_found(tmp_path: Path, text: str, name: str | None) -> None:
    own = "def __getattr__(name):\n    return import_module(f'{__name__}.{name}')\n"
    library = planted(tmp_path, **{"low/engine/node.py": f"def f(kind):\n    {text}\n", "low/__init__.py": own})
    assert [(i.importer, i.imported) for i in library.by_name()] == [("low.engine.node", name)] * (name is not None)


def test_an_import_from_the_package_above_is_found(tmp_path: Path) -> None:
    library = planted(tmp_path, **{"low/errors.py": "def f():\n    import high.mesh\n"})
    assert [str(i) for i in library.upward()] == [
        "low/errors.py:2: low.errors imports high.mesh (inside a function)"]  # fmt: skip


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    files = {f"low/ops/a{i}.py": "" for i in range(MOST_FILES)}
    assert planted(tmp_path, **files).crowded() == {"low/ops": MOST_FILES + 1}


def test_the_drawing_has_every_room() -> None:
    """`docs/architecture.svg` is that of its table, which has the folders of the packages."""
    drawing = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))
    for package, (_, rows) in drawing["ROOMS"].items():
        named = {name.rstrip("/") for row in rows for names, *_ in row for name in names.split(", ")}
        folders = {path.name for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
        assert folders - named == set()
        assert all((ROOT / package / name).exists() for name in named)
    assert (ROOT / "docs" / "architecture.svg").read_text() == drawing["drawing"](), "run docs/draw_architecture.py"
