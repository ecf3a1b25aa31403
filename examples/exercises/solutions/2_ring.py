"""A part that has arrived at a step is sent at the next, so it goes around the ring once for the sum and once more."""

from __future__ import annotations


def sent(rank: int, step: int, ranks: int) -> int:
    """The part that a rank sends to the right at a step."""
    return (rank - step) % ranks


def received(rank: int, step: int, ranks: int) -> int:
    """The part that comes from the left at a step."""
    return (rank - step - 1) % ranks
