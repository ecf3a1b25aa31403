"""Data parallelism against the same model on one rank, on 1, 2, 3 and 5 threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel, enter

from ..on_mesh import on

RANKS = [1, 2, 3, 5]
FEATURES, CLASSES = 6, 4


def make_model() -> nn.Module:
    random.seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 5, dtype=float), nn.Tanh(), nn.Linear(5, CLASSES, dtype=float))


def make_batch(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    return generator.normal(size=(rows, FEATURES)), generator.integers(0, CLASSES, rows)


def share(whole: np.ndarray, size: int, rank: int) -> ag.Tensor:
    part = np.array_split(whole, size)[rank]
    return ag.tensor(part, layout={"dp": cc.Shard(0)}, global_shape=whole.shape)


def shares(mesh: cc.Mesh, *wholes: np.ndarray) -> list[ag.Tensor]:
    return [share(whole, mesh.ranks.size, mesh.ranks.rank) for whole in wholes]


def mean_loss(model: Any, x: Any, y: Any, rows: int) -> Any:
    return nn.cross_entropy(model(x), y, reduction="sum") / rows


def gradients_of(model: nn.Module) -> dict[str, np.ndarray | None]:
    return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in model.named_parameters()}


def serial_gradients(model: nn.Module, rows: int) -> dict[str, np.ndarray | None]:
    x, y = make_batch(rows)
    with ag.Tape() as tape:
        loss = mean_loss(model, x, y, rows)
    tape.backward(loss)
    return gradients_of(model)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float = 1e-13) -> None:
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        if expected is None or ours[name] is None:
            assert ours[name] is expected, name
            continue
        assert np.linalg.norm(ours[name] - expected) <= tolerance * np.linalg.norm(expected), name


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [30, 17, 2, 1], ids=["even", "uneven", "fewer than ranks", "one row"])
@pytest.mark.parametrize("ranks", RANKS)
def test_gradients_equal_serial(ranks: int, rows: int) -> None:
    def program(mesh: cc.Mesh) -> dict[str, Any]:
        model = DataParallel(make_model(), "dp")
        x, y = shares(mesh, *make_batch(rows))
        with ag.Tape() as tape:
            loss = cc.all_reduce(mean_loss(model, x, y, rows), "dp", to=cc.I)
        tape.backward(loss)
        assert all(p.grad is not None and p.grad.layout == p.layout for p in model.parameters())
        return gradients_of(model)

    expected = serial_gradients(make_model(), rows)
    for ours in on(ranks, program):
        assert_same(ours, expected)


def test_serial_gradient_is_the_textbook_one() -> None:
    """The reference of this file against x' (softmax - one-hot) / n, so that the two cannot be wrong together."""
    rows = 7
    x, y = make_batch(rows)
    model = nn.Linear(FEATURES, CLASSES, bias=False, dtype=float)
    logits = x @ model.weight.numpy()
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert_same(serial_gradients(model, rows), {"weight": x.T @ (probability - np.eye(CLASSES)[y]) / rows})


@pytest.mark.parametrize("ranks", RANKS)
def test_two_backward_passes_accumulate(ranks: int) -> None:
    def program(mesh: cc.Mesh) -> dict[str, Any]:
        model = DataParallel(make_model(), "dp")
        for half in (slice(0, 10), slice(10, 17)):
            x, y = shares(mesh, *(whole[half] for whole in make_batch(17)))
            with ag.Tape() as tape:
                loss = cc.all_reduce(mean_loss(model, x, y, 17), "dp", to=cc.I)
            tape.backward(loss)
        return gradients_of(model)

    for ours in on(ranks, program):
        assert_same(ours, serial_gradients(make_model(), 17))


@pytest.mark.parametrize("ranks", RANKS)
def test_a_backward_that_starts_from_partial(ranks: int) -> None:
    def program(mesh: cc.Mesh) -> dict[str, Any]:
        model = DataParallel(make_model(), "dp")
        x, y = shares(mesh, *make_batch(9))
        with ag.Tape() as tape:
            loss = mean_loss(model, x, y, 9)
        assert loss.layout["dp"] is cc.P
        tape.backward(loss)
        return gradients_of(model)

    for ours in on(ranks, program):
        assert_same(ours, serial_gradients(make_model(), 9))


