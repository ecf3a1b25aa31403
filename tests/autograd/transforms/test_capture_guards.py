"""Programs that a captured step must not simply replay: each is right, refused, or in the contract's list."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim, random
from autograd.errors import CaptureError, RingtapeError, ShapeError, TapeError
from autograd.extend import defjvp, defvjp, primitive
from autograd.transforms import captured_step

from .test_capture import bits

Wrap = Callable[[Any], Any]


def data(seed: int, rows: int = 6, dtype: str = "float32") -> tuple[Any, Any]:
    random = numpy.random.default_rng(seed)
    return random.standard_normal((rows, 4)).astype(dtype), random.integers(0, 3, rows)


class Training:
    """A model, its optimizer, and a step that a case changes."""

    def __init__(self, **options: Any):
        ag.random.seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3))
        self.optimizer = optim.SGD(self.model.parameters(), 0.1, 0.9)
        self.found: list[Any] = []

    def loss(self, x: Any, y: Any) -> Any:
        return nn.cross_entropy(self.model(x), y, reduction="sum") / len(y)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = self.loss(x, y)
        tape.backward(loss)
        self.optimizer.step()
        return loss

    def run(self, step: Any, calls: range, *args: Any, **how: Any) -> None:
        for seed in calls:
            self.found.append(bits(step(*(args or data(seed, **how)))))

    def run_without(self, step: Any, calls: int) -> None:
        self.found += [bits(step()) for _ in range(calls)]

    def end(self) -> Any:
        return self.found, [bits(p) for p in self.model.parameters()], [bits(p.grad) for p in self.model.parameters()]


FIRST, THEN = range(6), range(6, 12)


class Program(NamedTuple):
    """A program, and what becomes of it: "right", "refused" or "unseen"."""

    name: str
    run: Callable[[Wrap], Any]
    outcome: str = "right"


PROGRAMS: list[Program] = []


def program(outcome: str = "right") -> Callable[[Callable[[Wrap], Any]], Callable[[Wrap], Any]]:
    def note(run: Callable[[Wrap], Any]) -> Callable[[Wrap], Any]:
        PROGRAMS.append(Program(run.__name__.strip("_").replace("_", " "), run, outcome))
        return run

    return note


def between(name: str, change: Callable[[Training], Any], outcome: str = "right", **how: Any) -> None:
    """A program that changes something between two rounds of calls."""

    def run(wrap: Wrap) -> Any:
        t = Training()
        step = wrap(t.step)
        t.run(step, FIRST)
        change(t)
        t.run(step, THEN, **how)
        return t.end()

    PROGRAMS.append(Program(name, run, outcome))


def assign(target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)


# -- arguments ---------------------------------------------------------------------------------------------------------
between("another number of rows", lambda t: None, rows=5)
between("one row", lambda t: None, rows=1)
between("another dtype of the data", lambda t: None, dtype="float64")


@program()
def _rows_that_alternate(wrap: Wrap) -> Any:
    t = Training()
    step = wrap(t.step)
    for i in range(12):
        t.run(step, range(i, i + 1), rows=6 if i % 2 else 4)
    return t.end()


def arguments(name: str, given: Callable[[int, Any, Any], tuple[Any, ...]], outcome: str = "right") -> None:
    def run(wrap: Wrap) -> Any:
        t = Training()
        step = wrap(t.step)
        for i in range(12):
            t.found.append(bits(step(*given(i, *data(i)))))
        return t.end()

    PROGRAMS.append(Program(name, run, outcome))


arguments("another memory order", lambda i, x, y: (numpy.asfortranarray(x) if i > 5 else x, y))
arguments("a strided array", lambda i, x, y: (numpy.repeat(x, 2, 0)[::2] if i > 5 else x, y))
arguments("negative strides", lambda i, x, y: (x[::-1] if i > 5 else x, y))
arguments("Tensors after arrays", lambda i, x, y: (ag.tensor(x) if i > 5 else x, y))
arguments("labels in a Tensor", lambda i, x, y: (x, ag.tensor(y) if i > 5 else y))
arguments("another integer dtype of labels", lambda i, x, y: (x, y.astype("int32") if i > 5 else y))
arguments("read-only data", lambda i, x, y: (numpy.broadcast_to(x[:1], x.shape) if i > 5 else x, y))
arguments("a label to ignore", lambda i, x, y: (x, numpy.where(numpy.arange(6) == 2, -100, y) if i > 5 else y))
arguments("unsigned labels", lambda i, x, y: (x, y.astype("uint8") if i > 5 else y))


@program()
def _a_label_to_ignore_in_the_second_microbatch(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        t.optimizer.zero_grad()
        for rows in (slice(0, 3), slice(3, None)):
            with ag.Tape() as tape:
                loss = t.loss(ag.tensor(x[rows]), y[rows])
            tape.backward(loss)
        t.optimizer.step()
        return loss

    do = wrap(step)
    for i in range(12):
        x, y = data(i)
        t.found.append(bits(do(x, numpy.where(numpy.arange(6) == 4, -100, y) if i > 7 else y)))
    return t.end()


@program()
def _a_label_out_of_range(wrap: Wrap) -> Any:
    t = Training()
    step = wrap(t.step)
    t.run(step, FIRST)
    x, y = data(9)
    with pytest.raises(ShapeError, match="labels from"):
        step(x, y + 5)
    t.run(step, THEN)
    return t.end()


@program()
def _one_array_as_two_arguments(wrap: Wrap) -> Any:
    w = ag.Parameter(numpy.full((4, 4), 0.5, "float32"))

    def step(a: Any, b: Any) -> Any:
        with ag.Tape() as tape:
            loss = ((a @ w) * b).sum()
        (g,) = tape.backward(loss, wanted=[w]) or ()
        return loss, ag.tensor(g)

    do = wrap(step)
    found = []
    for i in range(12):
        a, b = data(i)[0], data(50 + i)[0]
        found.append(bits(do(a, a if i % 3 == 2 else b)))
    return found


@program()
def _a_number_that_changes(wrap: Wrap) -> Any:
    def step(x: Any, factor: float) -> Any:
        return ag.tensor(x) * factor

    do = wrap(step)
    return [bits(do(data(i)[0], 0.5 if i < 6 else 0.25)) for i in range(12)]


@program("refused")
def _a_number_that_is_new_in_each_call(wrap: Wrap) -> Any:
    do = wrap(lambda x, factor: ag.tensor(x) * factor)
    return [bits(do(data(i)[0], 0.5 + i)) for i in range(40)]


@program()
def _a_number_as_an_array(wrap: Wrap) -> Any:
    do = wrap(lambda x, factor: ag.tensor(x) * factor)
    return [bits(do(data(i)[0], numpy.float32(0.5 + i))) for i in range(12)]


@program()
def _a_number_as_an_array_without_dimensions(wrap: Wrap) -> Any:
    do = wrap(lambda x, factor: ag.tensor(x) * ag.tensor(factor))
    return [bits(do(data(i)[0], numpy.array(0.5 + i, "float32"))) for i in range(12)]


@program()
def _other_keys_of_a_dictionary(wrap: Wrap) -> Any:
    do = wrap(lambda d: sum((ag.tensor(x) * 2.0 for x in d.values()), start=ag.tensor(0.0)))
    names = ["a", "b", "c"]
    return [bits(do({name: data(i)[0] for name in names[: 2 + (i > 5)]})) for i in range(12)]


@program()
def _labels_from_before_the_step_in_the_second_microbatch(wrap: Wrap) -> Any:
    t = Training()
    labels = ag.tensor(numpy.arange(6) % 3)

    def step(x: Any) -> Any:
        t.optimizer.zero_grad()
        for rows in (slice(0, 3), slice(3, None)):
            with ag.Tape() as tape:
                loss = nn.cross_entropy(t.model(ag.tensor(x[rows])), labels[rows], reduction="mean")
            tape.backward(loss)
        t.optimizer.step()
        return loss

    do = wrap(step)
    for i in range(12):
        labels.data = (numpy.arange(6) + i) % 3
        t.found.append(bits(do(data(i)[0])))
    assert getattr(do, "replays", 8) == 8
    return t.end()


@program()
def _an_array_of_indices(wrap: Wrap) -> Any:
    w = ag.Parameter(numpy.arange(12.0).reshape(6, 2))

    def step(i: Any) -> Any:
        with ag.Tape() as tape:
            loss = (w[i] ** 2).sum()
        tape.backward(loss)
        return loss

    do = wrap(step)
    found = [bits(do(numpy.random.default_rng(k).integers(0, 6, 4))) for k in range(12)]
    assert getattr(do, "replays", 8) == 8
    return found, bits(w.grad)


@program()
def _a_text_that_chooses(wrap: Wrap) -> Any:
    do = wrap(lambda x, how: np.tanh(ag.tensor(x)) if how == "tanh" else np.exp(ag.tensor(x)))
    return [bits(do(data(i)[0], "tanh" if i < 6 else "exp")) for i in range(12)]


@program()
def _an_array_that_was_made_before_and_is_written_to(wrap: Wrap) -> Any:
    w, v = numpy.ones(4, "float32"), ag.tensor(numpy.ones(4, "float32"))
    p = ag.Parameter(numpy.ones(4, "float32"))

    def step(x: Any) -> Any:
        with ag.Tape() as tape:
            loss = (ag.tensor(x) * p * (ag.tensor(w) * 2.0) + ag.tensor(w) * 3.0 + v * v).sum()
        (g,) = tape.backward(loss, wanted=[p]) or ()
        return loss, ag.tensor(g), ag.tensor(w) * 2.0

    do = wrap(step)
    found = []
    for i in range(12):
        w[...] = i
        v.data[...] = 2 * i
        found.append(bits(do(data(i)[0])))
    return found


@program()
def _microbatches_of_traced_operations(wrap: Wrap) -> Any:
    t = Training()
    t.model.eval()

    def step(x: Any, y: Any) -> Any:
        for k in range(3):
            with ag.Tape() as tape:
                loss = t.loss(ag.tensor(x) * (k + 1.0), y)
            tape.backward(loss)
        kept = [p.grad * 1.0 for p in t.model.parameters()]
        t.optimizer.step()
        t.optimizer.zero_grad()
        return loss, kept

    t.run(wrap(step), range(12))
    return t.end()


@program()
def _views_of_traced_operations_that_are_kept(wrap: Wrap) -> Any:
    def step(x: Any) -> Any:
        y = np.tanh(ag.tensor(x)) * 2.0
        return y.T, y[1:, ::2], y.reshape(-1), np.diagonal(y), np.broadcast_to(y[0], (3, 4)), [y[::-1], y * 1.0]

    do = wrap(step)
    kept = [do(data(i)[0]) for i in range(12)]
    return bits([list(each) for each in kept])


# -- parameters, modules, optimizers -----------------------------------------------------------------------------------
def module_of(t: Training, i: int) -> Any:
    return t.model[i]


between("evaluation mode", lambda t: t.model.eval())
between("one module in evaluation mode", lambda t: module_of(t, 2).eval())
between("a parameter that is replaced", lambda t: assign(
    module_of(t, 0), "weight", ag.Parameter(numpy.ones((4, 8), "float32"))))
between("a parameter that is assigned", lambda t: assign(module_of(t, 0).weight, "data", numpy.ones((4, 8), "float32")))
between("a parameter that is written to", lambda t: module_of(t, 0).weight.numpy().fill(0.25))
between("a parameter that is frozen", lambda t: assign(module_of(t, 0).weight, "requires_grad", False))
between("another probability of dropout", lambda t: assign(module_of(t, 2), "p", 0.5))
between("a submodule that is replaced", lambda t: t.model.__setitem__(1, nn.Tanh()))
between("a submodule that is added", lambda t: t.model.append(nn.Tanh()))
between("a state that is loaded", lambda t: t.model.load_state_dict(
    {name: numpy.full(p.shape, 0.1, "float32") for name, p in t.model.named_parameters()}))
between("a rate as an attribute", lambda t: assign(t.optimizer, "lr", 0.01))
between("a rate of zero", lambda t: assign(t.optimizer, "lr", 0.0))
between("another momentum", lambda t: assign(t.optimizer, "momentum", 0.5))
between("no momentum", lambda t: assign(t.optimizer, "momentum", 0.0))
between("weight decay", lambda t: assign(t.optimizer, "weight_decay", 0.1))
between("the optimizer's state, loaded", lambda t: t.optimizer.load_state_dict(t.optimizer.state_dict()))
between("velocities that are written to", lambda t: [v.fill(0.125) for v in t.optimizer.velocity])
between("another seed", lambda t: ag.random.seed(7))
between("a gradient that is there already", lambda t: [
    assign(p, "grad", ag.tensor(numpy.ones(p.shape, "float32"))) for p in t.model.parameters()])
between("gradients that are removed", lambda t: t.model.zero_grad())


@program()
def _a_schedule(wrap: Wrap) -> Any:
    t = Training()
    t.optimizer = optim.SGD(t.model.parameters(), lambda n: 0.1 / (1 + n), 0.9)
    t.run(wrap(t.step), range(12))
    return t.end()


@program()
def _gradients_that_the_program_keeps(wrap: Wrap) -> Any:
    t = Training()
    step = wrap(t.step)
    kept = []
    for i in range(12):
        t.run(step, range(i, i + 1))
        kept.append([p.grad.numpy() for p in t.model.parameters()])
    return t.end(), bits(kept)


@program()
def _results_that_the_program_keeps(wrap: Wrap) -> Any:
    t = Training()
    do = wrap(lambda x: (np.tanh(ag.tensor(x)), ag.tensor(x).T * 2.0))
    results = [do(data(i)[0]) for i in range(12)]
    return bits(results), t.end()


@program()
def _gradients_that_add_up_over_calls(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        with ag.Tape() as tape:
            loss = t.loss(x, y)
        tape.backward(loss)
        return loss

    do = wrap(step)
    for i in range(12):
        t.run(do, range(i, i + 1))
        if i % 4 == 3:
            t.optimizer.step(keep=True)
            t.optimizer.zero_grad()
    return t.end()


@program()
def _accumulation_in_the_step(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        t.optimizer.zero_grad()
        losses = []
        for part in (slice(0, 3), slice(3, 6)):
            with ag.Tape() as tape:
                losses.append(t.loss(ag.tensor(x)[part], ag.tensor(y)[part]))
            tape.backward(losses[-1])
        optim.clip_grad_norm_(t.model.parameters(), 0.1)
        t.optimizer.step()
        return losses

    t.run(wrap(step), range(12))
    return t.end()


@program()
def _a_clipped_norm_that_is_returned(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        t.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = t.loss(x, y)
        tape.backward(loss)
        norm = optim.clip_grad_norm_(t.model.parameters(), 0.1)
        t.optimizer.step()
        return norm

    do = wrap(step)
    t.found = [float(do(*data(i))) for i in range(12)]
    return t.end()


@program()
def _two_optimizers(wrap: Wrap) -> Any:
    t = Training()
    first, *rest = t.model.parameters()
    one, two = optim.Adam([first], 0.01), optim.SGD(rest, 0.1, 0.9)

    def step(x: Any, y: Any) -> Any:
        with ag.Tape() as tape:
            loss = t.loss(x, y)
        tape.backward(loss)
        one.step()
        two.step()
        one.zero_grad()
        two.zero_grad()
        return loss

    t.run(wrap(step), range(12))
    return t.end()


@program()
def _two_updates_in_a_step(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        return t.step(x, y), t.step(x, y)

    t.run(wrap(step), range(12))
    return t.end()


# -- the state of the thread -------------------------------------------------------------------------------------------
@program()
def _under_no_grad(wrap: Wrap) -> Any:
    w = ag.Parameter([2.0, 3.0])
    do = wrap(lambda x: w * ag.tensor(x))
    found = []
    for i in range(12):
        x = numpy.array([1.0 + i, 2.0])
        if i > 5:
            with ag.no_grad():
                y = do(x)
            with ag.Tape():
                y = y * 2.0
        else:
            y = do(x)
        found.append(bits(y))
    return found


@program()
def _events_that_are_heard(wrap: Wrap) -> Any:
    t = Training()
    step = wrap(t.step)
    t.run(step, FIRST)
    seen: list[Any] = []
    with ag.events.listening(lambda phase, direction, name: seen.append((phase, direction, name))):
        t.run(step, THEN)
    return t.end(), len(seen), seen[-1]


@program()
def _anomalies_that_are_looked_for(wrap: Wrap) -> Any:
    t = Training()
    step = wrap(t.step)
    t.run(step, FIRST)
    x, y = data(0)
    with ag.detect_anomaly(), pytest.raises(RingtapeError):
        step(x * numpy.float32("nan"), y)
    return t.found


@program()
def _inside_of_a_tape(wrap: Wrap) -> Any:
    t = Training()
    step = wrap(t.step)
    t.run(step, FIRST)
    with ag.Tape(), pytest.raises(TapeError):
        if wrap is ag.capture:
            step(*data(9))
        else:
            raise TapeError("as the captured step")
    t.run(step, THEN)
    return t.end()


# -- values that become Python's, and decisions ------------------------------------------------------------------------
def decides(name: str, use: Callable[[Any], Any], outcome: str = "refused") -> None:
    """A program that reads the loss of its step."""

    def run(wrap: Wrap) -> Any:
        t = Training()

        def step(x: Any, y: Any) -> Any:
            loss = t.step(x, y)
            used = use(loss)
            return loss, used if isinstance(used, float) else None

        t.run(wrap(step), range(12))
        return t.end()

    PROGRAMS.append(Program(name, run, outcome))


decides("a branch on a Tensor", lambda loss: 1.0 if loss > 1.0 else 2.0)
decides("a number of a Tensor", lambda loss: float(loss))
decides("an item of a Tensor", lambda loss: loss.item())
decides("an integer of a Tensor", lambda loss: float(int(loss * 100)))
decides("an array of a Tensor", lambda loss: float(loss.numpy()))
decides("the data of a Tensor", lambda loss: float(loss.data))
decides("the local part of a Tensor", lambda loss: float(loss.local))
decides("a list of a Tensor", lambda loss: float(numpy.sum(loss.tolist())))
decides("an array that NumPy makes", lambda loss: float(numpy.asarray(loss)))
decides("a text of a Tensor", lambda loss: f"{loss:.3f}")
decides("a print of a Tensor", lambda loss: print(loss))
decides("a complex number of a Tensor", lambda loss: abs(complex(loss)))


def refused(name: str, body: Callable[[Training, Any, Any], Any]) -> None:
    """A program whose step does what no replay can repeat."""

    def run(wrap: Wrap) -> Any:
        t = Training()
        t.run(wrap(lambda x, y: body(t, x, y)), range(12))
        return t.end()

    PROGRAMS.append(Program(name, run, "refused"))


refused("a constant that NumPy makes of an argument", lambda t, x, y: ag.tensor(x / 2) * 3.0)
refused("a draw of NumPy", lambda t, x, y: ag.tensor(x) + numpy.random.standard_normal(4))
refused("a boolean index", lambda t, x, y: (lambda a: a[a > 0].sum())(ag.tensor(x)))
refused("an array that is returned", lambda t, x, y: x * 2)


@program("refused")
def _an_update_by_hand(wrap: Wrap) -> Any:
    w = ag.Parameter(numpy.ones(4, "float32"))

    def step(x: Any) -> Any:
        with ag.Tape() as tape:
            loss = (ag.tensor(x) @ w).sum()
        tape.backward(loss)
        w.data = w.numpy() - 0.1 * w.grad.numpy()
        w.zero_grad()
        return loss

    do = wrap(step)
    return [bits(do(data(i)[0])) for i in range(12)]


@program("refused")
def _a_gradient_that_is_assigned(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        with ag.Tape() as tape:
            loss = t.loss(x, y)
        tape.backward(loss)
        for p in t.model.parameters():
            p.grad = p.grad * 0.5
        t.optimizer.step()
        t.optimizer.zero_grad()
        return loss

    t.run(wrap(step), range(12))
    return t.end()


@program()
def _running_averages(wrap: Wrap) -> Any:
    t = Training()
    t.model[2] = norm = nn.BatchNorm1d(8)
    do = wrap(t.step)
    t.run(do, range(12))
    assert getattr(do, "replays", 8) == 8
    return t.end(), bits([norm.running_mean, norm.running_var, norm.num_batches_tracked])


@program()
def _running_averages_that_change_between_evaluations(wrap: Wrap) -> Any:
    t = Training()
    t.model[2] = nn.BatchNorm1d(8)
    do = wrap(lambda x: t.model(ag.tensor(x)))
    found = []
    for i in range(12):
        t.model.train()
        t.step(*data(i))
        t.model.eval()
        found += [bits(do(data(50 + i + k)[0])) for k in range(4)]
    return found, t.end()


def with_masters(name: str, dtype: Any, clips: bool) -> None:
    """A step of `MasterWeights`, two of whose gradients overflow, and whose loss scale grows."""

    def run(wrap: Wrap) -> Any:
        t = Training()
        t.model.to(dtype)
        scaler = optim.LossScaler(2.0**10, growth_interval=3)
        optimizer = optim.MasterWeights(lambda ps: optim.SGD(ps, 0.1, 0.9), t.model.parameters(), scaler=scaler)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = t.loss(ag.tensor(x).astype(dtype), y)
                scaled = optimizer.scale(loss)
            tape.backward(scaled)
            norm = optim.clip_grad_norm_(t.model.parameters(), 0.2) if clips else 0.0
            return loss, norm, optimizer.step()

        do, found = wrap(step), []
        for i in range(12):
            x, y = data(i)
            loss, norm, updated = do(x * (1e9 if i in (6, 9) else 1), y)
            found.append((bits(loss), repr(float(norm)), bool(updated), scaler.value))
        assert getattr(do, "replays", 8) == 8
        return found, [bits(p) for p in optimizer.parameters], optimizer.skipped, t.end()

    PROGRAMS.append(Program(name, run))


with_masters("master weights of float16", numpy.float16, clips=False)
with_masters("master weights of float16, clipped", numpy.float16, clips=True)
with_masters("master weights of float32", numpy.float32, clips=True)


def with_primitive(name: str, function: Callable[..., Any], vjp: Any, outcome: str = "right") -> None:
    """A step with a primitive of the program."""

    def run(wrap: Wrap) -> Any:
        of = primitive(function)
        if outcome == "refused" and not vjp:
            defjvp(of, lambda g, ans, x, k: g * k * numpy.cos(k * x), None)
        else:
            defvjp(of, *vjp)
        w, optimizer = ag.Parameter(numpy.full((4, 3), 0.5, "float32")), None
        optimizer = optim.SGD([w], 0.1, 0.9)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = (of(ag.tensor(x) @ w, 2.0) ** 2).mean()
            tape.backward(loss)
            optimizer.step()
            return loss

        do = wrap(step)
        found = [bits(do(data(i)[0])) for i in range(12)]
        assert getattr(do, "replays", 8) == 8
        return found, bits(w), bits(w.grad)

    PROGRAMS.append(Program(name, run, outcome))


with_primitive("a primitive of the program", lambda x, k: numpy.sin(k * x),
               [lambda ans, x, k: lambda g: g * k * numpy.cos(k * x), None])  # fmt: skip
with_primitive("a primitive with a jvp", lambda x, k: numpy.sin(k * x), [], "refused")
with_primitive("a primitive that branches", lambda x, k: numpy.sin(x) if x.sum() > 0 else -k * x,
               [lambda ans, x, k: lambda g: g * numpy.cos(x) if x.sum() > 0 else -k * g, None])  # fmt: skip
with_primitive("a primitive whose cotangent is rounded", lambda x, k: numpy.sin(k * x),
               [lambda ans, x, k: lambda g: (g * k * numpy.cos(k * x)).astype("float64"), None])  # fmt: skip
with_primitive("a primitive whose cotangent has another form", lambda x, k: numpy.sin(k * x),
               [lambda ans, x, k: lambda g: (g * k * numpy.cos(k * x)).tolist(), None], "refused")  # fmt: skip


@program("refused")
def _a_seed_in_the_step(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        ag.random.seed(0)
        return t.step(x, y)

    t.run(wrap(step), range(12))
    return t.end()


@program()
def _a_checkpoint(wrap: Wrap) -> Any:
    t = Training()

    def step(x: Any, y: Any) -> Any:
        with ag.Tape() as tape:
            loss = ag.checkpoint(lambda a: np.tanh(t.model(a)).sum())(ag.tensor(x))
        tape.backward(loss)
        t.optimizer.step()
        t.optimizer.zero_grad()
        return loss

    t.run(wrap(step), range(12))
    return t.end()


@program("refused")
def _a_decision_that_changes_while_it_is_recorded(wrap: Wrap) -> Any:
    calls: list[int] = []

    def step(x: Any) -> Any:
        calls.append(1)
        return np.tanh(ag.tensor(x)) if len(calls) % 2 else np.exp(ag.tensor(x))

    do = wrap(step)
    return [bits(do(data(i)[0])) for i in range(12)]


# -- what is not seen: the contract names it ---------------------------------------------------------------------------
@program("refused")
def _a_branch_on_an_array(wrap: Wrap) -> Any:
    do = wrap(lambda x: ag.tensor(x) * (2.0 if x.max() > 100 else 3.0))
    return [bits(do(data(i)[0] + (1000 if i > 5 else 0))) for i in range(12)]


@program()
def _a_global_that_changes(wrap: Wrap) -> Any:
    factor = [2.0]
    do = wrap(lambda x: ag.tensor(x) * factor[0])
    found = []
    for i in range(12):
        factor[0] = 2.0 if i < 6 else 3.0
        found.append(bits(do(data(i)[0])))
    return found


@program("refused")
def _calls_that_are_counted(wrap: Wrap) -> Any:
    calls: list[int] = []

    def step(x: Any) -> Any:
        calls.append(1)
        return ag.tensor(x) * 2.0

    do = wrap(step)
    found = [bits(do(data(i)[0])) for i in range(12)]
    return found, len(calls)


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore")
def test_a_program_is_right_or_refused_or_in_the_contract(case: Program) -> None:
    expected = case.run(lambda step: step)
    try:
        found = case.run(ag.capture)
    except CaptureError as error:
        assert case.outcome == "refused", error
        assert "fix:" in str(error) or "needed:" in str(error), error
        return
    assert case.outcome != "refused"
    assert (found == expected) == (case.outcome == "right")


def test_there_are_fifty_programs() -> None:
    assert len(PROGRAMS) >= 50


# -- gradients that are used twice -------------------------------------------------------------------------------------
USES: dict[str, Callable[[Training, Wrap], Any]] = {}


def use(run: Callable[[Training, Wrap], Any]) -> Callable[[Training, Wrap], Any]:
    USES[run.__name__.strip("_").replace("_", " ")] = run
    return run


@use
def _a_second_step_after_the_call(t: Training, wrap: Wrap) -> None:
    step = wrap(t.step)
    t.run(step, range(8))
    t.optimizer.step()
    t.run(step, range(8, 20))


@use
def _a_second_step_after_a_traced_one(t: Training, wrap: Wrap) -> None:
    t.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    t.optimizer = optim.SGD(t.model.parameters(), 0.1, 0.9)
    x = ag.tensor(numpy.random.default_rng(0).standard_normal((32, 64)).astype("float32"))
    y = ag.tensor(numpy.arange(32) % 10)
    step = wrap(lambda: t.step(x, y))
    t.run_without(step, 8)
    t.optimizer.step()
    t.run_without(step, 12)
    assert not hasattr(step, "replays") or step._last.program.step.optimizers


@use
def _a_second_step_in_the_call(t: Training, wrap: Wrap) -> None:
    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        t.optimizer.step()
        return loss

    t.run(wrap(step), range(12))


def _without_zero_grad(t: Training, wrap: Wrap, keep: bool) -> None:
    def step(x: Any, y: Any) -> Any:
        with ag.Tape() as tape:
            loss = t.loss(x, y)
        tape.backward(loss)
        t.optimizer.step(keep=keep)
        return loss

    do = wrap(step)
    t.run(do, range(7))
    t.optimizer.zero_grad()  # none is used twice up to the eighth step
    t.run(do, range(7, 12))


@use
def _a_backward_that_adds(t: Training, wrap: Wrap) -> None:
    _without_zero_grad(t, wrap, keep=False)


@use
def _a_sum_that_is_meant(t: Training, wrap: Wrap) -> None:
    _without_zero_grad(t, wrap, keep=True)


@use
def _one_use(t: Training, wrap: Wrap) -> None:
    t.run(wrap(t.step), range(20))


def told(run: Callable[[Training, Wrap], Any], wrap: Wrap) -> tuple[list[str], Any]:
    t = Training()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(t, wrap)
    return [str(each.message) for each in found if each.category is ag.errors.GradientWarning], t.end()


@pytest.mark.parametrize("name", USES)
def test_a_replay_warns_of_gradients_that_are_used_twice(name: str) -> None:
    made: list[Any] = []
    expected = told(USES[name], lambda step: step)
    assert told(USES[name], lambda step: made.append(ag.capture(step)) or made[0]) == expected
    assert (not expected[0]) == (name in ("one use", "a sum that is meant"))
    assert made[0].replays > 4


def test_a_replay_that_marks_no_gradients_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim.SGD, "_note_use", lambda optimizer, keep: None)
    with pytest.raises(AssertionError):
        test_a_replay_warns_of_gradients_that_are_used_twice("a second step after a traced one")


@dataclass
class _Batch:
    x: Any
    factor: Any = field(default=2.0, metadata={"static": True})


@pytest.mark.parametrize("first", [2.0, 3.0, [2.0], True])
def test_static_fields_of_a_dataclass_are_seen(first: Any) -> None:
    def step(batch: Any) -> Any:
        scale = batch.factor[0] * 5.0 if isinstance(batch.factor, list) else batch.factor
        return (ag.tensor(batch.x) * (7.0 if scale is True else float(scale))).sum()

    do = ag.capture(step, warmup=0)
    for i in range(4):
        do(_Batch(numpy.arange(3.0) + i, first))
    assert do.replays == 2
    for factor in (2.0, 3.0, [2.0], [4.0], True, 1, first):
        for i in range(3):
            x = numpy.arange(3.0) * i
            assert bits(do(_Batch(x, factor))) == bits(step(_Batch(x, factor))), factor


def _of_containers(batch: Any, flag: Any, scale: Any = 1.0, extra: Any = None) -> Any:
    """A step whose result depends on all that its arguments hold."""
    total = (_tensor(batch["x"]) * scale).sum()
    for k, y in enumerate(batch["ys"]):
        total = total + _tensor(y).sum() * (k + 2.0)
    total = total * (3.0 if flag is True else 5.0 if flag == 1 else 7.0 if flag == "text" else 11.0)
    return total + (0.0 if extra is None else _tensor(extra).sum() * 13.0) + 17.0 * len(batch)


def _tensor(x: Any) -> Any:
    return x if isinstance(x, ag.Tensor) else ag.tensor(x)


_OWN = ag.Parameter(numpy.full(2, 2.0))
_CALLS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "as it was": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True),
    "other values": lambda x, y: ({"x": x * 2, "ys": [y + 3, y]}, True),
    "another shape": lambda x, y: ({"x": x, "ys": [y, y[:2]]}, True),
    "another dtype": lambda x, y: ({"x": x.astype("float32"), "ys": [y, y + 1]}, True),
    "more in a list": lambda x, y: ({"x": x, "ys": [y, y + 1, y]}, True),
    "fewer in a list": lambda x, y: ({"x": x, "ys": [y]}, True),
    "a tuple for a list": lambda x, y: ({"x": x, "ys": (y, y + 1)}, True),
    "another order of keys": lambda x, y: ({"ys": [y, y + 1], "x": x}, True),
    "another key": lambda x, y: ({"x": x, "ys": [y, y + 1], "z": 0}, True),
    "an integer for a flag": lambda x, y: ({"x": x, "ys": [y, y + 1]}, 1),
    "a text for a flag": lambda x, y: ({"x": x, "ys": [y, y + 1]}, "text"),
    "False": lambda x, y: ({"x": x, "ys": [y, y + 1]}, False),
    "a number": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, 2.0),
    "a negative zero": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, -0.0),
    "NaN": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, float("nan")),
    "None": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, 1.0, None),
    "an array for None": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, 1.0, x),
    "a Tensor for an array": lambda x, y: ({"x": ag.tensor(x), "ys": [y, y + 1]}, True),
    "a Parameter": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, 1.0, _OWN),
    "another Parameter": lambda x, y: ({"x": x, "ys": [y, y + 1]}, True, 1.0, ag.Parameter(numpy.full(2, 3.0))),
    "one array twice": lambda x, y: ({"x": x, "ys": [y, y]}, True),
    "a view": lambda x, y: ({"x": numpy.stack([x, x], 1)[:, 0], "ys": [y, y + 1]}, True),
}


@pytest.mark.parametrize("first", ["as it was", "a number", "an array for None", "a Parameter", "one array twice"])
def test_each_change_in_containers_is_seen(first: str) -> None:
    for name, call in _CALLS.items():
        do = ag.capture(_of_containers, warmup=0)
        for i in range(4):
            do(*_CALLS[first](numpy.arange(3.0) + i, numpy.arange(4.0) - i))
        assert do.replays == 2 or first == "a Parameter"
        for i in range(4):
            given = call(numpy.arange(3.0) * i, numpy.arange(4.0) + i)
            assert bits(do(*given)) == bits(_of_containers(*given)), name
        again = _CALLS[first](numpy.arange(3.0), numpy.arange(4.0))
        before = do.replays
        assert bits(do(*again)) == bits(_of_containers(*again)), name
        assert do.replays == before + 1, name


def test_calls_with_keywords_are_told() -> None:
    do = ag.capture(lambda x, scale=1.0: ag.tensor(x) * scale)
    assert repr(do).endswith("not captured, 2 calls to go)")
    for i in range(8):
        do(numpy.ones(3) * i, scale=2.0)
    assert (do.replays, do.departures, do.is_captured) == (4, 0, True)
    assert repr(do).endswith("captured, 4 replays)")
    assert "multiply" in do.explain()
    for i in range(6):
        assert do(numpy.ones(3) * i).tolist() == [i] * 3
    assert do.replays == 8  # other names of keywords are another form


class Scaling:
    """A step that is an object, with an attribute that it names."""

    factor = 2.0

    def __call__(self, x: Any, *, scale: float = 1.0, **others: Any) -> Any:
        return ag.tensor(x) * self.factor * scale * others.get("again", 1.0)


def test_an_object_that_is_called_with_keywords_is_seen_to_change() -> None:
    step = Scaling()
    do, x = ag.capture(step, warmup=0), numpy.ones(3)
    for _ in range(4):
        assert do(x, scale=3.0).tolist() == [6.0] * 3
    step.factor = 5.0
    for again in (1.0, 2.0, 1.0, 2.0, 2.0, 1.0):
        assert do(x, scale=3.0).tolist() == [15.0] * 3
        assert do(x, again=again, scale=3.0).tolist() == [15.0 * again] * 3
        assert do(x=x, scale=3.0).tolist() == [15.0] * 3
    assert do.replays >= 10


# -- what a library calls, and values without identity ----------------------------------------------------------------
def _rows(i: int) -> Any:
    return numpy.random.default_rng(i).standard_normal((4, 3)).astype("float32")


def _of_numpy_booleans(wrap: Wrap) -> Iterator[Any]:
    do = wrap(lambda x, flag: np.where(flag, x.sum(), -x.sum()))
    for i in range(20):
        yield do(ag.tensor(_rows(i)), numpy.bool_(i % 2 == 0 or i < 6))


def _of_boolean_tensors(wrap: Wrap) -> Iterator[Any]:
    do = wrap(lambda x, flag: x.sum() if flag else -x.sum())
    for i in range(20):
        yield do(ag.tensor(_rows(i)), ag.tensor(numpy.array(i % 2 == 0 or i < 6)))


def _of_numbers_as_conditions(wrap: Wrap) -> Iterator[Any]:
    do = wrap(lambda x, n, k: np.where(n, x, -x).sum() + x.masked_fill(k, 0.5).sum())
    for i in range(20):
        yield do(ag.tensor(_rows(i)), numpy.int64(i % 4), numpy.array(max(0, i - 8) % 3))


def _of_a_rule_of_the_program(wrap: Wrap) -> Iterator[Any]:
    factor, once = {"k": 1.0}, iter([1.0])

    @primitive
    def unrelated(x: Any) -> Any:  # what its rule reads is no state of the step
        return x * 1

    defvjp(unrelated, lambda ans, x: lambda g: g * next(once))

    @primitive
    def reverse(x: Any) -> Any:
        return x * 1

    defvjp(reverse, lambda ans, x: lambda g: -g * factor["k"])
    w = ag.Parameter(numpy.ones(3, "float32"))

    def step(x: Any) -> Any:
        w.zero_grad()
        with ag.Tape() as tape:
            loss = (reverse(w * x) ** 2).sum()
        tape.backward(loss)
        return loss

    do = wrap(step)
    for i in range(16):
        factor["k"] = 1.0 if i < 7 else 5.0
        yield do(ag.tensor(_rows(i)))
        yield w.grad.array.copy()


def _of_a_rule_that_may_return_its_cotangent(wrap: Wrap) -> Iterator[Any]:
    @primitive
    def clipped(x: Any) -> Any:
        return x * 1

    defvjp(clipped, lambda ans, x: lambda g: g if (g * g).sum() <= 0.25 else g / (2 * numpy.sqrt((g * g).sum())))
    w = ag.Parameter(numpy.ones(3, "float32"))

    def step(x: Any) -> Any:
        w.zero_grad()
        with ag.Tape() as tape:
            y = clipped(w)
            loss = (y * np.exp(-x * x)).sum()
        tape.backward(loss)
        return loss, y * 2

    do = wrap(step)
    for i in range(16):
        yield from do(ag.tensor(numpy.full(3, 1.5 if i < 7 or i == 9 else 0.1, "float32")))
        yield w.grad.array.copy()


def _of_a_function_that_may_return_its_argument(wrap: Wrap) -> Iterator[Any]:
    @primitive
    def bounded(x: Any) -> Any:
        return x if x.max() < 2 else numpy.minimum(x, 2)

    defvjp(bounded, lambda ans, x: lambda g: g * (x < 2))
    do = wrap(lambda x: (bounded(ag.tensor(x)) * ag.tensor(x)).sum())
    for i in range(16):
        yield do(numpy.full(3, 1.0 if i < 7 or i == 9 else 3.0, "float32"))


def _of_an_override_that_is_added(wrap: Wrap) -> Iterator[Any]:
    class Mine(nn.Linear):
        pass

    m = Mine(3, 1, key=random.Key(0))
    do = wrap(lambda x: m(x).sum())
    for i in range(16):
        if i == 7:
            Mine.forward = lambda self, x: 2 * nn.Linear.forward(self, x)
        yield do(ag.tensor(_rows(i)))


def _of_a_state_that_alternates(wrap: Wrap) -> Iterator[Any]:
    m = nn.Sequential(nn.Linear(3, 3, key=random.Key(0)), nn.BatchNorm1d(3), nn.Linear(3, 1, key=random.Key(1)))
    do = wrap(lambda x: (m(x) ** 2).mean())
    for i in range(24):
        m.train(i % 2 == 0)
        yield do(ag.tensor(_rows(i)))


def _of_an_equal_key(wrap: Wrap) -> Iterator[Any]:
    of = SimpleNamespace(key=None)
    do = wrap(lambda x: nn.dropout(x, 0.5, key=of.key).sum())
    for i in range(16):
        of.key = random.Key(0 if i < 8 else 1)
        yield do(ag.tensor(_rows(i)))


def _of_a_label_that_is_ignored_once(wrap: Wrap) -> Iterator[Any]:
    for at in (2, 3, 9):
        m = nn.Linear(3, 3, key=random.Key(0))
        optimizer = optim.SGD(m.parameters(), lr=0.1)

        def step(x: Any, y: Any, m: Any = m, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = nn.cross_entropy(m(x), y)
            tape.backward(loss)
            optimizer.step()
            return loss

        do = wrap(step)
        for i in range(14):
            y = numpy.random.default_rng(i).integers(0, 3, 4)
            y[0] = -100 if i == at else y[0]
            yield do(_rows(i), y)


def _of_an_end_of_the_program(wrap: Wrap) -> Iterator[Any]:
    w = ag.Parameter(numpy.ones(3, "float32"))
    optimizer = optim.SGD([w], 0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = ((x * w) ** 2).mean()
        if not np.isfinite(loss):
            sys.exit("the loss is not finite")
        tape.backward(loss)
        optimizer.step()
        return loss

    do = wrap(step)
    for i in range(12):
        yield do(ag.tensor(_rows(i)))


def _of_eigenvalues_that_become_complex(wrap: Wrap) -> Iterator[Any]:
    def step(x: Any) -> Any:
        with ag.Tape() as tape:
            x = tape.watch(ag.tensor(x))
            y = (np.real(np.linalg.eig(x)[0]) ** 2).sum()
        (ct,) = tape.backward(y, wanted=[x]) or ()
        return y, ag.tensor(ct)

    do = wrap(step)
    for i in range(16):
        x = _rows(i)[:3]
        yield from do(x @ x.T + 5 * (i > 8 and i % 2) * numpy.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1]], "float32"))


def _of_a_bias_whose_cotangent_is_broadcast(wrap: Wrap) -> Iterator[Any]:
    for seed in range(4):
        draw, weights = numpy.random.default_rng(seed), numpy.zeros(8, "float32")
        layer, bias = nn.Linear(4, 3, key=random.Key(0)), ag.Parameter(numpy.zeros(3, "float32"))

        def step(x: Any, layer: Any = layer, bias: Any = bias, weights: Any = weights) -> Any:
            with ag.Tape() as tape:
                loss = ((layer(x) + bias).sum(-1) * nn.softmax(ag.tensor(weights))).sum()
            return loss, *(ag.tensor(ct) for ct in tape.backward(loss, wanted=[layer.bias, bias]) or ())

        do = wrap(step)
        for _ in range(16):
            weights[...] = draw.standard_normal(8)
            yield from do(ag.tensor(draw.standard_normal((8, 4)).astype("float32")))


LIBRARY_CALLS: list[Any] = [
    _of_a_bias_whose_cotangent_is_broadcast,
    _of_eigenvalues_that_become_complex,
    _of_an_end_of_the_program,
    _of_numpy_booleans, _of_boolean_tensors, _of_numbers_as_conditions, _of_a_rule_of_the_program,
    _of_a_rule_that_may_return_its_cotangent, _of_a_function_that_may_return_its_argument,
    _of_an_override_that_is_added, _of_a_state_that_alternates, _of_an_equal_key, _of_a_label_that_is_ignored_once,
]  # fmt: skip


@pytest.mark.parametrize("program", LIBRARY_CALLS)
def test_what_a_library_calls_and_values_without_identity_are_seen(program: Any) -> None:
    made: list[Any] = []

    def wrap(step: Any) -> Any:
        made.append(ag.capture(step, verify=False))
        return made[-1]

    needed = [numpy.asarray(getattr(x, "array", x)).tobytes() for x in program(lambda step: step)]
    found = [numpy.asarray(getattr(x, "array", x)).tobytes() for x in program(wrap)]
    assert [i for i, (a, b) in enumerate(zip(found, needed, strict=True)) if a != b] == []
    assert all(each.replays >= 5 for each in made), made


def test_a_recording_that_waits_for_a_second_one_holds_no_values() -> None:
    scale, w = SimpleNamespace(of=1.0), ag.Parameter(numpy.ones(3, "float32"))
    do = ag.capture(lambda x: (x * w * scale.of).sum(), warmup=0)
    for i in range(3):
        scale.of = float(i)
        do(ag.tensor(_rows(i)))
    rows = [row for runs in do._first.values() for run in runs for row in run.recorder.rows]
    arrays = [row.value for row in rows if isinstance(row.value, numpy.ndarray)]
    assert len(arrays) >= 6 and not any(sum(x.strides) for x in arrays)


def test_a_keyword_may_have_any_name() -> None:
    do = ag.capture(lambda x, **words: ag.tensor(x) * words["self"] * words["args"], warmup=0)
    for i in range(5):
        assert do(numpy.ones(3) * i, self=2.0, args=3.0).tolist() == [6.0 * i] * 3
    assert do.replays == 3


def test_a_step_runs_with_the_garbage_collector_of_the_program() -> None:
    w = ag.Parameter(numpy.ones(3))
    do = ag.capture(lambda x: (x * w).sum() * (2.0 if gc.isenabled() else 3.0))
    assert [float(do(ag.tensor(numpy.ones(3))).item()) for _ in range(8)] == [6.0] * 8
    assert gc.isenabled()


def test_a_step_may_reach_an_array_of_times() -> None:
    days = numpy.array(["2020-01-01", "2020-01-02"], "M8[D]")
    do = ag.capture(lambda x: ag.tensor(x).sum() * len(days), warmup=0)
    for i in range(5):
        assert float(do(numpy.full(3, float(i))).item()) == 6.0 * i
    assert do.replays == 3


def _by_numpy(x: Any) -> Any:
    return np.where((abs(x) > 2).any(), ag.tensor(x).sum(), -ag.tensor(x).sum())


def _under_errstate(x: Any) -> Any:
    with numpy.errstate(divide="raise"):
        return 1 / ag.tensor(x).sum()


@pytest.mark.parametrize(
    "step, text", [(_by_numpy, "with other values of its arguments"), (_under_errstate, "errstate was set to raise")]
)
def test_a_step_that_replays_would_not_repeat_is_refused(step: Any, text: str) -> None:
    do = ag.capture(step, verify=False, warmup=0)
    with pytest.raises(CaptureError, match=text):
        for i in range(4):
            do(_rows(i) * (i + 1))


def test_calls_that_leave_other_values_for_other_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a recorded call takes a value of its arguments for a constant, and no recording shows it."""
    monkeypatch.setattr(captured_step.CapturedStep, "_prove", lambda *args: True)
    monkeypatch.setattr(captured_step, "difference", lambda *args: "")
    do = ag.capture(lambda x: ag.tensor(x / 2).sum(), warmup=0)
    with pytest.raises(CaptureError, match="with other values of arguments and state, do not leave"):
        for i in range(4):
            do(_rows(i))
