"""Masks of attention over sequences in parts, against attention of one process with the same mask, in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, ops
from autograd.errors import DtypeError, LayoutError, ShapeError
from parallel import Ring, Ulysses, context, parallelize
from parallel.context import composed

from .sequences import (
    CONTIGUOUS,
    HEADS,
    ROWS,
    ULYSSES,
    UNEVEN,
    WIDTH,
    ZIGZAG,
    assert_parts,
    derivatives,
    length_of,
    part,
    places,
    random,
)

KINDS = [ZIGZAG, CONTIGUOUS, UNEVEN, ULYSSES]
SHAPES = {
    "all": lambda n: (n, n),
    "of each head": lambda n: (HEADS, n, n),
    "of each row and head": lambda n: (ROWS, HEADS, n, n),
    "of each row": lambda n: (ROWS, 1, n, n),
    "of keys": lambda n: (ROWS, 1, 1, n),
    "of queries": lambda n: (HEADS, n, 1),
    "a vector": lambda n: (n,),
}
CASES = [
    ("zigzag", ZIGZAG, 2, "all", True, "boolean"), ("zigzag on one rank", ZIGZAG, 1, "of each head", True, "added"),
    ("zigzag on three", ZIGZAG, 3, "of each row and head", False, "added"),
    ("contiguous", CONTIGUOUS, 3, "of keys", True, "boolean"), ("uneven", UNEVEN, 3, "of each row", True, "added"),
    ("queries", CONTIGUOUS, 2, "of queries", False, "added"), ("a vector", ZIGZAG, 2, "a vector", True, "added"),
    ("ulysses", ULYSSES, 2, "of each row and head", True, "added"), ("few heads", ULYSSES, 3, "all", False, "boolean"),
]  # fmt: skip
MORE = [
    (f"{kind} {ranks} {shape} {causal} {values}", kind, ranks, shape, causal, values)
    for kind, ranks, shape, causal, values in product(KINDS, (1, 2, 3, 4), SHAPES, (True, False), ("boolean", "added"))
]


def mask_of(shape: tuple[int, ...], values: str) -> Any:
    """A mask that hides some keys from some queries, and all keys from a few."""
    drawn = random(*shape, seed=7)
    hidden = drawn > 0.6
    if len(shape) > 1 and 1 not in shape[-2:]:
        hidden[..., 1, :] = True
    return ~hidden if values == "boolean" else np.where(hidden, -np.inf, drawn)


def attend(kind: str, causal: bool, x: Any, **masks: Any) -> Any:
    if kind == ULYSSES:
        return context.ulysses_self_attention(x, "cp", causal=causal, **masks)
    return context.ring_self_attention(x, "cp", causal=causal, zigzag=kind == ZIGZAG, **masks)


def rows_of(mask: Any, order: str) -> Any:
    """This rank's rows of a mask, as a Tensor."""
    dim = mask.ndim - 2
    return part(mask, order, dim) if dim >= 0 and mask.shape[dim] > 1 else ag.constant(mask)


def check(kind: str, ranks: int, shape: str, causal: bool, values: str, in_parts: bool) -> None:
    """The value and its derivatives, where the mask is whole on all ranks, or in parts of the queries."""
    if kind == ULYSSES and ranks > HEADS:
        return
    order, n = CONTIGUOUS if kind == ULYSSES else kind, length_of(kind, ranks)
    mask = mask_of(SHAPES[shape](n), values)
    given = [random(ROWS, n, 3, HEADS, WIDTH), random(ROWS, n, HEADS, WIDTH, seed=1),
             random(ROWS, n, 3, HEADS, WIDTH, seed=2)]  # fmt: skip
    expected = derivatives(lambda x: ops.self_attention(x, mask, causal=causal), *given)

    def program() -> Any:
        with cc.Mesh(cp=-1):
            own = rows_of(mask, order) if in_parts else ag.constant(mask)
            found = derivatives(lambda x: attend(kind, causal, x, mask=own), *[part(a, order) for a in given])
            return [y.local for y in found]

    found = cc.run(program, ranks)
    for whole, parts in zip(expected, zip(*found, strict=True), strict=True):
        assert_parts(parts, whole, order, 1e-12)


@pytest.mark.parametrize(
    ("kind", "ranks", "shape", "causal", "values"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_equals_one_process(kind: str, ranks: int, shape: str, causal: bool, values: str) -> None:
    for in_parts in (False, True):
        check(kind, ranks, shape, causal, values, in_parts)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), [*product(KINDS, (1, 2, 3, 4))])
def test_equals_one_process_in_all_cases(kind: str, ranks: int) -> None:
    for case in MORE:
        if case[1:3] == (kind, ranks):
            for in_parts in (False, True):
                check(*case[1:], in_parts)  # type: ignore[arg-type]


