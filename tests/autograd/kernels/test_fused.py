"""The operations that have kernels: kernels against their plain forms at sizes that cross blocks, layouts, memory."""

from __future__ import annotations

import gc
import importlib
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import kernels, ops
from autograd.arrays.shape_only import Shaped
from autograd.engine.primitive import registry
from autograd.kernels import activations, attention, blocks, losses
from autograd.kernels.adam import adam
from autograd.kernels.normal import normal_cdf
from autograd.kernels.softmax import exponentials
from autograd.ops.nn.fused import Fused
from collectives import I, P, R, Shard, V

from ..arrays.fake_device import DeviceArray

Array = Any


def draws(seed: int = 0) -> Callable[..., Array]:
    rng = numpy.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape)


# -- a kernel is its operation's plain form --------------------------------------------------------------------------
n = draws()
SEEN = numpy.random.default_rng(1).random((1, 300, 300)) < 0.5
SEEN[0, 7] = False  # a row that sees nothing
LABELS = numpy.random.default_rng(2).integers(0, 700, 90)
IGNORING = numpy.where(LABELS % 3 == 0, -100, LABELS)
LARGE = 25.0  # scores that exp does not bear

USES: dict[str, tuple[str, list[Array], tuple[Any, ...]]] = {
    "gelu tanh": ("gelu", [3 * n(37, 41)], ("tanh",)),
    "gelu erf": ("gelu", [3 * n(37, 41)], ("none",)),
    "gelu of huge numbers": ("gelu", [1e3 * n(37, 41)], ("tanh",)),
    "silu": ("silu", [3 * n(37, 41)], ()),
    "normalize": ("normalize", [n(7, 11, 33) + 2], (1e-5,)),
    "layer_norm": ("layer_norm", [n(7, 11, 33) + 2, n(33), n(33)], (1e-5,)),
    "rms_norm": ("rms_norm", [n(7, 11, 33) + 2, n(33)], (1e-6,)),
    "softmax": ("softmax", [n(57, 33)], (1,)),
    "softmax of large numbers": ("softmax", [LARGE * 9 * n(57, 33)], (1,)),
    "softmax of columns": ("softmax", [n(13, 57, 3)], (1,)),
    "log_softmax": ("log_softmax", [n(57, 33)], (1,)),
    "log_softmax of large numbers, columns": ("log_softmax", [LARGE * n(57, 33)], (0,)),
    "attention": ("attention", [n(2, 3, 70, 8), n(2, 3, 50, 8), n(2, 3, 50, 6)], (False, 0.3)),
    "attention causal": ("attention", [n(2, 3, 300, 8), n(2, 3, 300, 8), n(2, 3, 300, 8)], (True, 0.3)),
    "attention causal, more keys": ("attention", [n(1, 2, 200, 4), n(1, 2, 330, 4), n(1, 2, 330, 4)], (True, 0.3)),
    "attention causal, fewer keys": ("attention", [n(2, 200, 4), n(2, 30, 4), n(2, 30, 4)], (True, 0.3)),
    "attention grouped": ("attention", [n(6, 300, 4), n(2, 300, 4), n(2, 300, 4)], (True, 0.3)),
    "attention large scores": ("attention", [LARGE * n(3, 300, 4), n(3, 300, 4), n(3, 300, 4)], (True, 1.0)),
    "attention masked": ("masked_attention", [n(3, 300, 4), n(3, 300, 4), n(3, 300, 4), SEEN], (False, 1.0)),
    "attention masked, large": ("masked_attention", [LARGE * n(3, 300, 4), n(3, 300, 4), n(3, 300, 4), SEEN],
                                (True, 1.0)),
    "attention added": ("masked_attention", [n(3, 300, 4), n(3, 300, 4), n(3, 300, 4), 9 * n(3, 300, 300)],
                        (False, 1.0)),
    "self_attention": ("self_attention", [n(2, 300, 3, 2, 4)], (True, 0.5)),
    "self_attention masked": ("masked_self_attention", [n(300, 3, 2, 4), SEEN], (True, 0.5)),
    "cross_entropy": ("smoothed_cross_entropy", [n(90, 700), LABELS], (None, 0.0)),
    "cross_entropy smoothed": ("smoothed_cross_entropy", [n(90, 700), LABELS], (None, 0.1)),
    "class_terms": ("class_terms", [n(90, 700), numpy.where(LABELS % 3, -1, LABELS)], (0.0, 1400)),
    "class_terms smoothed": ("class_terms", [LARGE * n(90, 700), numpy.where(LABELS % 3, -1, LABELS)], (0.1, 1400)),
    "cross_entropy ignoring": ("smoothed_cross_entropy", [LARGE * n(90, 700), IGNORING], (-100, 0.2)),
}  # fmt: skip


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few KiB, so that these sizes cross several."""
    monkeypatch.setattr(blocks.blocks, "__defaults__", (4096,))
    for module in (activations, losses):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(attention, "SCORE_BYTES", 1 << 16)


def close(a: Array, b: Array, dtype: Any) -> None:
    assert a.dtype == dtype and a.shape == b.shape
    scale = max(1.0, float(numpy.max(numpy.abs(b), initial=0)))
    numpy.testing.assert_allclose(a, b, rtol=0, atol=scale * (2e-5 if dtype == numpy.float32 else 1e-12))


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("use", USES)
def test_a_kernel_computes_its_operations_plain_form(use: str, dtype: Any, small_blocks: None) -> None:
    name, wide, options = USES[use]
    operation: Any = registry[name]
    assert isinstance(operation, Fused)
    xs = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in wide)
    exact = [x.astype(float) if x.dtype.kind == "f" else x for x in xs]
    before = [x.copy() for x in xs]
    kernel = kernels.find(operation.kernel_name, xs)
    assert kernel is not None
    with numpy.errstate(over="raise", invalid="raise"):
        y, kept = kernel.forward(xs, options, True)
        bare, nothing = kernel.forward(xs, options, False)
    assert nothing is None
    numpy.testing.assert_array_equal(bare, y)
    close(y, operation.composition(*exact, *options), dtype)
    ct = numpy.random.default_rng(3).standard_normal(y.shape).astype(dtype)
    given = ct.copy()
    wanted = [x.dtype.kind == "f" and operation.words[i] != "S" for i, x in enumerate(xs)]
    expected = [
        operation.adjoint[i](ct.astype(float), None, *exact, *options) if want else None
        for i, want in enumerate(wanted)
    ]
    found = [kernel.backward(ct, kept, xs, options, wanted, last) for last in (False, False, True)]
    for i, want in enumerate(wanted):
        if want:
            close(found[0][i], expected[i], dtype)
            numpy.testing.assert_array_equal(found[1][i], found[0][i], "the first backward used up what was kept")
            numpy.testing.assert_array_equal(found[2][i], found[0][i])
    for a, b in zip((*xs, ct), (*before, given), strict=True):
        numpy.testing.assert_array_equal(a, b, "the kernel wrote to what it was given")


@pytest.mark.parametrize("use", ["layer_norm", "rms_norm", "attention causal", "attention grouped"])
def test_a_kernel_computes_no_more_than_is_wanted(use: str, small_blocks: None) -> None:
    name, xs, options = USES[use]
    operation: Any = registry[name]
    kernel = kernels.find(operation.kernel_name, xs)
    assert kernel is not None
    y, kept = kernel.forward(tuple(xs), options, True)
    ct = draws(4)(*y.shape)
    whole = kernel.backward(ct, kept, tuple(xs), options, [True] * len(xs), False)
    for i in range(len(xs)):
        alone = kernel.backward(ct, kept, tuple(xs), options, [j == i for j in range(len(xs))], False)
        numpy.testing.assert_array_equal(alone[i], whole[i])
        assert all(g is None for j, g in enumerate(alone) if j != i)


def test_attention_computes_again_what_it_may_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    name, xs, options = USES["attention large scores"]
    kernel = attention.attention_kernel
    y, kept = kernel.forward(tuple(xs), options, True)
    monkeypatch.setattr(attention, "KEEP_BYTES", 0)
    same, less = kernel.forward(tuple(xs), options, True)
    assert kept[1][0] is not None and less[1][0] is None
    ct = draws(4)(*y.shape)
    for a, b in zip(*(kernel.backward(ct, k, tuple(xs), options, (True,) * 3, False) for k in (kept, less)),
                    strict=True):  # fmt: skip
        numpy.testing.assert_array_equal(a, b)


def test_attention_takes_views_without_copying() -> None:
    qkv = draws()(2, 5, 3, 4, 8)
    q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
    apart = ops.attention(q, k, v, causal=True)
    assert apart.swapaxes(1, 2).flags.c_contiguous, "the output lies as the operands do"
    numpy.testing.assert_allclose(ops.self_attention(qkv, causal=True), apart.swapaxes(1, 2), rtol=1e-13)


def test_exponentials_shift_only_where_they_must() -> None:
    x = numpy.array([[1.0, -2.0], [-numpy.inf, -numpy.inf]])
    out = numpy.empty_like(x)
    assert exponentials(x[:1], out[:1]) is None
    assert exponentials(x, out).tolist() == [[1], [0]]
    assert out.tolist() == [[1, math.exp(-3)], [0, 0]]
    assert exponentials(numpy.array([[800.0, 0.0]]), out[:1]).tolist() == [[800]]
    assert out[0].tolist() == [1, 0]


def test_normal_cdf_to_the_last_digits() -> None:
    x = numpy.concatenate([numpy.linspace(-30, 9, 3001), numpy.linspace(-1e-3, 1e-3, 101)])
    expected = numpy.array([0.5 * math.erfc(-t / math.sqrt(2)) for t in x])
    numpy.testing.assert_allclose(normal_cdf(x), expected, rtol=3e-13)
    near = numpy.abs(x) < 5
    numpy.testing.assert_allclose(normal_cdf(x[near]), expected[near], rtol=1e-14)
    assert normal_cdf(numpy.array([numpy.inf, -numpy.inf, 0.0])).tolist() == [1, 0, 0.5]


def test_gelu_in_float32_is_as_good_as_float32_is() -> None:
    x = numpy.linspace(-12, 12, 4001)
    xs = (x.astype(numpy.float32),)
    y, d = activations.gelu_kernel.forward(xs, ("none",), True)
    exact, slope = activations.gelu_kernel.forward((xs[0].astype(float),), ("none",), True)
    assert numpy.max(numpy.abs(y - exact) / numpy.maximum(1, numpy.abs(x))) < 4e-7
    assert numpy.max(numpy.abs(d - slope)) < 1e-6


@pytest.mark.parametrize("shape", [(300, 6), (3, 100, 6), (600, 6)[::-1]], ids=["matrix", "batches", "transposed"])
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64], ids=["f32", "f64"])
def test_linear_of_many_rows(shape: tuple[int, ...], dtype: Any) -> None:
    x, w, b = (a.astype(dtype) for a in (draws(6)(*shape), draws(7)(6, 5), draws(8)(5)))
    x = x.T if shape[-1] != 6 else x
    y = ops.linear(*map(ag.tensor, (x, w, b))).numpy()  # of bare arrays it is the product and the sum
    assert y.dtype == dtype
    numpy.testing.assert_allclose(y, x.astype(float) @ w + b, rtol=0, atol=1e-5 if dtype == numpy.float32 else 1e-13)
    with pytest.raises(ag.ShapeError, match="matmul"):
        ops.linear(ag.tensor(x), ag.tensor(w[:4]), ag.tensor(b))


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64], ids=["f32", "f64"])
def test_adams_update(dtype: Any, decoupled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(adam.__globals__, "BLOCK_BYTES", 1000)
    rng = numpy.random.default_rng(0)
    p = rng.standard_normal(777).astype(dtype)
    m, v = numpy.zeros_like(p), numpy.zeros_like(p)
    q, qm, qv = p.astype(float), numpy.zeros(777), numpy.zeros(777)
    lr, (b1, b2), eps, decay = 0.1, (0.8, 0.95), 1e-6, 0.03
    for t in range(1, 6):
        g = rng.standard_normal(777).astype(dtype)
        given = g.copy()
        adam(p, g, m, v, step=t, lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay, decoupled=decoupled)
        numpy.testing.assert_array_equal(g, given)
        q, h = (q * (1 - lr * decay), g.astype(float)) if decoupled else (q, g + decay * q)
        qm, qv = b1 * qm + (1 - b1) * h, b2 * qv + (1 - b2) * h * h
        q = q - lr * (qm / (1 - b1**t)) / (numpy.sqrt(qv / (1 - b2**t)) + eps)
    tolerance = 2e-5 if dtype == numpy.float32 else 1e-13
    for a, b in ((p, q), (m, qm), (v, qv)):
        numpy.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_adams_update_of_a_gradient_in_another_dtype() -> None:
    p, m, v = (numpy.array(x) for x in ([1.0, 2.0], [0.0, 0.0], [0.0, 0.0]))
    g = numpy.array([4.0, -1.0], numpy.float32)
    adam(p, g, m, v, step=1, lr=0.1)
    numpy.testing.assert_allclose(p, [0.9, 2.1])
    numpy.testing.assert_allclose(m, [0.4, -0.1])
    swapped = [numpy.asarray(x).astype(">f8") for x in ([1.0, 2.0], g, [0.0, 0.0], [0.0, 0.0])]
    adam(*swapped, step=1, lr=0.1)
    numpy.testing.assert_allclose(swapped[0], [0.9, 2.1])


def test_every_operation_that_names_a_kernel_has_one() -> None:
    """On the host or on a GPU: with a name that neither has, the operation would silently be slow."""
    for f in filter(lambda x: isinstance(x, Fused), registry.values()):
        file, _, name = f.kernel_name.partition(".")  # type: ignore[attr-defined]
        found = [hasattr(kernels.functions(file, kind), f"{name}_kernel") for kind in (numpy.ndarray, DeviceArray)]
        assert any(found), f"{f.name} names a kernel; needed: {name}_kernel in autograd/kernels/{file}.py"


# -- where there is no kernel ----------------------------------------------------------------------------------------


def test_arrays_without_a_kernel_take_the_plain_form() -> None:
    x = Shaped((2, 5, 3, 4, 8), "float32")
    assert kernels.find("attention.self_attention", (x,)) is None
    assert kernels.find("norms.layer_norm", (numpy.zeros(2), numpy.zeros(2, numpy.float32), numpy.zeros(2))) is None
    assert ops.self_attention(x, causal=True).shape == (2, 5, 4, 8)
    assert ops.gelu(x).shape == ops.layer_norm(x).shape == ops.silu(x).shape == x.shape


def test_an_array_type_without_a_runtime_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device(numpy.ndarray):
        pass

    monkeypatch.setattr(kernels, "_KERNELS", type(kernels._KERNELS)())
    assert kernels.find("activations.gelu", (numpy.zeros(3).view(Device),)) is None
    assert kernels.find("activations.gelu", (numpy.zeros(3),)) is activations.gelu_kernel


# -- the tape --------------------------------------------------------------------------------------------------------


def block(x: Any, p: dict[str, Any]) -> Any:
    h = ops.linear(ops.layer_norm(x, p["g"], p["b"]), p["w"], p["c"])
    h = ops.self_attention(h.reshape(2, 6, 3, 2, 4), causal=True).reshape(2, 6, 8)
    return x + ops.gelu(h, "tanh") * ops.silu(ops.rms_norm(h, p["g"]))


def parameters() -> tuple[Any, dict[str, Any]]:
    n = draws()
    shapes: dict[str, tuple[int, ...]] = {"g": (8,), "b": (8,), "w": (8, 24), "c": (24,)}
    return ag.Parameter(n(2, 6, 8)), {name: ag.Parameter(n(*shape)) for name, shape in shapes.items()}


def test_a_tape_dropped_without_backward_frees_everything_at_once() -> None:
    x, p = parameters()
    mine = {id(leaf.array) for leaf in (x, *p.values())}
    was = gc.isenabled()
    gc.disable()
    try:
        with ag.Tape() as tape:
            y = block(x, p)
            loss = ops.cross_entropy(y.reshape(12, 8), numpy.arange(12) % 8, "mean", label_smoothing=0.1)
        kept = [a for node in tape.recording.nodes if node for part in node[1:3] for a in arrays_in(part)]
        alive = [weakref.ref(a) for a in kept if id(a) not in mine]
        assert len(alive) >= 20
        del kept, tape, y, loss
        assert [r().shape for r in alive if r() is not None] == []
    finally:
        if was:
            gc.enable()
    assert all(leaf.array.flags.writeable for leaf in (x, *p.values()))


def arrays_in(x: Any) -> list[Array]:
    if type(x) is numpy.ndarray:
        return [x]
    return [a for part in x for a in arrays_in(part)] if isinstance(x, tuple | list) else []


def test_retained_sweeps_give_the_same_and_the_last_one_too() -> None:
    x, p = parameters()
    with ag.Tape() as tape:
        loss = (block(x, p) ** 2).sum()
    found = []
    for retain in (True, True, False):
        for leaf in (x, *p.values()):
            leaf.zero_grad()
        tape.backward(loss, retain=retain)
        found.append([leaf.grad.numpy().copy() for leaf in (x, *p.values())])
    for again in found[1:]:
        for a, b in zip(found[0], again, strict=True):
            numpy.testing.assert_array_equal(a, b)


def test_operands_are_read_only_until_the_sweep() -> None:
    x, p = parameters()
    with ag.Tape() as tape:
        y = block(x, p).sum()
    for leaf in (x, p["w"], p["g"]):
        with pytest.raises(ag.SavedArrayError):
            leaf.data[...] = 0
    tape.backward(y)
    p["w"].data[...] = 0


def test_a_learned_bias_gets_its_gradient() -> None:
    q, b = ag.Parameter(draws()(1, 3, 2)), ag.Parameter(numpy.zeros((3, 3)))
    with ag.Tape() as tape:
        y = (ops.attention(q, q, q, b) ** 2).sum()
    tape.backward(y)
    assert b.grad is not None and numpy.abs(b.grad.numpy()).max() > 1e-3


# -- layouts ---------------------------------------------------------------------------------------------------------


def test_norms_give_weights_partial_cotangents() -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(draws()(4, 3), {"dp": V}, requires_grad=True)
        w, b = (ag.tensor(draws(i)(3), {"dp": R}, requires_grad=True) for i in (1, 2))
        for f in (lambda: ops.layer_norm(x, w, b), lambda: ops.rms_norm(x, w)):
            x.zero_grad(), w.zero_grad()
            with ag.Tape() as tape:
                y = f()
            assert y.layout["dp"] is V
            tape.backward(y, ag.tensor(numpy.ones((4, 3)), {"dp": V}))
            assert x.grad.layout["dp"] is V and w.grad.layout["dp"] is P
        invariant = ag.tensor(numpy.ones(3), {"dp": I})
        with pytest.raises(ag.LayoutError, match="layer_norm"):
            ops.layer_norm(x, invariant, invariant)
        sharded = ag.tensor(draws()(4, 3), {"dp": Shard(1)})
        with pytest.raises(ag.LayoutError, match="mixes along dimension 1"):
            ops.layer_norm(sharded)
        rows = ag.tensor(draws()(4, 3), {"dp": Shard(0)})
        assert ops.layer_norm(rows, w, b).layout["dp"] == ops.rms_norm(rows, w).layout["dp"] == Shard(0)


def test_attention_shards_batches_heads_and_queries() -> None:
    def laid(label: Any, *shape: int) -> Any:
        return ag.tensor(draws()(*shape), {"tp": label}, requires_grad=True)

    with cc.Mesh(tp=1):
        for dim in (0, 1):  # batch, heads
            q, k = laid(Shard(dim), 2, 4, 3, 2), laid(Shard(dim), 2, 2, 3, 2)
            with ag.Tape() as tape:
                y = ops.attention(q, k, k, causal=True)
            assert y.layout["tp"] == Shard(dim)
            tape.backward(y, ag.tensor(numpy.ones(y.shape), y.layout.dual))
            assert q.grad.layout["tp"] == Shard(dim) and k.grad.layout["tp"] == Shard(dim)
        q, k = laid(Shard(2), 2, 2, 3, 2), laid(R, 2, 2, 3, 2)
        with ag.Tape() as tape:
            y = ops.attention(q, k, k)
        assert y.layout["tp"] == Shard(2)
        tape.backward(y, ag.tensor(numpy.ones(y.shape), y.layout.dual))
        assert q.grad.layout["tp"] == Shard(2) and k.grad.layout["tp"] is P
        for arguments in ((q, k, k, True), (k, q, q, False)):  # whose places count; keys
            with pytest.raises(ag.LayoutError, match="mixes along dimension 2"):
                ops.attention(*arguments[:3], causal=arguments[3])
        mask = ag.constant(numpy.eye(3, dtype=bool))
        assert ops.attention(k, k, laid(P, 2, 2, 3, 2), mask).layout["tp"] is P, "it is linear in v"
        packed = laid(Shard(3), 2, 5, 3, 4, 2)
        with ag.Tape() as tape:
            y = ops.self_attention(packed, causal=True)
        assert y.layout["tp"] == Shard(2)
        tape.backward(y, ag.tensor(numpy.ones(y.shape), y.layout.dual))
        assert packed.grad.layout["tp"] == Shard(3)
        with pytest.raises(ag.LayoutError, match="self_attention"):
            ops.self_attention(laid(Shard(1), 2, 5, 3, 4, 2))
        assert ops.self_attention(packed, ag.constant(numpy.eye(5, dtype=bool))).layout["tp"] == Shard(2)


def test_a_mean_over_sharded_rows_that_are_not_ignored_is_refused() -> None:
    labels = numpy.array([0, 1, 2, -1])
    with cc.Mesh(dp=1):
        x = ag.tensor(draws()(4, 3), {"dp": Shard(0)}, requires_grad=True)
        t = ag.tensor(labels, {"dp": Shard(0)})
        assert ops.cross_entropy(x, t, "sum", ignore_index=-1).layout["dp"] is P
        for options in ({"ignore_index": -1}, {"ignore_index": -1, "label_smoothing": 0.1}):
            with pytest.raises(ag.LayoutError, match="mean"):
                ops.cross_entropy(x, t, "mean", **options)
        with pytest.raises(ag.LayoutError, match="cross_entropy"):
            ops.cross_entropy(ag.tensor(draws()(4, 3), {"dp": Shard(1)}), t, ignore_index=-1)


def test_rotary_tables_are_cut_as_the_tokens_are() -> None:
    cos, sin = ops.rotary_angles(4, 6)
    with cc.Mesh(sp=1):
        x = ag.tensor(draws()(2, 4, 6), {"sp": Shard(1)}, requires_grad=True)
        whole = [ag.constant(t) for t in (cos, sin)]
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            ops.rotary(x, *whole)
        cut = [ag.tensor(t, {"sp": Shard(0)}) for t in (cos, sin)]
        with ag.Tape() as tape:
            y = ops.rotary(x, *cut)
        tape.backward(y, ag.tensor(numpy.ones((2, 4, 6)), y.layout.dual))
        assert y.layout["sp"] == x.grad.layout["sp"] == Shard(1)


# -- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f, words", [
    (lambda: ops.gelu(numpy.ones(2), "erf"), "'none' or 'tanh'"),
    (lambda: ops.layer_norm(numpy.ones((2, 3)), numpy.ones(2), numpy.ones(2)), r"weight of shape \(2,\)"),
    (lambda: ops.rms_norm(numpy.float64(1.0)), "0-dimensional"),
    (lambda: ops.attention(*[numpy.ones((2, 3))] * 3), "needed: .*heads"),
    (lambda: ops.attention(numpy.ones((3, 2, 2)), *[numpy.ones((2, 2, 2))] * 2), "divisor of heads"),
    (lambda: ops.attention(*[numpy.ones((1, 2, 2))] * 3, numpy.ones((3, 2))), "broadcasts to"),
    (lambda: ops.attention(*[numpy.ones((1, 2, 2))] * 3, numpy.ones((2, 2), int)), "booleans"),
    (lambda: ops.self_attention(numpy.ones((4, 2, 2, 2))), "tokens, 3, heads"),
    (lambda: ops.rotary(numpy.ones((2, 3)), numpy.ones((2, 1)), numpy.ones((2, 1))), "even width"),
    (lambda: ops.rotary(numpy.ones((2, 4)), numpy.ones((3, 2)), numpy.ones((3, 2))), "broadcasts to"),
    (lambda: ops.rotary(numpy.ones((2, 4)), ag.Parameter(numpy.ones(2)), numpy.ones(2)), "stop_gradient"),
    (lambda: ops.cross_entropy(numpy.ones((2, 4)), numpy.array([0, 4]), ignore_index=1), "0..3"),
    (lambda: ops.cross_entropy(numpy.ones((2, 4)), numpy.array([0, 1]), label_smoothing=2.0), "0 to 1"),
    (lambda: ops.cross_entropy(numpy.ones((2, 4)), numpy.array([0, 1]), "average"), "'mean'"),
    (lambda: ops.cross_entropy(numpy.ones((200, 400)), numpy.full(200, 400)), "0..399"),
])  # fmt: skip
def test_misuse_says_what_is_needed(f: Callable[[], Any], words: str) -> None:
    with pytest.raises(ag.RingtapeError, match=words):
        f()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("order", ["kernel", "composition"])
def test_layer_norm_of_constant_rows_is_the_bias(order: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of many equal numbers is rounded: its error used to be taken for a deviation, of up to 1."""
    if order == "composition":
        monkeypatch.setattr(importlib.import_module("autograd.ops.nn.fused"), "find", lambda *_: None)
    for width in (1, 3, 10, 257, 768, 1000):
        for value in (9999.7, -1e4, 0.1, 0.0, 1e-3):
            x = numpy.full((3, width), value, dtype)
            x[1] = numpy.arange(width) % 7  # another row beside them
            weight, bias = numpy.full(width, 2, dtype), numpy.full(width, 0.5, dtype)
            y = ops.layer_norm(x, weight, bias)
            assert (y[[0, 2]] == 0.5).all(), (width, value, abs(y[0] - 0.5).max())
            z = x[1].astype(float)
            right = (z - z.mean()) / numpy.sqrt(z.var() + 1e-5) * 2 + 0.5
            numpy.testing.assert_allclose(y[1], right, rtol=0, atol=1e-2 if dtype == "float16" else 1e-5)
