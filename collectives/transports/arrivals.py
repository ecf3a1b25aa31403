"""Arrivals: which ranks of a group come first to each of some numbered steps, without a collective call.

Each step has a number of *members*, the ranks that arrive first. A rank that arrives later is told so. Making the
object is a collective call; using it is not. The transports implement it over memory that threads share, and over
MPI's one-sided calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autograd.errors import ArgumentError

__all__ = ["AloneArrivals", "Arrivals", "bits_of"]


class Arrivals:
    """The first `count` ranks that arrive at each of `steps` steps. `Communicator.arrivals` makes it.

    A rank arrives with `take`. One that is among the first is a member of the step: it waits for the others
    (`members`), works with them, and says that it has finished (`finish`). Another rank waits until the members have
    finished (`wait`), finds the newest step that has been finished since (`newest`), and goes on after it. So a rank
    may leave out steps, and none waits for the last ``size - count`` ranks.

    Attributes
    ----------
    count, steps, size : int
        The members of a step, the steps, and the ranks of the group.
    index : int
        This rank.

    Notes
    -----
    The record of step t is at rank ``t % size``: 16 bytes and one bit a rank. Over MPI an arrival is two messages of
    8 bytes, the end of a step one, and a wait reads these bits at intervals of up to 2 ms. Records are never
    used twice, so that a rank which arrives much too late changes no other step.

    Ranks that wait are in deadlock reports, which know that `count` ranks suffice. A rank that has failed ends the
    waits of the others, also where they could do without it.
    """

    def __init__(self, index: int, size: int, count: int, steps: int):
        if not 1 <= count <= size or steps < 1:
            raise ArgumentError(
                f"arrivals: count={count} and steps={steps} were given; needed: from 1 to {size} ranks, and a step"
            )
        self.index, self.size, self.count, self.steps = index, size, count, steps

    def take(self, step: int, is_member: bool | None = None) -> bool:
        """Arrive at a step, and return whether this rank is a member of it.

        `is_member` decides it beforehand, on all ranks of the step or on none: then the order does not count.
        """
        raise NotImplementedError

    def members(self, step: int) -> tuple[int, ...]:
        """The members of a step, in order of rank, once all have arrived.

        Raises
        ------
        DeadlockError
            Too few ranks can still arrive.
        RankFailed
            A rank that has not arrived has failed.
        """
        raise NotImplementedError

    def finish(self, step: int) -> None:
        """Say that this rank, a member of the step, has finished it."""
        raise NotImplementedError

    def wait(self, step: int) -> None:
        """Return once the members of a step have finished it. It raises what `members` does."""
        raise NotImplementedError

    def is_finished(self, step: int) -> bool:
        """Whether the members of a step have finished it."""
        raise NotImplementedError

    def newest(self, step: int) -> int:
        """The last step that has been finished, given one that has. It asks for about 2 lg of the number between."""
        width = 1
        while step + width < self.steps and self.is_finished(step + width):
            step, width = step + width, 2 * width
        while width > 1:
            width //= 2
            if step + width < self.steps and self.is_finished(step + width):
                step += width
        return step

    def recorded(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The steps whose records are at this rank, each with its members so far."""
        raise NotImplementedError

    def free(self) -> None:
        """Release the memory. All ranks of the group call it."""


class AloneArrivals(Arrivals):
    """The arrivals of a single rank, which is the member of every step."""

    def __init__(self, steps: int, count: int = 1):
        super().__init__(0, 1, count, steps)
        self._finished = 0

    def take(self, step: int, is_member: bool | None = None) -> bool:
        return True

    def members(self, step: int) -> tuple[int, ...]:
        return (0,)

    def finish(self, step: int) -> None:
        self._finished = step + 1

    def wait(self, step: int) -> None:
        """Return at once."""

    def is_finished(self, step: int) -> bool:
        return step < self._finished

    def recorded(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        return ((step, (0,)) for step in range(self._finished))


def bits_of(words: Sequence[int], bits: int) -> tuple[int, ...]:
    """The places of the bits that are set in words of `bits` bits.

    Examples
    --------
    >>> bits_of([0b101, 0b10], 4)
    (0, 2, 5)
    """
    return tuple([at * bits + bit for at, word in enumerate(words) for bit in range(bits) if int(word) >> bit & 1])
