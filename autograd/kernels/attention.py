"""Attention in blocks of query rows, on views of (..., heads, tokens, width) with any strides: nothing is copied.

The exponentials P are kept for backward without the division by their row sums r. Instead the output and its cotangent
are divided, which are smaller arrays. With ``c = ct / r``

    O = (P V) / r,  dV = P' c,  dS = P * (c V' - rowsum(c * O)),  dQ = dS K,  dK = dS' Q

Q, and in backward c, is multiplied by the scale. Causal blocks that are fully masked are not computed. If the lengths
of the rows of Q and K bound all scores within exp's safe range, the largest score of each row is not computed. Above
`KEEP_BYTES` the exponentials are not kept, and backward recomputes them.

A block of attention, where the keys are only some of those that the queries attend to, also gives ``L = log r``. With L
of all keys, ``P / r`` of one block is ``exp(S - L)``. Where the objective depends on L too, its cotangent is subtracted
from ``rowsum(ct * O)``.

Source: the recomputation and the row sum of ``ct * O`` are those of Dao et al. 2022 (FlashAttention), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import Kernel
from .blocks import wide
from .softmax import SAFE, exponentials

SCORE_BYTES = 1 << 19
"""The size of the scores of one step: some rows of one head, or all rows of several heads."""
KEEP_BYTES = 1 << 25
"""Up to this size the exponentials are kept for backward."""
ROWS = 64
"""Query rows of one step of causal attention."""


class _Step(NamedTuple):
    """Some query rows of some heads of one batch element, and the number of keys that they attend to."""

    at: tuple[int, ...]
    heads: slice
    keys: slice  # the heads of k and v
    rows: slice
    seen: int


def _steps(q: Any, k: Any, causal: bool) -> Iterator[_Step]:
    *lead, heads, t, _ = q.shape
    s = k.shape[-2]
    group = heads // k.shape[-3] if heads else 1
    size = min(t, ROWS if causal else max(1, SCORE_BYTES // max(s * q.itemsize, 1)))
    together = 1 if group > 1 else max(1, SCORE_BYTES // max(size * s * q.itemsize, 1))
    for at in np.ndindex(*lead):
        for first in range(0, heads, together):
            some = slice(first, min(first + together, heads))
            kv = slice(first // group, first // group + 1) if group > 1 else some
            for start in range(0, t, max(size, 1)):
                stop = min(start + size, t)
                yield _Step(at, some, kv, slice(start, stop), max(0, min(s, stop + s - t)) if causal else s)


def _bound(q: Any, k: Any, scale: float) -> Any:
    """A bound on the absolute values of all scores: the product of the largest row lengths (Cauchy-Schwarz)."""
    if not q.size or not k.size:
        return 0.0
    longest = [np.sqrt(np.vecdot(x, x).max()) for x in (q, k)]
    return longest[0] * longest[1] * abs(scale)


class _Scores:
    """The exponentials of the scores of one step."""

    def __init__(self, q: Any, k: Any, mask: Any, causal: bool, scale: float, safe: bool | None = None):
        self.q, self.k, self.causal, self.scale = q, k, causal, scale
        self.offset = k.shape[-2] - q.shape[-2]  # the last query attends to the last key
        self.mask = None if mask is None else np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))
        self.additive = mask is not None and mask.dtype != bool
        self.safe = not self.additive and bool(_bound(q, k, scale) <= SAFE) if safe is None else safe

    def visible(self, step: _Step, edge: int) -> Any:
        """The causal mask of the keys from `edge` on: ones where a query row attends to a key, in the array's dtype."""
        rows, first = step.rows.stop - step.rows.start, step.rows.start + self.offset - edge
        return np.tri(rows, step.seen - edge, first, self.q.dtype)

    def exponentials(self, step: _Step) -> tuple[Any, Any]:
        """P of one step, [heads, rows, keys], and the number subtracted from each row's scores; None for zeros."""
        query = self.q[step.at][step.heads, step.rows] * self.scale
        p = np.matmul(query, self.k[step.at][step.keys, : step.seen].swapaxes(-1, -2))
        mask = None if self.mask is None else self.mask[step.at][step.heads, step.rows, : step.seen]
        # the diagonal crosses only the last columns
        edge = max(0, step.rows.start + self.offset) if self.causal else step.seen
        if self.safe:
            np.exp(p, out=p)
            if edge < step.seen:
                p[:, :, edge:] *= self.visible(step, edge)  # the exponentials of later keys are finite
            if mask is not None:
                p *= mask
            return p, None
        if edge < step.seen:
            np.copyto(p[:, :, edge:], -np.inf, where=self.visible(step, edge) == 0)
        if self.additive:
            p += mask
        elif mask is not None:
            np.copyto(p, -np.inf, where=~mask)
        return p, exponentials(p, p)


