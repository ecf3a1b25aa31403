"""Replicas that drift apart, and numbers that differ between ranks: found at backward, `step` and the end of a mesh."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import LayoutError, ReplicaWarning
from collectives import I, R, Shard, V
from collectives.checks import modes
from collectives.replicas import is_due

from ..launch import launch

pytestmark = pytest.mark.timeout(60)
DATA = np.random.default_rng(0).standard_normal((6, 3))
START = np.random.default_rng(1).standard_normal(3)


@pytest.fixture(autouse=True)
def mode_as_before() -> Iterator[None]:
    mode = modes.check_mode()
    yield
    cc.check(mode)


@pytest.fixture(params=["first", "always", "ranks"])
def mode(request: Any) -> str:
    cc.check(request.param)
    return str(request.param)


def run(body: Callable[[Any], Any], ranks: int = 3) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(dp=ranks) as mesh:
            return body(mesh)

    return cc.run(program, ranks)


def told(body: Callable[[Any], Any], kind: Any = cc.ReplicaMismatch, ranks: int = 3) -> list[str]:
    """The error of every rank, which each rank catches inside its mesh; "" for none."""

    def caught(mesh: Any) -> str:
        try:
            body(mesh)
        except kind as error:
            return str(error)
        return ""

    return run(caught, ranks)


def rows(mesh: Any) -> Any:
    return ag.tensor(DATA[mesh.ranks.rank :: mesh.ranks.size])


def sweep(mesh: Any, w: Any) -> Any:
    """One backward pass of a sum over the ranks' rows; the gradient of `w` is that of all rows."""
    w.zero_grad()
    with ag.Tape() as tape:
        y = rows(mesh) @ cc.cast(w, "dp", to=R)
        loss = cc.all_reduce((y * y).sum(), "dp", to=I) / len(DATA)
    tape.backward(loss)
    return loss


def serial_gradient(w: Any = START) -> Any:
    return 2 * DATA.T @ (DATA @ w) / len(DATA)


# -- what a correct program is told: nothing ---------------------------------------------------------------------------
@pytest.mark.parametrize("make", [
    lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), lambda ps: optim.Adam(ps, lr=0.1), lambda ps: optim.LAMB(ps),
    lambda ps: optim.SGD(ps, lr=optim.schedules.step_lr(0.1, 3)), lambda ps: optim.LARS(ps, lr=1),
])  # fmt: skip
def test_a_correct_program_is_told_nothing(mode: str, make: Any) -> None:
    def body(mesh: Any) -> None:
        w, bias = ag.Parameter(START), ag.Parameter(np.zeros(2), {"dp": V}, requires_grad=True)
        optimizer = make([w]) if "LA" in str(type(make([w]))) else make([w, bias])
        for _ in range(9):
            sweep(mesh, w)
            optim.clip_grad_norm_([w], 1.0)
            optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(body)


def test_the_schedule() -> None:
    assert [n for n in range(1, 260) if is_due(n, 100)] == [1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256]


def test_off_compares_nothing() -> None:
    cc.check("off")

    def body(mesh: Any) -> None:
        w = ag.Parameter(START + mesh.ranks.rank)
        sweep(mesh, w)
        optim.SGD([w], lr=0.1).step()

    assert told(body) == [""] * 3


# -- replicas --------------------------------------------------------------------------------------------------------
def test_a_seed_per_rank_without_an_optimizer(mode: str) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(np.random.default_rng(int(mesh.ranks.rank)).standard_normal(3), name="w")
        sweep(mesh, w)

    for text in told(body):
        assert "the copies of ranks 1, 2 differ from those of rank 0" in text
        assert "w: f64[3] {dp: I}" in text
        assert "same seed" in text


def test_a_hand_written_update_on_one_rank_only(mode: str) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        for _ in range(2):
            sweep(mesh, w)
            if mesh.ranks.rank != 1:
                w.data = w.data - 0.1 * w.grad.data

    assert all("rank 1" in text and "w: f64[3] {dp: I}" in text for text in told(body))


def test_a_parameter_changed_on_one_rank_between_steps(mode: str) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        optimizer = optim.Adam([w], lr=0.1)
        for _ in range(2):
            sweep(mesh, w)
            if mesh.ranks.rank == 2:
                w.data = w.data * 1.0000001
            optimizer.step()

    assert all("rank 2" in text and "w at step()" in text for text in told(body))


