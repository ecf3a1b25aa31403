"""The state that tests of the collectives leave as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectives.declaration.collective import collectives


@pytest.fixture
def registry_as_it_was() -> Iterator[None]:
    """Declarations of the test are gone after it."""
    before = dict(collectives)
    yield
    collectives.clear()
    collectives.update(before)
