"""Messages, pipelines, stencils and collectives that the ranks call differently."""

from __future__ import annotations

from typing import Any

from autograd import optim

from . import (
    SHAPES,
    I,
    R,
    Shard,
    T,
    X,
    ag,
    cc,
    draw,
    entered,
    exact,
    gradients,
    model,
    np,
    numpy,
    parameters,
    refused,
    row_slice,
    serial,
    sharded,
    squares,
)

U = draw("temperature", 12)


def rod() -> Any:
    """A rod of twelve points, divided among the ranks."""
    return cc.shard(ag.tensor(U, layout={"dp": R}), "dp")


def step(u: Any) -> Any:
    """A step of the heat equation; the ends are fixed."""
    return np.concatenate([u[:1], u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]), u[-1:]])


def heat(f: Any) -> Any:
    """The gradient of the sum of squares after one step, by `f`."""
    k = ag.Parameter([0.1], name="k")
    with ag.Tape() as tape:
        loss = cc.all_reduce((f(rod() * cc.cast(k, "dp", to=R)) ** 2).sum(), "dp", to=I)
    tape.backward(loss)
    return {"k": k.grad.numpy()}, lambda: {"k": ag.grad(lambda k: (step(k * U) ** 2).sum())(numpy.array([0.1]))}


@exact(dp=3)
def a_stencil_with_a_halo(mesh: Any) -> Any:
    def f(u: Any) -> Any:
        wide = cc.halo_exchange(u, "dp", 1)
        inner = wide[1:-1] + 0.1 * (wide[2:] - 2 * wide[1:-1] + wide[:-2])
        first, last = mesh.axis("dp").rank == 0, mesh.axis("dp").rank == mesh.axis("dp").size - 1
        ends = numpy.zeros(u.shape[0])
        ends[0], ends[-1] = int(first), int(last)
        ends = cc.from_local(ends, {"dp": Shard(0)})
        return ends * u + (1 - ends) * inner

    return heat(f)


@refused("LayoutError")
def a_stencil_without_a_halo(mesh: Any) -> Any:
    return heat(step)


@refused("LayoutError")
def differences_of_the_local_points(mesh: Any) -> Any:
    return heat(lambda u: np.diff(u))


@refused("LayoutError")
def the_local_points_are_rolled(mesh: Any) -> Any:
    return heat(lambda u: u + 0.1 * (np.roll(u, 1) - 2 * u + np.roll(u, -1)))


@refused("LayoutError")
def the_gradient_of_the_local_points(mesh: Any) -> Any:
    return heat(lambda u: np.gradient(u))


@refused("LayoutError")
def the_local_points_are_padded(mesh: Any) -> Any:
    def f(u: Any) -> Any:
        wide = np.pad(u, 1)
        return wide[1:-1] + 0.1 * (wide[2:] - 2 * wide[1:-1] + wide[:-2])

    return heat(f)


@refused("RingtapeError", alone=True)
def the_local_points_are_convolved(mesh: Any) -> Any:
    return heat(lambda u: np.convolve(u, numpy.array([0.1, 0.8, 0.1]), mode="same"))


@refused("LayoutError")
def cumulative_sum_of_the_local_points(mesh: Any) -> Any:
    return heat(lambda u: np.cumsum(u))


@refused("LayoutError")
def fourier_transform_of_the_local_points(mesh: Any) -> Any:
    return heat(lambda u: np.real(np.fft.fft(u)))


@refused("LayoutError")
def the_local_points_are_reversed(mesh: Any) -> Any:
    return heat(lambda u: u + u[::-1])


@refused("LayoutError")
def the_local_points_are_reshaped(mesh: Any) -> Any:
    """Pairs of points, along the divided dimension of a part with an odd number of rows."""
    return heat(lambda u: u.reshape(2, -1).sum(axis=0))


@refused("LayoutError")
def the_ends_of_every_part_are_fixed(mesh: Any) -> Any:
    def f(u: Any) -> Any:
        wide = cc.halo_exchange(u, "dp", 1)
        inner = wide[1:-1] + 0.1 * (wide[2:] - 2 * wide[1:-1] + wide[:-2])
        return np.concatenate([u[:1], inner[1:-1], u[-1:]])

    return heat(f)