def test_drift_is_found_later_too(mode: str) -> None:
    """A change after step 5 is found at step 8, the next that is compared, or before."""

    def body(mesh: Any) -> int:
        w = ag.Parameter(START)
        optimizer = optim.SGD([w], lr=0.1)
        for n in range(1, 20):
            if n == 6 and mesh.ranks.rank == 0:
                w.data = w.data + 1e-9
            try:
                sweep(mesh, w)
                optimizer.step()
            except cc.ReplicaMismatch:
                return n
        return 0

    assert set(run(body)) == {6 if mode == "ranks" else 8}


# -- the objective -----------------------------------------------------------------------------------------------------
def test_an_objective_that_differs(mode: str) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        scale = ag.Parameter([1.0 + int(mesh.ranks.rank)], requires_grad=False)  # declared Invariant, and is not
        with ag.Tape() as tape:
            y = rows(mesh) @ cc.cast(w, "dp", to=R)
            loss = (cc.all_reduce((y * y).sum(), "dp", to=I) * scale).sum()
        tape.backward(loss)

    for text in told(body):
        assert "the objectives of ranks 1, 2 differ from those of rank 0" in text
        assert "objective(" in text and " {dp: I}) = " in text
        assert "test_replicas.py:" in text


def test_an_objective_that_differs_on_a_tape_without_a_collective(mode: str) -> None:
    """The list of slices has forgotten the rank number, and the next call along the axis tells."""

    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        with ag.Tape() as tape:
            loss = ([w[i : i + 1] for i in range(3)][mesh.ranks.rank] ** 2).sum()
        tape.backward(loss)
        cc.all_reduce(rows(mesh), "dp")

    for text in told(body):
        assert "the objectives of ranks 1, 2 differ from those of rank 0" in text
        assert text.count("objective at test_replicas.py:") == 1 and "index the Tensor itself, x[rank]" in text
        assert all(f"rank {r}: objective(f64[] {{dp: I}}) = {float(START[r] ** 2)!r}" in text for r in range(3)), text


def test_an_objective_of_the_last_tape_is_told_at_the_end(mode: str) -> None:
    def program() -> None:
        with cc.Mesh(dp=3) as mesh:
            sweep(mesh, w := ag.Parameter(START))
            with ag.Tape() as tape:
                loss = ([*w][mesh.ranks.rank] ** 2).sum()
            tape.backward(loss)

    with pytest.raises(cc.ReplicaMismatch, match="the objectives of ranks 1, 2 differ from those of rank 0"):
        cc.run(program, 3)


def test_equal_objectives_on_tapes_without_a_collective_are_legal(mode: str) -> None:
    """Also if a rank has objectives that the others leave out, between two calls."""

    def body(mesh: Any) -> Any:
        w = ag.Parameter(START)
        for _ in range(9):
            for terms in (3, 2, 1) if int(mesh.ranks.rank) == 1 else (1,):
                w.zero_grad()
                with ag.Tape() as tape:
                    loss = np.stack([w * w] * terms).sum()
                tape.backward(loss)
            cc.all_reduce(rows(mesh), "dp")
        assert w.grad is not None
        return w.grad.numpy()

    for found in run(body):
        assert np.allclose(found, 2 * START)


@pytest.mark.parametrize("starts", [False, True])
def test_a_message_of_two_ranks_leaves_the_comparison_of_all(mode: str, starts: bool) -> None:
    """The last collective on the tapes of two ranks is another one than on that of the third."""

    def body(mesh: Any) -> Any:
        w, rank = ag.Parameter(START), int(mesh.ranks.rank)
        for _ in range(9):
            w.zero_grad()
            with ag.Tape() as tape:
                y = rows(mesh) @ cc.cast(w, "dp", to=R)
                loss = cc.all_reduce((y * y).sum(), "dp", to=I)
                if rank == 0:
                    cc.isend(y, "dp", 1).wait() if starts else cc.send(y, "dp", 1)
                elif rank == 1:
                    cc.irecv("dp", 0, like=y).wait() if starts else cc.recv("dp", 0, like=y)
            tape.backward(loss)
        return w.grad.numpy() if w.grad is not None else None

    one, *others = run(body)
    assert one is not None and all(np.array_equal(one, each) for each in others)


