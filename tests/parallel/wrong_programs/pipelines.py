"""Pipelines of two stages and several microbatches, with the parameters of a stage labelled as docs/tasks.md says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autograd import optim

from . import SHAPES, I, R, T, V, X, ag, cc, draw, exact, np, numpy, refused

NAMES = (("W1", "b1"), ("W2", "b2"))
PARTS = (slice(0, 3), slice(3, 5), slice(5, 7))  # the rows of the microbatches
ZERO = numpy.zeros(())


def stages(
    mesh: Any,
    *,
    layout: Any = None,
    given: Any = lambda x: x,
    sent: Any = lambda h: cc.send(h, "pp", 1),
    received: Any = lambda: cc.recv("pp", 0),
    total: Any = lambda loss: cc.broadcast(loss, "pp", root=1, to=I),
    sweep: Any = lambda rank, tape, loss: tape.backward(loss),
    orders: Sequence[Sequence[int]] | None = None,
) -> Any:
    """The first stage has W1 and b1, the second W2, b2 and the loss. A tape for each microbatch; then a step."""
    rank = int(mesh.axis("pp").rank)
    layout = {"pp": V} if layout is None else layout
    own = {n: ag.Parameter(draw(n, *SHAPES[n]), layout or None, name=n) for n in NAMES[rank]}
    tapes, losses = [], []
    for part in PARTS:
        with ag.Tape() as tape:
            loss = None
            if rank == 0:
                sent(np.tanh(given(X[part]) @ own["W1"] + own["b1"]))
            else:
                loss = ((received() @ own["W2"] + own["b2"] - T[part]) ** 2).sum() / 7
            loss = total(loss)
        if orders is None:
            sweep(rank, tape, loss)
        tapes.append(tape)
        losses.append(loss)
    for m in () if orders is None else orders[rank]:
        sweep(rank, tapes[m], losses[m])
    optim.SGD(own.values(), lr=0.0).step()
    return {n: p.grad.numpy() for n, p in own.items()}


def of_own_loss(rank: int, tape: Any, loss: Any) -> None:
    """Backward from a cotangent that the program gives, on the stage that has a loss."""
    tape.backward(*((loss, 1.0) if rank else ()))


@exact(pp=2)
def a_pipeline_of_microbatches(mesh: Any) -> Any:
    return stages(mesh)


@exact(pp=2)
def all_microbatches_forwards_and_then_backwards(mesh: Any) -> Any:
    return stages(mesh, orders=[(2, 1, 0), (2, 1, 0)])


@exact(pp=2)
def stages_sweep_their_microbatches_in_different_orders(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: loss, sweep=of_own_loss, orders=[(2, 1, 0), (0, 1, 2)])


@refused("ReplicaMismatch", "call backward of the same one on all ranks", alone=False, pp=2)
def stages_sweep_the_losses_of_different_microbatches(mesh: Any) -> Any:
    return stages(mesh, orders=[(2, 1, 0), (0, 1, 2)])


@refused("CollectiveMismatch", "start of backward (axis='pp')", alone=False, pp=2)
def the_first_stage_calls_no_backward(mesh: Any) -> Any:
    return stages(mesh, sweep=lambda rank, tape, loss: tape.backward(loss) if rank else None)


@refused("GradientWarning", "call tape.backward(loss) on this rank too", alone=False, pp=2)
def the_first_stage_has_no_loss_and_calls_no_backward(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: loss,
                  sweep=lambda rank, tape, loss: tape.backward(loss, 1.0) if rank else None)  # fmt: skip


@refused("DeadlockError", "the cotangent of message 1 to rank 1, sent at pipelines.py:", alone=False, pp=2)
def the_last_stage_calls_no_backward(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: loss, sweep=lambda rank, tape, loss: None if rank else tape.backward())


@refused("TapeError", "stop_gradient", alone=False, pp=2)
def the_first_stage_sends_an_array(mesh: Any) -> Any:
    return stages(mesh, sent=lambda h: cc.send(h.numpy(), "pp", 1))


@refused("GradientWarning", "a message from rank 0, received at pipelines.py:", alone=False, pp=2)
def the_second_stage_computes_with_an_array(mesh: Any) -> Any:
    return stages(mesh, received=lambda: cc.recv("pp", 0).numpy())


@refused("GradientWarning", "a message from rank 0, received at pipelines.py:", alone=False, pp=2)
def the_second_stage_computes_with_an_array_of_irecv(mesh: Any) -> Any:
    return stages(mesh, sent=lambda h: cc.isend(h, "pp", 1).wait(), received=lambda: cc.irecv("pp", 0).numpy())


@refused("LayoutError", "fix: ag.Parameter(w, {'pp': V})", alone=False, pp=2)
def the_parameters_of_the_stages_are_invariant(mesh: Any) -> Any:
    return stages(mesh, layout={}, given=ag.constant)


@refused("LayoutError", pp=2, alone=False)
def the_loss_is_used_by_both_stages(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: cc.broadcast(loss, "pp", root=1, to=R))


@refused("LayoutError", pp=2, alone=False)
def the_loss_is_summed_after_the_broadcast(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: cc.all_reduce(cc.broadcast(loss, "pp", root=1), "pp", to=I))


@refused("RingtapeError", pp=2, alone=False)
def the_loss_is_broadcast_from_the_first_stage(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: cc.broadcast(loss, "pp", to=I))


@exact(pp=2)
def the_first_stage_adds_a_loss_of_zero(mesh: Any) -> Any:
    return stages(mesh, total=lambda loss: cc.all_reduce(ag.tensor(ZERO) if loss is None else loss, "pp", to=I))


@refused("DeadlockError", alone=False, pp=2)
def the_first_stage_starts_a_send_and_the_second_waits_in_recv(mesh: Any) -> Any:
    return stages(mesh, sent=lambda h: cc.isend(h, "pp", 1).wait())


@exact(pp=2)
def a_like_of_another_shape(mesh: Any) -> Any:
    """`recv` takes the device of `like` only."""
    return stages(mesh, received=lambda: cc.recv("pp", 0, like=ag.tensor(numpy.zeros(3))))


@refused("CollectiveMismatch", "pass like= with the shape", alone=False, pp=2)
def a_like_of_another_shape_of_irecv(mesh: Any) -> Any:
    return stages(mesh, sent=lambda h: cc.isend(h, "pp", 1).wait(),
                  received=lambda: cc.irecv("pp", 0, like=ag.tensor(numpy.zeros((7, 6)))).wait())  # fmt: skip
