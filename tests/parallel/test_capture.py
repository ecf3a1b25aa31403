"""Captured steps on several ranks: bit by bit the step, with communication, buckets, ZeRO and tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.errors import CaptureError, ShapeError
from autograd.layouts.layout import I, R, Shard, V
from parallel import Column, DataParallel, Row, Vocabulary, parallelize
from parallel.tensor.vocabulary import vocabulary_cross_entropy

from ..autograd.transforms import test_capture_optimizers as own
from ..autograd.transforms.test_capture import bits
from ..collectives.launch import launch_command

CALLS, REPLAYS = 8, 4


def batch(random: Any) -> tuple[Any, Any]:
    return random.standard_normal((6, 8)).astype("float32"), random.integers(0, 4, 6)


def network(*between: Any) -> nn.Module:
    ag.random.seed(0)
    return nn.Sequential(nn.Linear(8, 16), *between, nn.Linear(16, 4))


def train(step: Callable[[Any, Any], Any], captures: bool, seed: int, warmup: int = 2) -> tuple[list[Any], int]:
    do = ag.capture(step, warmup=warmup) if captures else step
    random = numpy.random.default_rng(seed)
    return [bits(do(*batch(random))) for _ in range(CALLS)], getattr(do, "replays", 0)


def with_casts(captures: bool) -> Any:
    """Data parallelism by hand: a cast of each parameter, whose adjoint is the sum of its gradient."""
    with cc.Mesh(dp=cc.world().size) as mesh:
        model = network(nn.ReLU())
        parameters = list(model.parameters())
        optimizer = optim.SGD(parameters, 0.1, 0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                w, b, v, c = (cc.cast(p, "dp", to=R) for p in parameters)
                h = nn.relu(ag.tensor(x) @ w + b) @ v + c
                loss = cc.all_reduce(nn.cross_entropy(h, ag.tensor(y), reduction="sum"), "dp", to=I) / 24
            tape.backward(loss)
            optimizer.step()
            return loss

        return *train(step, captures, mesh.axis("dp").rank), bits(parameters), bits([p.grad for p in parameters])


def data_parallel(zero: int, captures: bool, warmup: int = 2, **options: Any) -> Any:
    with cc.Mesh(dp=cc.world().size) as mesh:
        model = DataParallel(network(nn.ReLU(), nn.Dropout(0.2, along="dp")), "dp", zero=zero, **options)
        optimizer = optim.Adam(model.parameters(), lambda n: 0.02 / (1 + n)) if zero % 2 else optim.SGD(
            model.parameters(), 0.1, 0.9)  # fmt: skip

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                out = model(ag.tensor(x))
                loss = cc.all_reduce(nn.cross_entropy(out, ag.tensor(y), reduction="sum"), "dp", to=I) / 24
            tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            return loss

        found = train(step, captures, mesh.axis("dp").rank, warmup)
        return *found, bits(list(model.parameters())), bits([p.grad for p in model.parameters()])


def tensor_parallel(captures: bool) -> Any:
    n = cc.world().size
    with cc.Mesh(dp=max(n // 2, 1), tp=min(n, 2)) as mesh:
        model = DataParallel(parallelize(network(nn.GELU()), {"0": Column("tp"), "2": Row("tp")}), "dp")
        optimizer = optim.Adam(model.parameters(), 0.01)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                out = model(ag.tensor(x, {"tp": I}))
                loss = cc.all_reduce(nn.cross_entropy(out, ag.tensor(y, {"tp": I}), reduction="sum"), "dp", to=I) / 24
            tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            return loss

        found = train(step, captures, mesh.axis("dp").rank)
        return *found, bits(list(model.parameters())), bits([p.grad for p in model.parameters()])


def same(program: Callable[[bool], Any]) -> None:
    """Run a program without and with capture, and compare what this rank has."""
    expected, found = program(False), program(True)
    assert found[1] == REPLAYS
    assert found[0] == expected[0]
    assert found[2:] == expected[2:]


def with_an_own_optimizer(kind: Any, zero: int, captures: bool, decides: bool = False) -> Any:
    """An optimizer of the program, and perhaps a decision on the loss, which is one on all ranks."""
    with cc.Mesh(dp=cc.world().size) as mesh:
        model = DataParallel(network(nn.ReLU()), "dp", zero=zero)
        optimizer = kind(model.parameters())

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                out = model(ag.tensor(x))
                loss = cc.all_reduce(nn.cross_entropy(out, ag.tensor(y), reduction="sum"), "dp", to=I) / 24
            tape.backward(loss)
            if not decides or loss > 0.0:
                optimizer.step()
            return loss

        found = train(step, captures, mesh.axis("dp").rank)
        return *found, bits(list(model.parameters()))


def stages() -> list[Callable[[bool], Any]]:
    return [lambda captures, zero=zero: data_parallel(zero, captures) for zero in range(4)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_data_parallel_steps_replay_with_the_same_bits(zero: int, ranks: int) -> None:
    cc.run(lambda: same(lambda captures: data_parallel(zero, captures)), ranks=ranks)


def test_several_buckets_replay_in_their_order() -> None:
    cc.run(lambda: same(lambda captures: data_parallel(0, captures, bucket_bytes=64)), ranks=3)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("kind", [own.InDictionaries, own.Counting, own.Rebound, own.InFloat, own.OfMomentum])
def test_optimizers_of_the_program_replay_with_the_same_bits(kind: Any, zero: int, ranks: int) -> None:
    cc.run(lambda: same(lambda captures: with_an_own_optimizer(kind, zero, captures)), ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_model_that_is_called_twice_in_a_step(zero: int, ranks: int) -> None:
    def program(captures: bool) -> Any:
        with cc.Mesh(dp=cc.world().size) as mesh:
            model = DataParallel(network(nn.Tanh()), "dp", zero=zero)
            optimizer = optim.Adam(model.parameters(), 0.05)

            def step(x: Any, y: Any) -> Any:
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    a, b = model(ag.tensor(x)), model(ag.tensor(x) * 0.5)
                    loss = cc.all_reduce(((a - b) ** 2).sum(), "dp", to=I) / 24
                tape.backward(loss)
                optimizer.step()
                return loss

            return *train(step, captures, mesh.axis("dp").rank), bits(list(model.parameters()))

    cc.run(lambda: same(program), ranks)


def test_a_decision_after_sums_over_the_ranks_is_refused() -> None:
    with pytest.raises(CaptureError, match="decides on a computed value after something has changed"):
        cc.run(lambda: with_an_own_optimizer(own.Rebound, 0, captures=True, decides=True), ranks=2)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_casts_and_sums_replay_with_the_same_bits(ranks: int) -> None:
    cc.run(lambda: same(with_casts), ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tensor_parallel_steps_replay_with_the_same_bits(ranks: int) -> None:
    cc.run(lambda: same(tensor_parallel), ranks=ranks)


# -- a rank alone does not replay --------------------------------------------------------------------------------------
def alone(
    change: Callable[[int, Any, Any], tuple[Any, ...]], zero: int, captures: bool, calls: int = 14
) -> tuple[Any, ...]:
    """A step whose arguments on rank 1 are changed at some calls, and the replays of this rank."""
    with cc.Mesh(dp=cc.world().size) as mesh:
        model = DataParallel(network(nn.ReLU()), "dp", zero=zero, bucket_bytes=256)
        optimizer = optim.SGD(model.parameters(), 0.1, 0.9)
        rank = mesh.axis("dp").rank

        def step(x: Any, y: Any, weight: float = 1.0) -> Any:
            optimizer.zero_grad()
            with model.accumulate():
                for rows in (slice(0, 2), slice(2, None)):
                    with ag.Tape() as tape:
                        loss = nn.cross_entropy(model(ag.tensor(x[rows])), ag.tensor(y[rows]), reduction="sum")
                        loss = cc.all_reduce(loss * weight, "dp", to=I) / 24
                    tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            return loss

        do = ag.capture(step) if captures else step
        random, losses = numpy.random.default_rng(rank), []
        for k in range(calls):
            given = batch(random)
            losses.append(bits(do(*(change(k, *given) if rank == 1 else given))))
        return losses, bits(list(model.parameters())), getattr(do, "replays", 0)


ALONE: dict[str, Callable[[int, Any, Any], tuple[Any, ...]]] = {
    "fewer rows in the last batch": lambda k, x, y: (x[:5], y[:5]) if k % 7 == 6 else (x, y),
    "fewer rows while the others record": lambda k, x, y: (x[:5], y[:5]) if k in (2, 3, 9) else (x, y),
    "another dtype": lambda k, x, y: (x.astype("float64").astype("float32", order="F") if k == 8 else x, y),
    "a label to ignore": lambda k, x, y: (x, numpy.where(numpy.arange(6) == 2, -100, y) if k > 8 else y),
    "a number": lambda k, x, y: (x, y, 0.5) if k in (5, 6, 9) else (x, y),
}


def same_alone(name: str, zero: int = 0, calls: int = 14) -> None:
    *expected, _ = alone(ALONE[name], zero, False, calls)
    *found, replays = alone(ALONE[name], zero, True, calls)
    assert found == expected
    assert replays == calls - 4 or (cc.world().rank == 1 and replays > 1)


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("name", ALONE)
def test_one_rank_records_while_the_others_replay(name: str, zero: int) -> None:
    cc.run(lambda: same_alone(name, zero), ranks=3)


@pytest.mark.parametrize("mode", ["off", "first", "always", "ranks"])
def test_one_rank_records_among_samples_of_calls(mode: str) -> None:
    cc.check(mode)
    try:
        cc.run(lambda: same_alone("fewer rows in the last batch", calls=150), ranks=3)
    finally:
        cc.check("first")


def test_a_rank_that_compares_more_than_the_others_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc.Mesh, "quiet", lambda mesh, is_quiet: None)
    with pytest.raises(cc.CollectiveMismatch):
        cc.run(lambda: same_alone("fewer rows in the last batch"), ranks=3)


def test_values_of_ranks_that_replay_are_refused() -> None:
    def program() -> None:
        with cc.Mesh(dp=2):
            do = ag.capture(lambda x: cc.all_gather(cc.from_local(x, {"dp": Shard(0)}), "dp", to=R) * 2.0)
            for k in range(8):
                do(numpy.ones((2 + (k == 6 and cc.world().rank == 1), 3)))

    with pytest.raises(ag.CaptureError, match="no replay on this rank(.|\n)*fix: call the step itself"):
        cc.run(program, ranks=2)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_captured_step_that_calls_another_one(ranks: int) -> None:
    def program(captures: bool) -> Any:
        wrap: Any = ag.capture if captures else lambda f: f
        with cc.Mesh(dp=cc.world().size):
            model = DataParallel(network(nn.Tanh()), "dp")
            inner = wrap(lambda x: cc.all_reduce(model(x).sum() * 1.5, "dp", to=I))
            outer = wrap(lambda x: inner(x) * 2)
            xs = [ag.tensor(numpy.full((2, 8), k + int(cc.world().rank) / 2, "float32")) for k in range(CALLS)]
            return [bits(outer(x)) for x in xs], getattr(outer, "replays", REPLAYS)

    def compared() -> None:
        expected, found = program(False), program(True)
        assert expected == found

    cc.run(compared, ranks)


# -- the proof on other values, by runs that send nothing --------------------------------------------------------------
def summed(f: Callable[..., Any], draw: Callable[[int, int], tuple[Any, ...]], captures: bool) -> Any:
    """A step of data parallelism with a function of the model and of arguments, which may differ between ranks."""
    with cc.Mesh(dp=cc.world().size) as mesh:
        model = DataParallel(network(nn.ReLU()), "dp")
        optimizer = optim.SGD(model.parameters(), 0.1, 0.9)

        def step(*args: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce(f(model, *args), "dp", to=I) / 24
            tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            return loss

        do = ag.capture(step) if captures else step
        found = [bits(do(*draw(k, int(mesh.axis("dp").rank)))) for k in range(CALLS)]
        return found, getattr(do, "replays", 0), bits(list(model.parameters()))


def rows_of(k: int, rank: int) -> Any:
    return numpy.random.default_rng([k, rank]).standard_normal((6, 8))


NATURAL: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "constants that NumPy makes anew": (
        lambda model, x: (model(ag.tensor(x)) * numpy.arange(4, dtype="float32")).sum(),
        lambda k, rank: (rows_of(k, rank).astype("float32"),)),
    "an argument that NumPy casts": (
        lambda model, x: (model(ag.tensor(x.astype("float32"))) ** 2).sum(), lambda k, rank: (rows_of(k, rank),)),
    "a key": (
        lambda model, x, key: (nn.dropout(model(ag.tensor(x)), 0.5, key=key.along("dp")) ** 2).sum(),
        lambda k, rank: (rows_of(k, rank).astype("float32"), ag.random.Key(0).at(k))),
    "a checkpoint": (
        lambda model, x: ag.checkpoint(
            lambda y: (model(y) ** 2).sum() * cc.cast(cc.all_reduce(y.sum(), "dp", to=R), "dp", to=V))(ag.tensor(x)),
        lambda k, rank: (rows_of(k, rank).astype("float32"),)),
    "class weights": (
        lambda model, x, y: nn.cross_entropy(
            model(ag.tensor(x)), y, weight=numpy.arange(1, 5, dtype="float32"), reduction="sum"),
        lambda k, rank: (rows_of(k, rank).astype("float32"), numpy.arange(6) * (k + 1) % 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", NATURAL)
def test_a_natural_program_replays_on_all_ranks(name: str) -> None:
    def program() -> None:
        expected, found = summed(*NATURAL[name], False), summed(*NATURAL[name], True)
        assert found[1] == REPLAYS
        assert (found[0], found[2]) == (expected[0], expected[2])

    cc.run(program, ranks=2)


UNPROVED: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "the number of labels": (
        lambda model, x, y: nn.cross_entropy(model(ag.tensor(x)), y, reduction="sum") / float((y > 0).sum()),
        lambda k, rank: (rows_of(k, rank).astype("float32"), numpy.arange(6) % (4 if k < 5 else 2))),
    "a mask of ones": (
        lambda model, x, m: (model(ag.tensor(x)).sum(1) * (m * numpy.float32(2))).sum(),
        lambda k, rank: (rows_of(k, rank).astype("float32"), numpy.arange(6) > (-1 if k < 5 else 2))),
    "a number on one rank only": (
        lambda model, x, n: model(ag.tensor(x)).sum() * (float(n) if cc.world().rank == 1 else 2.0),
        lambda k, rank: (rows_of(k, rank).astype("float32"), numpy.float32(2 if k < 5 else 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPROVED)
def test_a_constant_of_an_argument_is_refused_on_ranks(name: str) -> None:
    """The job ends, where only one rank refuses, too."""
    with pytest.raises(ag.CaptureError, match="with other values of its arguments"):
        cc.run(lambda: summed(*UNPROVED[name], True), ranks=2)


def test_a_check_that_only_one_rank_fails_ends_the_job() -> None:
    def program() -> None:
        summed(lambda model, x, y: nn.nll_loss(model(ag.tensor(x)), y, reduction="sum"),
               lambda k, rank: (rows_of(k, rank).astype("float32"), numpy.arange(6) % 4 - (k == 6 and rank == 1)), True)

    with pytest.raises(ShapeError, match="nll_loss: labels must lie in"):
        cc.run(program, ranks=2)


def test_layers_of_a_vocabulary_replay_and_check() -> None:
    def program(bad: bool) -> None:
        with cc.Mesh(tp=cc.world().size):
            runs = []
            for captures in (False, True):
                ag.random.seed(0)
                model = parallelize(nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 8)), {
                    "0": Vocabulary("tp"), "1": Column("tp")})  # fmt: skip
                optimizer = optim.SGD(model.parameters(), 0.1)

                def step(i: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
                    optimizer.zero_grad()
                    with ag.Tape() as tape:
                        out = model(ag.tensor(i, {"tp": I}))
                        loss = vocabulary_cross_entropy(out, ag.tensor(y, {"tp": I}), "tp", ignore_index=7)
                    tape.backward(loss)
                    optimizer.step()
                    return loss

                do = ag.capture(step) if captures else step
                runs.append([bits(do((numpy.arange(5) + k) % 8, (numpy.arange(5) * k) % 7)) for k in range(CALLS)])
                if captures:
                    assert do.replays == REPLAYS
            assert runs[0] == runs[1]
            if bad:
                do(numpy.arange(5) - 1, numpy.arange(5))

    cc.run(lambda: program(False), ranks=2)
    with pytest.raises(ShapeError, match="VocabularyEmbedding: indices from -1 to 3"):
        cc.run(lambda: program(True), ranks=2)


def test_over_mpi() -> None:
    found = launch_command(["-m", __name__], 2, limit_s=60)
    assert found.code == 0, found.err
    assert found.out.count("the same bits") == 2


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_the_first_backward_agrees_on_buckets_in_a_recorded_run_too(zero: int) -> None:
    def program() -> None:
        found = [data_parallel(zero, captures, warmup=0) for captures in (False, True)]
        assert found[1][1] == CALLS - 2
        assert found[0][0] == found[1][0] and found[0][2:] == found[1][2:]

    cc.run(program, ranks=2)


if __name__ == "__main__":
    for each in (*stages(), with_casts, tensor_parallel):
        same(each)
    for name in ALONE:
        same_alone(name)
    print("the same bits", flush=True)
