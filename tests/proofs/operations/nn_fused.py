"""Cases of fused operations: GELU and SiLU, layer and RMS norm, attention, rotary position embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy

from autograd import ops
from autograd.engine.primitive import registry
from autograd.ops.nn.dropout import Mask
from autograd.random.philox import Source

from .base import Array, case, normal, real_only, strided
from .nn_softmax import numpy_softmax

_erf = numpy.vectorize(math.erf, otypes=[float])


def numpy_gelu(x: Array, form: str) -> Array:
    if form == "tanh":
        return x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return (x * (1 + _erf(x / math.sqrt(2))) / 2).astype(x.dtype)


def numpy_cdf(x: Array) -> Array:
    return ((1 + _erf(x / math.sqrt(2))) / 2).astype(x.dtype)


def numpy_silu(x: Array) -> Array:
    return x / (1 + numpy.exp(-x))


for _shape in ((), (3,), (2, 3), (0,), (2, 0, 3)):
    for _form in ("none", "tanh"):
        case("gelu", f"{_form} {_shape}", lambda x, f=_form: ops.gelu(x, f), lambda x, f=_form: numpy_gelu(x, f),
             normal(*_shape))  # fmt: skip
    case("silu", f"{_shape}", ops.silu, numpy_silu, normal(*_shape))
    case("normal_cdf", f"{_shape}", registry["normal_cdf"], numpy_cdf, normal(*_shape))
case("gelu", "strided", lambda x: ops.gelu(x, "tanh"), lambda x: numpy_gelu(x, "tanh"), strided(normal(2, 3)))
case("gelu", "erf, strided", ops.gelu, lambda x: numpy_gelu(x, "none"), strided(normal(2, 3)))
case("silu", "strided", ops.silu, numpy_silu, strided(normal(2, 3)))
case("normal_cdf", "strided", registry["normal_cdf"], numpy_cdf, strided(normal(2, 3)))


_LINEAR = {
    "linear_relu": lambda z: numpy.maximum(z, 0), "linear_gelu": lambda z: numpy_gelu(z, "none"),
    "linear_gelu_tanh": lambda z: numpy_gelu(z, "tanh"), "linear_silu": numpy_silu,
}  # fmt: skip
for _name, _f in _LINEAR.items():
    for _lead in ((2, 3), (2, 1, 3), (0, 2), (2, 0), ()):
        case(_name, f"{_lead} rows", getattr(ops, _name), lambda x, w, b, f=_f: f(x @ w + b), normal(*_lead, 4),
             normal(4, 3), normal(3))  # fmt: skip
    case(_name, "strided", getattr(ops, _name), lambda x, w, b, f=_f: f(x @ w + b), strided(normal(2, 3, 4)),
         strided(normal(4, 3)), normal(3))  # fmt: skip


def _dropout_mask(x: Array) -> Mask:
    whole = tuple((0, n) for n in x.shape)
    return Mask(Source((3, 4), tuple(x.shape), ((whole, whole),)), 1 << 52, 2.0)


for _shape in ((), (3,), (2, 3), (0,)):
    case("dropout", f"{_shape}", lambda x: registry["dropout"](x, options=(_dropout_mask(x),)),
         lambda x: x * _dropout_mask(x).factors(x), normal(*_shape))  # fmt: skip


def numpy_layer_norm(x: Array, w: Array = 1, b: Array = 0, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / numpy.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def numpy_rms_norm(x: Array, w: Array, eps: float = 1e-6) -> Array:
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


for _shape in ((3,), (2, 3), (2, 2, 3), (0, 3), (2, 1)):
    _n = _shape[-1:]
    case("layer_norm", f"{_shape}", ops.layer_norm, numpy_layer_norm, normal(*_shape), normal(*_n), normal(*_n))
    case("normalize", f"{_shape}", ops.layer_norm, numpy_layer_norm, normal(*_shape))
    case("rms_norm", f"{_shape}", lambda x, w: ops.rms_norm(x, w, 0.1), lambda x, w: numpy_rms_norm(x, w, 0.1),
         normal(*_shape), normal(*_n))  # fmt: skip
case("layer_norm", "strided", ops.layer_norm, numpy_layer_norm, strided(normal(2, 3)), normal(3), normal(3))
case("layer_norm", "with an array", lambda w, b: ops.layer_norm(numpy.ones((2, 3)), w, b),
     lambda w, b: numpy_layer_norm(numpy.ones((2, 3)), w, b), normal(3), normal(3))  # fmt: skip
case("normalize", "and a weight", lambda x, w: ops.layer_norm(x, w, eps=0.1),
     lambda x, w: numpy_layer_norm(x, w, eps=0.1), normal(2, 3), normal(3))  # fmt: skip
case("rms_norm", "strided", lambda x, w: ops.rms_norm(x, w, 1e-6), numpy_rms_norm, strided(normal(2, 3)), normal(3))
case("rms_norm", "without weight", lambda x: ops.rms_norm(x, eps=1e-6), lambda x: numpy_rms_norm(x, 1), normal(2, 3))


def numpy_attention(
    q: Array, k: Array, v: Array, mask: Array = None, causal: bool = False, scale: float | None = None
) -> Array:
    group = q.shape[-3] // max(k.shape[-3], 1)
    k, v = (numpy.repeat(x, group, axis=-3) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        t, s = scores.shape[-2:]
        scores = numpy.where(numpy.tri(t, s, s - t, bool), scores, -1e30)
    if mask is not None:
        scores = numpy.where(mask, scores, -1e30) if mask.dtype == bool else scores + mask.astype(scores.dtype)
    return numpy_softmax(scores - scores.max(-1, keepdims=True)) @ v


_SEEN = numpy.array([[True, False, True], [False, True, True]])
_ADDED = numpy.array([[0.5, -1.0, 0.0], [-numpy.inf, 2.0, 1.0]])
for _label, _q, _k, _v, _options in (
    ("", (2, 2, 3), (2, 4, 3), (2, 4, 5), {}),
    ("of batches, causal", (2, 1, 3, 2), (2, 1, 3, 2), (2, 1, 3, 2), {"causal": True}),
    ("causal, fewer queries than keys", (1, 2, 2), (1, 4, 2), (1, 4, 2), {"causal": True}),
    ("grouped", (4, 2, 2), (2, 3, 2), (2, 3, 2), {"scale": 0.3}),
    ("grouped, causal", (4, 3, 2), (1, 3, 2), (1, 3, 2), {"causal": True}),
    ("of nothing", (0, 2, 2), (0, 3, 2), (0, 3, 2), {}),
    ("without queries", (1, 0, 2), (1, 3, 2), (1, 3, 2), {}),
):
    case("attention", _label, lambda q, k, v, o=_options: ops.attention(q, k, v, **o),
         lambda q, k, v, o=_options: numpy_attention(q, k, v, **o), normal(*_q), normal(*_k), normal(*_v))  # fmt: skip
case("attention", "strided", lambda q, k, v: ops.attention(q, k, v, causal=True),
     lambda q, k, v: numpy_attention(q, k, v, causal=True), *(strided(normal(2, 2, 3)) for _ in range(3)))  # fmt: skip
case("attention", "a learned bias", lambda q, b: ops.attention(q, q, q, b),
     lambda q, b: numpy_attention(q, q, q, b), normal(2, 3, 2), normal(3, 3))  # fmt: skip
for _label, _mask in (("booleans", _SEEN), ("numbers", _ADDED)):
    case("masked_attention", _label, lambda q, k, v, m=_mask: ops.attention(q, k, v, m),
         lambda q, k, v, m=_mask: numpy_attention(q, k, v, m), normal(2, 2, 2), normal(2, 3, 2),
         normal(2, 3, 2))  # fmt: skip
case("masked_attention", "causal too", lambda q: ops.attention(q, q, q, numpy.eye(3, dtype=bool), causal=True),
     lambda q: numpy_attention(q, q, q, numpy.eye(3, dtype=bool), True), normal(1, 3, 2))  # fmt: skip


def numpy_self_attention(x: Array, *args: Any, **options: Any) -> Array:
    q, k, v = (x[..., i, :, :].swapaxes(-2, -3) for i in range(3))
    return numpy_attention(q, k, v, *args, **options).swapaxes(-2, -3)


for _qkv in ((3, 3, 2, 2), (2, 2, 3, 1, 2), (0, 2, 3, 1, 2)):
    for _causal in (False, True):
        case("self_attention", f"{_qkv} causal={_causal}", lambda x, c=_causal: ops.self_attention(x, causal=c),
             lambda x, c=_causal: numpy_self_attention(x, causal=c), normal(*_qkv))  # fmt: skip
case("self_attention", "strided", ops.self_attention, numpy_self_attention, strided(normal(2, 3, 2, 2)))
case("masked_self_attention", "booleans", lambda x: ops.self_attention(x, numpy.eye(2, dtype=bool)),
     lambda x: numpy_self_attention(x, numpy.eye(2, dtype=bool)), normal(2, 3, 2, 2))  # fmt: skip


def numpy_rotary(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    pairs = numpy.stack([a * cos - b * sin, a * sin + b * cos], -1 if interleaved else -2)
    return pairs.reshape(x.shape).astype(x.dtype)


for _shape in ((3, 4), (2, 3, 2), (0, 2)):
    for _pairs in (False, True):
        _cos, _sin = ops.rotary_angles(_shape[-2], _shape[-1], base=3.0)
        case("rotary", f"{_shape} interleaved={_pairs}",
             lambda x, c=_cos, s=_sin, i=_pairs: ops.rotary(x, c.astype(x.dtype), s.astype(x.dtype), i),
             lambda x, c=_cos, s=_sin, i=_pairs: numpy_rotary(x, c, s, i), normal(*_shape))  # fmt: skip

def _numpy_rows_of_groups(x: Array, counts: tuple[int, ...]) -> list[Array]:
    return numpy.split(x, numpy.cumsum(counts)[:-1]) if counts else []


def numpy_grouped_matmul(x: Array, w: Array, counts: tuple[int, ...]) -> Array:
    parts = [rows @ w[g] for g, rows in enumerate(_numpy_rows_of_groups(x, counts))]
    return numpy.concatenate([*parts, numpy.zeros((0, w.shape[2]), numpy.result_type(x, w))])


def numpy_grouped_outer(x: Array, y: Array, counts: tuple[int, ...]) -> Array:
    both = zip(_numpy_rows_of_groups(x, counts), _numpy_rows_of_groups(y, counts), strict=True)
    return numpy.stack([a.T @ b for a, b in both])


def numpy_grouped_linear(x: Array, w: Array, b: Array, counts: tuple[int, ...]) -> Array:
    return numpy_grouped_matmul(x, w, counts) + numpy.repeat(b, counts, axis=0)


for _label, _counts in (
    ("", (2, 1, 3)),
    ("groups without rows", (0, 3, 0, 0, 1, 0)),
    ("one group", (4,)),
    ("all rows in one group", (0, 5, 0)),
    ("no rows", (0, 0)),
):
    _total, _g, _at = sum(_counts), len(_counts), numpy.array(_counts)
    case("grouped_linear", _label, lambda x, w, b, c=_at: ops.grouped_linear(x, w, b, c),
         lambda x, w, b, c=_counts: numpy_grouped_linear(x, w, b, c), normal(_total, 2), normal(_g, 2, 3),
         normal(_g, 3))  # fmt: skip
    case("grouped_matmul", _label, lambda x, w, c=_at: ops.grouped_linear(x, w, None, c),
         lambda x, w, c=_counts: numpy_grouped_matmul(x, w, c), normal(_total, 2), normal(_g, 2, 3))  # fmt: skip
    case("grouped_outer", _label, lambda x, y, c=_at: registry["grouped_outer"](x, y, c),
         lambda x, y, c=_counts: numpy_grouped_outer(x, y, c), normal(_total, 2), normal(_total, 3))  # fmt: skip
case("grouped_linear", "strided", lambda x, w, b: ops.grouped_linear(x, w, b, numpy.array([1, 0, 2])),
     lambda x, w, b: numpy_grouped_linear(x, w, b, (1, 0, 2)), strided(normal(3, 2)), strided(normal(3, 2, 2)),
     strided(normal(3, 2)))  # fmt: skip

real_only("attention", "masked_attention", "self_attention", "masked_self_attention",
          reason="the maximum of the scores is needed, and complex numbers have no order")  # fmt: skip
real_only("layer_norm", "normalize", reason="the variance is that of real numbers; NumPy's uses absolute values")
real_only(*_LINEAR, reason="the activations are of real numbers")
real_only("gelu", "normal_cdf", reason="the error function is computed for real numbers only")
