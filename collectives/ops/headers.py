"""What goes before data whose receiver cannot know its shape: one small message with dtype, shape and labels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from autograd.engine.tensor import TENSORS
from autograd.errors import AbsentError, CollectiveMismatch, ShapeError, call_site
from autograd.layouts.layout import C, D, I, Label, Layout, P, R, Rooted, Shard, V

__all__ = ["HEADER_BYTES", "read", "told_by", "write"]

HEADER_BYTES = 1024
_PLAIN = {label.letter: label for label in (R, I, V, P, C, D)}


def write(array: Any, layout: Layout | None, recorded: bool, what: str) -> np.ndarray:
    """A header as an array of bytes."""
    labels = None if layout is None else {a: _pack(x) for a, x in layout.items()}
    text = json.dumps(
        {"dtype": array.dtype.str, "shape": [int(n) for n in array.shape], "labels": labels, "recorded": recorded,
         "what": what}
    ).encode()  # fmt: skip
    if len(text) > HEADER_BYTES:
        raise ShapeError(f"a header of {len(text)} bytes for shape {array.shape}; needed: at most {HEADER_BYTES}")
    return np.frombuffer(text.ljust(HEADER_BYTES), np.uint8).copy()


def read(
    data: np.ndarray, recorded: bool, what: str, sender: str
) -> tuple[tuple[int, ...], np.dtype, dict[str, Label]]:
    """Shape, dtype and labels; CollectiveMismatch if the sender records and this rank does not, or the reverse."""
    header = json.loads(data.tobytes().decode())
    inexact = np.dtype(header["dtype"]).kind in "fc"
    if header["what"] != what or (inexact and header["recorded"] != recorded):
        said = "recorded" if header["recorded"] else "not recorded"
        mine = "recorded" if recorded else "not recorded"
        raise CollectiveMismatch(
            f"{sender} called {header['what']} ({said}) and this rank {what} ({mine}). Needed: both recorded or "
            f"neither. "
            "Fix: the same no_grad() and the same active tape on both ranks"
        )
    labels = {a: _unpack(x) for a, x in (header["labels"] or {}).items()}
    return tuple(header["shape"]), np.dtype(header["dtype"]), labels


def told_by(like: Any, name: str, sender: str) -> tuple[tuple[int, ...], np.dtype, dict[str, Label]]:
    """Shape, dtype and labels by `like`, where no header can tell them."""
    if like is None:
        raise AbsentError(
            f"{name}: {sender} would send the shape first, and in a dry run it sends nothing. Needed: the shape and "
            f"dtype here too. Fix: {name}(..., like=ag.tensor(array of that shape, layout=...))" + call_site()
        )
    labels = dict(like.layout) if like.__class__ in TENSORS and like.layout is not None else {}
    return tuple(like.shape), np.dtype(like.dtype), labels


def _pack(label: Label) -> Any:
    if isinstance(label, Shard):
        return ["S", label.dim, label.extent, label.offset, label.unit]
    if isinstance(label, Rooted):
        return ["O", label.root]
    return label.letter


def _unpack(packed: Any) -> Label:
    if isinstance(packed, str):
        return _PLAIN[packed]
    return Shard(*packed[1:]) if packed[0] == "S" else Rooted(packed[1])
