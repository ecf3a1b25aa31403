"""The dtypes of collectives: which are taken, which are converted, and what a sum gives.

One rule each, for every collective, form, world size, transport and algorithm: arrays in another byte order become
native, small integers and booleans are summed in 64 bits as by NumPy, and any other dtype is refused with its name and
a fix.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.arrays.device import dtype_named
from autograd.digests import bytes_of_values
from autograd.errors import DtypeError
from collectives import shared_arrays
from collectives.checks.sanitizer import digest_of
from parallel import DataParallel, LocalSGD

from ..launch import launch
from .dtype_cases import CASES, DTYPES, ORDERED, mistakes

PATHS = len(CASES) * len(DTYPES) - 3 * len(ORDERED) - 2 * len(ORDERED) + 6 * len(ORDERED)  # complex: 3 and 2 swapped


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_collective_and_dtype_as_in_numpy(ranks: int) -> None:
    for count, wrong in cc.run(mistakes, ranks=ranks):
        assert wrong == [] and count == PATHS


@pytest.mark.parametrize("library", ["here", "openmpi"])
def test_every_collective_and_dtype_over_mpi(library: str) -> None:
    mode = "ranks" if library == "here" else "first"  # which compares digests of the values, too
    outcome = launch("dtypes.py", 3, limit_s=120, on=library, RINGTAPE_CHECK=mode)
    assert outcome.code == 0, outcome
    assert outcome.out.count(f"{PATHS} cases, 0 wrong") == 3


def test_files_of_another_byte_order(tmp_path: Path) -> None:
    """An array in a mapped file, as FITS and IDX files have it."""
    rows = numpy.array([[1.0, -2.0], [3.5, 0.25], [2.0, 8.0]], ">f4")
    rows.tofile(tmp_path / "rows")
    found = numpy.memmap(tmp_path / "rows", ">f4", "r", shape=(3, 2))

    def program() -> Any:
        with cc.Mesh(dp=3):
            mine = found[cc.world().index]
            return cc.all_max(mine, "dp").numpy().tolist(), cc.all_min(mine, "dp").numpy().tolist()

    assert cc.run(program, ranks=3) == [([3.5, 8.0], [1.0, -2.0])] * 3
    makers = (
        ag.tensor, ag.Parameter, ag.constant, lambda x: ag.tensor([1.0, 2.0], dtype=x.dtype),
        lambda x: ag.constant([1.0, 2.0], dtype=x.dtype), lambda x: ag.tensor([1.0]).astype(x.dtype),
    )  # fmt: skip
    for make in makers:
        assert make(found).dtype == numpy.float32 and make(found).dtype.isnative


bfloat16 = pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="ml_dtypes is not installed")
ROWS = numpy.arange(6)


class WithUnit(numpy.ndarray):
    """An array with NumPy's protocol, as those with units have it."""

    def __array_ufunc__(self, *args: Any, **words: Any) -> Any:
        return NotImplemented


REFUSED = {  # an array of numbers that stands for other things, and what the error names besides the fix
    "dates": (ROWS.astype("M8[D]"), "dtype datetime64[D]"),
    "durations": (ROWS.astype("m8[s]"), "dtype timedelta64[s]"),
    "text": (ROWS.astype(str), "dtype <U"),
    "bytes": (ROWS.astype("S3"), "dtype |S3"),
    "objects": (ROWS.astype(object), "objects"),
    "records": (numpy.zeros(6, [("mass", "f4"), ("n", "i4")]), "dtype [('mass', '<f4')"),
    "untyped bytes": (ROWS.astype("i4").view("V4"), "dtype |V4"),
    "masked": (numpy.ma.masked_array(ROWS, ROWS % 2), "a masked array"),
    "masked rows": (list(numpy.ma.masked_array(ROWS, ROWS % 2).reshape(6, 1)), "a masked array"),
    "matrix": (numpy.asmatrix(ROWS), "a numpy.matrix"),
    "units": (ROWS.view(WithUnit), "WithUnit, which has a __array_ufunc__ of its own"),
}


def errors_of(name: str) -> dict[str, str]:
    """The text of the error of each collective for an array of a dtype that is refused, on this rank."""
    found = {}
    x, _ = REFUSED[name]
    with cc.Mesh(dp=-1):
        for case, (use, _) in CASES.items():
            if case != "broadcast(None)":  # None: other ranks wait
                with pytest.raises(DtypeError) as error:
                    use(x)
                found[case] = re.sub(r"\n  (at|raised) .*", "", str(error.value))
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_other_dtypes_are_refused_on_one_rank_as_on_three(name: str) -> None:
    alone, *several = cc.run(lambda: errors_of(name), ranks=1) + cc.run(lambda: errors_of(name), ranks=3)
    for each in several:
        assert {case: text for case, text in each.items() if text != alone.get(case)} == {}
    assert len(alone) == len(CASES) - 1
    for case, text in alone.items():
        assert REFUSED[name][1] in text and "needed: " in text and "fix: " in text, (case, text)


