"""The whole idea in NumPy: ranks, six labels, a tape, moves between labels, and the law that decides every gradient.

    python examples/00_core.py              four ranks, which are threads of this process
    python examples/00_core.py --ranks 3

Read it from the top. Each part ends with a few lines that it prints; the last one computes the same with ringtape.

In a distributed program a wrong gradient is rarely a mistake of calculus. It is a sum over the ranks that is missing or
that is taken twice, and nothing reports it: the loss still falls. The remedy is to write down what the ranks hold of
each value, and to derive from it what they hold of its cotangent, the derivative of the loss with respect to the value.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

parser = argparse.ArgumentParser(description="Build distributed automatic differentiation from NumPy, in eight parts.")
parser.add_argument("--ranks", type=int, default=4, metavar="N", help="the number of ranks (default: 4)")
RANKS = parser.parse_args().ranks
if RANKS < 1:
    parser.error("--ranks: at least 1 is needed")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback

# == 1. Ranks =========================================================================================================
# Ranks are copies of one program, here threads. A rank knows of the others only by exchanging values with them.

here = threading.local()  # what belongs to a rank: its number, its world, its tape


class World:
    """All ranks of a job."""

    def __init__(self, size: int):
        self.size, self.table, self.barrier = size, [("", None)] * size, threading.Barrier(size)

    def exchange(self, call: str, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank. All ranks must make the same call."""
        self.table[here.rank] = call, value
        self.barrier.wait()
        calls, values = zip(*self.table, strict=True)
        self.barrier.wait()  # no rank writes its next value before all have read this one
        if len(set(calls)) > 1:
            raise RuntimeError("different calls: " + ", ".join(f"rank {r}: {call}" for r, call in enumerate(calls)))
        return list(values)