def attend(
    q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, out: Any, keep: bool, log_sums: Any = None
) -> Any:
    """Write the output to `out`; return the residuals: the exponentials by step (or None), 1 / r, and `safe`.

    ``log r`` is written to `log_sums`, [..., heads, tokens], if it is given.
    """
    scores = _Scores(q, k, mask, causal, scale)
    steps = list(_steps(q, k, causal))
    total = sum((s.heads.stop - s.heads.start) * (s.rows.stop - s.rows.start) * s.seen for s in steps) * q.itemsize
    kept: list[Any] | None = [] if keep and total <= KEEP_BYTES else None
    inverse = np.empty((*q.shape[:-1], 1), q.dtype, like=q)
    ones = np.ones(k.shape[-2], q.dtype, like=q)
    for step in steps:
        p, shift = scores.exponentials(step)
        r = (p @ ones[: step.seen])[..., None]
        if log_sums is not None:
            with np.errstate(divide="ignore"):
                log_r = np.log(r) if shift is None else np.log(r) + shift
            log_sums[step.at][step.heads, step.rows] = log_r[..., 0]
        r[r == 0] = 1  # a row that attends to no key
        np.reciprocal(r, out=r)
        inverse[step.at][step.heads, step.rows] = r
        o = out[step.at][step.heads, step.rows]
        np.matmul(p, v[step.at][step.keys, : step.seen], out=o)
        o *= r
        if kept is not None:
            kept.append(p)
    return kept, inverse, scores.safe


def attend_backward(
    ct: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, o: Any, kept: Any,
    dq: Any, dk: Any, dv: Any, log_sums: Any = None, dots: Any = None,
) -> None:  # fmt: skip
    """Write the cotangents to `dq`, `dk` and `dv`, except for those that are None.

    For a block, `log_sums` are those of all keys, and `dots` are the row sums of ``ct * O``, [..., heads, tokens];
    `o` is not read, and `kept` is (None, None, None).
    """
    exps, inverse, safe = kept
    scores = _Scores(q, k, mask, causal, scale, safe)
    opened: set[Any] = set()
    if not (q.shape[-3] and q.shape[-2]):  # no step writes to them
        for d in (dk, dv):
            if d is not None:
                d[...] = 0
    for n, step in enumerate(_steps(q, k, causal)):
        at, heads, kv, rows, seen = step
        p, shift = scores.exponentials(step) if exps is None else (exps[n], None)
        if log_sums is None:
            inverse_r = inverse[at][heads, rows]
        else:
            log_r = log_sums[at][heads, rows][..., None]
            inverse_r = np.exp(-log_r if shift is None else shift - log_r)
        c = ct[at][heads, rows] * inverse_r
        first = (at, kv.start) not in opened
        opened.add((at, kv.start))
        if dv is not None:
            _accumulate(p, c, dv[at][kv], seen, first)
        if dq is None and dk is None:
            continue
        c *= scale
        ds = c @ v[at][kv, :seen].swapaxes(-1, -2)
        if dots is None:
            ds -= np.vecdot(c, o[at][heads, rows])[..., None]
        else:
            ds -= dots[at][heads, rows][..., None] * inverse_r * scale
        ds *= p
        if dq is not None:
            np.matmul(ds, k[at][kv, :seen], out=dq[at][heads, rows])
        if dk is not None:
            _accumulate(ds, q[at][heads, rows], dk[at][kv], seen, first)


