"""The kernels of biases, of linear layers with an activation, of column sums and of casts."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import kernels, nn, ops
from autograd.arrays.runtime import Program
from autograd.kernels.cuda import biases, casts
from autograd.kernels.cuda.program import _KNOWN
from autograd.nn.substitution import interceptable, intercepted

from ...arrays import fake_device
from ...arrays.devices import DEVICES, Device
from . import on_cpu
from .test_rows import DTYPES, bits_are_bfloat16, shifted, to_dtype, to_float64

Array = Any

__all__ = ["bits_are_bfloat16"]

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
there = pytest.fixture(params=DEVICES)(lambda request: request.param)

SHAPES = [(1, 1), (5, 3), (33, 7), (100, 8), (67, 9), (40, 64), (9, 257), (70, 300), (3, 1000), (300, 64)]
OPERATIONS = {"linear_relu": ops.relu, "linear_gelu": ops.gelu, "linear_gelu_tanh": lambda x: ops.gelu(x, "tanh"),
              "linear_silu": ops.silu}  # fmt: skip


def draw(*shape: int, seed: int = 0) -> Array:
    return numpy.random.default_rng(seed).standard_normal(shape)


def rounded(x: Array, dtype: str) -> Array:
    return to_float64(to_dtype(x, dtype))


def value(name: str, x: Array) -> tuple[Array, Array]:
    """An activation and its derivative in float64."""
    leaf = ag.Parameter(x.copy())
    with ag.Tape() as tape:
        y = x * 1.0 if name == "Plain" else OPERATIONS[NAMES[name]](leaf)
    if name == "Plain":
        return y, numpy.ones_like(x)
    tape.backward(y, numpy.ones_like(x))
    return y.numpy(), leaf.grad.numpy()


NAMES = {"Relu": "linear_relu", "GeluErf": "linear_gelu", "GeluTanh": "linear_gelu_tanh", "Silu": "linear_silu"}


def close(found: Array, expected: Array, dtype: str, factor: float = 1) -> None:
    scale = max(1.0, float(abs(expected).max(initial=0)))
    numpy.testing.assert_allclose(to_float64(found), expected, rtol=0, atol=factor * DTYPES[dtype] * scale)


def check(there: Device, n: int, width: int, dtype: str, activation: str, shift: tuple[int, int] = (0, 0)) -> None:
    """Forward, and backward as kernels run it, against float64."""
    x, b, ct = (to_dtype(draw(*shape, seed=i), dtype) for i, shape in enumerate(((n, width), (width,), (n, width))))
    given = [shifted(there, each, shift[k % 2]) for k, each in enumerate((x, b, ct))]
    y = shifted(there, numpy.zeros_like(x), shift[1])
    biases.activated(given[0], given[1], y, activation)
    z = rounded(to_float64(x) + to_float64(b), dtype)
    right, slope = value(activation, z)
    close(there.values(y), right, dtype)
    g = shifted(there, numpy.zeros_like(x), shift[0])
    sums = biases.activated_backward(given[2], given[0], given[1], g, activation)
    close(there.values(g), to_float64(ct) * slope, dtype)
    expected = to_float64(there.values(g)).sum(0)
    close(there.values(sums), expected, dtype, factor=2 if dtype == "float32" else 1)
    for each, before in zip(given, (x, b, ct), strict=True):
        numpy.testing.assert_array_equal(there.values(each), before)
    again = biases.activated_backward(given[2], given[0], given[1], g, activation)
    numpy.testing.assert_array_equal(there.values(again), there.values(sums))


@pytest.mark.parametrize("activation", biases.ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_of_every_width(dtype: str, activation: str, there: Device) -> None:
    for n, width in SHAPES:
        check(there, n, width, dtype, activation)
    for n, width, shift in ((50, 64, (1, 0)), (50, 64, (0, 1)), (37, 33, (3, 1)), (9, 5, (1, 2)), (300, 8, (1, 1))):
        check(there, n, width, dtype, activation, shift)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_groups_of_rows(dtype: str, there: Device) -> None:
    for n, width in ((3000, 16), (1025, 40), (2111, 7)):
        check(there, n, width, dtype, "Relu")
        x = to_dtype(draw(n, width), dtype)
        found = biases.column_sums(there.move(x))
        close(there.values(found), to_float64(x).sum(0), dtype, factor=4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_column_sums_of_sixteen_bits_are_rounded_once(dtype: str, there: Device) -> None:
    """4,096 ones, to which a sum of 16 bits would add the last ones in vain."""
    found = biases.column_sums(there.move(to_dtype(numpy.ones((4096, 8)), dtype)))
    assert (to_float64(there.values(found)) == 4096).all()


def test_in_place_and_the_bits_of_separate_operations(there: Device) -> None:
    for dtype in DTYPES:
        x, b = to_dtype(draw(70, 24), dtype), to_dtype(draw(24, seed=1), dtype)
        moved = there.move(x)
        biases.activated(moved, there.move(b), moved, "Plain")
        right = to_dtype(to_float64(x) + to_float64(b), dtype)  # exact in float64, so rounded once
        numpy.testing.assert_array_equal(there.values(moved), right)
        whole = there.move(x)
        biases.activated(whole, there.move(b), whole, "Relu")
        numpy.testing.assert_array_equal(to_float64(there.values(whole)), numpy.maximum(to_float64(right), 0))


def test_empty_arrays_and_operands_that_do_not_fit(there: Device) -> None:
    for shape in ((0, 4), (3, 0)):
        x = there.move(draw(*shape))
        sums = biases.column_sums(x)
        assert there.values(sums).shape == shape[1:] and not there.values(sums).any()
        assert biases.add_bias(x, there.move(draw(shape[1]))) is x
    x = there.move(draw(4, 6))
    assert biases.add_bias(x.T, there.move(draw(4))) is None
    assert biases.add_bias(x, there.move(draw(1))) is None
    assert biases.add_bias(x, there.move(draw(6).astype("f4"))) is None
    assert biases.column_sums(there.move(numpy.arange(6).reshape(2, 3))) is None


def test_a_nan_stays_in_its_column(there: Device) -> None:
    x = draw(300, 12).astype("f4")
    x[7, 3] = numpy.nan
    sums = there.values(biases.column_sums(there.move(x)))
    assert numpy.array_equal(numpy.isnan(sums), numpy.arange(12) == 3)
    moved = there.move(x)
    biases.activated(moved, there.move(numpy.zeros(12, "f4")), moved, "Relu")
    assert numpy.array_equal(numpy.isnan(there.values(moved)), numpy.isnan(x))


# -- casts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source, target", casts._KINDS)
def test_casts(source: str, target: str, there: Device) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = {"bfloat16": ml_dtypes.bfloat16}
    source, target = (numpy.dtype(kinds.get(name, name)) for name in (source, target))
    special = [0.0, -0.0, 1.0, numpy.inf, -numpy.inf, numpy.nan, 65504, 65519, 65520, 1e-7, 6e-8, 3e-8, 1e30, 0.1]
    with numpy.errstate(all="ignore"):
        for n in (0, 1, 3, 7, 8, 9, 31, 1000, 5003):
            x = numpy.concatenate([special, draw(n)])[-n or len(special) + 1 :].astype(source)
            for by in (0, 1):
                moved = shifted(there, x, by)
                found = there.values(casts.cast(moved, target))
                assert found.dtype == target
                numpy.testing.assert_array_equal(found.astype(float), x.astype(target).astype(float))


def test_casts_that_have_no_kernel(there: Device) -> None:
    x = there.move(draw(4, 6))
    assert casts.cast(x, numpy.dtype("float16")) is None  # it would be rounded twice
    assert casts.cast(x.T, numpy.dtype("float32")) is None
    leaf = ag.Parameter(x)
    with ag.Tape() as tape:
        y = (leaf.astype("float32") * 2).astype("float16").astype("float64").sum()
    tape.backward(y)
    assert there.values(leaf.grad).dtype == float and (there.values(leaf.grad) == 2).all()


# -- operations and modules --------------------------------------------------------------------------------------------


def gradients(move: Any, values: Any, function: Any, xs: list[Array], ct: Array) -> list[Array]:
    leaves = [ag.Parameter(move(x)) for x in xs]
    with ag.Tape() as tape:
        y = function(*leaves)
    tape.backward(y, ag.tensor(move(ct)))
    return [values(y), *(values(leaf.grad) for leaf in leaves)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["linear", *OPERATIONS])
def test_operations(name: str, dtype: str, there: Device) -> None:
    """Beside separate operations on the device: the same bits in forward, and gradients up to rounding."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    kind = numpy.dtype(dtype) if dtype != "bfloat16" else ag.tensor([0.0]).astype("bfloat16").dtype
    f = OPERATIONS.get(name, lambda x: x)
    for lead in ((6,), (2, 5), (300,)):
        xs = [x.astype(kind) for x in (draw(*lead, 4), draw(4, 10, seed=1), draw(10, seed=2))]
        ct = draw(*lead, 10, seed=3).astype(kind)
        found = gradients(there.move, there.values, getattr(ops, name), xs, ct)
        apart = gradients(there.move, there.values, lambda x, w, b: f(ops.matmul(x, w) + b), xs, ct)
        assert all(x.dtype == kind for x in found)
        numpy.testing.assert_array_equal(found[0], apart[0])
        for a, b in zip(found[1:], apart[1:], strict=True):
            scale = max(1.0, float(abs(b.astype(float)).max()))
            numpy.testing.assert_allclose(a.astype(float), b.astype(float), rtol=0, atol=2 * DTYPES[dtype] * scale)


