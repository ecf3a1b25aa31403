"""Training steps for the tests of faults in captured steps, and how a fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim
from autograd.errors import CaptureError
from autograd.extend import defvjp, primitive
from tests.autograd.transforms.test_capture import bits

CALLS = 14
"""Two as they are, two recorded, and replays, the eighth of which is compared with the step itself."""


def _data(seed: int, rows: int = 6) -> tuple[Any, Any]:
    random = numpy.random.default_rng(seed)
    return random.standard_normal((rows, 4)).astype("float32"), random.integers(0, 3, rows)


class Step:
    """A step, and what the program does between its calls."""

    def __init__(self) -> None:
        ag.random.seed(0)
        self.parameters: list[Any] = []
        self.optimizer: Any = None

    def __call__(self, x: Any, y: Any) -> Any:
        raise NotImplementedError

    def between(self, i: int) -> None:
        """Change something before a call."""


class Momentum(Step):
    """A network with dropout and a table, momentum and a schedule; the program writes to an array of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.table = ag.Parameter(numpy.linspace(-1, 1, 12, dtype="float32").reshape(3, 4))
        self.shift = numpy.linspace(0, 1, 4, dtype="float32")
        self.parameters = [*self.model.parameters(), self.table]
        self.optimizer = optim.SGD(self.parameters, lambda n: 0.1 / (1 + n), 0.9)

    def __call__(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            h = ag.tensor(x) * (ag.tensor(self.shift) + 1.0) + self.table[y] - self.table[y[::-1]].sum(0) * 0.1
            out = self.model(nn.dropout(h, 0.2))
            loss = nn.cross_entropy(out, y, reduction="mean") + (h.T[1:, ::2] ** 2).mean() * 0.1
        tape.backward(loss)
        self.optimizer.step()
        return loss, h * 2.0, out.mean(0)

    def between(self, i: int) -> None:
        self.shift += numpy.float32(0.125)


class Moments(Step):
    """Adam, two sweeps that add up, batch norm, and hyperparameters and arrays that the program changes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        self.parameters = list(self.model.parameters())
        self.optimizer = optim.Adam(self.parameters, 0.01)

    def __call__(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        losses = []
        for rows in (slice(0, 3), slice(3, None)):
            with ag.Tape() as tape:
                losses.append(nn.cross_entropy(self.model(ag.tensor(x[rows])), y[rows], reduction="mean"))
            tape.backward(losses[-1])
        self.optimizer.step()
        return losses

    def between(self, i: int) -> None:
        if i == 8:
            self.optimizer.lr = 0.05


class Hyperparameters(Momentum):
    """The program gives the optimizer another momentum."""

    def between(self, i: int) -> None:
        if i == 8:
            self.optimizer.momentum = 0.5


class Leaves(Momentum):
    """The program gives a parameter another array."""

    def between(self, i: int) -> None:
        if i == 8:
            self.table.data = self.table.numpy() * 2


class Velocities(Momentum):
    """The program gives an optimizer another array of state."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = optim.SGD(self.parameters, 0.1, 0.9, nesterov=True)

    def between(self, i: int) -> None:
        if i == 8:
            self.optimizer.velocity[0] = self.optimizer.velocity[0] * 2


class Reduced(Step):
    """Reductions over several axes, extrema, negative zeros, decisions on data, and gradients in another order."""

    def __init__(self) -> None:
        super().__init__()
        random = numpy.random.default_rng(3)
        self.parameters = [ag.Parameter(random.standard_normal((4, 5)).astype("float32")),
                           ag.Parameter(random.standard_normal((5,)).astype("float32"))]  # fmt: skip
        self.optimizer = optim.RMSprop(self.parameters, 0.01)

    def __call__(self, x: Any, y: Any) -> Any:
        w, b = self.parameters
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            z = (ag.tensor(x) @ w + b).reshape(2, 3, 5)
            s = z.sum((0, 2)) + z.max(0).sum(1) - z.mean((0, 1)).sum()
            zero = np.where(z > 0, z, -0.0) * -1.0
            loss = (s * s).mean() + (zero * z.transpose(0, 2, 1).reshape(2, 3, 5)).sum() * 0.01
            loss = loss + (z.astype("float64") * 0.1).sum().astype("float32") + np.concatenate([z[0], z[1, ::-1]]).std()
            loss = loss + np.sort(z, 1)[:, 0].sum() * 0.01  # which stays a call of Python
        tape.backward(loss)
        self.optimizer.step()
        return loss, zero, z.T, np.roll(z, 1, 2)


class Labels(Step):
    """A step whose decision on its labels is another one in later calls."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters = [ag.Parameter(numpy.full((4, 3), 0.1, "float32"))]
        self.optimizer = optim.SGD(self.parameters, 0.1)
        self.calls = 0

    def __call__(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(ag.tensor(x) @ self.parameters[0], y, reduction="mean", ignore_index=7)
        tape.backward(loss)
        self.optimizer.step()
        return loss


class Averages(Step):
    """Running averages that the step reads after batch norm has changed them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.model = nn.Sequential(nn.Linear(4, 8), self.norm)
        self.parameters = list(self.model.parameters())
        self.optimizer = optim.SGD(self.parameters, 0.1)

    def __call__(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        before = ag.tensor(self.norm.running_mean).reshape(2, 4) * 2.0
        with ag.Tape() as tape:
            loss = (self.model(ag.tensor(x)) ** 3).mean()
        tape.backward(loss)
        self.optimizer.step()
        return loss, before, ag.tensor(self.norm.running_mean).reshape(2, 4) * 2.0


@primitive
def _doubled(x: Any) -> Any:
    """A function that no trace follows, as it makes numbers of Python."""
    return numpy.array([[2.0 * float(one) for one in row] for row in x], x.dtype)


defvjp(_doubled, lambda y, x: lambda g: g * 2)


class Sums(Step):
    """A call that stays one of Python between others that read and write memory."""

    def __init__(self) -> None:
        super().__init__()
        random = numpy.random.default_rng(7)
        self.parameters = [ag.Parameter(random.standard_normal((4, 5)).astype("float32"))]
        self.optimizer = optim.SGD(self.parameters, 0.01)

    def __call__(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            h = np.tanh(ag.tensor(x) @ self.parameters[0] + 1)
            loss = (_doubled(h * 2) * h).mean()
        tape.backward(loss)
        self.optimizer.step()
        return loss


STEPS: dict[str, Callable[[], Step]] = {
    x.__name__.lower(): x
    for x in (Momentum, Moments, Hyperparameters, Leaves, Velocities, Reduced, Labels, Averages, Sums)
}


def run(name: str, captures: bool) -> tuple[Any, list[str]]:
    """What calls of a step leave, and why there are no programs."""
    step = STEPS[name]()
    call: Any = ag.capture(step.__call__) if captures else step.__call__
    kept, found, whys = [], [], []
    for i in range(CALLS):
        step.between(i)
        x, y = _data(i)
        if name == "labels" and i >= 8:
            y = numpy.where(numpy.arange(6) == i % 6, 7, y)
        kept.append(call(x, y))
        gradients = [p.grad for p in step.parameters]
        kept.append(gradients)
        found.append((bits(kept[-2]), bits(kept[-1]), [bits(p) for p in step.parameters]))
    if captures:
        whys = [plan.why for plans in call._plans.values() for plan in plans]
    return (found, bits(kept)), whys


_ordinary: dict[str, Any] = {}


def ways(name: str) -> str:
    """How the first fault in a captured step shows: "proof", "flight", "result", "kept", "error" or "" for none."""
    if name not in _ordinary:
        _ordinary[name] = run(name, captures=False)[0]
    try:
        (found, kept), whys = run(name, captures=True)
    except CaptureError as error:
        return "flight" if "than the step itself" in str(error) else f"error {error}"
    except Exception as error:
        return f"error {type(error).__name__}: {error}"
    if found != _ordinary[name][0]:
        return "result"
    if kept != _ordinary[name][1]:
        return "kept"
    return "; ".join(sorted({why for why in whys if why}))