FIXES = {
    "dates": ["x.astype('int64')"],
    "durations": ["x.astype('int64')"],
    "text": ["x.astype(float)", "numpy.unique(x, return_inverse=True)[1]"],
    "bytes": ["x.astype(float)", "numpy.unique(x, return_inverse=True)[1]"],
    "objects": ["x.astype(float)"],
    "records": ["x['mass']"],
    "untyped bytes": ["numpy.frombuffer(x.tobytes(), 'u1').reshape(-1, 4)"],
    "masked": ["x.filled(0)", "numpy.ma.getmaskarray(x)"],
    "masked rows": [],
    "matrix": ["numpy.asarray(x)"],
    "units": ["numpy.asarray(x)"],
}


@pytest.mark.parametrize(("name", "fix"), [(name, fix) for name in REFUSED for fix in FIXES[name]])
def test_the_fixes_of_refused_dtypes(name: str, fix: str) -> None:
    x, _ = REFUSED[name]
    fixed = eval(fix, {"x": x, "numpy": numpy})

    def program() -> Any:
        with cc.Mesh(dp=3):
            with pytest.raises(DtypeError, match=re.escape(fix)):
                cc.all_reduce(x, "dp")
            total = cc.all_reduce(fixed, "dp")
            return total.numpy().astype(float).tolist()

    assert cc.run(program, ranks=3) == [(3.0 * fixed.astype(float)).tolist()] * 3
    if name not in ("records", "untyped bytes", "masked"):
        assert numpy.array_equal(fixed.ravel(), ROWS)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_on_one_rank_ends_the_others(name: str) -> None:
    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            return cc.all_reduce(REFUSED[name][0] if int(mesh.axis("dp").rank) == 1 else ROWS, "dp")

    with pytest.raises(Exception, match=re.escape(REFUSED[name][1])) as caught:
        cc.run(program, ranks=3)
    assert "rank 1" in str(caught.value) or "rank 1" in "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("name", ["masked", "units"])
def test_transports_refuse_arrays_that_are_not_plain(name: str) -> None:
    def program() -> None:
        with pytest.raises(DtypeError, match="a transport: .*" + REFUSED[name][1][-12:]):
            cc.world().all_reduce(REFUSED[name][0])

    cc.run(program, ranks=2)


def test_complex_numbers_have_no_order() -> None:
    for ranks in (1, 3):
        for use in (cc.all_max, cc.all_min):
            with pytest.raises(DtypeError, match="complex numbers have no order.*absolute value"):
                cc.run(lambda use=use: [use(numpy.ones(2, complex), "dp") for _ in [cc.Mesh(dp=-1).__enter__()]], ranks)


def test_a_mean_of_float16_does_not_overflow_and_has_a_gradient() -> None:
    def program() -> Any:
        with cc.Mesh(dp=3):
            x = ag.tensor(numpy.full(2, 6e4 - 64 * cc.world().index, "f2"), requires_grad=True)
            with ag.Tape() as tape:
                y = cc.mean(x, "dp", to=cc.I)
                loss = (y.astype("f4") * ag.constant(numpy.array([3.0, 6.0], "f4"))).sum()
            tape.backward(loss)
            assert x.grad is not None
            return y.numpy().tolist(), x.grad.numpy().tolist(), str(y.dtype), str(x.grad.dtype)

    assert cc.run(program, ranks=3) == [([59936.0] * 2, [1.0, 2.0], "float16", "float16")] * 3


def test_a_mean_of_integers_is_not_recorded() -> None:
    """It has no derivative, so backward must not communicate for it."""

    def program() -> Any:
        with cc.Mesh(dp=2):
            w = ag.Parameter(numpy.ones(1))
            with ag.Tape() as tape:
                rate = cc.mean(numpy.array([True, False]), "dp")
                loss = (cc.cast(w, "dp", to=cc.R) * ag.tensor([1.0 + cc.world().index])).sum()
                total = cc.all_reduce(loss, "dp", to=cc.I)
            names = [node[0].name for node in tape.recording.nodes if node is not None]
            tape.backward(total)
            return rate.numpy().tolist(), names.count("all_reduce")

    assert cc.run(program, ranks=2) == [([1.0, 0.0], 1)] * 2


@pytest.mark.parametrize("dtype", [numpy.dtype("f4").newbyteorder("S"), numpy.dtype("M8[s]"), numpy.dtype(object)])
def test_memory_that_the_ranks_share(dtype: Any) -> None:
    """Its dtype is chosen by the program, and cannot be converted."""
    with cc.Mesh(dp=1):
        with pytest.raises(DtypeError, match=f"{re.escape(str(dtype))} cannot be communicated.*\n  fix: "):
            shared_arrays.empty(3, dtype, "dp")
        with pytest.raises(DtypeError, match="fix: "):
            cc.world().all_reduce(numpy.zeros(3, dtype))


