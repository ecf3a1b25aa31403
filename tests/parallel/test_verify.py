"""verify: what it passes, what it must not pass, and how it says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, random
from collectives.transports.threads.communicator import LocalWorld
from parallel import DataParallel
from parallel.verify import Compared, Report, VerifyError, verify

from ..on_mesh import on

X = np.random.default_rng(0).normal(size=(7, 6))


def make_model(dtype: Any = float) -> nn.Module:
    random.seed(3)
    return nn.Sequential(nn.Linear(6, 5, dtype=dtype), nn.Tanh(), nn.Linear(5, 4, dtype=dtype))


def share(whole: Any = X, dtype: Any = float) -> ag.Tensor:
    return cc.shard(ag.tensor(whole.astype(dtype), layout={"dp": cc.R}), "dp")


def mean_loss(model: Any, x: Any) -> Any:
    return (model(x) ** 2).sum() / x.global_shape[0]


# -- what passes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 9])
def test_a_right_model_passes_and_all_ranks_have_the_same_report(ranks: int) -> None:
    reports = on(ranks, lambda mesh: verify(DataParallel(make_model(), "dp"), mean_loss, share()))
    report = reports[0]
    assert all(other == report for other in reports)
    assert report.require() is report
    assert report.passed
    assert report.largest < 1e-14
    assert report.tolerance == 1e-12
    assert [g.name for g in report.gradients] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert math.isclose(report.loss, report.serial_loss, rel_tol=1e-14)
    for g in report.gradients:
        assert g.norm is not None and g.serial_norm is not None
        assert g.norm > 0.01
        assert math.isclose(g.norm, g.serial_norm, rel_tol=1e-13)
        assert g.parts == ()


def test_the_serial_norms_are_those_of_an_independent_run() -> None:
    model = make_model()
    with ag.Tape() as tape:
        loss = (model(X) ** 2).sum() / len(X)
    tape.backward(loss)
    report = on(3, lambda mesh: verify(DataParallel(make_model(), "dp"), mean_loss, share()))[0]
    for g, p in zip(report.gradients, model.parameters(), strict=True):
        assert p.grad is not None and g.serial_norm is not None
        assert math.isclose(g.serial_norm, float(np.linalg.norm(p.grad.numpy())), rel_tol=1e-14)


def test_a_loss_that_is_invariant_already() -> None:
    """Nothing to sum: the batch is the same on all ranks and so is the computation."""

    def program(mesh: cc.Mesh) -> Report:
        return verify(make_model(), mean_loss, ag.tensor(X, layout={"dp": cc.I}))

    assert on(2, program)[0].passed


def test_float32_is_compared_with_float64() -> None:
    def program(mesh: cc.Mesh) -> Report:
        return verify(DataParallel(make_model(np.float32), "dp"), mean_loss, share(dtype=np.float32))

    report = on(2, program)[0]
    assert report.passed
    assert report.tolerance == 1e-5
    assert 1e-9 < report.largest < 1e-5  # a serial run in float32 too might have agreed to the last bit


def test_nothing_of_the_program_is_changed() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = DataParallel(make_model(), "dp")
        parameters = model.parameters()
        values = [p.numpy().copy() for p in parameters]
        with ag.Tape() as tape:
            loss = cc.all_reduce(mean_loss(model, share()), "dp", to=cc.I)
        tape.backward(loss)
        gradients, key = [p.grad for p in parameters], random.get_state()
        verify(model, mean_loss, share())
        assert [id(p.grad) for p in parameters] == [id(g) for g in gradients]
        assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
        assert all(np.array_equal(p.numpy(), v) for p, v in zip(parameters, values, strict=True))
        assert all(p.numpy().flags.writeable for p in parameters)
        assert random.get_state() == key
        assert cc.current_mesh() is mesh

    on(2, program)


class Noisy(nn.Module):
    """Draws random numbers: the serial run must draw the same."""

    def __init__(self) -> None:
        self.weight = ag.Parameter(np.ones(6))

    def forward(self, x: Any) -> Any:
        return x * self.weight * ag.constant(random.normal(random.next_key("noise"), (6,)))


def test_random_numbers_are_replayed() -> None:
    assert on(2, lambda mesh: verify(DataParallel(Noisy(), "dp"), mean_loss, share()))[0].passed


class Tied(nn.Module):
    """A tied weight, in a list, beside one that is never used and a buffer."""

    def __init__(self) -> None:
        random.seed(5)
        self.layers = [nn.Linear(6, 6, bias=False, dtype=float), nn.Linear(6, 6, bias=False, dtype=float)]
        self.layers[1].weight = self.layers[0].weight
        self.unused = ag.Parameter(np.ones(3))
        self.scale = np.full(6, 0.5, np.float32)

    def forward(self, x: Any) -> Any:
        return self.layers[1](anp.tanh(self.layers[0](x))) * ag.constant(self.scale, float)


def test_tied_and_unused_parameters() -> None:
    report = on(3, lambda mesh: verify(DataParallel(Tied(), "dp"), mean_loss, share()))[0].require()
    assert [(g.name, g.norm is None, g.serial_norm is None) for g in report.gradients] == [
        ("layers.0.weight", False, False),
        ("unused", True, True),
    ]
    assert str(report).count("unused  ") >= 2


def test_a_wrapped_module_inside_another() -> None:
    def program(mesh: cc.Mesh) -> Report:
        random.seed(1)
        model = nn.Sequential(DataParallel(nn.Linear(6, 5, dtype=float), "dp"), nn.Tanh(),
                              DataParallel(nn.Linear(5, 4, dtype=float), "dp"))  # fmt: skip
        return verify(model, mean_loss, share())

    assert on(3, program)[0].require().largest < 1e-14


# -- what must not pass -----------------------------------------------------------------------------------------------


class Wrong(nn.Module):
    """Data parallelism done by hand, with a planted mistake."""

    def __init__(self, mistake: str, rank: int):
        random.seed(2)
        self.inner = nn.Linear(6, 4, dtype=float)
        self.mistake, self.rank = mistake, rank

    def forward(self, x: Any) -> Any:
        weight, bias = self.inner.weight, self.inner.bias
        if x.layout is None:  # the serial run
            return x @ weight + bias
        entered = cc.cast(weight, "dp", to=cc.R)
        if self.mistake == "summed twice":  # the cotangent of the copies is summed, and then once more
            again = cc.all_reduce(cc.cast(entered, "dp", to=cc.P), "dp", to=cc.R)
            entered = again + entered - ag.stop_gradient(entered)
        elif self.mistake == "one rank is left out" and self.rank == 1:
            entered = ag.stop_gradient(entered)
        elif self.mistake == "divided by the world size":
            size = cc.current_mesh().ranks.size
            entered = entered / size + ag.stop_gradient(entered * (1 - 1 / size))
        return x @ entered + cc.cast(bias, "dp", to=cc.R)


@pytest.mark.parametrize("mistake", ["summed twice", "one rank is left out", "divided by the world size"])
def test_mistakes_are_found_and_named(mistake: str) -> None:
    def program(mesh: cc.Mesh) -> Report:
        return verify(Wrong(mistake, mesh.ranks.rank), mean_loss, share())

    reports = on(3, program)
    assert all(other == reports[0] for other in reports)
    weight, bias = reports[0].gradients
    assert math.isclose(reports[0].loss, reports[0].serial_loss, rel_tol=1e-12)  # the loss says nothing
    assert bias.difference < 1e-14
    assert weight.difference > 0.05
    assert not reports[0].passed
    with pytest.raises(VerifyError, match="inner.weight") as info:
        reports[0].require()
    assert "<-- differs" in str(info.value)
    assert "FAILED" in str(info.value)


def test_without_a_mistake_the_same_model_passes() -> None:
    assert on(3, lambda mesh: verify(Wrong("", mesh.ranks.rank), mean_loss, share()))[0].passed


@pytest.mark.parametrize("wrong_rank", [0, 2])
def test_the_worst_copy_counts(wrong_rank: int) -> None:
    """All ranks repeat one computation, but for one, whose program text says otherwise."""

    class Repeated(nn.Module):
        def __init__(self, factor: float):
            self.weight, self.factor = ag.Parameter(np.ones(6)), factor

        def forward(self, x: Any) -> Any:
            return x * self.weight * (1.0 if x.layout is None else self.factor)

    def program(mesh: cc.Mesh) -> Report:
        factor = 2.0 if mesh.ranks.rank == wrong_rank else 1.0
        return verify(Repeated(factor), mean_loss, ag.tensor(X, layout={"dp": cc.I}))

    for report in on(3, program):
        assert math.isclose(report.largest, 3.0)


def test_a_parameter_that_only_one_of_the_two_runs_uses() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = ag.Parameter(np.ones(6)), ag.Parameter(np.ones(6))

        def forward(self, x: Any) -> Any:
            return x * self.a if x.layout is None else x * self.a + 0.0 * (x * self.b)

    report = on(2, lambda mesh: verify(DataParallel(Half(), "dp"), mean_loss, share()))[0]
    a, b = report.gradients
    assert a.difference < 1e-14
    assert (b.norm, b.serial_norm, b.difference) == (0.0, None, math.inf)
    assert not report.passed


def test_not_a_number_does_not_pass() -> None:
    def program(mesh: cc.Mesh) -> Report:
        bad = X.copy()
        bad[0, 0] = np.nan
        return verify(DataParallel(make_model(), "dp"), mean_loss, share(bad))

    assert not on(2, program)[0].passed


def test_a_gradient_that_vanishes_is_measured_by_the_others() -> None:
    """The gradient of `b` cancels to rounding noise: of itself all is wrong, of the others a part in 1e16."""

    class Cancels(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = ag.Parameter(np.full(6, 1e3)), ag.Parameter(np.ones(6))

        def forward(self, x: Any) -> Any:
            y = x * self.a
            return (y * self.b - y * 0.1 * self.b - y * 0.9 * self.b) * 1e-8 + y

    report = on(3, lambda mesh: verify(DataParallel(Cancels(), "dp"), mean_loss, share()))[0]
    a, b = report.gradients
    assert a.serial_norm is not None and b.norm is not None and b.serial_norm is not None
    assert 0 < b.serial_norm < 1e-18 * a.serial_norm
    assert abs(b.norm - b.serial_norm) > 1e-3 * b.serial_norm
    assert report.passed


# -- sharded parameters -----------------------------------------------------------------------------------------------


class Column(nn.Module):
    """A weight cut by columns along 'tp'; the features are gathered."""

    def __init__(self, weight: np.ndarray, mesh: cc.Mesh | None, factor: float = 1.0):
        self.factor = factor
        if mesh is None:
            self.weight = ag.Parameter(weight)
        else:
            part = np.array_split(weight, mesh.axis("tp").size, axis=1)[mesh.axis("tp").rank]
            self.weight = ag.Parameter(part, layout={"tp": cc.Shard(1)}, global_shape=weight.shape)

    def forward(self, x: Any) -> Any:
        if x.layout is None:
            return anp.tanh(x @ self.weight)
        weight = cc.cast(self.weight, "dp", to=cc.R)
        scaled = weight * self.factor + ag.stop_gradient(weight * (1 - self.factor))
        return cc.all_gather(anp.tanh(cc.cast(x, "tp", to=cc.R) @ scaled), "tp", dim=1, to=cc.I)


def column_report(factor: float = 1.0, twin: bool = False) -> Report:
    weight = np.random.default_rng(4).normal(size=(6, 5))

    def program(mesh: cc.Mesh) -> Report:
        x = cc.shard(ag.tensor(X, layout={"dp": cc.R, "tp": cc.I}), "dp")
        model = Column(weight, mesh, factor if mesh.place == (1, 2) else 1.0)
        serial = Column(np.zeros_like(weight), None) if twin else None
        return verify(model, mean_loss, x, serial=serial)

    cc.check("off")  # the ranks would compare the factor
    try:
        reports = on(6, program, dp=2, tp=3)
    finally:
        cc.check("first")
    assert all(other == reports[0] for other in reports)
    return reports[0]


@pytest.mark.parametrize("twin", [False, True], ids=["copy", "serial="])
def test_shards_stand_beside_the_serial_ones(twin: bool) -> None:
    report = column_report(twin=twin).require()
    (g,) = report.gradients
    assert g.norm is not None and g.serial_norm is not None
    assert len(g.parts) == 3
    assert math.isclose(math.sqrt(sum(norm**2 for norm, _ in g.parts)), g.norm, rel_tol=1e-13)
    for norm, serial in g.parts:
        assert math.isclose(norm, serial, rel_tol=1e-13)
    assert str(report).count("  part ") == 3


def test_one_wrong_shard_of_one_copy_is_found() -> None:
    report = column_report(factor=1.5)
    assert report.gradients[0].difference > 0.01


# -- misuse -----------------------------------------------------------------------------------------------------------


def refused(kind: type[Exception], program: Callable[[cc.Mesh], Any], ranks: int = 2) -> str:
    """What rank 0 is told."""

    def caught(mesh: cc.Mesh) -> str:
        with pytest.raises(kind) as info:
            program(mesh)
        return "\n".join([str(info.value), *getattr(info.value, "__notes__", [])])

    return on(ranks, caught)[0]


def test_a_batch_without_a_whole_is_refused() -> None:
    text = refused(cc.LayoutError, lambda mesh: verify(DataParallel(make_model(), "dp"), mean_loss, ag.tensor(X)))
    assert "batch[0]" in text
    assert "Shard(dim)" in text


def test_a_loss_that_communicates_is_told_what_to_return() -> None:
    def loss(model: Any, x: Any) -> Any:
        return cc.all_reduce(mean_loss(model, x), "dp", to=cc.I)

    text = refused(cc.MeshError, lambda mesh: verify(DataParallel(make_model(), "dp"), loss, share()), ranks=1)
    assert "addend" in text
    assert "serial=" in text


def test_another_serial_model_is_refused() -> None:
    def program(mesh: cc.Mesh) -> Report:
        return verify(DataParallel(make_model(), "dp"), mean_loss, share(), serial=nn.Linear(6, 5))

    assert "0.weight" in refused(ag.ShapeError, program)


def test_inside_a_tape_and_outside_a_mesh() -> None:
    def program(mesh: cc.Mesh) -> None:
        with ag.Tape():
            verify(make_model(), mean_loss, share())

    assert "tape" in refused(ag.TapeError, program)
    with pytest.raises(cc.MeshError):
        verify(make_model(), mean_loss, X)


def test_a_mesh_over_some_of_the_ranks() -> None:
    with cc.Mesh(LocalWorld(1).communicator(0), dp=1):
        assert verify(DataParallel(make_model(), "dp"), mean_loss, share()).ranks == 1


# -- the report -------------------------------------------------------------------------------------------------------


def test_the_table() -> None:
    rows = Compared("weight", 1.0, 1.0, 1e-16), Compared("bias", 2.0, None, math.inf), Compared("gate", None, None, 0.0)
    report = Report(rows, 0.5, 0.5, 1e-12, 4)
    lines = str(report).splitlines()
    assert lines[0].split("  ")[0] == "gradient of"
    assert "norm, 4 ranks" in lines[0]
    assert lines[1].split() == ["weight", "1.000000000e+00", "1.000000000e+00", "1.0e-16"]
    assert lines[2].split() == ["bias", "2.000000000e+00", "unused", "inf", "<--", "differs"]
    assert lines[3].split() == ["gate", "unused", "unused", "0.0e+00"]
    assert lines[-1] == "largest relative difference inf, tolerance 1e-12: FAILED"
    assert not report.passed


@pytest.mark.parametrize("scaled", ["loss", "model"])
def test_a_factor_of_the_number_of_ranks_is_found(scaled: str) -> None:
    """The commonest error of scale; in the serial run the world has one rank."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.layer = make_model()

        def forward(self, x: Any) -> Any:
            return self.layer(x) * (cc.world().size if scaled == "model" else 1)

    def loss(model: Any, x: Any) -> Any:
        return mean_loss(model, x) * (cc.world().size if scaled == "loss" else 1)

    for report in on(3, lambda mesh: verify(DataParallel(Scaled(), "dp"), loss, share())):
        assert not report.passed
        # the factor of the model is squared in the loss, and counts 9 times where the outputs are large
        assert "<-- differs: 3 times too large: the size of axis 'dp'" in str(report) or scaled == "model"


def test_a_factor_is_named() -> None:
    sizes = (("dp", 4), ("tp", 2))

    def said(factor: float, difference: float | None = None) -> str:
        difference = abs(factor - 1) if difference is None else difference
        return str(Report((Compared("w", 2.0 * factor, 2.0, difference),), 0.5, 0.5, 1e-12, 8, sizes))

    assert "4 times too large: the size of axis 'dp'" in said(4.0)
    assert "2 times too small: the size of axis 'tp'" in said(0.5)
    assert "8 times too small: the size of the mesh" in said(1 / 8)
    assert "16 times too large: the square of the size of axis 'dp'" in said(16.0)
    assert "3 times too large: is it the number of microbatches?" in said(3.0)
    assert said(4.0, 5.0).count("times") == said(2.5).count("times") == 0  # another direction; no whole number


def test_a_loss_that_communicates_is_refused_by_the_serial_run() -> None:
    def loss(model: Any, x: Any) -> Any:
        return cc.all_reduce(mean_loss(model, x), "dp", to=cc.I)

    with pytest.raises(cc.MeshError, match="verify: the serial run, on one rank and without a mesh"):
        on(2, lambda mesh: verify(DataParallel(make_model(), "dp"), loss, share()))