@refused("LayoutError")
def the_first_point_of_all_is_taken_from_every_rank(mesh: Any) -> Any:
    return heat(lambda u: u - u[0])


@refused("LayoutError")
def the_middle_point_by_its_global_number(mesh: Any) -> Any:
    return heat(lambda u: u[3])


@refused("LayoutError")
def outer_product_of_the_local_points(mesh: Any) -> Any:
    return heat(lambda u: np.outer(u, u))


@refused("LayoutError")
def distances_of_the_local_points(mesh: Any) -> Any:
    return heat(lambda u: np.tanh(u[:, None] - u[None, :]))


# -- pipelines ---------------------------------------------------------------------------------------------------------
def two_stages(mesh: Any, second: Any = None, first: Any = None, total: Any = None) -> Any:
    """The first rank has W1 and b1, the second has W2, b2 and the loss, which it shares with the first."""
    rank = int(mesh.axis("pp").rank)
    own = {n: ag.tensor(v.array, requires_grad=True) for n, v in parameters().items()}
    first = first or (lambda h: cc.send(h, "pp", 1))
    second = second or (lambda p: squares(cc.recv("pp", 0) @ p["W2"] + p["b2"], T) / 7)
    total = total or (lambda loss: cc.broadcast(loss, "pp", root=1, to=I))
    with ag.Tape() as tape:
        loss = None
        if rank == 0:
            first(np.tanh(X @ own["W1"] + own["b1"]))
        else:
            loss = second(own)
        loss = total(loss)
    tape.backward(loss)
    return {n: own[n].grad.numpy() for n in (("W1", "b1") if rank == 0 else ("W2", "b2"))}


@exact(pp=2)
def a_pipeline_of_two_stages(mesh: Any) -> Any:
    return two_stages(mesh)


@refused("RingtapeError", alone=False, pp=2)
def the_loss_stays_on_the_last_stage(mesh: Any) -> Any:
    zero = ag.tensor(numpy.zeros(()))
    return two_stages(mesh, total=lambda loss: zero if loss is None else loss)


@refused("RingtapeError", alone=False, pp=2)
def every_stage_differentiates_a_copy_of_the_loss(mesh: Any) -> Any:
    return two_stages(mesh, total=lambda loss: cc.broadcast(loss, "pp", root=1))


@refused("RingtapeError", alone=False, pp=2)
def the_first_stage_sends_and_nobody_receives(mesh: Any) -> Any:
    return two_stages(mesh, lambda p: squares(ag.tensor(numpy.zeros((7, 6))) @ p["W2"] + p["b2"], T) / 7)


@refused("RingtapeError", alone=False, pp=2)
def the_second_stage_receives_twice(mesh: Any) -> Any:
    return two_stages(mesh, lambda p: squares((cc.recv("pp", 0) + cc.recv("pp", 0)) @ p["W2"] + p["b2"], T) / 7)


@refused("RingtapeError", alone=False, pp=2)
def the_message_is_not_recorded_on_one_side(mesh: Any) -> Any:
    def first(h: Any) -> None:
        with ag.no_grad():
            cc.send(h, "pp", 1)

    return two_stages(mesh, first=first)


@refused("RingtapeError", alone=False, pp=2)
def the_loss_of_the_stages_is_summed(mesh: Any) -> Any:
    """The first stage has no loss, and takes part with zeros."""
    zero = ag.tensor(numpy.zeros(()))

    def total(loss: Any) -> Any:
        return cc.all_reduce(zero if loss is None else loss, "pp", to=R)

    return two_stages(mesh, total=total)