def test_off_compares_no_objective() -> None:
    cc.check("off")

    def body(mesh: Any) -> None:
        w = ag.Parameter(START)
        with ag.Tape() as tape:
            loss = ([*w][mesh.ranks.rank] ** 2).sum()
        tape.backward(loss)
        cc.all_reduce(rows(mesh), "dp")

    assert told(body) == ["", "", ""]


# -- gradients and what changes them -----------------------------------------------------------------------------------
def test_gradients_clipped_by_a_norm_of_each_rank(mode: str) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        sweep(mesh, w)
        own = float(np.linalg.norm(rows(mesh).numpy()))
        w.grad.array[...] *= 1.0 / own
        optim.SGD([w], lr=0.1).step()

    for text in told(body):
        assert "the gradient of w" in text
        assert "gradient of w: f64[3] {dp: I} has digest" in text
        assert "optim.clip_grad_norm_" in text


def test_a_gradient_that_one_rank_has_removed(mode: str) -> None:
    def body(mesh: Any) -> None:
        w, v = ag.Parameter(START, name="w"), ag.Parameter(START, name="v")
        sweep(mesh, w)
        sweep(mesh, v)
        if mesh.ranks.rank == 1:
            v.zero_grad()
        optim.SGD([w, v], lr=0.1).step()

    assert all("rank 1: no gradient of v" in text for text in told(body))


def test_a_norm_that_leaves_the_other_ranks_out(mode: str) -> None:
    """`norm=` of sharded gradients that returns each rank's own norm."""

    def body(mesh: Any) -> None:
        part = START[[int(mesh.ranks.rank)]]
        w = ag.Parameter(part, {"dp": Shard(0)}, global_shape=(3,), name="w")
        optimizer = optim.SGD([w], lr=0.1)
        for _ in range(2):
            w.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce((w * w * w).sum(), "dp", to=I)
            tape.backward(loss)
            optim.clip_grad_norm_([w], 0.1, norm=lambda gs, kind: float(np.linalg.norm(gs[0].array)))
            optimizer.step()

    for text in told(body):
        assert "norm at test_replicas.py:" in text
        assert "sum their squares with an all_reduce" in text


# -- numbers and state -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words", [
    lambda r: {"lr": 0.1 * (r + 1)}, lambda r: {"lr": 0.1 * (int(r) + 1)},
    lambda r: {"lr": 0.1, "momentum": 0.5 + 0.1 * int(r)}, lambda r: {"lr": 0.1, "weight_decay": 0.1 * int(r)},
    lambda r: {"lr": lambda step: 0.1 * (int(r) + 1)}, lambda r: {"lr": 0.1, "momentum": 0.9, "nesterov": int(r) == 0},
])  # fmt: skip
def test_hyperparameters_that_differ(mode: str, words: Any) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START)
        optimizer = optim.SGD([w], **words(mesh.axis("dp").rank))
        sweep(mesh, w)
        optimizer.step()

    for text in told(body):
        assert "of SGD" in text and "SGD(" in text
        assert "fix: the same number on every rank" in text


