"""The names of other libraries beside ours: each is here, or a table says what is (`autograd/elsewhere.toml`).

    python -m tests.documents.names                   writes docs/names.md
    RINGTAPE_PYTHON_TORCH=PATH RINGTAPE_PYTHON_JAX=PATH python -m tests.documents.names

The second also reads the names again, with interpreters that have torch and JAX, into ``names.json``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import filter as matching
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from autograd.errors import elsewhere, instead_of

HERE = Path(__file__).parent
DATA = HERE / "names.json"
PAGE = HERE.parents[1] / "docs" / "names.md"

PLACES: dict[str, tuple[str, ...]] = {
    "torch.nn": ("autograd.nn",),
    "torch.nn.functional": ("autograd.nn.functional",),
    "torch.nn.init": ("autograd.nn.init",),
    "torch.nn.utils": ("autograd.nn.utils",),
    "torch.optim": ("autograd.optim",),
    "torch.optim.lr_scheduler": ("autograd.optim.schedules",),
    "torch.distributed": ("collectives",),
    "jax": ("autograd",),
    "jax.numpy": ("autograd.numpy",),
    "jax.numpy.linalg": ("autograd.numpy.linalg",),
    "jax.lax": ("collectives", "autograd.numpy", "autograd", "autograd.nn.functional", "autograd.scipy.special",
                "autograd.numpy.linalg"),
    "jax.nn": ("autograd.nn.functional",),
    "numpy": ("autograd.numpy",),
    "numpy.linalg": ("autograd.numpy.linalg",),
    "scipy.special": ("autograd.scipy.special",),
    "scipy.linalg": ("autograd.scipy.linalg",),
}  # fmt: skip
"""Modules of other libraries, and ours that have the same names."""
INTERPRETERS = {"torch": "RINGTAPE_PYTHON_TORCH", "jax": "RINGTAPE_PYTHON_JAX"}
MANY = 12
"""A pattern that matches more names stands on the page in their place."""


class Count(NamedTuple):
    """Of the names of one module: how many there are, how many are ours too, how many have an answer, and the rest."""

    names: int
    same: int
    answered: int
    missing: list[str]


@cache
def theirs() -> dict[str, list[str]]:
    """The names of the modules, as they are kept beside this file."""
    found: dict[str, list[str]] = json.loads(DATA.read_text())
    return found


def table_of(module: str) -> str:
    """The table of answers for a module: functions and classes of torch.nn stand in one table."""
    return "torch.nn" if module.startswith("torch.nn") else module


def has(module: str, name: str) -> bool:
    """Whether one of our modules has the name of another library's module."""
    return any(hasattr(import_module(ours), name) for ours in PLACES[module])


def count(module: str) -> Count:
    """Compare the names of a module with ours."""
    names, table = theirs()[module], table_of(module)
    answered = [name for name in names if instead_of(table, name)]
    # many names of jax.lax, as `scan`, are here with another meaning, so an answer comes first
    same = [name for name in names if has(module, name) and (module != "jax.lax" or name not in answered)]
    missing = [name for name in names if name not in answered and name not in same]
    return Count(len(names), len(same), len(names) - len(same) - len(missing), missing)


def shown(table: str) -> Iterator[tuple[str, str]]:
    """The rows of a table: names, in the place of patterns that match a few, and what to write."""
    names = [name for module in PLACES if table_of(module) == table for name in theirs()[module]]
    for keys, answer in elsewhere()[1][table].items():
        found = []
        for key in keys.split():
            matched = [name for name in dict.fromkeys(matching(names, key)) if instead_of(table, name) == answer
                       and not (table != "jax.lax" and any(has(m, name) for m in PLACES if table_of(m) == table))]
            found += matched if 0 < len(matched) <= MANY else [key]
        yield ", ".join(f"`{name}`" for name in dict.fromkeys(found)), answer


def page() -> str:
    """The text of docs/names.md."""
    lines = [
        "# Names of other libraries", "",
        "Which names of torch, JAX, NumPy and SciPy are here, and what to write for those that are not. A program "
        "that uses one gets the same answer as an `AttributeError`. `ag` is `autograd`, `np` is `autograd.numpy`, "
        "`nn`, `optim` and `random` are packages of `autograd`, `F` is `autograd.nn.functional`, and `cc` is "
        "`collectives`.", "",
        "| module | names | here, with the same name | answered below |", "|---|---|---|---|",
    ]  # fmt: skip
    for module, places in PLACES.items():
        found = count(module)
        ours = ", ".join(f"`{place}`" for place in places[:2])
        lines.append(f"| `{module}` | {found.names} | {found.same}, in {ours} | {found.answered} |")
    lines += ["", "`autograd.scipy` has SciPy's functions; those without a derivative say so where one is asked for."]
    for table in elsewhere()[1]:
        lines += ["", f"## {table}", "", "| name | write |", "|---|---|"]
        lines += [f"| {names} | {_cell(answer)} |" for names, answer in shown(table)]
    return "\n".join(lines) + "\n"


_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
_CODE = re.compile(rf"`[^`]*`|[A-Za-z_][\w.]*{_PARENTHESES}(?:\[[^]]*\]|{_PARENTHESES}|\.\w+)*|[a-z]\w*(?:\.\w+)+")
"""Calls and dotted names."""


def _cell(answer: str) -> str:
    """An answer with its calls and dotted names as code."""
    text = _CODE.sub(lambda found: found[0] if found[0][0] == "`" else f"`{found[0]}`", answer)
    return text.replace("|", "\\|")


def read(libraries: list[str]) -> dict[str, list[str]]:
    """The names of libraries, by this interpreter or that of the environment."""
    found: dict[str, list[str]] = {}
    for library in libraries:
        python = os.environ[INTERPRETERS[library]] if library in INTERPRETERS else sys.executable
        asked = [module for module in PLACES if module.split(".")[0] == library]
        command = [python, "-W", "ignore", str(HERE / "library_names.py"), *asked]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=240)
        found |= json.loads(ended.stdout)
    return found


def main() -> None:
    """Read the names of the libraries whose interpreters are given, and write the page."""
    given = [library for library, variable in INTERPRETERS.items() if variable in os.environ]
    found = theirs() | read([*given, "numpy", "scipy"])
    DATA.write_text("{\n" + ",\n".join(f'"{m}": {json.dumps(found[m])}' for m in PLACES) + "\n}\n")
    theirs.cache_clear()
    PAGE.write_text(page())
    for module in PLACES:
        print(module, count(module))


if __name__ == "__main__":
    main()