@pytest.mark.parametrize("name", OPERATIONS)
def test_second_order_and_replays(name: str, there: Device) -> None:
    """A recorded sweep runs the declared rules, and a tape that is kept gives the same gradients again."""
    xs = [draw(5, 4), draw(4, 3, seed=1), draw(3, seed=2)]
    found = []
    for move, values in ((numpy.asarray, lambda x: x.array), (there.move, there.values)):
        x, w, b = (ag.tensor(move(each), requires_grad=True) for each in xs)
        with ag.Tape() as tape:
            y = getattr(ops, name)(x, w, b)
        ct = ag.tensor(move(numpy.ones(y.shape)))
        tape.backward(y, ct, retain=True)
        once = values(w.grad).copy()
        tape.backward(y, ct)
        numpy.testing.assert_allclose(values(w.grad), 2 * once)

        def slope(w: Any, x: Any = x, b: Any = b) -> Any:
            inner = ag.grad(lambda w: (getattr(ops, name)(x.array, w, b.array) ** 2).sum())
            return (inner(w) ** 2).sum()

        found.append(values(ag.grad(slope)(ag.tensor(w.array))))
    numpy.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-8)


LAYERS = {
    "relu": lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 9), nn.GELU("tanh")),
    "silu, no bias": lambda: nn.Sequential(nn.Linear(6, 9, bias=False), nn.SiLU(), nn.Linear(9, 4), nn.SiLU()),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_turn(name: str, there: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Sequential` joins linear layers and activations on a device, and the gradients are those of the host."""
    x, found = draw(7, 6).astype("f4"), []
    for device in ("cpu", "cuda"):
        ag.random.seed(0)
        with there.as_cuda():
            model = LAYERS[name]().to(device=device)
            given = ag.tensor(x, device=device)
            with ag.Tape() as tape:
                loss = (model(given) ** 2).sum()
            names = [node[0].name for node in tape.recording.nodes if hasattr(node[0], "name")]
            tape.backward(loss)
            found.append([p.grad.array if device == "cpu" else there.values(p.grad) for p in model.parameters()])
    joined = sum(n.startswith("linear_") for n in names)
    assert joined == {"relu": 2, "gelu": 2, "silu, no bias": 1}[name], names
    for a, b in zip(*found, strict=True):
        numpy.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_an_activation_of_ones_own_is_called(there: Device) -> None:
    class Twice(nn.ReLU):
        def forward(self, input: Any) -> Any:
            return super().forward(input) * 2

    with there.as_cuda():
        model = nn.Sequential(nn.Linear(3, 4), Twice()).to(device="cuda")
        x = ag.tensor(draw(2, 3).astype("f4"), device="cuda")
        linear = model[0](x)
        numpy.testing.assert_array_equal(there.values(model(x)), 2 * numpy.maximum(there.values(linear), 0))


def test_the_launches_of_a_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel for each layer forward and one backward beside the products, and no function of CuPy between them."""
    seen: list[str] = []
    true, functions = fake_device.FakeRuntime.launch, fake_device.DeviceArray.__array_ufunc__

    def launch(self: Any, program: Program, kernel: str, *rest: Any) -> None:
        seen.append(kernel.partition("<")[0])
        true(self, program, kernel, *rest)

    def ufunc(self: Any, function: Any, *rest: Any, **options: Any) -> Any:
        if function is not numpy.matmul:
            seen.append(function.__name__)
        return functions(self, function, *rest, **options)

    there = Device()
    with there.as_cuda():
        model = LAYERS["relu"]().to(device="cuda")
        x, ct = (ag.tensor(draw(7, n).astype("f4"), device="cuda") for n in (6, 3))
        monkeypatch.setattr(fake_device.FakeRuntime, "launch", launch)
        monkeypatch.setattr(fake_device.DeviceArray, "__array_ufunc__", ufunc)
        with ag.Tape() as tape:
            y = model(x)
        tape.backward(y, ct)
    assert seen == ["add_bias"] * 3 + ["add_bias_backward"] * 3


def test_a_method_that_is_intercepted_is_called(there: Device) -> None:
    """As in ZeRO-3, which gathers the parameters of a layer in a call of it."""
    calls: list[Any] = []
    with there.as_cuda():
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(device="cuda")
        x = ag.tensor(draw(2, 3).astype("f4"), device="cuda")
        linear = model[0]
        interceptable(linear)
        with intercepted({id(linear): lambda x: calls.append(x) or type(linear).forward(linear, x)}):
            found = there.values(model(x))
        assert len(calls) == 1
        numpy.testing.assert_array_equal(there.values(model(x)), found)
        assert len(calls) == 1
        linear.forward = lambda x: calls.append(x) or type(linear).forward(linear, x)
        numpy.testing.assert_array_equal(there.values(model(x)), found)
        assert len(calls) == 2


# -- prepared launches -------------------------------------------------------------------------------------------------


def test_launches_are_made_once_for_each_shape(there: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    true = _KNOWN.prepare
    monkeypatch.setattr(type(_KNOWN), "prepare", lambda self, *given: made.append(given[0]) or true(*given))
    _KNOWN.clear()
    for _ in range(3):
        for shape in ((4, 8), (5, 8)):
            x = there.move(draw(*shape))
            kernel = kernels.find("activations.silu", [x])
            assert kernel is not None
            kernel.forward((x,), (), False)
            biases.column_sums(x)
    assert len(made) == 4


# -- planted faults ----------------------------------------------------------------------------------------------------

FAULTS = {
    "the last pack is left out": ("packs((width + N - 1) / N)", "packs(width / N)"),
    "rows of a block overwrite each other": ("sum = turn ? sum + own[i] : own[i];", "sum = own[i];"),
    "no barrier between turns": ("            }\n        __syncthreads();\n    }", "            }\n    }"),
    "the bias is not added": ("Packed z = plus<T>(x, b);", "Packed z = x;"),
    "the sum of the bias's addends before the derivative": ("sum[i] += wide(g.at[i]);", "sum[i] += 1;"),
    "rows after the last whole group": ("u < U && first + u * step < rows;", "u < 1 && first + u * step < rows;"),
    "packs at any address": ("width % N == 0 && row.fits(xs) && row.fits(ys)", "true"),
    "the rectifier of negative numbers": ("y = x > 0 || x != x ? x : 0;", "y = x;"),
    "groups of rows that overlap": ("first += gridDim.y * each", "first += each"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FAULTS[fault]
    text = biases.PROGRAM.text
    assert old in text
    only = tuple(kernel for kernel in biases.PROGRAM.kernels if "<float" in kernel)
    monkeypatch.setattr(biases, "PROGRAM", Program("planted_biases", text.replace(old, new), only))
    with pytest.raises((AssertionError, on_cpu.KernelError)):
        for n, width, shift in ((40, 8, (0, 0)), (150, 33, (0, 0)), (300, 8, (1, 1)), (1500, 8, (0, 0))):
            check(Device(), n, width, "float32", "Relu", shift)


ELEMENT_FAULTS = {
    "the last elements are left out": ("i < size; i += stride", "i < chunks * N; i += stride"),
    "unaligned packs": ("% 16 == 0;\n    Index chunks", "% 1 == 0;\n    Index chunks"),
    "a chunk too many": ("is_aligned ? size / N : 0", "is_aligned ? size / N + 1 : 0"),
}


@pytest.mark.parametrize("fault", ELEMENT_FAULTS)
def test_faults_planted_in_casts_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ELEMENT_FAULTS[fault]
    assert old in casts.PROGRAM.text
    only = ("cast<float, Half>",)
    monkeypatch.setattr(casts, "PROGRAM", Program("planted_casts", casts.PROGRAM.text.replace(old, new), only))
    there = Device()
    with pytest.raises((AssertionError, on_cpu.KernelError)):
        for n, by in ((32, 0), (37, 0), (64, 1)):
            x = draw(n).astype("f4")
            found = there.values(casts.cast(shifted(there, x, by), numpy.dtype("float16")))
            numpy.testing.assert_array_equal(found, x.astype("float16"))
