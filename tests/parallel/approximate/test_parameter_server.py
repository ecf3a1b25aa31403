"""The parameter server against a serial program that makes the reads and pushes of a script one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import ArgumentError, CollectiveMismatch, LayoutError, MeshError, OptionError, ReplicaMismatch
from parallel import DataParallel
from parallel.approximate.parameter_server import ParameterServer

from ...collectives.launch import launch_command

PROGRAM = str(Path(__file__).parent / "programs" / "asynchronous_program.py")

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.5),
}


def on_ranks(ranks: int, program: Callable[[cc.Mesh, int], Any]) -> list[Any]:
    """Run a program inside a mesh of one axis, 'dp'."""

    def rank_main() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            return program(mesh, int(mesh.axis("dp").rank))

    return cc.run(rank_main, ranks)


def make_model() -> nn.Module:
    random.seed(3)
    return nn.Sequential(nn.Linear(3, 2, dtype=float), nn.Tanh(), nn.Linear(2, 2, dtype=float))


def batch(rank: int, step: int) -> tuple[Any, Any]:
    generator = np.random.default_rng((rank, step))
    return generator.normal(size=(1 + rank, 3)), generator.integers(0, 2, 1 + rank)


def loss_of(model: Any, rank: int, step: int) -> Any:
    x, y = batch(rank, step)
    return nn.cross_entropy(model(x), y, reduction="sum") / 5.0


def backward(model: Any, rank: int, step: int) -> None:
    with ag.Tape() as tape:
        loss = cc.declare_partial(loss_of(model, rank, step), "dp")
    tape.backward(loss)


def values(model: Any) -> np.ndarray:
    return np.concatenate([np.array(p.numpy()).ravel() for p in model.parameters()])


def train(server: ParameterServer, model: Any, rank: int, steps: int) -> list[Any]:
    pushes = []
    for step in range(steps):
        server.read()
        backward(model, rank, step)
        server.push()
        pushes.append(server.last)
    return pushes


class Serial:
    """The shared parameters, and workers that read them and push to them in a given order, in one thread."""

    def __init__(self, workers: int, make: Callable[[Any], optim.Optimizer]):
        self.models = [make_model() for _ in range(workers)]
        self.optimizers = [make(model.parameters()) for model in self.models]
        self.shared = values(self.models[0])
        self.version = 0
        self.steps = [0] * workers
        self.read: dict[int, tuple[int, np.ndarray]] = {}
        self.staleness: Counter[int] = Counter()

    def turn(self, rank: int) -> None:
        model, optimizer = self.models[rank], self.optimizers[rank]
        if rank not in self.read:
            self.read[rank] = self.version, self.shared.copy()
            start = 0
            for p in model.parameters():
                p.data = self.shared[start : start + p.array.size].reshape(p.array.shape)
                start += p.array.size
            return
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = loss_of(model, rank, self.steps[rank])
        tape.backward(loss)
        optimizer.step()
        version, value = self.read.pop(rank)
        self.shared = self.shared + (values(model) - value)
        self.staleness[self.version - version] += 1
        self.version += 1
        self.steps[rank] += 1


# -- scripts -----------------------------------------------------------------------------------------------------------
@st.composite
def scripts(draw: Any) -> tuple[int, list[int]]:
    """A number of workers, and a random order of their reads and pushes; they make different numbers of steps."""
    workers = draw(st.integers(1, 4))
    turns = [rank for rank in range(workers) for _ in range(2 * draw(st.integers(0, 4)))]
    return workers, draw(st.permutations(turns))


@settings(max_examples=30, deadline=None)
@given(scripts(), st.sampled_from(list(OPTIMIZERS)), st.integers(1, 3))
def test_a_script_gives_the_bits_of_the_serial_program(case: Any, name: str, servers: int) -> None:
    workers, script = case

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        server = ParameterServer(
            model, "dp", OPTIMIZERS[name](model.parameters()), script=script, servers=min(servers, workers)
        )
        with server:
            pushes = train(server, model, rank, script.count(rank) // 2)
            mesh.axis("dp").group.barrier()
            histogram = server.histogram()
        return values(model), histogram, [push.staleness for push in pushes], server.clock

    serial = Serial(workers, OPTIMIZERS[name])
    for rank in script:
        serial.turn(rank)
    found = on_ranks(workers, program)
    for rank, (value, histogram, _, clock) in enumerate(found):
        assert np.array_equal(value, serial.shared)
        assert histogram == serial.staleness
        assert clock == serial.steps[rank]
    assert Counter(n for _, _, staleness, _ in found for n in staleness) == serial.staleness


def test_a_push_carries_the_worker_its_clock_and_the_version_it_read() -> None:
    script = [0, 1, 1, 1, 1, 0, 0, 0]  # worker 1 pushes twice between worker 0's read and push

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters()), script=script) as server:
            return train(server, model, rank, 2)

    first, second = on_ranks(2, program)
    assert [tuple(push) for push in first] == [(0, 0, (0, 0), (2, 2)), (0, 1, (3, 3), (3, 3))]
    assert [tuple(push) for push in second] == [(1, 0, (0, 0), (0, 0)), (1, 1, (1, 1), (1, 1))]
    assert [push.staleness for push in first + second] == [2, 0, 0, 0]


# -- bounded staleness -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_bound_of_zero_is_synchronous_sgd(ranks: int) -> None:
    """As `DataParallel` with the same loss, whose gradients are summed; no script, any order of pushes."""

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["momentum"](model.parameters()), staleness=0) as server:
            pushes = train(server, model, rank, 6)
        synchronous = DataParallel(make_model(), "dp")
        optimizer = OPTIMIZERS["momentum"](synchronous.parameters())
        for step in range(6):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce(loss_of(synchronous, rank, step), "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
        return values(model), values(synchronous), [push.read for push in pushes]

    for value, expected, reads in on_ranks(ranks, program):
        assert np.linalg.norm(value - expected) <= 1e-13 * np.linalg.norm(expected)
        assert all(set(read) == {step * ranks} for step, read in enumerate(reads))  # all pushes of the steps before


@pytest.mark.parametrize("bound", [1, 2])
def test_reads_see_the_steps_within_the_bound(bound: int) -> None:
    """An element of the parameter counts the pushes of one worker."""
    workers, steps = 3, 12

    class Counts(nn.Module):
        def __init__(self) -> None:
            self.w = ag.Parameter(np.zeros(workers))

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = Counts()
        seen = []
        with ParameterServer(model, "dp", optim.SGD(model.parameters(), lr=1.0), staleness=bound) as server:
            for _ in range(steps):
                server.read()
                seen.append(model.w.numpy().tolist())
                with ag.Tape() as tape:
                    loss = cc.declare_partial(-(model.w[rank]), "dp")
                tape.backward(loss)
                server.push()
        return seen, model.w.numpy().tolist()

    for rank, (seen, last) in enumerate(on_ranks(workers, program)):
        assert last == [steps] * workers
        for step, counts in enumerate(seen):
            assert counts[rank] == step
            assert all(step - bound <= n <= step + bound for n in counts)


def test_the_fastest_blocks_at_the_bound() -> None:
    """Worker 0 could take all of its steps at once. It stops ahead of worker 1, which waits for that."""
    bound = 2

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model, group = make_model(), mesh.axis("dp").group
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters()), staleness=bound) as server:
            if rank == 1:
                server.read()  # until it pushes, worker 0 can push the steps 0 to 2 and not begin step 3
                group.recv(np.empty(1), 0)
                clocks = server.clocks()
                backward(model, rank, 0)
                server.push()
                return clocks, train(server, model, rank, 5)
            train(server, model, rank, bound + 1)
            group.send(np.ones(1), 1)
            train(server, model, rank, 3)
            return server.clock

    fast, (clocks, _) = on_ranks(2, program)
    assert clocks == [bound + 1, 0]
    assert fast == bound + 4


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_workers_that_finish_early_and_one_without_rows(bound: int | None) -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters()), staleness=bound) as server:
            for step in range(2 * rank):
                server.read()
                if rank != 2:
                    backward(model, rank, step)
                server.push()
        return values(model), server.clock

    found = on_ranks(4, program)
    assert [clock for _, clock in found] == [0, 2, 4, 6]
    assert all(np.array_equal(value, found[0][0]) for value, _ in found)


def test_batch_norm_keeps_its_statistics_and_averages_them_at_the_end() -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(3, dtype=float))
        with ParameterServer(model, "dp", optim.SGD(model.parameters(), lr=0.1)) as server:
            server.read()
            with ag.Tape() as tape:
                x = np.random.default_rng(rank).normal(size=(4, 3))
                loss = cc.declare_partial((model(x) ** 2).sum(), "dp")
            tape.backward(loss)
            server.push()
            own = np.asarray(getattr(model[0].running_mean, "array", model[0].running_mean))
        return own, np.asarray(model[0].running_mean)

    found = on_ranks(3, program)
    for _, mean in found:
        assert np.allclose(mean, sum(own for own, _ in found) / 3, rtol=1e-12)


# -- failures and mistakes ---------------------------------------------------------------------------------------------
def test_a_worker_that_raises_ends_the_others() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters()), staleness=1) as server:
            train(server, model, rank, 2)
            if rank == 1:
                raise OSError("no data")
            train(server, model, rank, 9)

    with pytest.raises(OSError, match="no data"):
        on_ranks(3, program)


def test_a_worker_that_waits_elsewhere_is_a_deadlock() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters()), staleness=1) as server:
            if rank == 1:
                mesh.axis("dp").group.barrier()
            train(server, model, rank, 9)

    with pytest.raises(cc.DeadlockError, match=r"rank 0 waits in a wait on 'dp@0' until all clocks are 1, for rank 1"):
        on_ranks(2, program)


def _pushes_without_a_read(model: Any, server: ParameterServer, rank: int) -> None:
    server.push()


def _reads_twice(model: Any, server: ParameterServer, rank: int) -> None:
    server.read()
    server.read()


def _steps_itself(model: Any, server: ParameterServer, rank: int) -> None:
    server.read()
    backward(model, rank, 0)
    server.optimizer.step()
    server.push()


def _forgot_declare_partial(model: Any, server: ParameterServer, rank: int) -> None:
    server.read()
    with ag.Tape() as tape:
        loss = loss_of(model, rank, 0)
    tape.backward(loss)


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "a push without a read": (_pushes_without_a_read, OptionError, "has not read"),
    "two reads": (_reads_twice, OptionError, "has not pushed"),
    "the optimizer's step beside the push": (_steps_itself, OptionError, r"in the place of optimizer.step\(\)"),
    "the loss of a rank is no objective": (_forgot_declare_partial, LayoutError, "Varying"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake: str) -> None:
    make, error, text = MISTAKES[mistake]

    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters())) as server:
            make(model, server, rank)

    with pytest.raises(error, match=text):
        on_ranks(2, program)


SCRIPTS: dict[str, tuple[list[Any], int | None, int, str]] = {
    "an unknown rank": ([0, 0, 2, 2], None, 1, r"script\[2\]=2 was given"),
    "half a step": ([0, 0, 1], None, 1, "1 turns for rank 1"),
    "further ahead than the bound": ([0, 0, 0, 0, 0, 0, 1, 1], 1, 3, r"script\[3\]=0 is the push of step 2 of rank 0"),
    "a push before all have read, with a bound of 0": ([0, 0, 1, 1], 0, 1, r"script\[1\]=0 is the push of step 1"),
    "more steps than turns": ([0, 0, 1, 1], None, 2, "no turn left"),
    "fewer steps than turns": ([0, 0, 0, 0, 1, 1, 1, 1], None, 1, "more turns for rank"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_cannot_be_followed_are_refused(name: str) -> None:
    script, bound, steps, text = SCRIPTS[name]

    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        with ParameterServer(model, "dp", optimizer, staleness=bound, script=script) as server:
            train(server, model, rank, steps)

    with pytest.raises(OptionError, match=text):
        on_ranks(2, program)


def test_a_script_may_run_ahead_of_a_worker_that_has_no_turns_left() -> None:
    script = [1, 1, 0, 0, 0, 0, 0, 0]

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        with ParameterServer(model, "dp", optimizer, staleness=1, script=script) as server:
            train(server, model, rank, script.count(rank) // 2)
        return server.clock

    assert on_ranks(2, program) == [3, 1]


def test_ranks_with_different_options_are_refused() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters()), staleness=rank):
            pass

    with pytest.raises(CollectiveMismatch, match="staleness=1"):
        on_ranks(2, program)


def test_parameters_that_differ_at_the_start_are_refused() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        random.seed(rank)
        model = nn.Linear(2, 2)
        with ParameterServer(model, "dp", optim.SGD(model.parameters(), lr=0.1)):
            pass

    with pytest.raises(ReplicaMismatch, match="weight"):
        on_ranks(2, program)


def test_arguments() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        for options, error in (
            ({"staleness": -1}, OptionError), ({"staleness": 0.5}, ArgumentError), ({"servers": 0}, OptionError),
            ({"script": 3}, ArgumentError), ({"script": ["a"]}, ArgumentError), ({"script": [-1]}, OptionError),
        ):  # fmt: skip
            with pytest.raises(error):
                ParameterServer(model, "dp", optimizer, **options)  # type: ignore[arg-type]
        for call in ("read", "push", "histogram", "clocks"):
            with pytest.raises(OptionError, match="outside of the block"):
                getattr(ParameterServer(model, "dp", optimizer), call)()

    on_ranks(1, program)


def test_a_dry_world_is_refused() -> None:
    def program() -> None:
        model = make_model()
        with ParameterServer(model, "dp", OPTIMIZERS["SGD"](model.parameters())):
            pass

    with pytest.raises(MeshError, match="dry"), cc.World("dry", ranks=4), cc.Mesh(dp=4):
        program()


# -- processes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_over_mpi(on: str) -> None:
    outcome = launch_command([PROGRAM, "train"], 3, limit_s=60, on=on)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("as the serial program") == 3


@pytest.mark.parametrize(
    "how, text",
    [("raise", "rank 1 of 3 raised ValueError: no data"),
     pytest.param("exit", "rank 1 of 3 exited early", marks=pytest.mark.slow),
     pytest.param("deadlock", "deadlock", marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_worker_of_a_job_that_fails_is_named(how: str, text: str) -> None:
    outcome = launch_command([PROGRAM, how], 3, limit_s=60)
    assert outcome.code != 0 and not outcome.is_late
    assert text in outcome.err, outcome.err
