"""A repeated collective is what the first one was, in value, node and gradient, whatever has changed around it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.arrays.shape_only import is_absent
from autograd.engine.state import no_grad, state
from autograd.engine.tensor import Tensor
from autograd.errors import CollectiveMismatch, LayoutError, OptionError
from collectives import I, P, R, V
from collectives.declaration.call import Call
from collectives.declaration.prepared import Prepared
from collectives.declaration.staging import InShape, flat
from collectives.inspect.observing import observing
from collectives.ops.sums import ALL_REDUCE
from collectives.shared_arrays import along
from collectives.testing.proof import mutated
from collectives.transports.protocol import Request


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """On threads every call is compared otherwise, and goes the whole way."""
    cc.check("off")
    yield
    cc.check("first")


def draw(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    values = np.random.default_rng([seed, cc.world().rank]).standard_normal((*shape, 2))
    return (values[..., 0] + 1j * values[..., 1] if np.dtype(dtype).kind == "c" else values[..., 0] * 100).astype(dtype)


def strided(x: Any) -> Any:
    return np.repeat(x, 2, axis=-1)[..., ::2]


class Elsewhere(np.ndarray):
    """An array of another kind, of the same shape and dtype."""


FORMS: list[Callable[[Any], Any]] = [np.ascontiguousarray, np.asfortranarray, strided]
KINDS = [((6,), np.float32), ((6,), np.float64), ((5,), np.float64), ((2, 3), np.float64), ((3, 2), np.float64),
         ((2, 3), np.complex128), ((0,), np.float32), ((1,), np.float16), ((6,), np.int64)]  # fmt: skip
OPERANDS: list[Callable[[int], Any]] = [
    *(lambda seed, form=form, kind=kind: form(draw(*kind, seed)) for form in FORMS for kind in KINDS),
    lambda seed: np.float64(draw((1,), np.float64, seed)[0]),
    lambda seed: draw((1,), np.float64, seed).reshape(()),
    lambda seed: draw((6,), np.float64, seed).view(Elsewhere),
]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_is_the_first_call_again(ranks: int) -> None:
    """Beside calls of the collective itself, which know nothing of each other; kinds of operands in any order."""

    def program() -> None:
        order = np.random.default_rng(1).permutation(np.tile(np.arange(len(OPERANDS)), 6))
        with cc.Mesh(dp=-1) as mesh:
            on = mesh.axis("dp")
            for seed, k in enumerate([*order, *sorted(order)]):
                to = (R, I)[seed // 3 % 2]
                operand = Tensor(OPERANDS[k](seed), mesh.grid.uniform((V, P)[seed % 2]))
                again = traced(operand, lambda x, to=to: cc.all_reduce(x, "dp", to=to), to, seed)
                first = traced(operand, lambda x, to=to: ALL_REDUCE(x, Call(on.names, on.group, to=to)), to, seed)
                assert again == first, (k, operand)

    cc.run(program, ranks)


def traced(operand: Tensor, call: Callable[[Tensor], Tensor], to: Any, seed: int) -> list[Any]:
    """Everything that a call did: its result, its node, and the gradient through it."""
    with ag.Tape() as tape:
        x = tape.watch(operand)
        y = call(x)
        nodes = [(n[0], n[3], told(n[4]), n[5:]) for n in tape.recording.nodes if n is not None]
        communicates = told(tape.recording.communicates)
    array = y.array
    found = [type(array), array.shape, array.dtype, array.tobytes(), array is operand.array, y.layout, y.tape is None,
             y.node, nodes, communicates]  # fmt: skip
    if y.tape is not None:
        ct = draw(array.shape, array.dtype, seed + 1000) if to is R else np.ones(array.shape, array.dtype)
        (g,) = tape.backward(y, Tensor(ct, y.layout.dual), wanted=[x]) or ()
        found += [g.shape, g.dtype, g.tobytes()]
    return found


def told(facts: Any) -> Any:
    """What a node tells of its call, to be compared."""
    if not isinstance(facts, Prepared):
        return facts
    return facts.call, facts.layout, facts.out, facts.operand, facts.result


def repeated(program: Callable[[Any, Any], Any], ranks: int = 2) -> list[Any]:
    """Run it after two calls have made the call of it known: with the mesh, and a leaf of this rank's number plus 1."""

    def whole() -> Any:
        with cc.Mesh(dp=ranks) as mesh:
            leaf = ag.tensor(np.full(3, cc.world().rank + 1.0), requires_grad=True)
            with ag.Tape():
                for _ in range(2):
                    assert cc.all_reduce(leaf, "dp").array.tolist() == [ranks * (ranks + 1) / 2] * 3
            return program(mesh, leaf)

    return cc.run(whole, ranks)