def test_two_axes_flattened() -> None:
    def rank_main() -> dict[str, Any]:
        with cc.Mesh(outer=2, inner=2) as mesh:
            model = DataParallel(make_model(), ("outer", "inner"))
            x, y = make_batch(10)
            labels = {"outer": cc.Shard(0), "inner": cc.Shard(0)}
            place = mesh.place
            part = [np.array_split(np.array_split(a, 2)[place[0]], 2)[place[1]] for a in (x, y)]
            xs = ag.tensor(part[0], layout=labels, global_shape=x.shape)
            ys = ag.tensor(part[1], layout=labels, global_shape=y.shape)
            with ag.Tape() as tape:
                loss = cc.all_reduce(mean_loss(model, xs, ys, 10), ("outer", "inner"), to=cc.I)
            tape.backward(loss)
            return gradients_of(model)

    for ours in cc.run(rank_main, 4):
        assert_same(ours, serial_gradients(make_model(), 10))


# -- unused and shared parameters -------------------------------------------------------------------------------------


class Choice(nn.Module):
    """`here` is used on the ranks named only, `never` nowhere."""

    def __init__(self, users: set[int], rank: int):
        self.always = ag.Parameter(np.array([1.0, 2.0]))
        self.here = ag.Parameter(np.array([3.0, 5.0]))
        self.never = ag.Parameter(np.array([7.0]))
        self.used = rank in users

    def forward(self, x: Any) -> Any:
        return x * self.always + (x * x * self.here if self.used else x)


@pytest.mark.parametrize("ranks", RANKS)
def test_unused_everywhere_is_none_and_unused_here_counts_zero(ranks: int) -> None:
    values = np.arange(1.0, 2 * ranks + 1).reshape(ranks, 2)
    user = ranks - 1

    def program(mesh: cc.Mesh) -> dict[str, Any]:
        model = DataParallel(Choice({user}, mesh.ranks.rank), "dp")
        with ag.Tape() as tape:
            loss = cc.all_reduce(model(ag.tensor(values[mesh.ranks.rank])).sum(), "dp", to=cc.I)
        tape.backward(loss)
        return gradients_of(model)

    expected = {"always": values.sum(axis=0), "here": values[user] ** 2, "never": None}
    for ours in on(ranks, program):
        assert_same(ours, expected)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_whose_loss_depends_on_no_parameter(ranks: int) -> None:
    """Backward starts from a Partial loss; rank 0's addend is a constant, but the sums wait for rank 0 too."""

    class Skips(nn.Module):
        def __init__(self, skip: bool):
            self.weight, self.skip = ag.Parameter(np.ones(2)), skip

        def forward(self, x: Any) -> Any:
            return x if self.skip else x * self.weight

    def program(mesh: cc.Mesh) -> dict[str, Any]:
        model = DataParallel(Skips(mesh.ranks.rank == 0), "dp")
        x = ag.tensor(np.array([[1.0, 2.0]]), layout={"dp": cc.Shard(0)})
        with ag.Tape() as tape:
            loss = model(x).sum()
        tape.backward(loss)
        return gradients_of(model)

    for ours in on(ranks, program):
        assert_same(ours, {"weight": (ranks - 1) * np.array([1.0, 2.0])})


@pytest.mark.parametrize("ranks", RANKS)
def test_momentum_does_not_move_a_parameter_that_is_unused_everywhere(ranks: int) -> None:
    def program(mesh: cc.Mesh) -> list[np.ndarray]:
        model = DataParallel(Choice(set(), mesh.ranks.rank), "dp")
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce(model(ag.tensor([1.0, 1.0])).sum(), "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
        return [p.numpy().copy() for p in model.parameters()]

    for always, here, never in on(ranks, program):
        assert not np.array_equal(always, [1.0, 2.0])
        assert np.array_equal(here, [3.0, 5.0])
        assert np.array_equal(never, [7.0])


class Tied(nn.Module):
    """One weight under two names, used twice."""

    def __init__(self) -> None:
        random.seed(5)
        self.first = nn.Linear(FEATURES, FEATURES, bias=False, dtype=float)
        self.second = nn.Linear(FEATURES, FEATURES, bias=False, dtype=float)
        self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.second(anp.tanh(self.first(x)))


@pytest.mark.parametrize("ranks", RANKS)
def test_a_tied_parameter_enters_once(ranks: int) -> None:
    def program(mesh: cc.Mesh) -> dict[str, Any]:
        inner = Tied()
        model = DataParallel(inner, "dp")
        assert len(model.parameters()) == 1
        (x,) = shares(mesh, make_batch(8)[0])
        with ag.Tape() as tape:
            loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I)
        assert sum(node[0].name == "entered parameter" for node in tape.recording.nodes) == 1
        tape.backward(loss)
        assert inner.second.weight is inner.first.weight
        return gradients_of(model)

    model = Tied()
    with ag.Tape() as tape:
        loss = (model(make_batch(8)[0]) ** 2).sum()
    tape.backward(loss)
    for ours in on(ranks, program):
        assert_same(ours, gradients_of(model))