LEARNED = [
    (kind, ranks, shape, label)
    for kind, ranks in ((ZIGZAG, 2), (CONTIGUOUS, 3), (UNEVEN, 3), (ULYSSES, 2), (ULYSSES, 3))
    for shape in ("of each head", "of keys")
    for label in ("invariant", "parts")
    if shape != "of keys" or label != "parts"
]


@pytest.mark.parametrize(("kind", "ranks", "shape", "label"), LEARNED)
def test_the_gradient_of_a_mask(kind: str, ranks: int, shape: str, label: str) -> None:
    """A learned bias: the same on all ranks, whose gradient is summed over them, or in parts of the queries."""
    order, n = CONTIGUOUS if kind == ULYSSES else kind, length_of(kind, ranks)
    bias, x = random(*SHAPES[shape](n), seed=8), random(ROWS, n, 3, HEADS, WIDTH)
    weights = random(ROWS, n, HEADS, WIDTH, seed=9)
    w = ag.Parameter(bias)
    with ag.Tape() as tape:
        loss = (ops.self_attention(ag.tensor(x), w, causal=True) * weights).sum()
    tape.backward(loss)
    expected = w.grad.numpy()

    def program() -> Any:
        with cc.Mesh(cp=-1):
            own = ag.Parameter(bias)
            if label == "parts":
                own = part(bias, order, 1)
                own = ag.tensor(own.array, own.layout, requires_grad=True)
            with ag.Tape() as tape:
                y = attend(kind, True, part(x, order), mask=own)
                loss = cc.all_reduce((y * part(weights, order)).sum(), "cp", to=cc.I)
            tape.backward(loss)
            return own.grad.local

    found = cc.run(program, ranks)
    if label == "parts":
        assert_parts(found, expected, order, 1e-12, dim=1)
    else:
        for g in found:
            np.testing.assert_allclose(g, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("values", ["boolean", "added"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_styles_take_masks(kind: str, ranks: int, values: str) -> None:
    """`nn.SelfAttention` with both masks, and the key padding mask in parts of the sequence, with rotary embeddings."""
    order, n = CONTIGUOUS if kind == ULYSSES else kind, length_of(kind, ranks)
    qkv, padding = random(ROWS, n, 3, HEADS * WIDTH), random(ROWS, n, seed=3)
    hidden = padding > 0.8 if values == "boolean" else np.where(padding > 0.8, -np.inf, padding)
    mask = random(n, n, seed=4) > 1.0 if values == "boolean" else random(n, n, seed=4)
    style: Any = Ulysses("cp") if kind == ULYSSES else Ring("cp", zigzag=kind == ZIGZAG)
    serial = nn.SelfAttention(WIDTH, rotary=True)
    expected, pull = ag.vjp(lambda x: serial(x, mask, hidden), qkv)
    ct = random(*expected.shape, seed=5)

    def program() -> Any:
        with cc.Mesh(cp=-1):
            model = parallelize(nn.Sequential(nn.SelfAttention(WIDTH, rotary=True)), {"0": style})
            attend = model.layers[0]
            y, pull = ag.vjp(lambda x: attend(x, ag.constant(mask), part(hidden, order)), part(qkv, order))
            return y.local, pull(part(ct, order)).local

    for whole, parts in zip((expected, pull(ct)), zip(*cc.run(program, ranks), strict=True), strict=True):
        assert_parts(parts, whole, order, 1e-12)


def test_on_meshes_with_more_axes() -> None:
    """Rows along dp, and heads along tp, of the tokens and of the mask."""
    n, rng = 8, np.random.default_rng(0)
    qkv, mask = rng.normal(size=(4, n, 3, 4, 3)), rng.normal(size=(4, 4, n, n))
    padding = rng.random((4, n)) > 0.8
    expected, pull = ag.vjp(
        lambda x: ops.self_attention(x, np.where(padding[:, None, None], -np.inf, mask), causal=True), qkv)
    ct = rng.normal(size=expected.shape)

    def program(kind: str) -> Any:
        with cc.Mesh(dp=2, cp=2, tp=2) as mesh:
            at = {a: int(mesh.axis(a).rank) for a in mesh.names}
            tokens = places(ZIGZAG if kind == ZIGZAG else CONTIGUOUS, n, at["cp"], 2)
            rows, heads = slice(2 * at["dp"], 2 * at["dp"] + 2), slice(2 * at["tp"], 2 * at["tp"] + 2)
            cp = lambda dim: cc.V if kind == ZIGZAG else cc.Shard(dim)
            labels = {"dp": cc.Shard(0), "cp": cp(1), "tp": cc.Shard(3)}
            x = cc.from_local(qkv[rows][:, tokens][:, :, :, heads], labels)
            own = cc.from_local(mask[rows, heads][:, :, tokens], {"dp": cc.Shard(0), "cp": cp(2), "tp": cc.Shard(1)})
            keys = cc.from_local(padding[rows][:, tokens], {"dp": cc.Shard(0), "cp": cp(1), "tp": cc.I})
            y, pull = ag.vjp(lambda x: attend(kind, True, x, mask=own, key_padding_mask=keys), x)
            g = pull(cc.from_local(ct[rows][:, tokens][:, :, heads], labels | {"tp": cc.Shard(2)}))
            np.testing.assert_allclose(y.local, expected[rows][:, tokens][:, :, heads], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(g.local, pull_of[rows][:, tokens][:, :, :, heads], rtol=1e-10, atol=1e-12)

    pull_of = pull(ct)
    for kind in (ZIGZAG, CONTIGUOUS, ULYSSES):
        cc.run(program, 8, kind)


def test_grouped_heads_and_float16() -> None:
    """`ring_attention` with two query heads for each head of keys, and a mask of each query head."""
    q, (k, v) = random(ROWS, 4, 6, WIDTH), random(2, ROWS, 2, 6, WIDTH)
    mask = random(4, 6, 6, seed=2)
    expected = ops.attention(q, k, v, mask, causal=True)

    def program(dtype: Any) -> Any:
        with cc.Mesh(cp=-1):
            mine = [part(x.astype(dtype), CONTIGUOUS, 2) for x in (q, k, v)]
            y = context.ring_attention(*mine, "cp", mask=ag.constant(mask), causal=True)
            assert y.dtype == dtype
            return cc.all_gather(y, "cp", 2).numpy()

    for dtype, tolerance in ((np.float64, 1e-12), (np.float16, 4e-3)):
        np.testing.assert_allclose(cc.run(program, 3, dtype)[1], expected, rtol=tolerance, atol=tolerance)


def test_the_tape_keeps_no_blocks() -> None:
    """With a mask the tape keeps the operands and the result of a checkpoint."""

    def program() -> Any:
        with cc.Mesh(cp=-1):
            x = part(random(ROWS, 24, 3, HEADS, WIDTH), CONTIGUOUS)
            x = ag.tensor(x.array, x.layout, requires_grad=True)
            with ag.Tape() as tape:
                attend(CONTIGUOUS, True, x, mask=ag.constant(np.zeros((24, 24))))
            return [node[0].name for node in tape.recording.nodes if node is not None]

    assert cc.run(program, 2)[0] == ["leaf", "checkpoint", "output", "getitem"]


FAULTS = {
    "columns of another rank": ("_keys_of", lambda f: lambda mask, call, owner: f(mask, call, call.group.index)),
    "no causal mask": ("_scores", lambda f: lambda q, k, scale, call, owner: f(
        q, k, scale, call.but(options=call.options._replace(order=call.options.order._replace(causal=False))), owner)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, mutant = FAULTS[fault]
    monkeypatch.setattr(composed, name, mutant(getattr(composed, name)))
    with pytest.raises(AssertionError):
        check(ZIGZAG, 2, "all", True, "added", False)


X = random(ROWS, 8, 3, HEADS, WIDTH)
WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "integers": (lambda: ag.constant(np.ones((8, 8), int)), {}, DtypeError, "True: attended to"),
    "a whole mask as a plain array": (lambda: np.zeros((8, 8)), {}, ShapeError, "fix: ag.constant"),
    "parts of the keys": (
        lambda: cc.from_local(np.zeros((8, 4)), {"cp": cc.Shard(1)}), {}, LayoutError, "fix: cc.all_gather"),
    "too few keys": (lambda: ag.constant(np.zeros((8, 7))), {}, ShapeError, "broadcasts to"),
}


@pytest.mark.parametrize("kind", [CONTIGUOUS, ULYSSES])
@pytest.mark.parametrize("what", WRONG)
def test_masks_that_do_not_fit(what: str, kind: str) -> None:
    make, options, error, text = WRONG[what]

    def program() -> None:
        with cc.Mesh(cp=2):
            attend(kind, True, part(X, CONTIGUOUS), mask=make(), **options)

    with pytest.raises(error, match=text):
        cc.run(program, 2)


def test_the_fixes_fit() -> None:
    mask = random(8, 8)
    expected = ops.self_attention(X, mask, causal=True)

    def program(kind: str) -> None:
        with cc.Mesh(cp=2) as mesh:
            x, at = part(X, CONTIGUOUS), slice(4 * int(mesh.axis("cp").rank), 4 * int(mesh.axis("cp").rank) + 4)
            for fixed in (
                ag.constant(mask), cc.from_local(mask[at], {"cp": cc.Shard(0)}),
                cc.all_gather(cc.from_local(mask[:, at], {"cp": cc.Shard(1)}), "cp", 1),
            ):  # fmt: skip
                y = attend(kind, True, x, mask=fixed)
                np.testing.assert_allclose(y.local, expected[:, at], rtol=1e-10, atol=1e-12)

    for kind in (CONTIGUOUS, ULYSSES):
        cc.run(program, 2, kind)
