"""The kinds of control messages between ranks have different tags."""

from __future__ import annotations

from collectives.job import comparison, deadlock, ending, shutdown


def test_every_kind_of_message_has_its_own_tag() -> None:
    tags = [comparison._TAG, *deadlock._TAGS, ending._TAG, shutdown._TAG]
    assert len(set(tags)) == len(tags)
