"""Headers: a small message with dtype, shape and labels, sent before data whose receiver does not know them."""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from autograd.arrays.device import dtype_named, is_bfloat16, to_host
from autograd.arrays.pairs import pairs_of
from autograd.engine.tensor import TENSORS
from autograd.errors import AbsentError, ArgumentError, CollectiveMismatch, ShapeError
from autograd.layouts.layout import C, D, I, Label, Layout, P, R, Rooted, Shard, V

__all__ = ["HEADER_BYTES", "outline_of", "projection", "projection_in", "read", "write"]

HEADER_BYTES = 1024
_TEXT_BYTES = HEADER_BYTES - 20  # a checksum of the text follows, and two numbers
_PART_BYTES = _TEXT_BYTES + 4
_LONGEST_SITE = 100
_PLAIN = {label.letter: label for label in (R, I, V, P, C, D)}


def write(
    array: Any, layout: Layout | None, recorded: bool, what: str, site: str = "", numbers: tuple[float, float] = (0, 0)
) -> np.ndarray:
    """A header as an array of bytes."""
    text = _text(array.dtype, tuple(array.shape), layout, recorded, what, site)
    return np.frombuffer(text + np.array(numbers).tobytes(), np.uint8).copy()


def projection(array: Any) -> tuple[float, float]:
    """Two numbers by which ranks tell whether they hold the same value up to rounding: a projection, and its scale."""
    host = to_host(array).reshape(-1)
    host = pairs_of(host).reshape(-1) if array.dtype.kind == "c" else host
    weights = 1.0 + np.cos(np.arange(host.size))
    return float(host @ weights), float(np.abs(host) @ weights)


def projection_in(data: np.ndarray) -> tuple[float, float]:
    """The numbers in a header."""
    value, scale = data[_PART_BYTES:].view(float).tolist()
    return value, scale


@lru_cache(maxsize=256)  # by what a header says; without it each send takes 16 us more
def _text(
    dtype: np.dtype, shape: tuple[int, ...], layout: Layout | None, recorded: bool, what: str, site: str
) -> bytes:
    labels = None if layout is None else {a: _pack(x) for a, x in layout.items()}
    text = json.dumps(
        {"dtype": dtype.name if is_bfloat16(dtype) else dtype.str, "shape": [int(n) for n in shape], "labels": labels,
         "recorded": recorded, "what": what, "site": site[-_LONGEST_SITE:]}
    ).encode()
    if len(text) > _TEXT_BYTES:
        raise ShapeError(f"a header of {len(text)} bytes for shape {shape}; needed: at most {_TEXT_BYTES}")
    text = text.ljust(_TEXT_BYTES)
    return text + zlib.crc32(text).to_bytes(4, "little")


def read(
    data: np.ndarray, recorded: bool, what: str, sender: str
) -> tuple[tuple[int, ...], np.dtype, dict[str, Label]]:
    """Shape, dtype and labels from a header; CollectiveMismatch if only one of sender and receiver records.

    Raises it, too, for a message that is no header, or has changed on its way.
    """
    facts = _facts(data[:_PART_BYTES].tobytes())
    if facts is None:
        raise CollectiveMismatch(
            f"{what}: the message from {sender} in which the shape was expected has a wrong checksum. Needed: sends "
            "and receives in the same order on both ranks; or its bytes have changed on the way or in memory"
        )
    shape, dtype, labels, is_recorded, call, site = facts
    if call != what or (dtype.kind in "fcV" and is_recorded != recorded):  # V: bfloat16
        theirs = "recorded" if is_recorded else "not recorded"
        mine = "recorded" if recorded else "not recorded"
        raise CollectiveMismatch(
            f"{sender} called {call} ({theirs}){site and f' at {site}'} and this rank {what} ({mine}). Needed: both "
            "recorded or neither. Fix: the same no_grad() and the same active tape on both ranks"
        )
    return shape, dtype, dict(labels)


@lru_cache(maxsize=256)  # by a header's bytes; without it each receive takes 13 us more
def _facts(part: bytes) -> tuple[tuple[int, ...], np.dtype, dict[str, Label], bool, str, str] | None:
    text = part[:_TEXT_BYTES]
    if zlib.crc32(text).to_bytes(4, "little") != part[_TEXT_BYTES:]:
        return None
    header = json.loads(text.decode())
    labels = {a: _unpack(x) for a, x in (header["labels"] or {}).items()}
    dtype = dtype_named(header["dtype"])
    return tuple(header["shape"]), dtype, labels, header["recorded"], header["what"], header["site"]


def outline_of(like: Any, name: str, sender: str) -> tuple[tuple[int, ...], np.dtype, dict[str, Label]]:
    """Shape, dtype and labels of `like`, used when no header arrives."""
    if like is None:
        raise AbsentError(
            f"{name}: {sender} would send the shape first, and in a dry run it sends nothing. Needed: the shape and "
            f"dtype here too. Fix: {name}(..., like=ag.tensor(array of that shape, layout=...))"
        )
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise ArgumentError(f"{name}: like={like!r} was given; needed: a Tensor or an array")
    labels = dict(like.layout) if like.__class__ in TENSORS and like.layout is not None else {}
    return tuple(like.shape), np.dtype(like.dtype), labels


def _pack(label: Label) -> Any:
    if isinstance(label, Shard):
        return ["S", *label.key]
    if isinstance(label, Rooted):
        return ["O", label.root]
    return label.letter


def _unpack(packed: Any) -> Label:
    if isinstance(packed, str):
        return _PLAIN[packed]
    if packed[0] == "O":
        return Rooted(packed[1])
    _, dim, extent, offset, unit, extents = packed
    return Shard(dim, extent, offset, unit, None if extents is None else tuple(extents))