@refused("RingtapeError", alone=False, pp=2)
def only_the_last_stage_calls_backward(mesh: Any) -> Any:
    rank = int(mesh.axis("pp").rank)
    own = {n: ag.tensor(v.array, requires_grad=True) for n, v in parameters().items()}
    with ag.Tape() as tape:
        loss = None
        if rank == 0:
            cc.send(np.tanh(X @ own["W1"] + own["b1"]), "pp", 1)
        else:
            loss = squares(cc.recv("pp", 0) @ own["W2"] + own["b2"], T) / 7
        loss = cc.broadcast(loss, "pp", root=1, to=I)
    if rank == 1:
        tape.backward(loss)
    optim.SGD([own[n] for n in (("W1", "b1") if rank == 0 else ("W2", "b2"))], lr=0.1).step()
    return {n: own[n].numpy() for n in (("W1", "b1") if rank == 0 else ("W2", "b2"))}, lambda: dict.fromkeys(SHAPES, 0)


@refused("RingtapeError", alone=False, pp=2)
def both_stages_receive_first(mesh: Any) -> Any:
    other = 1 - int(mesh.axis("pp").rank)
    x = ag.tensor(draw("h", 3), requires_grad=True)
    with ag.Tape() as tape:
        y = cc.recv("pp", other)
        cc.send(x, "pp", other)
        loss = cc.all_reduce((y * y).sum(), "pp", to=I)
    tape.backward(loss)
    return {}


@refused("RingtapeError", alone=False, pp=3)
def a_ring_with_a_wrong_neighbour(mesh: Any) -> Any:
    rank = int(mesh.axis("pp").rank)
    x = ag.tensor(draw("h", 3), requires_grad=True)
    with ag.Tape() as tape:
        cc.send(x, "pp", (rank + 1) % 3)
        y = cc.recv("pp", (rank + 1) % 3)
        loss = cc.all_reduce((y * y).sum(), "pp", to=I)
    tape.backward(loss)
    return {}


