"""Scans, extremes, products, halos, one-sided reads and barriers: what the registry's cases leave open.

Refusals with their texts, three dimensions, derivatives of third order, and, on threads and under mpiexec alike, the
checks of `programs/primitives_program.py` (float16 rounded once, nan and integers, results that nobody uses).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.errors import CollectiveMismatch, DtypeError, LayoutError, MeshError, ShapeError
from collectives import I, Mesh, P, R, Shard, V
from collectives.inspect.observing import observing
from collectives.testing import Case, Setting, check
from collectives.testing.primitive_cases import halo_case, halo_reference, products, windows
from collectives.transports.mpi.windows import _added_up
from collectives.transports.protocol import Communicator, Request

from ..launch import launch
from .programs.primitives_program import run_all

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_on_threads(ranks: int) -> None:
    assert cc.run(run_all, ranks) == [3] * ranks


@pytest.mark.parametrize("ranks", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_under_mpiexec(ranks: int) -> None:
    outcome = launch("primitives_program.py", ranks, limit_s=50, RINGTAPE_CHECK="always")
    assert not outcome.is_late and outcome.code == 0, f"{outcome.out}\n{outcome.err}"
    assert f"3 checks on {ranks} ranks" in outcome.out


def refusals(program: Callable[[], Any], kind: type[Exception], ranks: int = 3) -> list[str]:
    """What each rank was told; every one must be."""
    def caught() -> str:
        with pytest.raises(kind) as error:
            program()
        return str(error.value)

    return cc.run(caught, ranks)


# -- nonlinear ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [cc.all_max, cc.all_min, cc.all_prod])
def test_nonlinear_of_a_sum_not_taken_is_refused(call: Any) -> None:
    """On the axis itself and on any other; also where every axis has one rank."""
    with Mesh(a=1, b=1):
        for axis in ("a", "b"):
            x = ag.tensor([1.0], layout={axis: P})
            with pytest.raises(LayoutError, match=f"axis '{axis}'.*Partial") as error:
                call(x, "a")
            assert "all_reduce" in str(error.value) and "test_primitives.py" in str(error.value)
        for label in (R, I):
            with pytest.raises(LayoutError, match=f"leave {call.__name__} out"):
                call(ag.tensor([1.0], layout={"a": label}), "a")
        with pytest.raises(LayoutError, match="to=R or to=I"):
            call(ag.tensor([1.0]), "a", to=V)


def test_complex_numbers_have_no_order() -> None:
    with Mesh(a=1):
        for call in (cc.all_max, cc.all_min):
            with pytest.raises(DtypeError, match="complex numbers have no order"):
                call(np.ones(2, complex), "a")


def test_ties_are_shared_equally_like_those_of_a_local_max() -> None:
    """The gradient of a maximum over the ranks is that of a maximum over the rows of all their values."""
    rng = np.random.default_rng(5)
    values, cotangent = rng.integers(0, 3, (5, 40)).astype(float), rng.standard_normal(40)

    def program() -> list[np.ndarray]:
        with Mesh(a=5):
            found = []
            for call in (cc.all_max, cc.all_min):
                x = ag.tensor(values[cc.world().rank], requires_grad=True)
                with ag.Tape() as tape:
                    loss = (call(x, "a", to=I) * ag.constant(cotangent)).sum()
                tape.backward(loss)
                found.append(x.grad.numpy())
            return found

    got = cc.run(program, 5)
    for k, name in enumerate(("max", "min")):
        local = ag.grad(lambda x, name=name: (getattr(anp, name)(x, axis=0) * cotangent).sum())(values)
        assert np.allclose(np.stack([g[k] for g in got]), local, rtol=1e-15)


def test_the_third_derivative_of_a_product() -> None:
    """d3/dx3 of a product along a line, with zeros among the factors, against the polynomial's coefficients."""
    point, direction = np.array([0.0, 2.0, 0.0, -1.5]), np.array([1.0, 0.5, -2.0, 3.0])
    coefficients = np.poly1d([1.0])
    for x, v in zip(point, direction, strict=True):
        coefficients = coefficients * np.poly1d([v, x])
    want = 6 * coefficients.coef[::-1][3]

    def program() -> float:
        with Mesh(a=4):
            rank = cc.world().rank
            v = ag.tensor(direction[rank])

            def along(f: Any) -> Any:
                return lambda x: cc.all_reduce(v * ag.grad(f)(x), "a", to=I)

            value: Any = lambda x: cc.all_prod(x, "a", to=I)
            return float(along(along(along(value)))(ag.tensor(point[rank])))

    assert np.allclose(cc.run(program, 4), want, rtol=1e-12)


