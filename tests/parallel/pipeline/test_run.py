"""`Pipeline` beyond the GPT: ties, tuples, checkpoints, frozen and unused parameters, evaluation, errors, memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.arrays.shape_only import Shaped
from autograd.engine.pytree import flatten
from autograd.engine.recording import MARK
from autograd.engine.state import state
from autograd.engine.tape import TapeRecording
from autograd.errors import (
    AbsentError,
    ArgumentError,
    CollectiveMismatch,
    DeadlockError,
    LayoutError,
    OptionError,
    RankFailed,
    ShapeError,
    TapeError,
)
from autograd.random.keys import begin_state
from examples.gpt import Loss
from parallel.pipeline import SCHEDULES, Pipeline, layer_state, simulate
from parallel.pipeline import run as run_module
from parallel.pipeline.microbatches import split_batch
from parallel.pipeline.transfers import Transfers

from .serial import batch, make_layers

WIDTH = 4


def rows(n: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, WIDTH))


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, dtype=float)


def squares(y: Any, t: Any) -> Any:
    return ((y - t) ** 2).sum()


class Plus(nn.Module):
    """A layer with a table that other layers have too."""

    def __init__(self, table: ag.Parameter, own: bool = True):
        self.table = table
        self.inner = linear()
        self.own = own

    def forward(self, x: Any) -> Any:
        return anp.tanh(self.inner(x) @ self.table) if self.own else x @ self.table.T


class Pair(nn.Module):
    """Passes a Tensor, integers, and the Tensor that it got."""

    def __init__(self) -> None:
        self.inner = linear()

    def forward(self, x: Any) -> Any:
        return anp.sin(self.inner(x)), (x > 0.0).astype(int), x


class Join(nn.Module):
    def __init__(self) -> None:
        self.inner = linear()

    def forward(self, given: Any) -> Any:
        y, is_positive, x = given
        return self.inner(y) * is_positive + x


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        self.inner, self.dropout = linear(), nn.Dropout(0.4)

    def forward(self, x: Any) -> Any:
        return ag.checkpoint(lambda z: self.dropout(anp.tanh(self.inner(z))))(x)


def untied() -> list[nn.Module]:
    return [m for _ in range(4) for m in (linear(), nn.Tanh())]


def tied() -> list[nn.Module]:
    table = ag.Parameter(rows(WIDTH, 3))
    return [linear(), Plus(table), linear(), Plus(table), nn.Tanh(), linear(), Plus(table, own=False), Plus(table)]


def tuples() -> list[nn.Module]:
    return [linear(), Pair(), Join(), nn.Tanh(), Pair(), Join(), linear(), linear()]


def checkpointed() -> list[nn.Module]:
    return [linear(), *(Checkpointed() for _ in range(7))]


def frozen() -> list[nn.Module]:
    layers = untied()
    for layer in layers[:5]:
        layer.requires_grad_(False)
    return layers


def unused() -> list[nn.Module]:
    layers = untied()
    for layer in layers:
        layer.never = ag.Parameter(np.ones(2))  # type: ignore[attr-defined]
    return layers


def without_parameters() -> list[nn.Module]:
    return [nn.Tanh(), nn.Tanh(), linear(), nn.Tanh(), nn.Tanh(), nn.Tanh(), nn.Tanh(), linear()]


def nothing_learned() -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in untied()]


MODELS: list[Callable[[], list[nn.Module]]] = [
    untied, tied, tuples, checkpointed, frozen, unused, without_parameters, nothing_learned,
]  # fmt: skip


def serial(make: Callable[[], list[nn.Module]], m: int, x: np.ndarray, t: np.ndarray, loss: Any = squares) -> Any:
    random.seed(1)
    layers = nn.Sequential(*make())
    total = 0.0
    for i, (a, b) in enumerate(zip(np.array_split(x, m), np.array_split(t, m), strict=True)):
        with ag.Tape() as tape:
            y: Any = ag.tensor(a)
            for k, layer in enumerate(layers):
                with layer_state(0, 0, i, k):
                    y = layer(y)
            value = loss(y, ag.tensor(b))
        total += float(value)
        if value.requires_grad:
            tape.backward([value], [0.25])
    return total, {name: None if p.grad is None else p.grad.numpy() for name, p in layers.named_parameters()}


def piped(make: Callable[[], list[nn.Module]], ranks: int, m: int, x: np.ndarray, t: np.ndarray, **options: Any) -> Any:
    def program() -> Any:
        random.seed(1)
        layers = make()
        with cc.Mesh(pp=ranks):
            model = Pipeline(layers, squares, microbatches=m, **options)
            total = model.step(x, t, scale=0.25)
            grads = {name: None if p.grad is None else p.grad.numpy() for name, p in model.named_parameters()}
            return total, grads, model.record.held, [len(s) for s in model.stages]

    return cc.run(program, ranks)


def assert_same(found: Any, expected: Any) -> None:
    total, gradients = expected
    seen: list[str] = []
    for ours, grads, *_ in found:
        assert ours == pytest.approx(total, rel=1e-12)
        seen += grads
        for name, g in grads.items():
            assert (g is None) == (gradients[name] is None), name
            if g is not None:
                np.testing.assert_allclose(g, gradients[name], rtol=0, atol=1e-12, err_msg=name)
    assert sorted(seen) == sorted(gradients)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", *(pytest.param(s, marks=pytest.mark.slow)
                                                        for s in ("gpipe", "interleaved", "zb-h1"))])  # fmt: skip
@pytest.mark.parametrize("make", MODELS)
def test_models(make: Callable[[], list[nn.Module]], schedule: str) -> None:
    x, t = rows(7), rows(7, 1)  # microbatches of 3, 2 and 2 rows
    costs = [1.0] * 8
    assert_same(piped(make, 3, 3, x, t, schedule=schedule, costs=costs), serial(make, 3, x, t))
    if make in (tied, checkpointed):
        assert_same(piped(make, 4, 3, x, t, schedule=schedule, costs=costs), serial(make, 3, x, t))


def test_a_tied_parameter_has_one_owner() -> None:
    """On 4 ranks: layers 1, 3, 6 and 7 have the table; the second stage's rank does not own it."""
    found = piped(tied, 4, 2, rows(), rows(6, 1), costs=[1.0] * 8)
    owners = [r for r, (_, grads, *_) in enumerate(found) if "1.table" in grads]
    assert owners == [0] and not any("6.table" in grads for _, grads, *_ in found)


