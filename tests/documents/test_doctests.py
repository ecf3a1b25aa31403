"""Every example in a docstring runs, as written."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from typing import Any

import pytest

PACKAGES = ("autograd", "collectives", "parallel", "tests.proofs")
NEEDS_MPI = "collectives.transports.mpi."  # its modules import mpi4py: a world of several processes loads them


def _modules() -> list[str]:
    names = list(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        names += [m.name for m in pkgutil.walk_packages(path, package + ".") if not m.name.endswith("__main__")]
    return [n for n in names if not n.startswith(NEEDS_MPI)]


class Finder(doctest.DocTestFinder):
    """Takes a decorated function for one of the module that holds the function inside."""

    def _from_module(self, module: Any, object: Any) -> bool:
        return super()._from_module(module, inspect.unwrap(object))


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    for test in Finder().find(importlib.import_module(name), name):
        runner.run(test)
    result = runner.summarize(verbose=False)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} failed"


def test_there_are_examples() -> None:
    finder = Finder()
    count = sum(bool(t.examples) for n in _modules() for t in finder.find(importlib.import_module(n)))
    assert count > 30