def test_hyperparameters_of_shards_are_compared_and_of_varying_values_are_not() -> None:
    def body(mesh: Any, label: Any) -> None:
        rank = int(mesh.axis("dp").rank)
        w = ag.Parameter(START[[rank]], {"dp": label})
        with ag.Tape() as tape:
            loss = cc.all_reduce((w * w).sum(), "dp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1 * (rank + 1)).step()

    assert all("SGD(lr=" in text for text in told(lambda mesh: body(mesh, Shard(0))))
    assert told(lambda mesh: body(mesh, V)) == [""] * 3


def test_a_learning_rate_that_depends_on_the_rank_is_refused() -> None:
    def given(mesh: Any) -> None:
        optim.SGD([ag.Parameter(START, name="w")], lr=(mesh.axis("dp").rank + 1) * 0.1)

    def set_later(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        optimizer = optim.Adam([w], lr=0.1)
        sweep(mesh, w)
        optimizer.step()
        optimizer.lr = (mesh.axis("dp").rank + 1) / 10
        optimizer.step()

    def scheduled(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        optimizer = optim.Adam([w], lr=lambda step: (mesh.axis("dp").rank + 1) / 10)
        sweep(mesh, w)
        optimizer.step()

    def another(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        optimizer = optim.Adam([w], lr=0.1, betas=(0.9, 1 - (mesh.axis("dp").rank + 1) / 10))
        sweep(mesh, w)
        optimizer.step()

    for body in (given, set_later, scheduled, another):
        for ranks in (3, 1):  # labels are known on one rank too
            for text in told(body, LayoutError, ranks):
                assert "axis 'dp'" in text and "differs between the ranks, and w is Invariant" in text, body
                assert "fix: the same" in text

    def own(mesh: Any) -> None:
        w = ag.Parameter(START + mesh.ranks.rank, {"dp": V})
        optim.SGD([w], lr=(mesh.axis("dp").rank + 1) * 0.1)

    assert told(own, LayoutError) == [""] * 3


def test_a_state_that_one_rank_has_loaded(mode: str) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
        sweep(mesh, w)
        optimizer.step()
        if mesh.ranks.rank == 0:
            state = optimizer.state_dict()
            optimizer.load_state_dict({**state, "velocity": [2 * v for v in state["velocity"]]})
        optimizer.step()

    for text in told(body):
        assert "state of SGD for w" in text
        assert "load_state_dict" in text


def test_a_checkpoint_that_one_rank_has_read(mode: str) -> None:
    """It has another number of steps, and the ranks compare at the same calls all the same."""

    def body(mesh: Any) -> None:
        w = ag.Parameter(START, name="w")
        optimizer = optim.Adam([w], lr=0.1)
        if mesh.ranks.rank == 0:
            optimizer.load_state_dict({"steps": 6, "lr": 0.1, "first": [START], "second": [START**2], "counts": [6]})
        sweep(mesh, w)
        optimizer.step()

    assert all("steps" in text and "Adam(steps=6.0)" in text for text in told(body))


def test_different_numbers_of_steps(mode: str) -> None:
    """Rank 2 has a batch fewer, and steps without communication: told at the next call that is compared."""

    def body(mesh: Any) -> None:
        w = ag.Parameter(START)
        optimizer = optim.SGD([w], lr=0.1)
        sweep(mesh, w)
        for _ in range(4 - (mesh.ranks.rank == 2)):
            optimizer.step()
        sweep(mesh, w)

    for text in told(body, cc.CollectiveMismatch):
        assert "step 4 of SGD" in text
        assert "rank 2" in text


def test_varying_values_may_step_a_different_number_of_times() -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START + mesh.ranks.rank, {"dp": V})
        w.accumulate(np.ones(3))
        optimizer = optim.SGD([w], lr=0.1)
        for _ in range(1 + mesh.ranks.rank):
            optimizer.step()
        cc.all_reduce(w, "dp")

    assert told(body, cc.CommunicationError) == [""] * 3


# -- parameters that were probably meant Invariant ---------------------------------------------------------------------
def warned(body: Callable[[Any], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(body)
    texts = [str(each.message) for each in caught if each.category is ReplicaWarning]
    return [text for text in texts if "add equal values" not in text]  # these: test_equal_addends.py


@pytest.mark.parametrize("label", [V, Shard(0)])
def test_equal_parts_are_named_at_the_first_step(label: Any) -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START, {"dp": label}, name="w")
        bias = ag.Parameter(np.zeros(3), {"dp": label}, name="bias")
        scale = ag.Parameter(np.ones(3), {"dp": label}, name="scale")
        with ag.Tape() as tape:
            loss = cc.all_reduce((w * w * scale + bias).sum(), "dp", to=I)
        tape.backward(loss)
        optimizer = optim.SGD([w, bias, scale], lr=0.1)
        optimizer.step()
        optimizer.step()

    (text,) = warned(body)
    assert "w: all 3 ranks of axis 'dp' hold the same values" in text
    assert "Meant Invariant?" in text
    assert "bias" not in text and "scale" not in text


def test_a_functional_update_of_a_tensor_without_a_label_is_named() -> None:
    """Nothing is updated in place, and zeros are no excuse for a leaf without a label."""

    def body(mesh: Any, start: Any, label: Any = None) -> None:
        w = ag.tensor(start.copy(), label, requires_grad=True, name="w")
        for _ in range(2):
            with ag.Tape() as tape:
                y = rows(mesh) @ w
                loss = cc.all_reduce((y * y - y).sum(), "dp", to=I) / len(DATA)
            tape.backward(loss)
            w = ag.tensor(w.numpy() - 0.1 * w.grad.numpy(), label, requires_grad=True, name="w")

    for start in (START, np.zeros(3)):
        (text,) = warned(lambda mesh, start=start: body(mesh, start))
        assert "w: all 3 ranks of axis 'dp' hold the same values" in text and "Meant Invariant?" in text
        assert warned(lambda mesh, start=start: body(mesh, start, {"dp": V})) == []


@pytest.mark.parametrize("at", ["backward", "step"])
def test_copies_on_stages_with_different_lists_are_named(at: str) -> None:
    """An embedding tied between the first and the last stage of three, each of which has other parameters, too."""

    def stages(mesh: Any, *, is_tied: bool) -> None:
        rank = int(mesh.ranks.rank)
        own = [np.random.default_rng(i).standard_normal((2, 3)) for i in range(rank, 2 * rank + 1)]
        if rank != 1:
            own.insert(rank // 2, np.linspace(0, 1, 8).reshape(4, 2) + (0 if is_tied else rank))
        parameters = [ag.Parameter(a, {"dp": V}, name=f"p{i}") for i, a in enumerate(own)]
        if at == "backward":
            with ag.Tape() as tape:
                loss = cc.all_reduce(sum((p * p).sum() for p in parameters), "dp", to=I)
            tape.backward(loss)
        else:
            for p in parameters:
                p.accumulate(np.ones(p.shape))
        optim.SGD(parameters, lr=0.1).step()

    (text,) = warned(lambda mesh: stages(mesh, is_tied=True))
    assert "p0: ranks 0, 2 of axis 'dp', which alone have a parameter of that shape, hold the same values" in text
    assert "at the start of the tape's block, before send and recv" in text
    assert warned(lambda mesh: stages(mesh, is_tied=False)) == []


def test_parts_that_differ_are_not_named() -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START + (mesh.ranks.rank == 1), {"dp": V})
        with ag.Tape() as tape:
            loss = cc.all_reduce((w * w).sum(), "dp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    assert warned(body) == []


def learn_by_hand(w: Any) -> None:
    w.data -= 0.1 * w.grad.data


@pytest.mark.parametrize("learn", [lambda w: optim.SGD([w], lr=0.1).step(), learn_by_hand])
def test_a_tensor_without_a_label_is_not_learned(learn: Any) -> None:
    """The natural first program: each rank would learn from its own rows. Refused on one rank too."""

    def wrong(mesh: Any) -> None:
        w = ag.tensor(START.copy(), requires_grad=True, name="w")
        with ag.Tape() as tape:
            y = rows(mesh) @ w
            loss = cc.all_reduce((y * y).sum(), "dp", to=I) / len(DATA)
        tape.backward(loss)
        learn(w)

    for ranks in (1, 3):
        for text in told(wrong, LayoutError, ranks):
            assert "w: f64[3] {dp: V}" in text and "axis 'dp': w is an ag.tensor without a label" in text
            assert "fix: w = ag.Parameter(...), which is Invariant, and cast(w, 'dp', to=R) where it is used" in text
            assert "or:  layout={'dp': V}, if each rank" in text

    def fixed(mesh: Any) -> Any:
        w = ag.Parameter(START, name="w")
        with ag.Tape() as tape:
            y = rows(mesh) @ cc.cast(w, "dp", to=R)
            loss = cc.all_reduce((y * y).sum(), "dp", to=I) / len(DATA)
        tape.backward(loss)
        gradient = w.grad.numpy().copy()
        learn(w)
        return gradient, w.numpy()

    for gradient, w in run(fixed):
        np.testing.assert_allclose(gradient, serial_gradient(), rtol=1e-12)
        np.testing.assert_allclose(w, START - 0.1 * serial_gradient(), rtol=1e-12)

    def own(mesh: Any) -> Any:
        w = ag.tensor(START + mesh.ranks.rank, {"dp": V}, requires_grad=True)
        with ag.Tape() as tape:
            y = rows(mesh) @ w
            loss = cc.all_reduce((y * y).sum(), "dp", to=I)
        tape.backward(loss)
        learn(w)

    assert told(own, LayoutError) == [""] * 3


# -- random numbers ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["Invariant", "Replicated", "Shard"])
def test_dropout_with_a_seed_of_each_rank(mode: str, where: str) -> None:
    def body(mesh: Any) -> None:
        random.seed(int(mesh.ranks.rank))
        w = ag.Parameter(START, name="w")
        with ag.Tape() as tape:
            h = cc.cast(w, "dp", to=R) if where != "Invariant" else w * 1.0
            h = cc.shard(h, "dp") if where == "Shard" else h
            h = nn.dropout(h, 0.5)
            h = cc.cast(h, "dp", to=R) if where == "Invariant" else h
            y = (rows(mesh) @ h).sum() if where != "Shard" else (h * h).sum()
            loss = cc.all_reduce(y, "dp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    for text in told(body):
        assert "the random keys of ranks 1, 2 differ" in text or "cast I->R" in text, text
        assert "test_replicas.py:" in text
    assert all("key.along('dp')" in text for text in told(body)) or mode == "ranks"


def test_parameters_of_a_seed_of_each_rank_that_are_broadcast_are_right(mode: str) -> None:
    def body(mesh: Any) -> Any:
        random.seed(int(mesh.ranks.rank))
        layer = nn.Linear(3, 2, dtype=float)
        nn.init.normal_(layer.weight)
        for p in layer.parameters():
            p.data = cc.broadcast(ag.tensor(p.numpy().copy(), {"dp": V}), "dp", root=0, to=I).numpy()
        optimizer = optim.SGD(layer.parameters(), lr=0.1)
        with ag.Tape() as tape:
            y = rows(mesh) @ cc.cast(layer.weight, "dp", to=R)
            loss = cc.all_reduce((y * y).sum(), "dp", to=I)
        tape.backward(loss)
        optimizer.step()
        return layer.weight.numpy()

    first, *others = run(body)
    assert all((first == other).all() for other in others)


def test_seeds_that_depend_on_the_rank_are_refused() -> None:
    def program(mesh: Any) -> list[str]:
        rank, texts = mesh.axis("dp").rank, []
        for make in (lambda: random.seed(rank), lambda: random.Key(rank + 3), lambda: random.Key(0).at(rank)):
            with pytest.raises(LayoutError, match="depends on the rank on axis 'dp'") as error:
                make()
            texts.append(str(error.value))
        random.seed(int(rank))
        random.seed(0)
        own = random.normal(random.Key(3).along("dp"), (4,))
        assert own.layout["dp"] is V
        return texts

    for texts in run(program):
        assert all("fix: the same seed on every rank, and key.along('dp')" in text for text in texts)


# -- the end of a mesh -------------------------------------------------------------------------------------------------
def test_a_lie_after_the_last_collective_is_told_at_the_end() -> None:
    cc.check("ranks")
    errors = []

    def program() -> None:
        try:
            with cc.Mesh(dp=3) as mesh:
                cc.all_reduce(ag.tensor([1.0]), "dp")
                ag.constant(np.ones(3) * (1 + (mesh.ranks.rank == 1)))
        except cc.ReplicaMismatch as error:
            errors.append(str(error))

    cc.run(program, 3)
    assert len(errors) == 3
    assert all("the constants of rank 1 differ" in text and "constant at test_replicas.py" in text for text in errors)


def test_a_rank_that_leaves_by_an_exception_does_not_communicate() -> None:
    cc.check("ranks", timeout_s=30)

    def program() -> str:
        try:
            with cc.Mesh(dp=2):
                raise OSError("each of them")
        except OSError as error:
            return str(error)

    assert cc.run(program, 2) == ["each of them"] * 2

    def one() -> str:
        try:
            with cc.Mesh(dp=2) as mesh:
                if mesh.ranks.rank == 1:
                    raise OSError("only this one")
        except OSError as error:
            return str(error)
        return "went on"

    with pytest.raises(cc.DeadlockError, match=r"the end of the block of Mesh\(dp=2\)"):
        cc.run(one, 2)
    cc.check("first")
    assert cc.run(one, 2) == ["went on", "only this one"]


# -- over MPI ----------------------------------------------------------------------------------------------------------
TOLD = {
    "right": "'nothing'", "own_seed": "w: f64[3] {dp: I}", "own_gradient": "the gradient of w", "own_rate": "lr of SGD",
    "own_state": "state of SGD for w", "another_number_of_steps": "step 2 of SGD", "later": "the gradient of w",
}  # fmt: skip


@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_every_rank_is_told_over_mpi(on: str) -> None:
    outcome = launch("replicas_program.py", 3, limit_s=55, on=on)
    shown = f"{outcome.out}\n{outcome.err}"
    assert outcome.code == 0 and not outcome.is_late, shown
    for mode in ("first", "ranks"):
        ends = "'nothing'" if mode == "first" else "constant at replicas_program.py:"
        for case, words in {**TOLD, "at_the_end": ends}.items():
            for rank in range(3):
                lines = [x for x in outcome.out.splitlines() if x.startswith(f"[rank {rank}] {mode} {case}: ")]
                assert len(lines) == 1 and words in lines[0], shown


def test_what_a_rank_has_dropped_is_not_compared() -> None:
    """Models of several runs, of which a rank keeps another one than the others, or drops them at another time."""

    def body(mesh: Any) -> list[Any]:
        kept: list[Any] = []
        for seed in range(2):
            w = ag.Parameter(START + seed)
            optimizer = optim.SGD([w], lr=0.1 + seed)
            for _ in range(2):
                with ag.Tape() as tape:
                    x = cc.shard(ag.tensor(DATA, {"dp": R}), "dp")
                    loss = cc.all_reduce(((x @ cc.cast(w, "dp", to=R)) ** 2).sum(), "dp", to=I)
                tape.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if seed == (0 if mesh.ranks.index == 0 else 1):
                kept.append(w)
        return kept

    run(body)


# -- the end of the block, for updates by hand -------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["first", "ranks"])
def test_the_end_of_the_block_finds_a_last_update_by_hand_on_one_rank(mode: str) -> None:
    def train(mesh: Any) -> None:
        w = ag.Parameter(START.copy(), name="w")
        for _ in range(3):  # the third backward is not compared in the mode first
            with ag.Tape() as tape:
                y = rows(mesh) @ cc.cast(w, "dp", to=R)
                loss = cc.all_reduce((y * y).sum(), "dp", to=I)
            tape.backward(loss)
            w.data = w.numpy() - 0.1 * w.grad.numpy()
            w.zero_grad()
        if mesh.ranks.rank == 1:
            w.data = w.numpy() * 2
        kept.append(w)

    def program() -> str:
        with pytest.raises(cc.ReplicaMismatch) as caught, cc.Mesh(dp=3) as mesh:
            train(mesh)
        return str(caught.value)

    kept: list[Any] = []
    cc.check(mode)
    try:
        for text in cc.run(program, ranks=3):
            assert "w after backward" in text and "rank 1" in text
    finally:
        cc.check("first")


def test_an_update_by_hand_on_all_ranks_is_legal() -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(START.copy(), name="w")
        with ag.Tape() as tape:
            y = rows(mesh) @ cc.cast(w, "dp", to=R)
            loss = cc.all_reduce((y * y).sum(), "dp", to=I)
        tape.backward(loss)
        w.data = w.numpy() - 0.1 * w.grad.numpy()
        kept.append(w)

    kept: list[Any] = []
    run(body)


@pytest.mark.parametrize(("value", "is_named"), [(0.1, True), (np.full(3, 0.5), True), (1.0, False), (0.0, False)])
def test_one_number_is_named_unless_it_is_0_or_1(value: Any, is_named: bool) -> None:
    def body(mesh: Any) -> None:
        kappa = ag.Parameter(value, {"dp": V}, name="kappa")
        with ag.Tape() as tape:
            loss = cc.all_reduce((rows(mesh).sum() * kappa).sum(), "dp", to=I)
        tape.backward(loss)

    assert any("kappa: all 3 ranks" in text for text in warned(body)) is is_named


@pytest.mark.parametrize("is_meant", [True, False])
def test_parts_that_another_axis_copies_are_no_values_of_their_own(is_meant: bool) -> None:
    """Uneven parts along "ep" have a shape of their own, and the ranks of "dp" hold the same parts. Equal values that
    are Varying along "ep" are still warned of."""

    def program() -> None:
        with cc.Mesh(dp=2, ep=2) as mesh:
            mine = np.array_split(START, 2)[int(mesh.axis("ep").rank)] if is_meant else START
            w = ag.Parameter(mine, {"ep": Shard(0) if is_meant else V}, name="w")
            x = cc.from_local(DATA[:1] * (1.0 + mesh.ranks.index), {"dp": V, "ep": V})
            with ag.Tape() as tape:
                whole = cc.cast(w, "dp", to=R)
                if is_meant:
                    whole = cc.all_gather(whole, "ep")
                loss = cc.all_reduce((x * whole).sum(), ("dp", "ep"), to=I)
            tape.backward(loss)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cc.run(program, 4)
    assert [each.category for each in caught] == ([] if is_meant else [ReplicaWarning])