def test_live_activations_equal_the_simulation() -> None:
    for name in SCHEDULES:
        for ranks, m in ((2, 5), (3, 4), (4, 3)):
            def program(name: str = name, ranks: int = ranks, m: int = m) -> Any:
                with cc.Mesh(pp=ranks):
                    model = Pipeline(untied(), squares, microbatches=m, schedule=name, costs=[1.0] * 8)
                    model.step(rows(8), rows(8))
                    return model.record.held, simulate(model.schedule).held

            found = cc.run(program, ranks)
            assert [held for held, _ in found] == list(found[0][1]), (name, ranks, m)


def test_activations_are_freed() -> None:
    """The tapes that are alive are those that are counted, and none is after the step."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most: list[int] = []

    class Counting(TapeRecording):
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__()
            alive.add(self)

    own = "0F0 0F1 0I0 0W0 0F2 0B1 0F3 0B2 0B3 0F4 0B4 0F5 0B5"

    def program() -> Any:
        model = Pipeline(untied(), squares, microbatches=6, schedule=own)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("autograd.engine.tape.TapeRecording", Counting)
            forward = run_module._Run._forward

            def counted(self: Any, action: Any, values: Any) -> Any:
                found = forward(self, action, values)
                gc.collect()
                most.append(sum(bool(each.nodes) for each in alive))
                return found

            patch.setattr(run_module._Run, "_forward", counted)
            model.step(rows(6), rows(6))
        gc.collect()
        return model.record.held, len(alive)

    [(held, left)] = cc.run(program, 1)
    assert held == max(most) == 2 and left == 0


def test_memory_of_other_stages_is_freed() -> None:
    def program() -> Any:
        layers = make_layers()
        with cc.Mesh(pp=4):
            model = Pipeline(layers, Loss(), microbatches=2)
            here = sum(p.array.size for p in model.parameters())
            everywhere = [p for p in layers.parameters() if not isinstance(p.array, Shaped)]
            assert sum(p.array.size for p in everywhere) == here
            missing = next(p for p in layers.parameters() if isinstance(p.array, Shaped))
            with pytest.raises(AbsentError, match=r"runs on rank \d of axis 'pp'|owns it"):
                missing.numpy()
            with pytest.raises(AbsentError, match="make the model in the function that runs on the ranks"):
                Pipeline(list(layers)[::-1], Loss(), microbatches=2)
            return here

    sizes = cc.run(program, 4)
    assert sum(sizes) == sum(p.array.size for p in make_layers().parameters())
    assert max(sizes) <= 0.35 * sum(sizes)  # two of six blocks


def test_a_model_with_ties_is_divided_once() -> None:
    def program() -> Any:
        layers = tied()
        with cc.Mesh(pp=4):
            Pipeline(layers, squares, microbatches=2, costs=[1.0] * 8)
            Pipeline(layers, squares, microbatches=3, costs=[1.0] * 8)

    with pytest.raises((AbsentError, RankFailed), match="table has no values here: another rank owns it"):
        cc.run(program, 4)


def test_a_model_without_ties_may_have_several_pipelines() -> None:
    """With the same stages, for example for other numbers of microbatches."""

    def program() -> Any:
        layers = untied()
        with cc.Mesh(pp=2):
            models = [Pipeline(layers, squares, microbatches=m) for m in (2, 3)]
            return [model.step(rows(), rows(6, 1)) for model in models]

    for losses in cc.run(program, 2):
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_evaluation_on_a_mesh_with_sharded_parameters() -> None:
    def program(dp: int) -> Any:
        random.seed(1)
        with cc.Mesh(dp=dp, pp=2) as mesh:
            d = int(mesh.axis("dp").rank)
            x, t = (
                cc.from_local(np.array_split(a, dp)[d], {"dp": cc.Shard(0), "pp": cc.V}) for a in (rows(8), rows(8, 1))
            )
            model = Pipeline(untied(), squares, microbatches=2, data="dp", zero=3 if dp > 1 else 0)
            before = model.evaluate(x, t)
            model.step(x, t)
            return before, model.evaluate(x, t), cc.all_gather(model(x), "dp", dim=0).numpy()

    expected = cc.run(program, 2, 1)[0]
    for found in cc.run(program, 4, 2):
        assert found[0] == found[1] == pytest.approx(expected[0], rel=1e-12)
        np.testing.assert_allclose(found[2], expected[2], atol=1e-12)


def test_names_are_those_of_the_whole_model() -> None:
    names = [name for name, _ in make_layers().named_parameters()]

    def program() -> Any:
        layers = make_layers()
        with cc.Mesh(pp=3):
            model = Pipeline(layers, Loss(), microbatches=2)
            assert [p.name for p in model.parameters()] == [name for name, _ in model.named_parameters()]
            assert all(p.layout["pp"] is cc.V for p in model.parameters())  # type: ignore[index]
            return [name for name, _ in model.named_parameters()], list(model.state_dict())

    found = cc.run(program, 3)
    assert [name for of, _ in found for name in of] == names == [name for _, of in found for name in of]


def test_clipping_counts_each_parameter_once() -> None:
    def program(ranks: int) -> Any:
        layers = make_layers()
        with cc.Mesh(pp=ranks):
            model = Pipeline(layers, Loss(), microbatches=2)
            x, y = batch(4)
            model.step(x, y)
            return optim.clip_grad_norm_(model.parameters(), 1.0), optim.clip_grad_norm_(model.parameters(), 10.0)

    [(whole, after)] = cc.run(program, 1, 1)
    assert after == pytest.approx(1.0)
    for norm, after in cc.run(program, 4, 4):
        assert norm == pytest.approx(whole, rel=1e-12) and after == pytest.approx(1.0)


def test_evaluation_and_result() -> None:
    x, y = batch(6)

    def program(ranks: int) -> Any:
        layers = make_layers()
        with cc.Mesh(pp=ranks):
            model = Pipeline(layers, Loss(), microbatches=3, schedule="zb-h1")
            first = model.step(x, y)
            model.eval()
            losses = [model.evaluate(x, y), model.evaluate(x, y)]
            assert all(p.grad is not None for p in model.parameters())
            result = model(x[:4])
            model.train()
            model.zero_grad()
            model.steps = 0
            return losses, result.numpy(), first, model.step(x, y), result.layout["pp"]

    [serial] = cc.run(program, 1, 1)
    for found in cc.run(program, 3, 3):
        np.testing.assert_allclose(found[0], serial[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], serial[1], atol=1e-12)
        assert found[2] == pytest.approx(serial[2], rel=1e-12) and found[3] == pytest.approx(found[2], rel=1e-12)
        assert found[4] is (cc.R) and found[0][0] != found[2]


def test_side_losses() -> None:
    local = threading.local()

    class Balanced(nn.Module):
        def __init__(self, weight: float) -> None:
            self.inner, self.weight = linear(), weight

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            local.found.append((y * y).sum() * self.weight)
            return y

    @contextmanager
    def collect() -> Any:
        local.found = []
        yield local.found

    def make() -> list[nn.Module]:
        return [Balanced(0.1), nn.Tanh(), Balanced(0.3), linear()]

    def with_sides(y: Any, t: Any) -> Any:
        found, local.found = local.found, []
        total = squares(y, t)
        for each in found:
            total = total + each
        return total

    x, t = rows(), rows(6, 1)
    local.found = []
    expected = serial(make, 3, x, t, with_sides)
    for schedule in ("1f1b", "zb-h1"):
        found = piped(make, 4, 3, x, t, schedule=schedule, side_losses=collect)
        assert_same(found, expected)


def test_a_loss_with_parameters() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.scale = ag.Parameter(np.array([2.0]))

        def forward(self, y: Any) -> Any:
            return (y * self.scale).sum()

    def program(ranks: int) -> Any:
        random.seed(0)
        layers = [linear(), linear()]
        with cc.Mesh(pp=ranks):
            model = Pipeline(layers, Scaled(), microbatches=2)
            loss = model.step(rows())
            return loss, {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}

    [(whole, grads)] = cc.run(program, 1, 1)
    (first, _), (second, last) = cc.run(program, 2, 2)
    assert first == second == pytest.approx(whole)
    assert sorted(last) == ["1.bias", "1.weight", "loss.scale"]
    np.testing.assert_allclose(last["loss.scale"], grads["loss.scale"])


def test_several_steps_accumulate() -> None:
    def program(times: int) -> Any:
        random.seed(1)
        layers = untied()
        with cc.Mesh(pp=2):
            model = Pipeline(layers, squares, microbatches=2)
            for _ in range(times):
                model.step(rows(), rows(6, 1))
            return model.steps, [p.grad.numpy() for p in model.parameters()]

    for (one, a), (two, b) in zip(cc.run(program, 2, 1), cc.run(program, 2, 2), strict=True):
        assert (one, two) == (1, 2)
        for g, h in zip(a, b, strict=True):
            np.testing.assert_allclose(2 * g, h, rtol=1e-12)


# -- errors ----------------------------------------------------------------------------------------------------------
def program_of(layers: Callable[[], Any], ranks: int = 2, loss: Any = squares, **options: Any) -> Callable[..., Any]:
    def program(*given: Any) -> Any:
        with cc.Mesh(pp=ranks):
            model = Pipeline(layers(), loss, **{"microbatches": 2, **options})
            return model.step(*(given or (rows(), rows(6, 1))))

    return program


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": lambda: [linear()]}, OptionError, "a model of 1 layer was given for 2 stages"),
        ({"layers": lambda: [linear(), 3]}, ArgumentError, "layer 1 is 3; needed: a Module"),
        ({"loss": 3}, ArgumentError, "loss=3 was given"),
        ({"schedule": "0F0 0B0"}, OptionError, "is for 1 rank; the pipeline has 2"),
        ({"schedule": "0F0 0B0\n1F0 1B0"}, OptionError, "has 1 microbatch; the pipeline has microbatches=2"),
        ({"schedule": "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"}, DeadlockError, "ranks 0, 1 wait for each other"),
        ({"microbatches": 7}, OptionError, "inputs has 6 rows for 7 microbatches.*\n  fix: microbatches=6"),
        ({"costs": [1.0]}, OptionError, "1 costs were given for 8 layers"),
        ({"costs": [-1.0] * 8}, OptionError, "needed: numbers of at least 0"),
        ({"loss": nn.MSELoss()}, OptionError, "the mean over a microbatch; needed: the sum"),
        ({"zero": 2}, OptionError, "zero was given without data"),
        ({"loss": lambda y, t: y - t}, ShapeError, "the loss is Tensor of shape .*; needed: a Tensor without"),
        ({"loss": lambda y, t: 1.0}, ShapeError, "the loss is float"),
    ],
)
def test_errors(options: Any, error: type[Exception], message: str) -> None:
    options = {"layers": untied, **options}
    with pytest.raises((error, RankFailed), match=message):
        cc.run(program_of(**options), 2)


def test_nothing_is_sent_before_a_deadlock_is_refused() -> None:
    def program() -> Any:
        with cc.Mesh(pp=2) as mesh:
            on = mesh.axis("pp")
            with pytest.raises(DeadlockError):
                Pipeline(untied(), squares, microbatches=2, schedule="0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1")
            return on.kept.get("pipelines"), on.group.traffic.messages

    assert cc.run(program, 2) == [(None, 0), (None, 0)]


def test_a_result_of_another_shape() -> None:
    class Odd(nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x if self.calls < 2 else x[:1]

    with pytest.raises((ShapeError, RankFailed), match=r"stage 0 gave f64\[1,4\].* for microbatch 1, and f64\[3,4\]"):
        cc.run(program_of(lambda: [Odd(), linear()]), 2)


def test_a_result_that_is_no_tensor() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Any) -> Any:
            return [x, 3]

    with pytest.raises((ArgumentError, RankFailed), match="layer 0 returned int; needed: a Tensor, or a tuple"):
        cc.run(program_of(lambda: [Wrong(), linear()]), 2)


def test_batches_that_differ_between_ranks() -> None:
    def program() -> Any:
        with cc.Mesh(pp=2) as mesh:
            n = 6 + 2 * int(mesh.axis("pp").rank)
            Pipeline(untied(), squares, microbatches=2).step(rows(n), rows(n))

    with pytest.raises(CollectiveMismatch, match="run of a Pipeline"):
        cc.run(program, 2)


def test_schedules_that_differ_between_ranks() -> None:
    def program() -> Any:
        with cc.Mesh(pp=2) as mesh:
            name = ("gpipe", "1f1b")[int(mesh.axis("pp").rank)]
            Pipeline(untied(), squares, microbatches=2, schedule=name).step(rows(), rows())

    with pytest.raises(CollectiveMismatch, match="schedule gpipe.*|schedule 1f1b"):
        cc.run(program, 2)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_raises_ends_the_step(rank: int, where: str) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            if where == "forward":
                fail()
            state.recording.append((MARK, None, (), (), (fail,), None, None))
            return x * 1.0

    def layers() -> list[nn.Module]:
        return [Failing() if k == rank else linear() for k in range(3)]

    with pytest.raises((ValueError, RankFailed), match="on purpose"):
        cc.run(program_of(layers, 3), 3)


def test_on_a_tape() -> None:
    def program() -> Any:
        with cc.Mesh(pp=1):
            model = Pipeline(untied(), squares, microbatches=2)
            with ag.Tape():
                with pytest.raises(TapeError, match="a tape is recording"):
                    model.step(rows(), rows())
                with pytest.raises(TapeError, match="whose gradient would end here"):
                    model(rows())
            return True

    assert cc.run(program, 1) == [True]


def test_an_objective_that_is_no_number_of_all_ranks() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2, pp=1):
            model = Pipeline(untied(), squares, microbatches=2, data="dp")
            model.step(rows(), rows())  # plain arrays: Varying on dp

    with pytest.raises(LayoutError, match="the objective is Varying"):
        cc.run(program, 2)


def test_a_parameter_that_is_divided_along_the_axis() -> None:
    def program() -> Any:
        with cc.Mesh(pp=2):
            layer = linear()
            layer.weight = ag.Parameter(np.ones((2, 4)), {"pp": cc.Shard(0)})
            Pipeline([layer, linear()], squares, microbatches=2)

    with pytest.raises((LayoutError, RankFailed), match=r"(?s)0\.weight: .*the parameter is Shard"):
        cc.run(program, 2)


# -- microbatches ----------------------------------------------------------------------------------------------------
def test_microbatches_of_shards() -> None:
    """Rows over two axes, in uneven parts: each microbatch has agreed extents, and all rows are in one of them."""

    def program(even: bool) -> Any:
        with cc.Mesh(dp=2, ep=2, pp=1) as mesh:
            n = (7, 7, 6, 6) if even else (3, 1, 6, 2)
            r = int(mesh.axis(("dp", "ep")).rank)
            offset = sum(n[:r])
            mine = np.arange(offset, offset + n[r], dtype=float)[:, None]
            x = cc.from_local(mine, {"dp": cc.Shard(0), "ep": cc.Shard(0), "pp": cc.V})
            found = split_batch({"x": x}, 3, "pp", "inputs")
            whole = [cc.all_gather(cc.all_gather(f["x"], "ep", dim=0), "dp", dim=0).numpy()[:, 0] for f in found]
            again = [cc.from_local(f["x"].array, {"dp": cc.Shard(0), "ep": cc.Shard(0), "pp": cc.V}) for f in found]
            assert [f["x"].layout for f in found] == [a.layout for a in again]
            return whole

    for even in (True, False):
        for whole in cc.run(program, 4, even):
            assert sorted(np.concatenate(whole).tolist()) == list(range(26 if even else 12))


def test_wrong_batches() -> None:
    for given, message in ((["a", "b"], "dtype <U1"), (np.float64(1.0), "shape \\(\\)")):
        with pytest.raises(ArgumentError, match=message):
            split_batch(given if isinstance(given, np.float64) else np.array(given), 2, None, "inputs")
    w = ag.Parameter(rows())
    with ag.Tape():
        with pytest.raises(TapeError, match="inputs was computed on a tape"):
            split_batch(w * 2.0, 2, None, "inputs")


def test_known_divisions_give_the_same_microbatches() -> None:
    known: dict[Any, Any] = {}
    for x in (rows(), rows(7), rows(), {"a": rows(7), "b": [rows()]}):
        again = split_batch(x, 3, None, "inputs", known)
        for one, other in zip(again, split_batch(x, 3, None, "inputs"), strict=True):
            for a, b in zip(flatten(one)[0], flatten(other)[0], strict=True):
                np.testing.assert_array_equal(a.array, b.array)
    assert len(known) == 2


# -- planted faults --------------------------------------------------------------------------------------------------
FAULTS = ["cotangent dropped", "microbatches swapped", "tie not returned", "same random state"]


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "cotangent dropped":
        real = Transfers.receive_cotangents
        monkeypatch.setattr(Transfers, "receive_cotangents", lambda *a: [g * 0 for g in real(*a)])
    elif fault == "microbatches swapped":
        numbered = Transfers._numbered
        monkeypatch.setattr(Transfers, "_numbered", lambda self, message: numbered(self, message._replace(number=0)))
    elif fault == "tie not returned":
        received = Transfers.receive_gradient
        monkeypatch.setattr(Transfers, "receive_gradient", lambda *a: received(*a) * 0)
    else:
        monkeypatch.setattr(run_module, "begin_state", lambda seed, *others: begin_state(0, *others))
    make = {"tie not returned": tied, "same random state": checkpointed}.get(fault, untied)
    x, t = rows(), rows(6, 1)
    expected = serial(make, 3, x, t)
    schedule = "1f1b"
    if fault == "microbatches swapped":  # their numbers are needed where they are used in another order
        schedule = "0F0 0F1 0F2 0B0 0B1 0B2\n1F2 1F1 1F0 1B2 1B1 1B0"
    with pytest.raises(AssertionError):
        assert_same(piped(make, 2, 3, x, t, schedule=schedule, costs=[1.0] * 8), expected)