# -- halo ----------------------------------------------------------------------------------------------------------


def test_three_dimensions_with_all_corners() -> None:
    """2 x 2 x 2 ranks, every border another width, two of them periodic; as V, and as parts of one value."""
    parts = [[3, 2], [3, 2], [2, 2]]  # by the array_split rule, so that they can be parts of one value
    widths, wraps, dims = [(1, 2), (2, 1), (1, 1)], [True, False, True], [0, 2, 1]
    case = halo_case(
        "3-d", V, parts, widths, wraps, dims, (), np.float64,
        lambda x, on: cc.halo_exchange(x, on, widths, dims, periodic=wraps),
    )  # fmt: skip
    assert check([(case, Setting({"a": 2, "b": 2, "c": 2}, ["a", "b", "c"]))], 8) == []

    own = windows(parts, [(0, 0)] * 3, [False] * 3)
    forward, _ = halo_reference(windows(parts, widths, wraps), own, dims)
    cells = np.random.default_rng(1).standard_normal(101)
    locals_ = [np.moveaxis(cells[numbers], range(3), dims) for numbers in own]
    labels = {"a": Shard(0), "b": Shard(2), "c": Shard(1)}

    def program() -> np.ndarray:
        with Mesh(a=2, b=2, c=2):
            x = ag.tensor(locals_[cc.world().rank], layout=labels, global_shape=(5, 4, 5))
            y = cc.halo_exchange(x, ("a", "b", "c"), widths, dims, periodic=wraps)
            assert y.layout == {"a": V, "b": V, "c": V}
            return y.numpy()

    for got, want in zip(cc.run(program, 8), forward(locals_), strict=True):
        assert np.array_equal(got, want)


def test_a_width_larger_than_the_neighbours_part() -> None:
    """The error names axis and rank, on every rank, before anything is sent."""
    def program(width: Any, periodic: bool) -> Any:
        with Mesh(a=3):
            n = [4, 1, 5][cc.world().rank]
            return cc.halo_exchange(ag.tensor(np.zeros((2, n))), "a", width, 1, periodic=periodic)

    for text in refusals(lambda: program(2, False), ShapeError):
        assert "axis 'a', dim=1" in text and "rank 0 of the axis needs 2 cells of rank 1" in text
        assert "holds 1 along dimension 1" in text and "[4, 1, 5]" in text and "fix: " in text
    for text in refusals(lambda: program((0, 5), True), ShapeError):
        assert "rank 0 of the axis needs 5 cells of rank 1, the one after it" in text
    for text in refusals(lambda: program((6, 0), True), ShapeError):  # around the border
        assert "rank 0 of the axis needs 6 cells of rank 2, the one before it" in text
    assert [y.shape for y in cc.run(lambda: program((1, 0), False), 3)] == [(2, 5), (2, 2), (2, 6)]


