"""The pieces of a value in the files of a checkpoint: which bytes of which file have which box of it.

A value of which each of many ranks has a part has as many pieces. `Pieces` holds their numbers in one array, which
takes a fifth of the memory of as many objects, and is searched at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from .boxes import Box, meet

__all__ = ["Pieces", "Stretch", "are_apart", "equal_to", "meeting", "numbers_of"]

_LONGEST_CHECKSUM = 64


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a value in a file.

    Attributes
    ----------
    file : int
        The place in `Manifest.files`.
    begin, end : int
        Bytes in the file.
    box : Box
        The part of the value that they are, in C order.
    checksum : str
        Of these bytes.
    """

    file: int
    begin: int
    end: int
    box: Box
    checksum: str


class Pieces(Sequence[Stretch]):
    """Many pieces of a value.

    Parameters
    ----------
    numbers : array of int64, [pieces, 3 + 2 dimensions]
        Of each piece its file, its bytes in it, and the beginning and end of its interval of each dimension.
    checksums : array of bytes
    """

    __slots__ = ("checksums", "numbers")

    def __init__(self, numbers: Any, checksums: Any):
        self.numbers, self.checksums = numbers, checksums

    @classmethod
    def of_code(cls, code: Sequence[Any], dimensions: int) -> Pieces:
        """The pieces of a manifest's list, of which only the form is checked.

        Raises
        ------
        ValueError, TypeError, OverflowError
            It is no such list.
        """
        rows = [(file, begin, end, *(x for interval in box for x in interval)) for file, begin, end, box, _ in code]
        numbers = np.array(rows)
        if numbers.dtype != np.int64 or numbers.shape != (len(code), 3 + 2 * dimensions):
            raise ValueError("a list of pieces that has other things than whole numbers")
        texts = [each[4] for each in code]
        if max(map(len, texts)) > _LONGEST_CHECKSUM or not all(isinstance(each, str) for each in texts):
            raise ValueError("a checksum that is too long")
        return cls(numbers, np.array([each.encode("ascii") for each in texts]))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        file, begin, end, *box = self.numbers[i].tolist()
        return Stretch(file, begin, end, tuple(zip(box[::2], box[1::2], strict=True)), self.checksums[i].decode())

    def __iter__(self) -> Iterator[Stretch]:
        return (self[i] for i in range(len(self)))

    @property
    def firsts(self) -> Any:
        """The beginnings of the boxes, [pieces, dimensions]."""
        return self.numbers[:, 3::2]

    @property
    def lasts(self) -> Any:
        """The ends of the boxes, [pieces, dimensions]."""
        return self.numbers[:, 4::2]

    def are_right(self, shape: Sequence[int], itemsize: int, sizes: Any) -> bool:
        """Whether each is in a file, of the bytes in `sizes`, and a box of a value of this shape with as many bytes."""
        file, begin, end = self.numbers[:, :3].T
        if not ((file >= 0) & (file < len(sizes))).all():
            return False
        if not ((begin >= 0) & (begin <= end) & (end <= sizes[file])).all():
            return False
        if not ((self.firsts >= 0) & (self.firsts <= self.lasts) & (self.lasts <= np.array(shape, np.int64))).all():
            return False
        return bool((np.prod(self.lasts - self.firsts, axis=1) * itemsize == end - begin).all())


def numbers_of(*values: Sequence[Stretch]) -> Any:
    """The file and the bytes of each piece of some values, [pieces, 3]."""
    found = [np.empty((0, 3), np.int64)]
    for pieces in values:
        rows = pieces.numbers[:, :3] if type(pieces) is Pieces else np.array([*map(_NUMBERS, pieces)], np.int64)
        found.append(rows.reshape(-1, 3))
    return np.concatenate(found)


_NUMBERS = attrgetter("file", "begin", "end")


def meeting(pieces: Sequence[Stretch], box: Box) -> list[int]:
    """The places of the pieces that have elements of a box."""
    if type(pieces) is not Pieces:
        return [i for i, p in enumerate(pieces) if meet(p.box, box) is not None]
    begin, end = np.array(box, np.int64).reshape(-1, 2).T
    found = (np.maximum(pieces.firsts, begin) < np.minimum(pieces.lasts, end)).all(axis=1)
    return [int(i) for i in np.flatnonzero(found)]


def equal_to(pieces: Sequence[Stretch], box: Box) -> int | None:
    """The place of the piece that is a box, if it has bytes."""
    if type(pieces) is not Pieces:
        for i, p in enumerate(pieces):
            if p.box == box and p.begin < p.end:
                return i
        return None
    begin, end = np.array(box, np.int64).reshape(-1, 2).T
    found = ((pieces.firsts == begin) & (pieces.lasts == end)).all(axis=1)
    found &= pieces.numbers[:, 1] < pieces.numbers[:, 2]
    return int(found.argmax()) if found.any() else None


def are_apart(pieces: Sequence[Stretch], shape: Sequence[int]) -> bool:
    """Whether it is plain that no two pieces have an element in common, since they are different whole rows."""
    if type(pieces) is not Pieces or not len(shape):
        return False
    rows = pieces.numbers[(pieces.firsts < pieces.lasts).all(axis=1)]
    first, last = rows[:, 3::2], rows[:, 4::2]
    if (first[:, 1:] != 0).any() or (last[:, 1:] != np.array(shape[1:], np.int64)).any():
        return False
    order = np.argsort(first[:, 0])
    return bool((first[order[1:], 0] >= last[order[:-1], 0]).all())
