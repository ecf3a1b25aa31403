"""Every public name at the top of a package has a task, a guide or an example that names it."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import autograd
import collectives
import parallel
from autograd import nn

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def words() -> set[str]:
    """The words of what people read: the README, the pages of the documentation, and the examples."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    pages += [*(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.md")]
    return set(re.findall(r"\w+", "\n".join(page.read_text() for page in pages)))


@pytest.mark.parametrize("package", [autograd, collectives, parallel, nn], ids=lambda package: package.__name__)
def test_every_public_name_is_used(words: set[str], package: ModuleType) -> None:
    names = package.__all__
    assert len(names) > 50
    assert [name for name in names if name not in words] == []


def test_a_name_without_a_use_is_found(words: set[str]) -> None:
    assert "a_name_that_no_page_has" not in words