def test_what_a_halo_refuses() -> None:
    with Mesh(a=1, b=1):
        x = np.zeros((4, 4))
        with pytest.raises(LayoutError, match="parts lie along dimension 0, not along 1"):
            cc.halo_exchange(ag.tensor(x, layout={"a": Shard(0)}), "a", 1, 1)
        with pytest.raises(LayoutError, match=re.escape("axis=('a', 'b') for this dimension")):
            cc.halo_exchange(ag.tensor(x, layout={"a": Shard(0), "b": Shard(0)}), "b", 1, 0)
        with pytest.raises(LayoutError, match="Partial"):
            cc.halo_exchange(ag.tensor(x, layout={"a": P}), "a", 1)
        with pytest.raises(MeshError, match="twice"):
            cc.halo_exchange(x, ("a", "a"), 1, (0, 1))
        with pytest.raises(ShapeError, match="twice"):
            cc.halo_exchange(x, ("a", "b"), 1, (0, -2))
        with pytest.raises(ShapeError, match="one of each per dimension"):
            cc.halo_exchange(x, ("a", "b"), [1], (0, 1))
        for width in (-1, 1.5, (1, 2, 3), True):
            with pytest.raises(ShapeError, match="widths="):
                cc.halo_exchange(x, "a", width)


def test_a_tuple_of_axes_cuts_one_dimension() -> None:
    def program() -> np.ndarray:
        with Mesh(a=2, b=2):
            x = ag.tensor([float(cc.world().rank)], layout={"a": Shard(0), "b": Shard(0)})
            return cc.halo_exchange(x, ("a", "b"), 1, periodic=True).numpy()

    assert [y.tolist() for y in cc.run(program, 4)] == [[3, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 0]]


# -- one-sided -----------------------------------------------------------------------------------------------------


def test_indices_mean_what_numpy_means() -> None:
    part = np.arange(60.0).reshape(3, 4, 5)
    keys: list[Any] = [
        ..., (), 1, -1, slice(1, None), (..., -2), (1, ..., slice(None, None, 2)), (slice(None), 2), (0, 1, 2),
        (slice(3, 0, -1), slice(None), slice(1, 3)), slice(5, 9), np.array([2, 0, 0]), [[0, -1], [2, 2]],
        np.zeros((0,), int), (np.int64(1), slice(0, 4)),
    ]  # fmt: skip

    def program() -> None:
        with Mesh(a=3):
            x = ag.tensor(part + 100 * cc.world().rank)
            for key in keys:
                assert np.array_equal(cc.get(x, "a", 2, key).numpy(), (part + 200)[key]), key
            assert cc.get(ag.tensor(1.0 * cc.world().rank), "a", 1).numpy() == 1.0

    cc.run(program, 3)


def test_what_a_read_refuses() -> None:
    with Mesh(a=1, b=1) as mesh:
        x = ag.tensor(np.zeros((3, 2)))
        with pytest.raises(MeshError, match="source=1 was given; axis 'a' has ranks 0 to 0"):
            cc.get(x, "a", 1)
        with pytest.raises(MeshError, match="a source=2"):
            cc.get(x, "a", np.array([0, 2]), np.array([0, 0]))
        with pytest.raises(ShapeError, match="index 3 was given for a dimension of extent 3; rank 0 holds"):
            cc.get(x, "a", 0, 3)
        with pytest.raises(ShapeError, match="index -4"):
            cc.get(x, "a", 0, np.array([0, -4]))
        for index in (1.5, "a", (0, np.array([1])), (0, 0, 0), (..., ...), np.array([True, False, True])):
            with pytest.raises(ShapeError, match="get: "):
                cc.get(x, "a", 0, index)
        for label in (R, I, P):
            with pytest.raises(LayoutError, match="axis 'a'"):
                cc.get(ag.tensor([1.0], layout={"a": label}), "a", 0)
        for label in (I, P):  # each rank of b would read something else of one value
            with pytest.raises(LayoutError, match="differs between the ranks of axis 'b'.*"):
                cc.get(ag.tensor([1.0], layout={"b": label}), "a", 0, mesh.axis("b").rank)
        y = cc.get(ag.tensor([1.0], layout={"b": R}), "a", 0, mesh.axis("b").rank)
        assert y.layout == {"a": V, "b": V}