def run(program: Callable[[], Any], size: int = RANKS) -> list[Any]:
    """Run a program on every rank, and return the results in order of rank. If a rank raises, all ranks end."""
    world, results, errors = World(size), [None] * size, []

    def on_rank(rank: int) -> None:
        here.rank, here.world, here.tape = rank, world, []
        try:
            results[rank] = program()
            world.exchange("end of program", None)  # to end early is a different call, so that no rank waits for ever
        except threading.BrokenBarrierError:
            pass  # another rank has raised
        except Exception as error:
            errors.append(error)
            world.barrier.abort()

    threads = [threading.Thread(target=on_rank, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


print("1. Ranks. Each of them has the squares of all:", run(lambda: here.world.exchange("squares", here.rank**2))[-1])

# == 2. Labels ========================================================================================================
# A label says what the ranks hold of a value. The cotangent of the value has the dual label. The letters are those of
# ringtape, so I stays, which linters take for an l.

R, P, I, V, SHARD, ROOTED = "Replicated", "Partial", "Invariant", "Varying", "Shard(0)", "Rooted(0)"  # noqa: E741
LABELS = {  # label: (its dual, what the ranks hold)
    R: (P, "equal copies; each rank computes something of its own from its copy"),
    P: (R, "addends; the value is their sum, which is not yet taken"),
    I: (I, "equal copies; every rank does the same computation with its copy"),
    V: (V, "values of their own"),
    SHARD: (SHARD, "parts; the value is the parts, one below the other"),
    ROOTED: (ROOTED, "the value on rank 0, nothing elsewhere (here an empty array)"),
}

# Why is Partial the dual of Replicated? Each rank computes something of its own from its copy, so it knows one part of
# the derivative, and the derivative is the sum of these parts. From Invariant copies every rank computes all, and knows
# the whole derivative. Therefore equal copies have two labels.


def dual(label: str) -> str:
    """Return the label of the cotangent of a value."""
    return LABELS[label][0]


def pairing(ct: np.ndarray, x: np.ndarray, label: str) -> float:
    """<ct, x>: the sum of the ranks' dot products. An Invariant value is one computation, and counts once."""
    counts = label != I or here.rank == 0
    return sum(here.world.exchange("pairing", float(np.vdot(ct, x)) if counts else 0.0))


print("\n2. Labels. The ranks hold")
for label, (its_dual, meaning) in LABELS.items():
    print(f"   {label:11}{meaning:70}cotangent: {its_dual}")

# == 3. A tape ========================================================================================================
# A tape is the list of the values of a rank in order of execution (a Wengert list). A value keeps its operands, and the
# function that turns its cotangent into theirs. The backward pass walks the list from its end.


class LabelError(Exception):
    """A gradient would be wrong."""


class Tensor:
    """An array with a label. `grad`, its cotangent, has the dual label."""

    def __init__(self, array: Any, label: str = I, operands: tuple[Tensor, ...] = (), pull: Any = None):
        self.array, self.label, self.operands, self.pull = np.asarray(array, float), label, operands, pull
        self.grad = np.zeros_like(self.array)
        here.tape.append(self)

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(self.array + other.array, joint_label("add", self, other), (self, other), lambda ct: (ct, ct))

    def __mul__(self, other: Tensor | float) -> Tensor:
        if not isinstance(other, Tensor):  # a number: the same on all ranks, and without a cotangent
            return Tensor(self.array * other, self.label, (self,), lambda ct: (ct * other,))
        x, y = self.array, other.array
        return Tensor(x * y, joint_label("multiply", self, other), (self, other), lambda ct: (ct * y, ct * x))

    def __matmul__(self, other: Tensor) -> Tensor:
        label, x, w = joint_label("matmul", self, other), self.array, other.array
        return Tensor(x @ w, label, (self, other), lambda ct: (ct @ w.T, x.T @ ct))

    def tanh(self) -> Tensor:
        y = np.tanh(self.array)
        return Tensor(y, joint_label("tanh", self), (self,), lambda ct: (ct * (1 - y * y),))

    def sum(self) -> Tensor:
        label = P if self.label == SHARD else self.label  # the sums of the parts are the addends of the sum
        return Tensor(self.array.sum(), label, (self,), lambda ct: (np.full(self.array.shape, ct),))


def joint_label(name: str, *operands: Tensor) -> str:
    """Return the label of a result; an error if an operand would get a wrong gradient."""
    labels, said = {x.label for x in operands}, f"{name}: {' beside '.join(x.label for x in operands)}"
    if P in labels and (name, labels) not in [("add", {P}), ("multiply", {P, R}), ("matmul", {P, R})]:
        raise LabelError(f"{said}. It would be computed from the addends and not from their sum; fix: move(x, R)")
    if name == "matmul" and operands[1].label == SHARD:
        raise LabelError(f"{said}. A rank has a part of the rows and needs all; fix: move(w, R) gathers them")
    if labels == {P, R}:
        return P
    if len(labels) == 1:
        return labels.pop()
    if labels <= {R, V, SHARD}:  # each rank uses its copy of R with values of its own
        return V if V in labels else SHARD
    if I in labels:
        raise LabelError(f"{said}. The gradient of Invariant would miss the sum over the ranks; fix: move(w, R)")
    raise LabelError(f"{said} has no meaning")


def sweep(y: Tensor, ct: Any) -> None:
    """Compute the cotangents of all values on the tape from that of one of them.

    No value is left out, not even where its cotangent is zero: its operation may be a communication for which the other
    ranks wait. So backward makes the calls of forward in reverse order, and cannot hang where forward did not.
    """
    for x in here.tape:
        x.grad = np.zeros_like(x.array)
    y.grad = np.asarray(ct, float)
    for x in reversed(here.tape):
        for operand, part in zip(x.operands, x.pull(x.grad) if x.operands else (), strict=True):
            if np.shape(part) != operand.array.shape:
                raise ValueError("operands must be matrices of matching shapes; this program does not broadcast")
            operand.grad = operand.grad + part


def one_process() -> None:
    x, w = Tensor([[0.5, -1.0], [2.0, 1.0]]), Tensor([[0.3], [0.7]])
    loss = (x @ w).tanh().sum()
    sweep(loss, 1.0)
    above, below = (np.tanh(x.array @ (w.array + step)).sum() for step in ([[1e-6], [0]], [[-1e-6], [0]]))
    print(f"\n3. A tape of {len(here.tape)} values. d loss / d w[0] is {w.grad[0, 0]:.6f}", end=", ")
    print(f"by finite differences {(above - below) / 2e-6:.6f}")


run(one_process, 1)

# == 4. Moves =========================================================================================================
# Communication moves a value from one label to another. A collective is a function of the arrays of all ranks:

COLLECTIVES: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {
    "all_reduce": sum,
    "all_gather": np.concatenate,
    "reduce_scatter": lambda arrays: part_of(sum(arrays)),
    "broadcast": lambda arrays: arrays[0],
    "reduce": lambda arrays: sum(arrays) if here.rank == 0 else np.empty(0),
}
MOVES = {
    (P, R): "all_reduce",
    (P, I): "all_reduce",
    (I, R): "nothing",
    (R, V): "nothing",
    (V, P): "nothing",
    (SHARD, R): "all_gather",
    (P, SHARD): "reduce_scatter",
    (ROOTED, R): "broadcast",
    (P, ROOTED): "reduce",
}


def part_of(x: np.ndarray) -> np.ndarray:
    """Return this rank's rows of an array. Ranks may have different numbers of them."""
    return np.array_split(x, here.world.size)[here.rank]


def communicate(call: str, x: np.ndarray) -> np.ndarray:
    """Run a collective on the arrays of all ranks."""
    return x if call == "nothing" else COLLECTIVES[call](here.world.exchange(call, x))


def move(x: Tensor, to: str) -> Tensor:
    """Change the label of a value.

    Its backward pass is written nowhere. The cotangent comes with the dual of `to` and must leave with the dual of the
    label of x, and that is a move of the same table.
    """
    if (x.label, to) not in MOVES:
        raise LabelError(f"move: there is none from {x.label} to {to}")
    forward, backward = MOVES[x.label, to], MOVES[dual(to), dual(x.label)]
    return Tensor(communicate(forward, x.array), to, (x,), lambda ct: (communicate(backward, ct),))


print("\n4. Moves. Is the backward pass of an all-reduce an all-reduce, or nothing? Its labels decide it:")
for (source, to), forward in MOVES.items():
    back = dual(to), dual(source)
    print(f"   {source:>10} -> {to:12}{forward:17}backward: {back[0]:>10} -> {back[1]:12}{MOVES[back]}")

# == 5. The law =======================================================================================================
# F* is the adjoint of F if <F* ct, x> = <ct, F x> for every x and every ct. This one equation decides what is a right
# backward pass. It is tested with random numbers, which differ between the ranks wherever the label allows it, since
# equal ones hide mistakes.


def random_like(x: np.ndarray, label: str, seed: int) -> np.ndarray:
    """Return random numbers in the shape of an array: the same on all ranks if they are copies."""
    return np.random.default_rng([seed] if label in (R, I) else [seed, here.rank]).standard_normal(x.shape)


def random_value(label: str, seed: int = 1) -> np.ndarray:
    """Return what this rank holds of a random value of 7 rows."""
    whole = np.empty((7, 3))
    mine = {SHARD: part_of(whole), ROOTED: whole if here.rank == 0 else np.empty(0)}.get(label, whole)
    return random_like(mine, label, seed)


def law(function: Callable[[Tensor], Tensor], label: str) -> tuple[float, float]:
    """Return both sides of the equation for a linear function."""
    x = Tensor(random_value(label), label)
    y = function(x)
    ct = random_like(y.array, dual(y.label), seed=2)
    sweep(y, ct)
    return pairing(x.grad, x.array, label), pairing(ct, y.array, y.label)


CASES = {f"{source} -> {to}": (source, lambda x, to=to: move(x, to)) for source, to in MOVES} | {
    "Shard(0) @ w, w Replicated": (SHARD, lambda x: x @ Tensor(random_value(R)[:3], R)),
    "x @ Replicated, x Varying": (R, lambda w: Tensor(random_value(V).T, V) @ w),
    "sum of Shard(0)": (SHARD, Tensor.sum),
    "WRONG: Partial -> Invariant, and all_reduce": (
        P, lambda x: Tensor(communicate("all_reduce", x.array), I, (x,), lambda ct: (communicate("all_reduce", ct),))),
    "WRONG: Invariant -> Replicated, and nothing": (I, lambda x: Tensor(x.array, R, (x,), lambda ct: (ct,))),
}  # fmt: skip
print(f"\n5. The law. {'<F* ct, x>':>47} {'<ct, F x>':>12}")
for title, (label, function) in CASES.items():
    left, right = run(lambda case=(function, label): law(*case))[0]
    print(f"   {title:44}{left:12.6f} {right:12.6f}   {'equal' if np.isclose(left, right) else 'NOT EQUAL'}")

# == 6. A data-parallel step ==========================================================================================
# The ranks divide the rows. The weight enters by a move from Invariant to Replicated, which costs nothing; the backward
# pass of this move is the all-reduce of the gradients. Gradients are summed, never averaged: the only division is that
# of the loss by the number of all rows.

ROWS = np.random.default_rng(5).standard_normal((7, 3))
TARGETS = np.tanh(ROWS @ [[1.0], [-2.0], [0.5]])


def squares(w: Tensor) -> Tensor:
    """Return the sum of the squared errors of a linear model with tanh."""
    error = (Tensor(part_of(ROWS), SHARD) @ w).tanh() + Tensor(-part_of(TARGETS), SHARD)
    return (error * error).sum()


def backward(loss: Tensor) -> None:
    """Compute the gradients of a loss, which is one number of all ranks: Invariant, or Partial."""
    if loss.label == R:
        raise LabelError(f"backward: the loss is R. Its {here.world.size} copies would all count; fix: move(total, I)")
    if loss.label not in (I, P):
        raise LabelError(f"backward: the loss is {loss.label}, and not one number of all ranks")
    sweep(loss, 1.0)


def train() -> list[tuple[float, np.ndarray]]:
    """Return the loss and the gradient of each of three steps."""
    weight, seen = np.zeros((3, 1)), []
    for _ in range(3):
        here.tape.clear()
        w = Tensor(weight, I)
        loss = move(squares(move(w, R)), I) * (1 / len(ROWS))
        backward(loss)
        seen.append((float(loss.array), w.grad))
        weight = weight - 0.5 * w.grad
    return seen


print("\n6. Three steps of gradient descent: the same on any number of ranks")
for size in sorted({1, 2, 3, RANKS}):
    steps = run(train, size)[-1]
    losses = " ".join(f"{loss:.9f}" for loss, _ in steps)
    print(f"   ranks: {size}, losses {losses}, last gradient {steps[-1][1].ravel().round(9)}")

# == 7. Mistakes ======================================================================================================
# Programs without labels make these mistakes silently. Here each is an error, the first two on one rank, too.


def missing_sum() -> None:
    backward(move(squares(Tensor(np.zeros((3, 1)), I)), I))  # the weight enters without a move


def seeded_on_every_rank() -> None:
    backward(move(squares(move(Tensor(np.zeros((3, 1)), I), R)), R))  # the loss is R


def different_calls() -> None:
    move(Tensor(random_value(P), P), I if here.rank == 0 else SHARD)


def gradient(label: str, to: str) -> np.ndarray:
    """Return the gradient of a program with the mistake, whose labels hide it and which nothing refuses."""
    w = Tensor(np.zeros((3, 1)), label)
    total = squares(move(w, R) if label == I else w)
    sweep(move(move(total, P) if total.label == V else total, to), 1.0)
    return w.grad.ravel().round(6)


print("\n7. Mistakes")
for mistake in (missing_sum, seeded_on_every_rank, different_calls)[: 3 if RANKS > 1 else 2]:
    try:
        run(mistake)
    except (LabelError, RuntimeError) as error:
        print(f"   {mistake.__name__}: {type(error).__name__}: {error}")
print("   If nothing refused them, the gradient would be")
for title, case in {"(right)": (I, I), "missing_sum": (V, I), "seeded_on_every_rank": (I, R)}.items():
    print(f"      {title:22}{run(lambda case=case: gradient(*case))[0]}")

# == 8. The same with ringtape ========================================================================================
# ringtape has these labels along each axis of a mesh of ranks, which are threads, processes or GPUs; derivatives of any
# order; and the law as the test of every operation. It is imported only here, since nothing above needs it.

import autograd as ag  # noqa: E402
import autograd.numpy as agnp  # noqa: E402
import collectives as cc  # noqa: E402

THEIRS = {R: cc.R, P: cc.P, I: cc.I, V: cc.V, SHARD: cc.Shard(0), ROOTED: cc.Rooted(0)}
CALLS = {
    (P, R): lambda x: cc.all_reduce(x, "dp", to=cc.R),
    (P, I): lambda x: cc.all_reduce(x, "dp", to=cc.I),
    (I, R): lambda x: cc.cast(x, "dp", to=cc.R),
    (R, V): lambda x: cc.cast(x, "dp", to=cc.V),
    (V, P): lambda x: cc.declare_partial(x, "dp"),
    (SHARD, R): lambda x: cc.all_gather(x, "dp"),
    (P, SHARD): lambda x: cc.reduce_scatter(x, "dp"),
    (ROOTED, R): lambda x: cc.broadcast(x, "dp"),
    (P, ROOTED): lambda x: cc.reduce(x, "dp"),
}


def our_moves() -> dict[tuple[str, str], list[np.ndarray]]:
    """Return of each move: a random operand, the result, a random cotangent, and the cotangent of the operand."""
    found = {}
    for source, to in MOVES:
        x = Tensor(random_value(source), source)
        y = move(x, to)
        sweep(y, random_like(y.array, dual(to), seed=2))
        found[source, to] = [x.array, y.array, y.grad, x.grad]
    return found


def their_moves() -> float:
    """Return the largest difference of ringtape's results from ours, forward and backward, on this rank."""
    found = [0.0]
    with cc.Mesh(dp=-1):  # one axis of all ranks, named dp
        for (source, to), (x, y, ct, back) in OURS[int(cc.world().rank)].items():
            their_y, pull = ag.vjp(CALLS[source, to], cc.from_local(x, {"dp": THEIRS[source]}))
            ct = np.resize(ct, their_y.shape)  # what is absent has a shape, too
            their_back = pull(cc.from_local(ct, {"dp": THEIRS[dual(to)]}))
            found += [abs(a - b.local).max() for a, b in ((y, their_y), (back, their_back)) if a.size]
    return max(found)


def their_train() -> list[tuple[float, np.ndarray]]:
    """The program of part 6, in ringtape."""
    seen = []
    with cc.Mesh(dp=-1):
        rows, targets = (cc.shard(ag.tensor(x, layout={"dp": cc.R}), "dp") for x in (ROWS, TARGETS))
        w = ag.Parameter(np.zeros((3, 1)))  # Invariant, if no label is given
        optimizer = ag.optim.SGD([w], lr=0.5)
        for _ in range(3):
            with ag.Tape() as tape:
                error = agnp.tanh(rows @ cc.cast(w, "dp", to=cc.R)) - targets
                loss = cc.all_reduce((error * error).sum(), "dp", to=cc.I) / rows.global_shape[0]
            tape.backward(loss)
            seen.append((loss.item(), w.grad.numpy()))
            optimizer.step()
            optimizer.zero_grad()
    return seen


def their_missing_sum() -> None:
    with cc.Mesh(dp=-1), ag.Tape():
        cc.shard(ag.tensor(ROWS, layout={"dp": cc.R}), "dp") @ ag.Parameter(np.zeros((3, 1)))


OURS = run(our_moves)
print("\n8. The same with ringtape")
print(f"   moves, forward and backward: largest difference {max(cc.run(their_moves, RANKS)):.1e}")
ours, theirs = (
    np.hstack([np.append(*step) for step in steps]) for steps in (run(train)[0], cc.run(their_train, RANKS)[0])
)
print(f"   losses and gradients of the three steps: largest difference {abs(ours - theirs).max():.1e}")
try:
    cc.run(their_missing_sum, RANKS)
except cc.LayoutError as error:
    print(f"   missing_sum: LayoutError: {error}")
