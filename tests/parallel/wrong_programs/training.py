"""Training loops: numbers that differ between ranks, optimizers, transforms, parameters that are changed by hand."""

from __future__ import annotations

from typing import Any

from autograd import optim, random
from parallel import DataParallel

from . import (
    SHAPES,
    I,
    R,
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

STEPS = 4


def total(p: dict[str, Any], x: Any, t: Any) -> Any:
    return cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7


def training(
    mesh: Any, *, lr: Any = 0.05, loss: Any = total, before: Any = None, after: Any = None, steps: int = STEPS
) -> Any:
    """A few steps of SGD; the parameters at the end, beside those of one process. The hooks get (p, optimizer, n)."""
    x, t = sharded(mesh)
    p = parameters()
    optimizer = optim.SGD(p.values(), lr=lr(mesh) if callable(lr) else lr)
    for n in range(steps):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            value = loss(p, x, t)
        tape.backward(value)
        if before is not None:
            before(p, optimizer, n)
        optimizer.step()
        if after is not None:
            after(p, optimizer, n)
    return {n: v.numpy() for n, v in p.items()}, lambda: trained(steps)


def trained(steps: int = STEPS) -> dict[str, Any]:
    p = {name: draw(name, *shape) for name, shape in SHAPES.items()}
    for _ in range(steps):
        g = ag.grad(lambda q: squares(model(q, X), T) / 7)(p)
        p = {name: value - 0.05 * g[name] for name, value in p.items()}
    return p


def rank_of(mesh: Any) -> int:
    return int(mesh.axis("dp").rank)


@exact()
def a_training_loop(mesh: Any) -> Any:
    return training(mesh)


@refused("RingtapeError", alone=False)
def the_rate_depends_on_the_rank(mesh: Any) -> Any:
    return training(mesh, lr=lambda mesh: 0.05 * (mesh.axis("dp").rank + 1))


@refused("RingtapeError", alone=False)
def the_rate_depends_on_the_rank_as_a_plain_number(mesh: Any) -> Any:
    return training(mesh, lr=lambda mesh: 0.05 * (rank_of(mesh) + 1))


@refused("RingtapeError", alone=False)
def the_rate_is_halved_by_the_local_loss(mesh: Any) -> Any:
    x, t = sharded(mesh)

    def before(p: Any, optimizer: Any, n: int) -> None:
        mine = float((((numpy.tanh(x.numpy() @ p["W1"].numpy() + p["b1"].numpy())) @ p["W2"].numpy()
                       + p["b2"].numpy() - t.numpy()) ** 2).mean())  # fmt: skip
        optimizer.lr = 0.05 if mine > 1.5 else 0.025

    return training(mesh, before=before)


@refused("RingtapeError", alone=False)
def the_loss_is_scaled_by_a_plain_number_of_the_rank(mesh: Any) -> Any:
    return training(mesh, loss=lambda p, x, t: total(p, x, t) * (1.0 + rank_of(mesh)))


@refused("RingtapeError", alone=False)
def the_loss_is_scaled_by_the_rank(mesh: Any) -> Any:
    return training(mesh, loss=lambda p, x, t: total(p, x, t) * (1.0 + mesh.axis("dp").rank))


@refused("RingtapeError", alone=False)
def the_loss_is_scaled_by_the_rank_of_the_world(mesh: Any) -> Any:
    return training(mesh, loss=lambda p, x, t: total(p, x, t) * (1.0 + cc.world().rank))


@refused("LayoutError")
def the_loss_is_masked_by_the_rank(mesh: Any) -> Any:
    return training(mesh, loss=lambda p, x, t: total(p, x, t) * (mesh.axis("dp").rank == 0))


@refused("RingtapeError", alone=False)
def the_loss_is_masked_by_a_function_of_the_rank(mesh: Any) -> Any:
    return training(mesh, loss=lambda p, x, t: total(p, x, t) * numpy.float64(numpy.exp(-mesh.axis("dp").rank)))


@refused("RingtapeError", alone=False)
def the_inputs_are_augmented_by_a_number_of_the_rank(mesh: Any) -> Any:
    """The weights are scaled by a draw that every rank makes for itself."""
    noise = float(numpy.random.default_rng(rank_of(mesh)).normal())

    def loss(p: Any, x: Any, t: Any) -> Any:
        return total({**p, "b2": p["b2"] + 0.01 * noise}, x, t)

    return training(mesh, loss=loss)


@refused("RingtapeError", alone=False)
def noise_is_added_to_the_gradients(mesh: Any) -> Any:
    numbers = numpy.random.default_rng(rank_of(mesh))

    def before(p: Any, optimizer: Any, n: int) -> None:
        for v in p.values():
            v.grad = ag.tensor(v.grad.numpy() + 0.01 * numbers.normal(size=v.shape), layout={"dp": I})

    return training(mesh, before=before)


@refused("RingtapeError", alone=False)
def noise_is_added_to_the_parameters(mesh: Any) -> Any:
    numbers = numpy.random.default_rng(rank_of(mesh))

    def after(p: Any, optimizer: Any, n: int) -> None:
        for v in p.values():
            v.data = v.numpy() + 0.01 * numbers.normal(size=v.shape)

    return training(mesh, after=after)


@refused("RingtapeError", alone=False)
def the_first_rank_changes_its_parameters(mesh: Any) -> Any:
    def after(p: Any, optimizer: Any, n: int) -> None:
        if rank_of(mesh) == 0 and n == 0:
            p["b2"].data = numpy.zeros(3)

    return training(mesh, after=after)


@refused("RingtapeError", alone=False)
def a_checkpoint_is_read_by_one_rank(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    if rank_of(mesh) == 0:
        for n, v in p.items():
            v.data = draw(n + " saved", *v.shape)
    optimizer = optim.SGD(p.values(), lr=0.05)
    with ag.Tape() as tape:
        loss = total(p, x, t)
    tape.backward(loss)
    optimizer.step()
    return {n: v.numpy() for n, v in p.items()}


@refused("RingtapeError", alone=False)
def gradients_are_replaced_by_local_ones(mesh: Any) -> Any:
    """Computed by NumPy, from this rank's rows."""
    mine = row_slice(mesh)

    def before(p: Any, optimizer: Any, n: int) -> None:
        y = numpy.tanh(X[mine] @ p["W1"].numpy() + p["b1"].numpy()) @ p["W2"].numpy() + p["b2"].numpy()
        p["b2"].grad = 2 * (y - T[mine]).sum(axis=0) / 7

    return training(mesh, before=before)


@refused("RingtapeError", alone=False)
def the_rank_with_a_large_loss_skips_the_step(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    optimizer = optim.SGD(p.values(), lr=0.05)
    for n in range(STEPS):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = total(p, x, t)
        tape.backward(loss)
        if not (rank_of(mesh) == 2 and n == 1):
            optimizer.step()
    return {n: v.numpy() for n, v in p.items()}, trained


@refused("RingtapeError", alone=False)
def momentum_is_kept_by_one_rank(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    optimizer = optim.SGD(p.values(), lr=0.05, momentum=0.9 if rank_of(mesh) == 0 else 0.8)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = total(p, x, t)
        tape.backward(loss)
        optimizer.step()
    return {n: v.numpy() for n, v in p.items()}, trained


@refused("RingtapeError", alone=False)
def parameters_are_in_another_order(mesh: Any) -> Any:
    """Two biases of one shape, in the order of a dictionary that one rank filled otherwise."""
    x, t = sharded(mesh)
    p = parameters()
    q = dict(reversed(p.items())) if rank_of(mesh) == 1 else p

    class Net(ag.nn.Module):
        def __init__(self) -> None:
            for name, v in q.items():
                setattr(self, name, v)

        def forward(self, x: Any) -> Any:
            return model({n: getattr(self, n) for n in SHAPES}, x)

    wrapped = DataParallel(Net(), "dp")
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(wrapped(x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def gradients_of_addends_are_given_to_the_optimizer(mesh: Any) -> Any:
    """The parameter is Replicated, so that its gradient is Partial."""
    x, t = sharded(mesh)
    p = {n: ag.Parameter(draw(n, *s), {"dp": R}, name=n) for n, s in SHAPES.items()}
    optimizer = optim.SGD(p.values(), lr=0.05)
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(p, x), t), "dp", to=I) / 7
    tape.backward(loss)
    optimizer.step()
    return {n: v.numpy() for n, v in p.items()}


@refused("LayoutError")
def gradients_of_addends_are_clipped(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = {n: ag.Parameter(draw(n, *s), {"dp": R}, name=n) for n, s in SHAPES.items()}
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(p, x), t), "dp", to=I) / 7
    tape.backward(loss)
    optim.clip_grad_norm_(p.values(), 1.0)
    return {}


@refused("LayoutError")
def parameters_are_updated_by_addends(mesh: Any) -> Any:
    """w - lr * gradient, by hand, of gradients that were not summed."""
    x, t = sharded(mesh)
    p = {n: ag.Parameter(draw(n, *s), {"dp": R}, name=n) for n, s in SHAPES.items()}
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(p, x), t), "dp", to=I) / 7
    tape.backward(loss)
    new = {n: v - 0.05 * v.grad for n, v in p.items()}
    return {n: v.numpy() for n, v in new.items()}


# -- transforms --------------------------------------------------------------------------------------------------------
def values() -> dict[str, Any]:
    return {name: ag.Parameter(draw(name, *shape)) for name, shape in SHAPES.items()}


@refused("LayoutError")
def grad_of_the_local_loss(mesh: Any) -> Any:
    mine = row_slice(mesh)
    g = ag.grad(lambda p: squares(model(p, X[mine]), T[mine]) / 7)(values())
    return {n: v.numpy() for n, v in g.items()}


@refused("ReplicaWarning", alone=False)
def grad_of_plain_weights_and_the_sum_of_the_losses(mesh: Any) -> Any:
    """The weights are plain arrays, so Varying: each gradient is that of this rank's rows."""
    x, t = sharded(mesh)
    g = ag.grad(lambda p: cc.all_reduce(squares(model(p, x), t), "dp", to=I) / 7)(
        {name: draw(name, *shape) for name, shape in SHAPES.items()}
    )
    return {n: numpy.asarray(v) for n, v in g.items()}


@exact()
def grad_with_the_cast_inside(mesh: Any) -> Any:
    x, t = sharded(mesh)
    g = ag.grad(lambda p: total(p, x, t))(values())
    return {n: v.numpy() for n, v in g.items()}


@refused("TapeError", alone=True)
def grad_of_weights_declared_constant(mesh: Any) -> Any:
    """The answer to "the same on all ranks?", given for a weight."""
    x, t = sharded(mesh)
    p = {name: ag.constant(draw(name, *shape)) for name, shape in SHAPES.items()}
    g = ag.grad(lambda p: cc.all_reduce(squares(model(p, x), t), "dp", to=I) / 7)(p)
    return {n: numpy.asarray(v) for n, v in g.items()}


@refused("LayoutError")
def vjp_with_a_replicated_output(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = values()
    pull, _ = ag.make_vjp(lambda p: cc.all_reduce(squares(model(entered(p), x), t), "dp") / 7)(p)
    return {n: v.numpy() for n, v in pull(numpy.float64(1.0)).items()}


@refused("TapeError", "fix: stop_gradient(np.tanh(x @ used['W1'] + used['b1'])).numpy()", alone=True)
def hidden_values_become_data(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = entered(p)
        hidden = np.tanh(x @ used["W1"] + used["b1"]).numpy()
        loss = cc.all_reduce(squares(hidden @ used["W2"] + used["b2"], t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("TapeError", "fix: loss.item()", alone=True)
def the_loss_is_weighted_by_a_python_number_of_itself(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = total(p, x, t)
        loss = loss * float(loss)
    tape.backward(loss)
    return gradients(p), lambda: serial(lambda q: (squares(model(q, X), T) / 7) ** 2)


@refused("ReplicaMismatch", "tensor at", "from_local(x, {'dp': Shard(0)})")
def rows_of_this_rank_are_labelled_replicated(mesh: Any) -> Any:
    mine = row_slice(mesh)
    x, t = (ag.tensor(a[mine][:2], {"dp": cc.R}) for a in (X, T))
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.cast(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("TapeError", alone=True)
def a_step_inside_the_tape_of_the_next(mesh: Any) -> Any:
    """Hidden values of one tape are wrapped as data of another, and the first part gets no gradient."""
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = entered(p)
        hidden = ag.tensor(np.tanh(x @ used["W1"] + used["b1"]))
        loss = cc.all_reduce(squares(hidden @ used["W2"] + used["b2"], t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def recomputation_depends_on_the_rank(mesh: Any) -> Any:
    """A checkpointed function that communicates on some ranks only when it runs again."""
    x, t = sharded(mesh)
    p = parameters()
    runs = [0]

    def hidden(x: Any, W: Any, b: Any) -> Any:
        runs[0] += 1
        h = np.tanh(x @ W + b)
        if runs[0] > 1 and rank_of(mesh) == 0:
            cc.barrier("dp")
        return h

    with ag.Tape() as tape:
        used = entered(p)
        h = ag.checkpoint(hidden)(x, used["W1"], used["b1"])
        loss = cc.all_reduce(squares(h @ used["W2"] + used["b2"], t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@exact()
def the_second_derivative_along_a_direction(mesh: Any) -> Any:
    """A Hessian-vector product, by differentiating the gradient once more."""
    x, t = sharded(mesh)
    p = values()
    g = ag.grad(lambda q: sum((v * v).sum() for v in ag.grad(lambda r: total(r, x, t))(q).values()))(p)

    def wanted() -> Any:
        loss = lambda r: squares(model(r, X), T) / 7
        return serial(lambda q: sum((v * v).sum() for v in ag.grad(loss)(q).values()))

    return {n: v.numpy() for n, v in g.items()}, wanted


@refused("LayoutError")
def the_second_derivative_of_a_sum_that_is_missing(mesh: Any) -> Any:
    """The norm of a gradient that is Partial."""
    x, t = sharded(mesh)
    p = {n: ag.Parameter(draw(n, *s), {"dp": R}, name=n) for n, s in SHAPES.items()}
    g = ag.grad(
        lambda q: sum(
            (v * v).sum()
            for v in ag.grad(lambda r: cc.all_reduce(squares(model(r, x), t), "dp", to=I) / 7)(q).values()
        )
    )(p)
    return {n: v.numpy() for n, v in g.items()}


@refused("RingtapeError", alone=False)
def keys_of_the_dropout_differ(mesh: Any) -> Any:
    """A key made from the rank, for a mask that all ranks are meant to share."""
    def loss(p: Any, x: Any, t: Any) -> Any:
        mask = random.bernoulli(random.Key(rank_of(mesh)), (6,), 0.5)
        return total({**p, "b1": p["b1"] * mask}, x, t)

    return training(mesh, loss=loss)


@exact()
def gradients_accumulate_over_two_tapes(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    for half in (0.5, 0.5):
        with ag.Tape() as tape:
            loss = half * total(p, x, t)
        tape.backward(loss)
    return gradients(p)