# -- without a gradient, and higher orders ----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
def test_no_grad_forward(ranks: int) -> None:
    def program(mesh: cc.Mesh) -> np.ndarray:
        model = DataParallel(make_model(), "dp")
        (x,) = shares(mesh, make_batch(7)[0])
        with ag.no_grad():
            y = model(x)
        assert not y.requires_grad
        assert y.layout["dp"] == x.layout["dp"]
        assert all(p.grad is None for p in model.parameters())
        return cc.all_gather(y, "dp").numpy()

    for ours in on(ranks, program):
        np.testing.assert_allclose(ours, make_model()(make_batch(7)[0]).numpy(), rtol=1e-13)


def serial_function(w: Any) -> Any:
    x, _ = make_batch(7)
    return (anp.tanh(x @ w) ** 3).sum()


def distributed_function(mesh: cc.Mesh) -> Callable[[Any], Any]:
    (x,) = shares(mesh, make_batch(7)[0])

    def function(w: Any) -> Any:
        (entered,) = enter([w], "dp")
        return cc.all_reduce((anp.tanh(x @ entered) ** 3).sum(), "dp", to=cc.I)

    return function


def point_and_direction() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return generator.normal(size=(FEATURES, 2)), generator.normal(size=(FEATURES, 2))


@pytest.mark.parametrize("ranks", RANKS)
def test_hessian_vector_product_equals_serial(ranks: int) -> None:
    w, v = point_and_direction()

    def along(gradient: Callable[[Any], Any], v: Any) -> Callable[[Any], Any]:
        return lambda w: (gradient(w) * v).sum()

    def program(mesh: cc.Mesh) -> np.ndarray:
        start, direction = (ag.tensor(a, layout={"dp": cc.I}) for a in (w, v))
        product = ag.grad(along(ag.grad(distributed_function(mesh)), direction))(start)
        assert product.layout["dp"] is cc.I
        return product.numpy()

    expected = ag.grad(along(ag.grad(serial_function), v))(w)
    assert np.linalg.norm(expected) > 1
    for ours in on(ranks, program):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ranks", RANKS)
def test_forward_mode_equals_serial(ranks: int) -> None:
    w, v = point_and_direction()

    def program(mesh: cc.Mesh) -> tuple[float, float]:
        start, direction = (ag.tensor(a, layout={"dp": cc.I}) for a in (w, v))
        y, dy = ag.jvp(distributed_function(mesh), (start,), (direction,))
        return y.item(), dy.item()

    expected = [float(a) for a in ag.jvp(serial_function, (w,), (v,))]
    for ours in on(ranks, program):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("ranks", RANKS)
def test_forward_over_reverse_equals_serial(ranks: int) -> None:
    w, v = point_and_direction()

    def program(mesh: cc.Mesh) -> np.ndarray:
        start, direction = (ag.tensor(a, layout={"dp": cc.I}) for a in (w, v))
        return ag.jvp(ag.grad(distributed_function(mesh)), (start,), (direction,))[1].numpy()

    expected = ag.jvp(ag.grad(serial_function), (w,), (v,))[1]
    for ours in on(ranks, program):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


# -- what is refused --------------------------------------------------------------------------------------------------


def failures(ranks: int, kind: type[Exception], program: Callable[[cc.Mesh], Any]) -> list[str]:
    """What each rank was told; all must raise."""

    def caught(mesh: cc.Mesh) -> str:
        with pytest.raises(kind) as info:
            program(mesh)
        return str(info.value)

    return on(ranks, caught)


