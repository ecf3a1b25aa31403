"""Programs that start communications and wait for them later, and the same programs with blocking calls.

Each takes this rank's operand and whether to run nonblocking, and returns the loss. Ranks wait in different orders.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from threading import local
from typing import Any
from weakref import ref

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.engine.state import state
from collectives import I
from collectives.transports.protocol import Request

FORMS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast", "reduce"]
"""The collectives that have a nonblocking form."""


@contextlib.contextmanager
def nonblocking_in_place() -> Iterator[None]:
    """Inside the block, the blocking calls of `collectives` are nonblocking ones that are waited for at once."""
    before = {name: getattr(cc, name) for name in [*FORMS, "send", "recv"]}

    def form(name: str) -> Any:
        started = getattr(cc, f"{name}_async")
        return lambda *args, **options: started(*args, **options).wait()

    def send(x: Any, axis: Any, dst: int) -> None:
        cc.isend(x, axis, dst).wait()

    def recv(axis: Any, src: int, **options: Any) -> Any:
        return cc.irecv(axis, src, **options).wait()

    try:
        for name in FORMS:
            setattr(cc, name, form(name))
        cc.send, cc.recv = send, recv
        yield
    finally:
        for name, function in before.items():
            setattr(cc, name, function)


def _started(name: str, nonblocking: bool) -> Callable[..., Any]:
    return getattr(cc, f"{name}_async" if nonblocking else name)


def in_order(x: Any, nonblocking: bool) -> Any:
    """Three in flight, waited for in the order of their starts, with work in between."""
    reduce = _started("all_reduce", nonblocking)
    handles = [reduce(anp.tanh(x * (k + 1.0)), "a") for k in range(3)]
    total = anp.exp(x * 0.1).sum()
    for k, handle in enumerate(handles):
        total = total + (handle * handle * x).sum() * (k + 1.0)
    return cc.all_reduce(total, "a", to=I)


def each_its_own_order(x: Any, nonblocking: bool) -> Any:
    """Even ranks wait in the order of the starts, odd ones in reverse; a blocking call in the middle."""
    reduce = _started("all_reduce", nonblocking)
    handles = [reduce(x * x * (k + 1.0), "a") for k in range(4)]
    order = [0, 1, 2, 3] if cc.current_mesh().axis("a").group.rank % 2 == 0 else [3, 2, 1, 0]
    before = sum((anp.sin(handles[k]) * x).sum() * (k + 2.0) for k in order[:2])
    middle = cc.all_reduce(x, "a")
    after = sum((anp.sin(handles[k]) * middle * x).sum() * (k + 2.0) for k in order[2:])
    return cc.all_reduce(before + after, "a", to=I)


def around_a_blocking_call(x: Any, nonblocking: bool) -> Any:
    """Rank 0 waits before a blocking call on the same axis, the others behind it."""
    handle = _started("all_reduce", nonblocking)(anp.tanh(x), "a")
    first = cc.current_mesh().axis("a").group.rank == 0
    total = (handle * x).sum() if first else x.sum() * 0.0
    blocking = cc.all_reduce(x * x, "a")
    total = total + (blocking * x).sum()
    total = total if first else total + (handle * x).sum()
    return cc.all_reduce(total, "a", to=I)


def of_every_kind(x: Any, nonblocking: bool) -> Any:
    """All forms in flight together."""
    p = cc.current_mesh().axis("a").size
    ring = [(r, (r + 1) % p) for r in range(p)]
    gathered = _started("all_gather", nonblocking)(x * 2.0, "a")
    scattered = _started("reduce_scatter", nonblocking)(anp.sin(x), "a")
    exchanged = _started("all_to_all", nonblocking)(x * x, "a", 0, 1)
    moved = _started("permute", nonblocking)(anp.tanh(x), "a", ring)
    told = _started("broadcast", nonblocking)(x * 3.0, "a", p - 1)
    summed = _started("all_reduce", nonblocking)(x * 0.5, "a", I)
    rooted = _started("reduce", nonblocking)(anp.cos(x), "a", 0)
    meanwhile = anp.exp(x * 0.3).sum()
    total = (moved * x).sum() + ((gathered * gathered).sum() * meanwhile) + (told * x * x).sum()
    parts = [total, (scattered * scattered).sum(), (exchanged * exchanged * exchanged).sum()]
    found = [cc.all_reduce(part, "a", to=I) for part in parts]
    return found[0] + found[1] + found[2] + (summed * summed).sum() + (cc.broadcast(rooted, "a", 0, I) ** 2).sum()


def around_the_ring(x: Any, nonblocking: bool) -> Any:
    """Messages to the next rank and from the one before, two rounds in flight; waited for in mixed order."""
    on = cc.current_mesh().axis("a")
    rank, p = on.group.rank, on.size
    there, back = (rank + 1) % p, (rank - 1) % p
    if nonblocking:
        like = ag.tensor(np.empty(x.shape))
        heres = [cc.irecv("a", back), cc.irecv("a", back, like=like)]
        sent = [cc.isend(anp.tanh(x), "a", there), cc.isend(x * x, "a", there)]
        for handle in sent if rank % 2 else reversed(sent):
            handle.wait()
    else:
        cc.send(anp.tanh(x), "a", there)
        cc.send(x * x, "a", there)
        heres = [cc.recv("a", back), cc.recv("a", back)]
    order = [1, 0] if rank % 2 else [0, 1]
    return cc.all_reduce(sum((heres[k] * anp.sin(x)).sum() * (k + 1.0) for k in order), "a", to=I)


def random_program(seed: int) -> Callable[[Any, bool], Any]:
    """Starts and blocking calls in an order that all ranks share; every rank waits where and in what order it likes."""
    shared = np.random.default_rng([seed])
    kinds = [str(kind) for kind in shared.choice(["reduce", "gather", "move", "blocking"], 7, p=[0.4, 0.2, 0.2, 0.2])]

    def program(x: Any, nonblocking: bool) -> Any:
        on = cc.current_mesh().axis("a")
        own = np.random.default_rng([seed, on.group.rank])
        ring = [(r, (r + 1) % on.size) for r in range(on.size)]
        due: dict[int, list[int]] = {}
        handles: dict[int, Any] = {}
        total = (x * x).sum()
        for k, kind in enumerate(kinds):
            y = anp.tanh(x * (k + 0.5))
            if kind == "blocking":
                total = total + (cc.all_reduce(y, "a") * x).sum()
            else:
                if kind == "reduce":
                    handles[k] = _started("all_reduce", nonblocking)(y, "a")
                elif kind == "gather":
                    handles[k] = _started("all_gather", nonblocking)(y[k % 4], "a")
                else:
                    handles[k] = _started("permute", nonblocking)(y, "a", ring)
                due.setdefault(int(own.integers(k, len(kinds))), []).append(k)
            for i in own.permutation(due.get(k, [])):
                z = handles.pop(int(i))
                total = total + (z * z).sum() * x[0, 0] * (i + 1.0)  # i meets V: its order is each rank's own
        assert not handles
        return cc.all_reduce(total, "a", to=I)

    return program


PROGRAMS = [in_order, each_its_own_order, around_a_blocking_call, of_every_kind, around_the_ring]


def operand(rank: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([7, seed, rank]).standard_normal((4, 3))


def compare(program: Any, size: int) -> float:
    """Value, gradient, tangent and Hessian-vector product of a program in both ways; the largest difference."""
    if program is around_the_ring and size == 1:
        return 0.0
    with cc.Mesh(a=size):
        return compare_here(program)


def compare_here(program: Any) -> float:
    """The same under the current mesh."""
    rank = cc.world().rank
    x, dx = ag.tensor(operand(rank)), ag.tensor(operand(rank, 1))
    found: list[list[Any]] = []
    for nonblocking in (True, False):
        def loss(x: Any, nonblocking: bool = nonblocking) -> Any:
            return program(x, nonblocking)

        def slope(x: Any, loss: Any = loss) -> Any:
            return cc.all_reduce((dx * ag.grad(loss)(x)).sum(), "a", to=I)

        value, gradient = ag.value_and_grad(loss)(x)
        found.append([value, gradient, ag.jvp(loss, (x,), (dx,))[1], ag.grad(slope)(x),
                      ag.jvp(ag.grad(loss), (x,), (dx,))[1]])  # fmt: skip
    differences = [abs(a.numpy() - b.numpy()).max() / max(abs(b.numpy()).max(), 1e-12)
                   for a, b in zip(*found, strict=True)]
    return float(max(differences))


# -- handles that are lost ---------------------------------------------------------------------------------------------


def _in_a_tape(x: Any) -> None:
    with ag.Tape():
        seen.handles.append(ref(cc.all_reduce_async(x, "a")))
        raise ZeroDivisionError


def _in_a_transform(x: Any) -> None:
    def f(x: Any) -> Any:
        handle = cc.all_reduce_async(x, "a")
        seen.handles.append(ref(handle))
        return 1 / 0

    ag.vjp(f, x)


def _deleted_in_a_tape(x: Any) -> None:
    with ag.Tape():
        seen.handles.append(ref(cc.all_reduce_async(x, "a")))


def _outside(x: Any) -> None:
    handle = cc.all_reduce_async(x, "a")
    seen.handles.append(ref(handle))
    raise ZeroDivisionError


def _deleted_outside(x: Any) -> None:
    with ag.no_grad():
        seen.handles.append(ref(cc.all_reduce_async(x, "a")))


def _message(x: Any) -> None:
    rank, size = cc.world().index, cc.world().size
    with ag.Tape():
        cc.isend(x, "a", (rank + 1) % size)
        seen.handles.append(ref(cc.irecv("a", (rank - 1) % size)))
        raise ZeroDivisionError


def _pending(x: Any) -> None:
    """Below the tape: a started call of the channel, as of a gradient bucket."""
    cc.current_mesh().axis("a").group.start(Request("all_reduce", x.array))


class _Seen(local):
    handles: list[Any]


seen = _Seen()
LOSING = [_in_a_tape, _in_a_transform, _deleted_in_a_tape, _outside, _deleted_outside, _message, _pending]


def lose_handles(steps: int = 200) -> None:
    """Lose a handle in every step, in each way. It is freed, and later calls are matched with their own."""
    world = cc.world()
    rank, size = world.index, world.size
    for lose in LOSING:
        if lose is _message and size == 1:
            continue
        seen.handles = []
        is_kept = lose in (_outside, _deleted_outside)  # until the mesh ends, whose error counts them
        try:
            with cc.Mesh(a=-1) as mesh:
                group = mesh.axis("a").group
                for step in range(steps):
                    with contextlib.suppress(ZeroDivisionError, cc.CommunicationError):
                        lose(ag.tensor(np.arange(3.0) + rank + step, requires_grad=True))
                    if step % 10 == 0:
                        world.barrier()
                gc.collect()
                assert not any(handle() is not None for handle in seen.handles), lose.__name__
                assert len(state.pending) <= 2 * is_kept, (lose.__name__, len(state.pending))
                waits = getattr(group, "_waits", None)  # of processes
                assert waits is None or len(waits.started) < steps // 2, (lose.__name__, len(waits.started))
                if lose is _message:
                    assert len(mesh.axis("a").kept["irecv", (rank - 1) % size]) < steps // 2
                    there, here = cc.isend(np.full(2, rank), "a", (rank + 1) % size), cc.irecv("a", (rank - 1) % size)
                    there.wait()
                    assert here.numpy().tolist() == [(rank - 1) % size] * 2
                    assert not mesh.axis("a").kept["irecv", (rank - 1) % size]
                total = cc.all_reduce_async(ag.tensor(np.array([rank + 0.5])), "a").numpy()
                assert total.tolist() == [sum(r + 0.5 for r in range(size))], lose.__name__
        except cc.CommunicationError as error:
            text = f"and {steps} communications were started and never waited for"
            assert is_kept and text in str(error) and str(error).count("started at") == 1, str(error)
        else:
            assert not is_kept
