"""Marks of calls: numbers of 64 bits that stand for the texts of collective calls, the same on every rank.

The text of a call has its name, dtype, sizes, reduction and root. Ranks whose marks differ have made different calls.
"""

from __future__ import annotations

from functools import lru_cache

from autograd.digests import blake2b
from autograd.errors import find_site, short_site

__all__ = ["call_of", "digest_of", "mark"]

_TEXTS = 1 << 16  # the calls whose texts are kept
_calls: dict[int, tuple[str, str]] = {}


def digest_of(text: str) -> int:
    """A 64-bit digest of a text, the same on every rank.

    Examples
    --------
    >>> digest_of("dp") == digest_of("dp") != digest_of("tp")
    True
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=1 << 14)  # by the text, once or twice in each call: 0.7 us without it
def mark(text: str, is_message: bool = False) -> int:
    """The mark of a call with this text. The text is kept, and the line of the program that asks first.

    A collective appends its own mark, and then those of the transport's calls that it makes (`is_message`). The two
    kinds are told apart by the last bit.
    """
    made = digest_of(text) >> 1 << 1 | is_message
    if made not in _calls:
        if len(_calls) >= _TEXTS:
            _calls.clear()
        _calls[made] = text, short_site(*find_site())
    return made


def call_of(made: int) -> tuple[str, str]:
    """The text of a mark that this rank has made, and the line of its first such call."""
    return _calls.get(made, ("a call whose text is no longer kept", ""))