def test_without_a_tape_nothing_is_recorded() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        assert not cc.all_reduce(leaf, "dp").requires_grad
        with ag.Tape() as tape, no_grad():
            assert not cc.all_reduce(leaf, "dp").requires_grad
        assert not tape.recording.nodes

    repeated(program)


def test_what_no_leaf_needs_is_recorded_too() -> None:
    """Whether a communication is recorded is the same on every rank, so it is no question of its operand."""

    def program(mesh: Any, leaf: Any) -> None:
        with ag.Tape() as tape:
            cc.all_reduce(ag.tensor(np.ones(3)), "dp")
        ((op, _, _, parents, *_),) = tape.recording.nodes
        assert op is ALL_REDUCE and parents == (-1,) and tape.recording.communicates

    repeated(program)


def test_a_leaf_and_a_value_of_another_tape_enter() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        with ag.Tape() as first:
            x = leaf * 5.0
        with ag.Tape() as second:
            y, z = cc.all_reduce(x, "dp", to=I), cc.all_reduce(leaf, "dp", to=I)
            for _ in range(2):
                y, z = cc.all_reduce(x, "dp", to=I), cc.all_reduce(leaf, "dp", to=I)
            loss = (y * z).sum()
        second.backward(loss)
        first.backward()
        assert leaf.grad.numpy().tolist() == [5.0 * 3 + 15.0] * 3

    repeated(program)


def test_nodes_share_what_they_tell_and_keep_no_operand() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        with ag.Tape() as tape:
            x = leaf * 2.0
            for _ in range(3):
                cc.all_reduce(x, "dp")
            one, *others = [n[4] for n in tape.recording.nodes if n is not None and n[0] is ALL_REDUCE]
            assert len(others) == 2 and all(each is one for each in others)
            kept = weakref.ref(x.array)
            del x
        del tape
        gc.collect()
        assert kept() is None

    repeated(program)


def test_comparing_that_begins_later() -> None:
    """Both kinds of operand are known on both ranks, and fit the group's buffers together."""

    def program(mesh: Any, leaf: Any) -> None:
        dtypes = np.float64, np.float32
        with ag.Tape():
            x = ag.tensor(np.ones(3, dtypes[cc.world().rank]))
            for _ in range(2):
                for dtype in dtypes:
                    cc.all_reduce(ag.tensor(np.ones(3, dtype)), "dp")
            mesh.ranks.barrier()
            cc.check("always")
            mesh.ranks.barrier()
            cc.all_reduce(x, "dp")

    with pytest.raises(CollectiveMismatch, match="recorded"):
        repeated(program)


def test_listeners_hear_it() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        heard: list[tuple[str, str]] = []
        with ag.Tape(), ag.events.listening(lambda phase, direction, name: heard.append((phase, name))):
            cc.all_reduce(leaf, "dp")
        assert heard == [("begin", "all_reduce"), ("end", "all_reduce")]

    repeated(program)


def test_observers_see_the_transport() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        seen: list[str] = []

        def observer(group: Any, request: Request, started: bool, run: Callable[[], Any]) -> Any:
            seen.append(request.call)
            return run()

        with ag.Tape(), observing(observer):
            cc.all_reduce(leaf, "dp")
        assert seen == ["all_reduce"]

    repeated(program)