def test_recorded_on_one_rank_only_is_an_error_on_all() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = DataParallel(make_model(), "dp")
        (x,) = shares(mesh, make_batch(6)[0])
        if mesh.ranks.rank == 1:
            with ag.no_grad():
                model(x)
        else:
            with ag.Tape():
                model(x)

    for text in failures(3, cc.CollectiveMismatch, program):
        assert "rank 1: call of the DataParallel model (axis='dp' 4 parameters " in text and "not recorded" in text


def test_other_parameters_on_one_rank_is_an_error_on_all() -> None:
    def program(mesh: cc.Mesh) -> None:
        width = 3 if mesh.ranks.rank == 2 else 4
        enter([ag.Parameter(np.ones(width))], "dp")

    for text in failures(3, cc.CollectiveMismatch, program):
        assert "rank 2: enter (axis='dp' 1 parameters float64[3])" in text


def test_replicas_that_differ_are_refused_at_the_first_call() -> None:
    def program(mesh: cc.Mesh) -> None:
        inner = make_model()
        if mesh.ranks.rank == 1:
            inner.parameters()[2].array[0, 0] += 1e-15
        (x,) = shares(mesh, make_batch(6)[0])
        DataParallel(inner, "dp")(x)

    for text in failures(3, cc.ReplicaMismatch, program):
        assert "2.weight" in text
        assert "rank 1" in text


def test_the_optimizer_refuses_a_gradient_that_was_never_reduced() -> None:
    def program(mesh: cc.Mesh) -> None:
        w = ag.Parameter(np.ones(2), layout={"dp": cc.R}, name="w")  # not entered: its gradient stays Partial
        with ag.Tape() as tape:
            loss = cc.all_reduce((w * ag.tensor([1.0, mesh.ranks.rank])).sum(), "dp", to=cc.I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    for text in failures(2, cc.LayoutError, program):
        assert "axis 'dp'" in text
        assert "never" in text
        assert "fix: " in text


def test_a_step_between_forward_and_backward_is_refused() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = DataParallel(nn.Linear(FEATURES, 2, dtype=float), "dp")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        (x,) = shares(mesh, make_batch(4)[0])
        for _ in range(2):
            with ag.Tape() as tape:
                loss = cc.all_reduce(model(x).sum(), "dp", to=cc.I)
            if model.parameters()[0].grad is not None:
                optimizer.step()  # the gradient is the last step's, and this tape still needs the weight
            tape.backward(loss)

    for text in failures(2, ag.SavedArrayError, program):
        assert "weight" in text


def test_a_parameter_that_is_not_invariant_is_refused() -> None:
    def program(mesh: cc.Mesh) -> None:
        enter([ag.Parameter(np.ones(2), layout={"dp": cc.R}, name="w")], "dp")

    for text in failures(2, cc.LayoutError, program):
        assert "Replicated" in text
        assert "fix: " in text


def test_a_loss_that_was_not_summed_is_refused() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = DataParallel(make_model(), "dp")
        x = ag.tensor(make_batch(4)[0])  # V: no promise that the rows are parts of one batch
        with ag.Tape() as tape:
            loss = model(x).sum()
        tape.backward(loss)

    for text in failures(2, cc.LayoutError, program):
        assert "all_reduce" in text
    failures(1, cc.LayoutError, program)  # labels know it without a second rank


def test_the_module_has_its_parameters_back_after_an_error() -> None:
    def program(mesh: cc.Mesh) -> None:
        inner = make_model()
        before = inner.parameters()
        model = DataParallel(inner, "dp")
        with pytest.raises(ValueError):
            model(ag.tensor(np.ones((2, FEATURES + 1))))
        assert [id(p) for p in inner.parameters()] == [id(p) for p in before]

    on(2, program)


def test_a_module_without_parameters() -> None:
    w = ag.Parameter([1.0, 2.0])
    with cc.Mesh(dp=1):
        model = DataParallel(nn.Tanh(), "dp")
        with ag.Tape() as tape:
            loss = (model(w * w)).sum()
        tape.backward(loss)
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 2 * w.numpy() * (1 - np.tanh(w.numpy() ** 2) ** 2))


def test_names_of_buffers_are_those_inside() -> None:
    with cc.Mesh(dp=1):
        model = DataParallel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "dp")
        names = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
        assert list(model.state_dict()) == names
        assert not model.eval().module.training
