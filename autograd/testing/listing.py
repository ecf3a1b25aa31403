"""The registry of operations as plain data, which ``python -m autograd registry`` prints.

Names, adjoints and saved values are read from the declarations. The layouts need an example call, and the counts of
test cases need the cases, which are not installed. `operations.json` beside this file records both; ``python -m
tests.proofs.registry`` in the repository writes it, and a test compares it.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from ..engine.primitive import registry
from ..errors import RingtapeError
from ..formula import source
from ..layouts.inference import broadcast

__all__ = ["RECORD", "names", "record", "row", "rows", "source"]

RECORD = "operations.json"


def record() -> dict[str, dict[str, Any]]:
    """Return what the test cases of each operation show: layouts, dimensions, and how many cases there are."""
    recorded: dict[str, dict[str, Any]] = json.loads(files(__package__).joinpath(RECORD).read_text())
    return recorded


def _load_all() -> None:
    """Import every module that declares operations: those of SciPy only where it is installed."""
    for package in ("autograd.ops", "autograd.scipy") if find_spec("scipy") else ("autograd.ops",):
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            import_module(module.name)


def names() -> list[str]:
    """Return the names of all operations, without the examples that docstrings declare."""
    _load_all()
    return sorted(name for name in registry if "example" not in name)


def rows(wanted: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of all operations, or of those in `wanted`.

    Raises
    ------
    RingtapeError
        There is no operation of a given name.

    Examples
    --------
    >>> from autograd.testing.listing import rows
    >>> (row,) = rows(["multiply"])
    >>> row["word"], row["adjoint"]["x"], row["layouts"]["R P"], row["layouts"]["P P"]
    ('a b', 'lambda ct, y, a, b: ct * b', 'P', None)
    """
    _load_all()
    unknown = [name for name in wanted if name not in registry]
    if unknown:
        raise RingtapeError(f"registry: there is no operation {', '.join(unknown)}; python -m autograd registry lists "
                            "them all")  # fmt: skip
    recorded = record()
    return (row(name, recorded.get(name, {})) for name in wanted or names())


def row(name: str, recorded: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return all that is known of an operation, as plain data. `recorded` is by default its entry of `record`."""
    _load_all()
    op = registry[name]
    recorded = record().get(name, {}) if recorded is None else recorded
    n = recorded.get("operands", len(op.words))
    operands = [op.operand_name(i) for i in range(n)]
    return {
        "name": name,
        "word": " ".join(op.words) + ("*" if op.variadic else ""),
        "operands": operands,
        "adjoint": {"operands" if op.variadic else operands[i]: source(rule) for i, rule in enumerate(op.adjoint)},
        "tangent": {operands[i]: source(rule) for i, rule in enumerate(op.tangent) if rule is not None},
        "saves": [operands[i] for i in range(n) if not op.variadic and op.keeps(i)] + ["result"] * op.keeps_y +
                 (["operands"] if op.variadic else []) + ["residuals"] * (op.keeping is not None),
        # as far as the declaration says so without a call
        "dims": recorded.get("dims")
                or ("none" if op.dims is None else "broadcast" if op.dims is broadcast else "of its options"),
        "layouts": recorded.get("layouts", {}),
        "cases": recorded.get("cases", 0),
        "families": recorded.get("families", 0),
        "real_only": recorded.get("real_only", ""),
        "without_derivative": recorded.get("without_derivative", ""),
    }  # fmt: skip