def test_a_planted_rule_is_used() -> None:
    """Known before the block or first made in it: the checks of the registry must see the fault."""

    def program(mesh: Any, leaf: Any) -> None:
        wide = ag.tensor(np.ones((2, 2)), layout={"dp": P})
        mesh.ranks.barrier()  # threads: one rank's block is all ranks' rule
        if cc.world().rank == 0:
            block = mutated("all_reduce", forward=lambda x, call: x * 0 - 1)
            block.__enter__()
        mesh.ranks.barrier()
        with ag.Tape():
            answers = [cc.all_reduce(x, "dp").array.max() for x in (leaf, leaf, wide, wide)]
        mesh.ranks.barrier()
        if cc.world().rank == 0:
            block.__exit__(None, None, None)
        mesh.ranks.barrier()
        assert answers == [-1] * 4
        with ag.Tape():
            assert [cc.all_reduce(x, "dp").array.max() for x in (leaf, wide)] == [3, 2]

    repeated(program)


def test_nonblocking_forms_begin() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        with ag.Tape() as tape:
            handle = cc.all_reduce_async(leaf, "dp")
            assert len(state.pending) == 1
            tape.backward(cc.cast(handle.sum(), "dp", to=I))
        assert leaf.grad.numpy().tolist() == [1.0] * 3

    repeated(program)


def test_labels_that_it_does_not_take_are_refused_still() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        for label in (R, I):
            with ag.Tape(), pytest.raises(LayoutError, match="all_reduce"):
                cc.all_reduce(ag.tensor(np.ones(3), layout={"dp": label}), "dp")
        with ag.Tape(), pytest.raises(LayoutError, match="needed: to=R or to=I"):
            cc.all_reduce(leaf, "dp", to=V)
        with cc.Mesh(tp=2) as other, ag.Tape(), pytest.raises(LayoutError, match="another mesh"):
            assert other is not mesh
            x = ag.tensor(np.ones(3), layout={"tp": P})
            with mesh:
                cc.all_reduce(x, "dp")

    repeated(program)


def test_every_axis_and_algorithm_has_its_own() -> None:
    def program() -> None:
        with cc.Mesh(dp=2, tp=2) as mesh, ag.Tape():
            x = ag.tensor(np.full(3, 10.0 ** cc.world().rank))
            want = {"dp": x.array + 10.0 ** (mesh.ranks.rank ^ 2), "tp": x.array + 10.0 ** (mesh.ranks.rank ^ 1)}
            for _ in range(3):
                for axis, sum_ in want.items():
                    assert cc.all_reduce(x, axis).array.tolist() == sum_.tolist()
                assert cc.all_reduce(x, ("dp", "tp")).array.tolist() == [1111.0] * 3
            native, seen = mesh.axis("dp").group, list[bool]()

            def observer(group: Any, request: Request, started: bool, run: Callable[[], Any]) -> Any:
                if request.call == "all_reduce":
                    seen.append(group is native)
                return run()

            with observing(observer):
                for algorithm in ("ring", "native", "ring", None):
                    seen.clear()
                    assert cc.all_reduce(x, "dp", algorithm=algorithm).array.tolist() == want["dp"].tolist()
                    assert (seen == [True]) == (algorithm != "ring"), (algorithm, seen)

    cc.run(program, 4)


def test_another_group_at_the_axis_is_taken() -> None:
    def program(mesh: Any, leaf: Any) -> None:
        seen: list[Any] = []

        def observer(group: Any, request: Request, started: bool, run: Callable[[], Any]) -> Any:
            seen.append(group)
            return run()

        native = mesh.axis("dp").group
        with ag.Tape(), along("dp") as memory, observing(observer):
            for _ in range(2):
                cc.all_reduce(leaf, "dp")
        with ag.Tape(), observing(observer):
            cc.all_reduce(leaf, "dp")
        assert [group is native for group in seen] == [False, False, True] and seen[:2] == [memory] * 2

    repeated(program)