def test_copies_of_which_each_rank_reads_another_place() -> None:
    """Along b the value is one (R); each rank of b reads its own part, so the gradient is the addends' sum."""
    def program() -> tuple[Any, Any]:
        with Mesh(a=2, b=3) as mesh:
            b = mesh.axis("b").rank
            x = ag.tensor(np.arange(3.0) + 10 * int(mesh.axis("a").rank), layout={"b": R}, requires_grad=True)
            with ag.Tape() as tape:
                y = cc.get(x, "a", (mesh.axis("a").rank + 1) % 2, b)
                loss = cc.all_reduce(y * (1.0 + b), ("a", "b"), to=I)
            tape.backward(loss)
            return float(y), cc.all_reduce(x.grad, "b").numpy().tolist()

    results = cc.run(program, 6)
    assert [y for y, _ in results] == [10.0, 11.0, 12.0, 0.0, 1.0, 2.0]
    assert all(g == [1.0, 2.0, 3.0] for _, g in results)


def test_no_element_is_named_twice_in_one_accumulate() -> None:
    """MPI forbids that in a target's datatype, though MPICH adds it up: such additions are made beforehand."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        counts = rng.integers(1, 5, rng.integers(1, 7))
        there = rng.integers(0, 20, len(counts))
        here = np.cumsum(counts) - counts
        values = rng.integers(-9, 9, counts.sum()).astype(float)
        want, got, named = np.zeros(25), np.zeros(25), np.zeros(25, int)
        for start, at, n in zip(here, there, counts, strict=True):
            want[at : at + n] += values[start : start + n]
        given, here, there, counts = _added_up(values, here, there, counts)
        for start, at, n in zip(here, there, counts, strict=True):
            got[at : at + n] += given[start : start + n]
            named[at : at + n] += 1
        assert np.array_equal(got, want) and named.max() == 1


# -- barrier -------------------------------------------------------------------------------------------------------


def test_a_barrier_is_met_again_in_sweeps() -> None:
    """Once forward, once in a backward sweep, and not at all under no_grad's tape; on ranks without a leaf too."""
    met: list[int] = []

    def observer(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if request.call == "barrier":
            met.append(group.rank)
        return run()

    def program() -> None:
        with Mesh(a=3), observing(observer):
            x = ag.tensor([1.0], requires_grad=cc.world().rank == 0)
            with ag.Tape() as tape:
                y = x * 2.0
                cc.barrier("a")
                with ag.no_grad():
                    cc.barrier("a")
            tape.backward([y], [np.ones(1)])

    cc.run(program, 3)
    assert sorted(met) == [0] * 3 + [1] * 3 + [2] * 3


def test_a_barrier_that_one_rank_does_not_meet() -> None:
    def program() -> Any:
        with Mesh(a=3):
            x = ag.tensor([1.0])
            return cc.barrier("a") if cc.world().rank != 1 else cc.scan(x, "a")

    for text in refusals(program, CollectiveMismatch):
        assert "barrier(axis='a')" in text and "scan(axis='a'" in text


def test_what_ranks_compare() -> None:
    """Another direction, border or collective on one rank is a mismatch, not another number."""
    def on_rank_1(usual: Any, unusual: Any) -> Callable[[], Any]:
        def program() -> Any:
            with Mesh(a=3):
                return (unusual if cc.world().rank == 1 else usual)(ag.tensor([1.0, 2.0]))

        return program

    table: list[tuple[Any, Any]] = [
        (lambda x: cc.scan(x, "a"), lambda x: cc.exscan(x, "a")),
        (lambda x: cc.all_max(x, "a"), lambda x: cc.all_min(x, "a")),
        (lambda x: cc.all_prod(x, "a"), lambda x: cc.all_prod(x, "a", to=I)),
        (lambda x: cc.halo_exchange(x, "a", 1), lambda x: cc.halo_exchange(x, "a", 1, periodic=True)),
        (lambda x: cc.halo_exchange(x, "a", 1), lambda x: cc.halo_exchange(x, "a", (1, 2))),
    ]
    for usual, unusual in table:
        for text in refusals(on_rank_1(usual, unusual), CollectiveMismatch):
            assert "rank 1" in text


def test_a_case_of_a_nonlinear_collective_can_fail() -> None:
    """The dense side is not taken from what it checks: a wrong `bend` is found, by the second order alone."""
    setting = Setting({"a": 3}, ["a"])
    case = next(products(3, 2))
    assert isinstance(case, Case) and case.bend is not None
    assert check([(case, setting)], 3) == []
    flat = replace(case, bend=None)
    assert {failure.check for failure in check([(flat, setting)], 3)} == {"second", "mixed"}


def test_on_a_device() -> None:
    """Values, gradients and tangents stay on the operand's device, and are those of the host."""
    from tests.autograd.arrays.fake_device import DeviceArray, from_host

    calls: list[Any] = [
        lambda x: cc.scan(x, "a"), lambda x: cc.exscan(x, "a"), lambda x: cc.all_max(x, "a", to=I),
        lambda x: cc.all_min(x, "a", to=I), lambda x: cc.all_prod(x, "a", to=I),
        lambda x: cc.halo_exchange(x, "a", (1, 2), 1, periodic=True), lambda x: cc.get(x, "a", 1, np.array([1, 0, 1])),
    ]  # fmt: skip

    def program() -> None:
        rank = cc.world().rank
        values, direction = np.random.default_rng([7, rank]).standard_normal((2, 2, 3))
        with Mesh(a=3):
            for call in calls:
                def objective(x: Any, call: Any = call) -> Any:
                    y = call(x)
                    return cc.all_reduce((y * y).sum(), "a", to=I) if y.layout["a"] is V else (y * y).sum()

                found = []
                for move in (np.asarray, from_host):
                    x, t = ag.tensor(move(values), requires_grad=True), ag.tensor(move(direction))
                    g, dy = ag.grad(objective)(x), ag.jvp(call, (x,), (t,))[1]
                    found.append((call(x), g, dy))
                for host, device in zip(*found, strict=True):
                    assert type(device.array) is DeviceArray
                    assert np.array_equal(host.numpy(), device.numpy())

    cc.run(program, 3)


@pytest.mark.parametrize("ranks", [3, 4, 5])
@pytest.mark.parametrize("name", ["mean", "all_prod", "all_reduce", "scan"])
def test_float16_between_the_steps_of_a_collective_is_float32(name: str, ranks: int) -> None:
    """Sums and partial products that do not fit into float16, where the result and the gradient do."""
    rng = np.random.default_rng(ranks)
    large = {"mean": [6e4] * ranks, "all_prod": [600, 200, 1e-3, 2, 0.5], "all_reduce": [6e4, 3e4, -5e4, -1e4, 2e3],
             "scan": [6e4, -3e4, 5e3, 1e4, 2e3]}[name]  # fmt: skip
    xs = np.array([[x, x / 7, rng.uniform(1, 2)] for x in large[:ranks]]).astype(np.float16)
    cts = rng.uniform(0.5, 1, 3).astype(np.float16)

    def program(dtype: object) -> object:
        with cc.Mesh(dp=ranks) as mesh:
            x = ag.tensor(xs[mesh.ranks.index].astype(dtype), {"dp": cc.V}, requires_grad=True)
            with ag.Tape() as tape:
                y = getattr(cc, name)(x, "dp")
            tape.backward(y, ag.tensor(cts.astype(dtype), y.layout.dual))
            return y.numpy(), x.grad.numpy(), ag.jvp(lambda x: getattr(cc, name)(x, "dp"), [x], [x * 0 + 1])[1].numpy()

    halves, exact = (cc.run(program, ranks, dtype) for dtype in (np.float16, np.float64))
    for ours, needed in zip(halves, exact, strict=True):
        for have, need in zip(ours, needed, strict=True):
            assert have.dtype == np.float16
            fits = np.abs(need) < 65000
            assert fits.any() and np.allclose(have[fits].astype(float), need[fits], rtol=2e-3, atol=1e-6)
