"""What several tests of documents read."""

from __future__ import annotations

import pytest

from .test_architecture import ROOT, Library


@pytest.fixture(scope="session")
def library() -> Library:
    """The import graph, which takes two seconds to read."""
    return Library(ROOT)