def test_a_value_that_another_axis_roots() -> None:
    """Where it is absent nobody has anything to send, the next time too."""

    def program() -> None:
        with cc.Mesh(pp=2, dp=2) as mesh, ag.Tape() as tape:
            x = cc.reduce(ag.tensor([1.0, 2.0], requires_grad=True), "pp")
            for _ in range(2):
                y = cc.all_reduce(x, "dp")
                assert is_absent(y.array) == (mesh.axis("pp").rank != 0)
            (g,) = tape.backward(y, Tensor(y.array, y.layout.dual), wanted=[x]) or ()
            assert is_absent(g.array if g.__class__ is Tensor else g) == is_absent(y.array)
            assert is_absent(y.array) or y.array.tolist() == [4.0, 8.0]

    cc.run(program, 4)


LATER = """
import sys
import numpy, autograd as ag, collectives as cc
from collectives.inspect.observing import observing

def program():
    heard = []
    def observer(group, request, started, run):
        heard.append(request.call)
        return run()
    with cc.Mesh(dp=2) as mesh, observing(observer):
        cc.all_reduce(ag.tensor(numpy.ones(3)), "dp", algorithm="ring")
    return heard

assert "collectives.algorithms.selected" not in sys.modules, "or this shows nothing"
for heard in cc.run(program, 2):
    assert heard[-1] == "all_reduce" and "start" not in heard and "recv" not in heard, heard
"""


def test_observers_hear_an_algorithm_that_is_loaded_while_they_listen() -> None:
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_request_that_was_refused_is_refused_again() -> None:
    """A repeated call skips the checks of its request, if it has passed them."""
    wrong = cc.Collective("wrong", takes=(V,), gives=V, registered=False)
    wrong.asks(lambda x, call: (Request("all_reduce", flat(x), op="other"), InShape(x.shape)))

    def program() -> list[str]:
        found = []
        with cc.Mesh(dp=3):
            x, call = ag.tensor(np.ones(2)), cc.call("dp")
            for _ in range(3):
                with pytest.raises(OptionError) as caught:
                    wrong(x, call)
                found.append(str(caught.value))
        return found

    first, second, third = cc.run(program, ranks=3)[0]
    assert first == second == third and "op='other'" in first


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("form", [np.float64, np.float32, np.complex128, lambda x: np.array(x, np.float64)])
def test_a_scalar_is_sent_as_an_array_is(ranks: int, form: Callable[[Any], Any]) -> None:
    """The scalar loss: the transport binds its call, and each result is a scalar of its own."""

    def program() -> None:
        rank = cc.world().rank
        with cc.Mesh(dp=ranks) as mesh, ag.Tape():
            found = []
            for n in range(4):
                y = cc.all_reduce(Tensor(form(rank + n), mesh.grid.uniform(V)), "dp", to=I)
                assert y.array == sum(range(ranks)) + ranks * n and y.array.shape == ()
                assert type(y.array) is type(form(0))
                found.append(y.array)
            bound = [known for known in mesh.prepared.values() if isinstance(known, Prepared) and known._send]
            assert len(bound) == 1 and len(set(map(float, np.real(found)))) == 4

    cc.run(program, ranks)


def test_a_request_that_sends_another_number_is_not_bound() -> None:
    """A scalar lies in no array, so the request is made once more, for an array in its place."""
    twice = cc.Collective("twice the sum", (V,), gives=R, registered=False)

    @twice.asks
    def _(x: Any, call: Call) -> Any:
        return Request("all_reduce", flat(x * 2)), InShape(x.shape)

    def program() -> None:
        with cc.Mesh(dp=2):
            for n in (0.0, 1.0, 2.0):
                assert cc.apply(twice, ag.tensor(np.float64(n)), "dp").array == 4 * n

    cc.run(program, 2)