# -- collectives that the ranks call differently -----------------------------------------------------------------------
def train(mesh: Any, loss_of: Any, steps: int = 1) -> Any:
    p = parameters()
    x, t = sharded(mesh)
    for n in range(steps):
        with ag.Tape() as tape:
            loss = loss_of(p, x, t, n)
        tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def only_the_first_rank_sums_the_loss(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        mine = squares(model(entered(p), x), t) / 7
        return cc.all_reduce(mine, "dp", to=I) if mesh.axis("dp").rank == 0 else mine

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def the_first_rank_reduces_and_the_others_all_reduce(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        mine = squares(model(entered(p), x), t) / 7
        return cc.reduce(mine, "dp", root=0) if mesh.axis("dp").rank == 0 else cc.all_reduce(mine, "dp", to=I)

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def a_rank_logs_its_loss_by_a_collective(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        mine = squares(model(entered(p), x), t) / 7
        if mesh.axis("dp").rank == 0:
            print(float(cc.all_reduce(mine, "dp", to=I)))
        return cc.all_reduce(mine, "dp", to=I)

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def ranks_without_enough_rows_skip_the_step(mesh: Any) -> Any:
    p = parameters()
    x, t = sharded(mesh)
    if int(x.shape[0]) > 2:
        with ag.Tape() as tape:
            loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
        tape.backward(loss)
    cc.check_replicas(p.values(), mesh)
    return gradients(p)


@refused("RingtapeError", alone=False)
def one_step_for_each_local_row(mesh: Any) -> Any:
    p, mine = parameters(), row_slice(mesh)
    for x, t in zip(X[mine], T[mine], strict=True):
        with ag.Tape() as tape:
            loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
        tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def training_stops_when_the_local_loss_is_small(mesh: Any) -> Any:
    p = parameters()
    x, t = sharded(mesh)
    optimizer = optim.SGD(p.values(), lr=0.05)
    for _ in range(40):
        with ag.Tape() as tape:
            mine = squares(model(entered(p), x), t) / 7
            loss = cc.all_reduce(mine, "dp", to=I)
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if float(mine.local) < 0.8:
            break
    cc.barrier("dp")
    return {}


@refused("RingtapeError", alone=False)
def two_sums_in_the_order_of_a_set(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        y = model(entered(p), x)
        terms = {"error": squares(y, t), "size": (y * y).sum(axis=0)}
        names = sorted(terms, reverse=bool(mesh.axis("dp").rank == 1))  # as the order of a set can differ
        sums = {n: cc.all_reduce(terms[n], "dp", to=I) for n in names}
        return sums["error"] / 7 + sums["size"].sum()

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def one_rank_does_not_record(mesh: Any) -> Any:
    """Evaluation on one rank, training on the others."""

    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        if mesh.axis("dp").rank == 0:
            with ag.no_grad():
                return cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
        return cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def one_rank_leaves_out_backward(mesh: Any) -> Any:
    p = parameters()
    x, t = sharded(mesh)
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    if mesh.axis("dp").rank != 1:
        tape.backward(loss)
    cc.barrier("dp")
    return gradients(p)


@refused("RingtapeError", alone=False)
def one_rank_computes_in_single_precision(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        mine = squares(model(entered(p), x), t)
        mine = mine.astype(numpy.float32) if mesh.axis("dp").rank == 2 else mine
        return cc.all_reduce(mine, "dp", to=I) / 7

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def the_root_differs(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        return cc.reduce(squares(model(entered(p), x), t) / 7, "dp", root=int(mesh.axis("dp").rank))

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def the_label_of_the_result_differs(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        to = I if mesh.axis("dp").rank == 0 else R
        return cc.cast(cc.all_reduce(squares(model(entered(p), x), t), "dp", to=to) / 7, "dp", to=I)

    return train(mesh, loss_of)


@refused("RingtapeError", alone=False)
def an_exception_is_swallowed_on_one_rank(mesh: Any) -> Any:
    def loss_of(p: Any, x: Any, t: Any, n: int) -> Any:
        try:
            if mesh.axis("dp").rank == 1:
                raise ValueError("a bad row")
            return cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
        except ValueError:
            return cc.all_reduce((p["b2"] * 0.0).sum(), "dp", to=I)

    return train(mesh, loss_of)


@exact()
def a_rank_without_rows_takes_part_with_zeros(mesh: Any) -> Any:
    p = parameters()
    rank = int(mesh.axis("dp").rank)
    mine = [slice(0, 4), slice(4, 7), slice(7, 7)][rank]
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), X[mine]), T[mine]), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@exact()
def frozen_on_one_rank_only(mesh: Any) -> Any:
    """`requires_grad` differs; the communication does not depend on it."""
    p = parameters()
    x, t = sharded(mesh)
    p["b1"].requires_grad = mesh.axis("dp").rank != 0
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    return {n: g.grad.numpy() for n, g in p.items() if g.grad is not None}


@refused("LayoutError")
def parameters_of_the_first_rank_are_broadcast_in_the_tape(mesh: Any) -> Any:
    """They are Invariant already; a broadcast would count their gradient at one rank."""
    p = parameters()
    x, t = sharded(mesh)
    with ag.Tape() as tape:
        used = {n: cc.broadcast(v, "dp") for n, v in p.items()}
        loss = cc.all_reduce(squares(model(used, x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def only_the_root_steps(mesh: Any) -> Any:
    p = parameters()
    x, t = sharded(mesh)
    optimizer = optim.SGD(p.values(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
        tape.backward(loss)
        if mesh.axis("dp").rank == 0:
            optimizer.step()
    return gradients(p)


@refused("LayoutError")
def a_maximum_of_addends(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_max(((model(entered(p), x) - t) ** 2).sum(axis=0), "dp", to=I).sum()
    tape.backward(loss)
    return gradients(p)


@exact()
def the_loss_is_reduced_to_one_rank(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.reduce(squares(model(entered(p), x), t) / 7, "dp", root=1)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def the_loss_is_reduced_and_then_used_by_all(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.reduce(squares(model(entered(p), x), t) / 7, "dp", root=0) + 0.1 * (p["W1"] ** 2).sum()
    tape.backward(loss)
    return gradients(p), lambda: serial(lambda q: squares(model(q, X), T) / 7 + 0.1 * (q["W1"] ** 2).sum())


@exact()
def the_loss_is_broadcast_from_every_rank_in_turn(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        mine = squares(model(entered(p), cc.cast(x, "dp", to=cc.V)), cc.cast(t, "dp", to=cc.V)) / 7
        loss = sum(cc.broadcast(mine, "dp", root=r, to=I) for r in range(mesh.axis("dp").size))
    tape.backward(loss)
    return gradients(p)