def _accumulate(a: Any, b: Any, target: Any, seen: int, first: bool) -> None:
    """Add ``a' b`` to the first `seen` rows of the target. The `first` contribution overwrites the target."""
    if not first:
        target[:, :seen] += a.swapaxes(-1, -2) @ b
    else:
        np.matmul(a.swapaxes(-1, -2), b, out=target[:, :seen])
        target[:, seen:] = 0


def _like_tokens_first(x: Any, shape: tuple[int, ...]) -> Any:
    """An empty array (..., heads, tokens, width), stored as (..., tokens, heads, width) if `x` is."""
    *lead, heads, tokens, width = shape
    if x.ndim > 2 and x.strides[-3] < x.strides[-2]:
        return np.empty_like(x, shape=(*lead, tokens, heads, width), order="C").swapaxes(-2, -3)
    return np.empty_like(x, shape=shape, order="C")


def parts(x: Any) -> list[Any]:
    """Views of q, k and v, (..., heads, tokens, width), in an array (..., tokens, 3, heads, width)."""
    return [x[..., i, :, :].swapaxes(-2, -3) for i in range(3)]


def kernels_of(
    attend: Callable[..., Any], attend_backward: Callable[..., None],
    takes: Callable[[Sequence[Any]], bool] | None = None,
) -> tuple[Kernel, Kernel, Kernel]:  # fmt: skip
    """The kernels of attention, of q, k and v apart and in one array, and of a block, made of two functions of views.

    What `attend` returns is kept for `attend_backward`; see those of this file.
    """

    def attention(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        q, k, v = xs[:3]
        out = _like_tokens_first(q, (*q.shape[:-1], v.shape[-1]))
        kept = attend(q, k, v, xs[3] if len(xs) > 3 else None, *options, out, keep)
        return out, (out, kept) if keep else None

    def attention_backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        found = [_like_tokens_first(x, x.shape) if want else None for x, want in zip(xs[:3], wanted, strict=False)]
        attend_backward(ct, *xs[:3], xs[3] if len(xs) > 3 else None, *options, *kept, *found)
        return (*found, None)[: len(xs)]

    def self_attention(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        x = xs[0]
        out = np.empty_like(x, shape=(*x.shape[:-3], *x.shape[-2:]), order="C")
        kept = attend(*parts(x), xs[1] if len(xs) > 1 else None, *options, out.swapaxes(-2, -3), keep)
        return out, (out, kept) if keep else None

    def self_attention_backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        out, kept = kept
        dx, mask = np.empty_like(xs[0], order="C"), xs[1] if len(xs) > 1 else None
        ct, out = ct.swapaxes(-2, -3), out.swapaxes(-2, -3)
        attend_backward(ct, *parts(xs[0]), mask, *options, out, kept, *parts(dx))
        return (dx, None)[: len(xs)]

    def attention_block(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        """The output for some of the keys, with L, [..., heads, tokens]; nothing is kept.

        The output for all keys is the mean of those of the blocks, with the weights ``exp(L_block - L)``, where L is
        the logarithm of the sum of all ``exp(L_block)``.
        """
        q, k, v = xs
        out = _like_tokens_first(q, (*q.shape[:-1], v.shape[-1]))
        log_sums = np.empty_like(q, wide(q.dtype), shape=q.shape[:-1], order="C")
        attend(q, k, v, None, *options, out, False, log_sums)
        return (out, log_sums), None

    def attention_block_backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        """The contributions of a block to the cotangents of q, k and v.

        `ct` is the cotangent of the output for all keys, the row sums of the product of the two minus the cotangent of
        L, and L, for all keys.
        """
        ct, dots, log_sums = ct
        found = [_like_tokens_first(x, x.shape) if want else None for x, want in zip(xs, wanted, strict=True)]
        attend_backward(ct, *xs, None, *options, None, (None, None, None), *found, log_sums, dots)
        return found

    return (
        Kernel(attention, attention_backward, takes), Kernel(self_attention, self_attention_backward, takes),
        Kernel(attention_block, attention_block_backward, takes),
    )  # fmt: skip


attention_kernel, self_attention_kernel, attention_block_kernel = kernels_of(attend, attend_backward)