class Scaled(nn.Module):
    """A module made from the arrays of a file: a parameter, and buffers that are registered and assigned."""

    def __init__(self, by: int):
        self.weight = ag.Parameter(numpy.arange(3.0).astype(">f4"))
        self.register_buffer("scale", numpy.arange(3.0).astype(">f8") + by)
        self.register_buffer("count", numpy.array([1 + by], ">i2"))
        self.scale = numpy.arange(3.0).astype(">f8") + by

    def forward(self, x: Any) -> Any:
        return (x * self.weight * self.buffer("scale")).sum()


def test_modules_of_arrays_of_another_byte_order() -> None:
    """Their gradients and their buffers are summed over the ranks."""

    def program() -> Any:
        rank = cc.world().index
        with cc.Mesh(dp=3):
            model = DataParallel(Scaled(0), "dp")
            with ag.Tape() as tape:
                loss = cc.all_reduce(model(numpy.arange(3.0).astype(">f4") + rank), "dp", to=cc.I)
            tape.backward(loss)
            (gradient,) = [p.grad.numpy() for p in model.parameters()]
            module = Scaled(rank)
            with LocalSGD(module, "dp", optim.SGD(module.parameters(), lr=0.1)) as local:
                local.synchronise()
            return gradient.tolist(), numpy.asarray(module.scale).tolist(), numpy.asarray(module.count).tolist()

    assert cc.run(program, ranks=3) == [([0.0, 6.0, 18.0], [1.0, 2.0, 3.0], [2])] * 3


@pytest.mark.parametrize("dtype", ["g", "G"])
def test_equal_long_doubles_have_equal_digests(dtype: str) -> None:
    """The bytes between them are arbitrary; comparisons of copies, addends and parts do not read them."""
    one = numpy.arange(1, 4).astype(dtype) / 3
    other = one.copy()
    used = 10 if numpy.finfo("g").nmant == 63 else numpy.dtype("g").itemsize
    other.view(numpy.uint8).reshape(-1, numpy.dtype("g").itemsize)[:, used:] = 171
    assert (one == other).all() and digest_of(one) == digest_of(other) != digest_of(one * 2)
    assert bytes_of_values(one[::2]).tolist() == bytes_of_values(other[::2].copy()).tolist()


@bfloat16
def test_sums_of_bfloat16_are_made_in_float32_and_rounded_once() -> None:
    """256 and three ones, one a rank: rounded after each addition they would stay 256."""
    kind = dtype_named("bfloat16")

    def program() -> Any:
        group, rank = cc.world(), int(cc.world().index)
        x = numpy.full(3, 1 if rank else 256).astype(kind)
        with cc.Mesh(dp=4):
            bucket = shared_arrays.empty(3, kind, "dp")
            bucket[:] = x
            shared_arrays.all_reduce_in_place(bucket, "dp")
            found = cc.all_reduce(x, "dp"), cc.scan(x, "dp")
            return [each.numpy().astype(float)[0] for each in found], bucket.astype(float)[0], group.reduce(x, 3)

    for rank, (found, bucket, total) in enumerate(cc.run(program, 4)):
        right = float(numpy.asarray(259, kind))
        assert right == 260 and found[0] == bucket == right and (rank < 3 or found[1] == right)
        assert total is None if rank < 3 else total.astype(float).tolist() == [right] * 3


@bfloat16
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bfloat16_parameters_are_trained_in_parallel(zero: int) -> None:
    kind = dtype_named("bfloat16")

    def program() -> Any:
        with cc.Mesh(dp=-1):
            model = nn.Linear(8, 4, key=ag.random.Key(0)).to(dtype=kind)
            net = DataParallel(model, "dp", zero=zero)
            optimizer = optim.SGD(net.parameters(), lr=0.125)
            rows = numpy.random.default_rng(3).standard_normal((6, 8)).astype("f4").astype(kind)
            mine = numpy.array_split(rows, cc.world().size)[cc.world().index]
            for _ in range(2):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce((net(ag.tensor(mine)).astype("float32") ** 2).sum() / 6, "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
            return loss.item()

    (alone,), together = cc.run(program, 1), cc.run(program, 3)
    assert len(set(together)) == 1 and together[0] == pytest.approx(alone, rel=2e-2)


@bfloat16
def test_the_mean_of_bfloat16_is_that_of_float32() -> None:
    rows = numpy.random.default_rng(1).standard_normal((3, 5)).astype(dtype_named("bfloat16"))

    def program() -> Any:
        with cc.Mesh(dp=3):
            x = ag.tensor(rows[cc.world().index], requires_grad=True)
            with ag.Tape() as tape:
                y = cc.mean(x, "dp", to=cc.I)
                loss = (y.astype("float32") * ag.constant(numpy.arange(5.0, dtype="float32"))).sum()
            tape.backward(loss)
            return y.dtype.name, y.numpy().astype(float), x.grad.numpy().astype(float)

    for name, y, gradient in cc.run(program, ranks=3):
        wide = rows.astype(numpy.float32)
        assert name == "bfloat16"
        numpy.testing.assert_allclose(y, (wide.sum(0) / 3).astype(rows.dtype).astype(float), rtol=2**-8)
        numpy.testing.assert_allclose(gradient, numpy.arange(5) / 3, rtol=2**-8)
