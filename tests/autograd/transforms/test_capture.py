"""Captured steps on the host: a replay makes the same calls as the step, bit by bit, or is refused."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim
from autograd.errors import CaptureError
from autograd.kernels import loop
from autograd.optim import schedules
from tests.proofs.operations import CASES
from tests.tables import some

from .allocations import counted

STEPS = 7
"""Calls of a step: one as it is, two that are recorded, and replays."""


def bits(x: Any) -> Any:
    """A value as something that is equal only to the same bits."""
    if isinstance(x, list | tuple):
        return [bits(part) for part in x]
    x = getattr(x, "array", x)
    return (x.dtype, x.shape, numpy.asarray(x).tobytes()) if isinstance(x, numpy.ndarray | numpy.generic) else x


def batches(steps: int = STEPS, dtype: str = "float32") -> list[tuple[Any, Any]]:
    random = numpy.random.default_rng(0)
    return [(random.standard_normal((6, 8)).astype(dtype), random.integers(0, 5, 6)) for _ in range(steps)]


# -- every operation ---------------------------------------------------------------------------------------------------
FRESH = "neither an argument of the step nor computed from one"
MAY_REFUSE = (FRESH, "boolean array as an index", "decides on a computed value")


TOGETHER = 16
"""Operations of one captured step: to capture one takes a fifth of a second, whatever it computes."""


FIRST = {id(case) for case in {(case.operation, len(case.args)): case for case in reversed(CASES)}.values()}
"""Of each operation, and of each number of its arguments, the first case."""


@pytest.mark.parametrize("are_first", some([True, False], 1))
@pytest.mark.parametrize("letter", sorted({case.operation[0] for case in CASES}))
def test_operations_replay_with_the_same_bits_or_are_refused(letter: str, are_first: bool) -> None:
    cases = [case for case in CASES if case.operation[0] == letter and (id(case) in FIRST) == are_first]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in range(0, len(cases), TOGETHER):
            replays_or_is_refused(cases[at : at + TOGETHER])


def replays_or_is_refused(cases: list[Any]) -> None:
    """Run operations in one captured step, and those of a step that is refused or differs in smaller ones."""

    def values(seed: int) -> list[list[Any]]:
        of_each = ((case, numpy.random.default_rng(seed)) for case in cases)
        return [[numpy.asarray(make(random)) for make in case.args] for case, random in of_each]

    def step(*xs: list[Any]) -> Any:
        leaves = [[ag.tensor(x, requires_grad=x.dtype.kind in "fc") for x in of_case] for of_case in xs]
        results = []
        with ag.Tape() as tape:
            for case, given in zip(cases, leaves, strict=True):
                y = case.f(*given)
                parts = y if isinstance(y, list | tuple) else [y]
                results += [x for x in parts if getattr(x, "tape", None) is not None]
        wanted = [x for given in leaves for x in given if x._requires_grad]
        cts = tape.backward(results, results, wanted=wanted)
        assert cts is not None
        return results, [ct if ct is None else ag.tensor(ct) for ct in cts]

    expected = [bits(step(*values(seed))) for seed in range(4)]
    captured, why = ag.capture(step, warmup=0), ""
    try:
        found = [bits(captured(*values(seed))) for seed in range(4)]
    except CaptureError as error:
        why = str(error)
    if not why and found == expected and captured.replays == 2:
        return
    if len(cases) > 1:
        replays_or_is_refused(cases[: len(cases) // 2])
        replays_or_is_refused(cases[len(cases) // 2 :])
    is_refused = any(text in why for text in MAY_REFUSE)
    named = [f"{case.operation} {case.label}" for case in cases]
    assert is_refused, (why or f"other bits, or {captured.replays} replays", named)


# -- random programs ---------------------------------------------------------------------------------------------------
UNARY: list[Callable[[Any], Any]] = [
    np.tanh, np.exp, np.sin, nn.relu, nn.gelu, nn.sigmoid, nn.silu, lambda x: x * x, lambda x: -x, lambda x: x / 3,
    lambda x: 1.5 + x, lambda x: x.T.reshape(x.shape), lambda x: nn.softmax(x, -1), lambda x: x - x.mean(0),
    lambda x: x / (1 + (x * x).sum(1, keepdims=True)), lambda x: np.where(x > 0, x, 0.1 * x),
    lambda x: np.roll(x, 1, 1), lambda x: np.concatenate([x[:, 2:], x[:, :2]], 1), np.cos,
    lambda x: np.maximum(x, 0.3), lambda x: x @ x.T @ x,
    lambda x: nn.layer_norm(x, (8,)), lambda x: np.sort(x, 1), lambda x: np.cumsum(x, 1) * 0.1,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - 2 * y, np.maximum, lambda x, y: x @ y.T @ y * 0.1,
    lambda x, y: x / (2 + y * y), np.minimum, lambda x, y: np.where(x > y, x, y * 0.5),
]  # fmt: skip
OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda ps: optim.SGD(ps, 0.01), lambda ps: optim.SGD(ps, 0.01, 0.9), lambda ps: optim.Adam(ps, 0.01),
    lambda ps: optim.SGD(ps, schedules.exponential_lr(0.02, 0.9), 0.9, nesterov=True),
    lambda ps: optim.AdamW(ps, schedules.step_lr(0.02, 2)), lambda ps: optim.RMSprop(ps, 0.01),
    lambda ps: optim.SGD([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:]}], 0.01, 0.5),
]  # fmt: skip


def random_program(seed: int) -> tuple[Any, list[Any]]:
    """A training step of random operations, and its parameters."""
    random = numpy.random.default_rng(seed)
    ag.random.seed(seed)
    dtype = "float32" if seed % 3 else "float64"
    shapes = [(8, 8), (8,), (6, 8), (8, 8), (8,)]
    parameters = [ag.Parameter((random.standard_normal(s) * 0.4).astype(dtype), name=f"p{i}")
                  for i, s in enumerate(shapes)]  # fmt: skip
    choices = [(int(random.integers(6)), int(random.integers(99)), int(random.integers(99)), int(random.integers(99)))
               for _ in range(random.integers(3, 12))]  # fmt: skip
    optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)](parameters)
    clips, parts, drops = seed % 4 == 1, 1 + (seed % 5 == 2), seed % 6 == 3

    def forward(x: Any) -> Any:
        known = [ag.tensor(x)]
        for kind, i, j, k in choices:
            a, b = known[i % len(known)], known[j % len(known)]
            if kind == 0:
                y = ag.ops.linear(a, parameters[0], parameters[1]) if k % 2 else a @ parameters[3] + parameters[4]
            elif kind == 1:
                y = BINARY[k % len(BINARY)](a, parameters[2])
            elif kind == 2:
                y = BINARY[k % len(BINARY)](a, b)
            else:
                y = UNARY[k % len(UNARY)](a)
            known.append(nn.dropout(y, 0.3) if drops and kind == 4 else y)
        return known[-1] + known[-2] * 0.5 + parameters[2] * 0.1

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = None
        for _ in range(parts):
            with ag.Tape() as tape:
                out = forward(x)
                loss = nn.cross_entropy(out, y, reduction="sum") / 6 if seed % 2 else (out * out).mean()
            tape.backward(loss)
        norm = optim.clip_grad_norm_(parameters, 0.5) if clips else 0.0
        optimizer.step()
        return {"loss": loss, "out": out}, norm if clips else 0.0

    return step, parameters


@pytest.mark.parametrize("group", some(range(20), 8))
def test_random_programs_replay_with_the_same_bits(group: int) -> None:
    for seed in range(10 * group, 10 * group + 10):
        runs = []
        for captures in (False, True):
            step, parameters = random_program(seed)
            dtype = str(parameters[0].dtype)
            do = ag.capture(step, warmup=1) if captures else step
            found = []
            with numpy.errstate(all="ignore"):
                for x, y in batches(dtype=dtype):
                    result, norm = do(x, y)
                    found.append((bits(result["loss"]), bits(result["out"]), float(norm)))
            runs.append((found, [bits(p) for p in parameters], [bits(p.grad) for p in parameters]))
            if captures:
                assert do.replays == STEPS - 3
        assert runs[0] == runs[1], seed


# -- larger programs ---------------------------------------------------------------------------------------------------
class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int):
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        rows, tokens, width = x.shape
        h = self.qkv(self.first(x)).reshape(rows, tokens, 3, 4, width // 4)
        x = x + self.out(ag.ops.self_attention(h, causal=True).reshape(rows, tokens, width))
        return x + self.down(nn.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """A small GPT."""

    def __init__(self) -> None:
        self.tokens, self.places = nn.Embedding(50, 32), ag.Parameter(numpy.full((16, 32), 0.02, "float32"))
        self.blocks, self.norm, self.head = nn.Sequential(Block(32), Block(32)), nn.LayerNorm(32), nn.Linear(32, 50)

    def forward(self, i: Any) -> Any:
        return self.head(self.norm(self.blocks(self.tokens(i) + self.places)))


class Images(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Sequences(nn.Module):
    """A recurrent network."""

    def __init__(self) -> None:
        self.cells, self.head = nn.LSTM(5, 7), nn.Linear(7, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(ag.tensor(x))[0][-1])


def text(random: Any) -> tuple[Any, Any]:
    tokens = random.integers(0, 50, (4, 17))
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


MODELS: list[tuple[Any, Any, Any]] = [
    (Language, text, lambda ps: optim.AdamW(ps, 1e-3)),
    (Images, lambda r: (r.standard_normal((8, 1, 8, 8)).astype("float32"), r.integers(0, 10, 8)),
     lambda ps: optim.SGD(ps, 0.05, 0.9)),
    (Sequences, lambda r: (r.standard_normal((6, 4, 5)).astype("float32"), r.integers(0, 3, 4)),
     lambda ps: optim.Adam(ps, 0.01)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "draw", "make"), MODELS, ids=lambda x: getattr(x, "__name__", ""))
def test_models_replay_with_the_same_bits(kind: Any, draw: Any, make: Any) -> None:
    runs = []
    for captures in (False, True):
        ag.random.seed(0)
        model = kind()
        optimizer = make(model.parameters())

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            with ag.Tape() as tape:
                out = model(x)
                loss = nn.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1), reduction="mean")
            tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        do = ag.capture(step) if captures else step
        random = numpy.random.default_rng(1)
        losses = [bits(do(*draw(random))) for _ in range(STEPS + 1)]
        buffers = [bits(x) for _, x in model.named_buffers()]
        runs.append((losses, [bits(p) for p in model.parameters()], buffers))
        if captures:
            assert do.replays == STEPS - 3
    assert runs[0] == runs[1]


# -- traced rows ------------------------------------------------------------------------------------------------------
def mlp(*sizes: int, rows: int = 32) -> tuple[Any, Any]:
    """A training step of a network on fixed data, and its model."""
    ag.random.seed(0)
    layers: list[Any] = []
    for n, m in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n, m), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = optim.SGD(model.parameters(), schedules.step_lr(0.1, 3), 0.9)
    random = numpy.random.default_rng(0)
    x = ag.tensor(random.standard_normal((rows, sizes[0])).astype("float32"))
    y = ag.tensor(random.integers(0, sizes[-1], rows))

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum") / rows
        tape.backward(loss)
        optimizer.step()
        return loss

    return step, model


@pytest.mark.parametrize("sizes", [(64, 64, 64, 10), (784, 128, 10)], ids=str)
def test_a_network_is_traced_and_has_the_same_bits(sizes: tuple[int, ...]) -> None:
    (step, model), (other, copy) = mlp(*sizes), mlp(*sizes)
    captured = ag.capture(other)
    losses = [(bits(step()), bits(captured())) for _ in range(200)]
    assert all(a == b for a, b in losses)
    assert [bits(p) for p in model.parameters()] == [bits(p) for p in copy.parameters()]
    assert [bits(p.grad) for p in model.parameters()] == [bits(p.grad) for p in copy.parameters()]
    assert captured.replays == 196
    run = captured._last.program
    assert captured._last.why == ""
    assert {why.partition(" ")[0] for why in run.step.whys.values()} <= {"cross_entropy_sum"}
    assert len(run.step.optimizers) == 1
    assert len(run.program.plan.nodes) > 30


def kept_by(captured: Any) -> int:
    """The bytes of temporary values that the program of a captured step keeps between its runs."""
    run = captured._last.program
    return 0 if run is None else int(run.program.memory.arena.nbytes)


def measured(step: Any) -> tuple[int, int]:
    """The bytes that a warm step has at most, above those before, and the blocks that are left of ten steps."""
    for _ in range(17):  # the 16th step, and no other up to the 32nd, marks the gradients that it has used
        step()
    gc.disable()  # a collection in the middle would free what earlier steps have left
    tracemalloc.start()
    try:
        peak, count = 0, len(gc.get_objects())
        for _ in range(10):
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            step()
            peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
        return peak, len(gc.get_objects()) - count
    finally:
        tracemalloc.stop()
        gc.enable()


WITH_LOOPS = pytest.mark.skipif(
    loop("relu_backward", numpy.dtype("float32")) is None, reason="without Numba, NumPy allocates buffers for casts"
)


@WITH_LOOPS
@pytest.mark.parametrize(("sizes", "rows", "most"), [((64, 64, 64, 10), 512, 1.0), ((784, 128, 10), 32, 1.05)], ids=str)
def test_the_memory_of_a_replay_is_that_of_the_step(sizes: tuple[int, ...], rows: int, most: float) -> None:
    # of the second network the gradients are most; when the last is made, the step has freed its activations
    captured = ag.capture(mlp(*sizes, rows=rows)[0], verify=False)
    of_step, _ = measured(mlp(*sizes, rows=rows)[0])
    of_replay, left = measured(captured)
    assert of_replay + kept_by(captured) <= most * of_step
    assert left <= 2


@WITH_LOOPS
def test_a_warm_replay_allocates_the_gradients_only() -> None:
    step, model = mlp(64, 64, 64, 10)
    gradients = sum(p.numpy().nbytes for p in model.parameters())
    assert measured(ag.capture(step, verify=False))[0] < gradients + 4096


def with_fixed_data(kind: Any, draw: Any, make: Any) -> Any:
    """A step of a model of `MODELS` on one batch."""
    ag.random.seed(0)
    model = kind()
    optimizer = make(model.parameters())
    x, y = map(ag.tensor, draw(numpy.random.default_rng(0)))

    def step() -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            out = model(x)
            loss = nn.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1), reduction="mean")
        tape.backward(loss)
        optimizer.step()
        return loss

    return step


STEPS_OF_MODELS: dict[str, Callable[[], Any]] = {
    "MLP": lambda: mlp(64, 64, 64, 10)[0],
    "CNN": lambda: with_fixed_data(*MODELS[1]),
    "GPT": lambda: with_fixed_data(*MODELS[0]),
}


def allocated(step: Any) -> tuple[int, int]:
    """The arrays that NumPy allocates in a call, and their bytes."""
    with counted() as count:
        step()
    return count.arrays, count.bytes


@WITH_LOOPS
@pytest.mark.parametrize("name", STEPS_OF_MODELS)
def test_a_replay_allocates_no_more_than_the_step(name: str) -> None:
    """`docs/guides/captured_steps.md` has these figures, which `pytest -s` prints."""
    step, captured = STEPS_OF_MODELS[name](), ag.capture(STEPS_OF_MODELS[name](), verify=False)
    peaks = [measured(each)[0] for each in (step, captured)]
    of_step, of_replay = allocated(step), allocated(captured)
    kept = kept_by(captured)
    print(f"{name}: {of_step} arrays and bytes a step, {of_replay} a replay; peaks {peaks}, kept {kept}")
    assert peaks[1] <= peaks[0]
    assert of_replay[1] <= 1.001 * of_step[1]
    assert of_replay[0] <= (1 if name == "MLP" else 1.05 * of_step[0])


@pytest.mark.parametrize("name", STEPS_OF_MODELS)
def test_a_thousand_replays_allocate_what_one_does(name: str) -> None:
    captured = ag.capture(STEPS_OF_MODELS[name](), verify=False)
    for _ in range(20):
        captured()
    first = allocated(captured)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        captured()
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000  # with one that stays of each replay it would be more
    assert captured.replays == 1017
    assert allocated(captured) == first


def test_an_allocation_is_counted() -> None:
    x = numpy.ones(1000)
    assert allocated(lambda: x + 1)[1] >= 8000
    assert allocated(lambda: numpy.add(x, 1, x))[1] < 8000


def test_a_decorator_with_options() -> None:
    """``@capture(...)`` has the options that ``capture(step, ...)`` has."""

    @ag.capture(warmup=0, verify=False)
    def step(x: Any) -> Any:
        return np.sum(np.square(x))

    found = [float(step(numpy.arange(k, k + 3.0))) for k in range(5)]
    assert found == [5.0, 14.0, 29.0, 50.0, 77.0]
    assert step.replays == 3 and step._options == (0, False) and step.__name__ == "step"
    with pytest.raises(ag.OptionError, match="warmup=-1 was given"):
        ag.capture(warmup=-1)  # at the decorator, not at the function
    with pytest.raises(ag.ArgumentError, match="needed: a function"):
        ag.capture(verify=False)(numpy.ones(2))


@WITH_LOOPS
@pytest.mark.parametrize("name", ["SGD", "momentum", "Adam"])
def test_a_large_table_is_updated_in_one_loop(name: str) -> None:
    """Not in the blocks in which NumPy's calls do it."""
    random = numpy.random.default_rng(0)
    table = ag.Parameter(random.standard_normal((6_000, 64)).astype("float32"))
    given = {"SGD": optim.SGD([table], 0.1), "momentum": optim.SGD([table], 0.1, 0.9), "Adam": optim.Adam([table])}
    optimizer = given[name]

    def step(rows: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (table[rows] ** 2).sum()
        tape.backward(loss)
        optimizer.step()
        return loss

    do = ag.capture(step)
    for _ in range(20):
        do(random.integers(0, 6_000, 50))
    assert do.replays == 16
    groups = do._last.program.program.plan.groups  # type: ignore[union-attr]
    assert sum(group.is_loop and "subtract" in repr(group) for group in groups) == 1, groups


def test_rotary_embeddings_of_pairs_are_traced() -> None:
    cos, sin = ag.ops.rotary_angles(3, 4, dtype="float32")
    w = ag.Parameter(numpy.arange(1.0, 5.0, dtype="float32"))

    def step(x: Any) -> Any:
        w.zero_grad()
        with ag.Tape() as tape:
            loss = (ag.ops.rotary(x * w, cos, sin, interleaved=True) * x).sum()
        tape.backward(loss)
        return loss, w.grad

    do = ag.capture(step)
    for i in range(6):
        x = ag.tensor(numpy.random.default_rng(i).standard_normal((2, 3, 4)).astype("float32"))
        assert bits(do(x)) == bits(step(x))
    assert do.replays and "stays a call of Python" not in str(do)
