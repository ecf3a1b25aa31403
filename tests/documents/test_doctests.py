"""Every example in a docstring runs, as written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("autograd", "collectives", "parallel")
NEEDS_MPI = "collectives.transports.mpi."  # its modules import mpi4py: a world of several processes loads them


def _modules() -> list[str]:
    names = list(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        names += [m.name for m in pkgutil.walk_packages(path, package + ".") if not m.name.endswith("__main__")]
    return [n for n in names if not n.startswith(NEEDS_MPI)]


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS, verbose=False)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} failed"


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    count = sum(bool(t.examples) for n in _modules() for t in finder.find(importlib.import_module(n)))
    assert count > 30
