"""Data parallel: the rows are divided, the parameters are equal copies."""

from __future__ import annotations

from typing import Any

from autograd import nn, optim, random
from parallel import DataParallel

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


@refused("LayoutError", "Invariant", "cast(")
def no_cast_at_all(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(p, x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "Invariant", "cast(b1, 'dp', to=R)")
def weights_are_cast_and_biases_are_not(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = {n: cc.cast(v, "dp", to=R) if n.startswith("W") else v for n, v in p.items()}
        loss = cc.all_reduce(squares(model(used, x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "cast(")
def no_cast_of_plain_local_rows(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(p, X[mine]), T[mine]), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@exact()
def plain_local_rows_and_a_sum(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), X[mine]), T[mine]), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("GradientWarning", "rank 0 by 3, rank 1 by 2, rank 2 by 2", alone=False)
def the_mean_of_the_means_of_plain_local_rows(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        loss = cc.mean(((model(entered(p), X[mine]) - T[mine]) ** 2).sum(axis=1).mean(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("GradientWarning", "rank 0 by 3, rank 1 by 2, rank 2 by 2", alone=False)
def each_loss_is_divided_by_its_own_count(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), X[mine]), T[mine]) / len(X[mine]), "dp", to=I) / 3
    tape.backward(loss)
    return gradients(p)


@refused("ReplicaWarning", "counts 3 times in the sum over the ranks", alone=False)
def the_regulariser_is_part_of_each_loss(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        used = entered(p)
        own = squares(model(used, X[mine]), T[mine]) / 7 + 0.1 * (used["W1"] ** 2).sum()
        loss = cc.all_reduce(own, "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("ReplicaWarning", "they are addends of one value", alone=False)
def the_whole_is_declared_an_addend(mesh: Any) -> Any:
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.declare_partial(squares(model(entered(p), X), T) / 7, "dp")
        loss = cc.all_reduce(loss, "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("ReplicaWarning", "cc.shard(ag.tensor(X, layout={'dp': R}), 'dp')", alone=False)
def all_rows_are_labelled_as_parts(mesh: Any) -> Any:
    x, t, p = cc.from_local(X, {"dp": Shard(0)}), cc.from_local(T, {"dp": Shard(0)}), parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "mean")
def mean_over_the_local_rows(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.mean(((model(entered(p), x) - t) ** 2).sum(axis=1).mean(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def division_by_the_local_shape(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.mean(squares(model(entered(p), x), t) / x.shape[0], "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def division_by_the_local_size(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / (x.size / 4 * 3)
    tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def division_of_the_sum_by_a_local_count(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    x, t = X[mine], T[mine]
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / (len(x) * 3)
    tape.backward(loss)
    optim.SGD(p.values(), lr=0.1).step()
    return gradients(p)


@refused("RingtapeError", alone=False)
def division_of_the_sum_by_the_count_of_a_local_mask(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    x, t = X[mine], T[mine]
    valid = t[:, 0] > -10
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / valid.sum()
    tape.backward(loss)
    optim.SGD(p.values(), lr=0.1).step()
    return gradients(p)


@exact()
def backward_from_the_partial_loss(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = squares(model(entered(p), x), t) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "to=I")
def backward_from_the_local_loss(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        loss = squares(model(entered(p), X[mine]), T[mine]) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "to=I")
def backward_from_a_replicated_loss(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp") / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def backward_from_a_replicated_loss_with_a_seed(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp") / 7
    tape.backward(loss, numpy.float64(1.0))
    return gradients(p)


@refused("LayoutError")
def gradients_are_summed_once_more(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    return {n: cc.all_reduce(v.grad, "dp").numpy() for n, v in p.items()}


@refused("LayoutError")
def gradients_are_averaged_once_more(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    return {n: cc.mean(v.grad, "dp").numpy() for n, v in p.items()}


@refused("RingtapeError", alone=True)
def parameters_are_leaves_that_vary(mesh: Any) -> Any:
    """As in torch: a tensor with requires_grad, and an optimizer. Nothing sums the gradients."""
    mine = row_slice(mesh)
    p = {n: ag.tensor(draw(n, *s), requires_grad=True) for n, s in SHAPES.items()}
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(p, X[mine]), T[mine]), "dp", to=I) / 7
    tape.backward(loss)
    optim.SGD(p.values(), lr=0.1).step()
    return gradients(p)


@refused("LayoutError")
def regulariser_beside_the_partial_loss(mesh: Any) -> Any:
    """It would count once per rank."""
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = entered(p)
        loss = cc.all_reduce(squares(model(used, x), t) / 7 + 0.1 * (used["W1"] ** 2).sum(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def regulariser_of_cast_weights_beside_the_total(mesh: Any) -> Any:
    """Its gradient would be counted once per rank: the cast sums it."""
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = entered(p)
        loss = cc.all_reduce(squares(model(used, x), t), "dp", to=I) / 7 + 0.1 * (used["W1"] ** 2).sum()
    tape.backward(loss)
    return gradients(p)


@exact()
def regulariser_of_the_parameters_beside_the_total(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7 + 0.1 * (p["W1"] ** 2).sum()
    tape.backward(loss)
    return gradients(p), lambda: serial(lambda p: squares(model(p, X), T) / 7 + 0.1 * (p["W1"] ** 2).sum())


@refused("LayoutError")
def root_of_the_partial_loss(mesh: Any) -> Any:
    """The root mean square of the residuals, of addends."""
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(np.sqrt(squares(model(entered(p), x), t) / 7), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def ratio_of_two_partial_sums(mesh: Any) -> Any:
    """A weighted mean: the weights of this rank's rows normalise this rank's loss."""
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        weights = np.exp(x[:, 0])
        residuals = ((model(entered(p), x) - t) ** 2).sum(axis=1)
        loss = cc.mean((weights * residuals).sum() / weights.sum(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "max")
def inputs_are_scaled_by_the_local_maximum(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x / np.max(abs(x))), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", "all_reduce(y, 'dp', to=R)")
def inputs_are_standardised_by_the_local_mean(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x - x.mean(axis=0)), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def inputs_are_standardised_by_the_local_deviation(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x / np.std(x, axis=0)), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def batch_norm_of_the_local_rows(mesh: Any) -> Any:
    x, t = sharded(mesh)
    net = nn.Sequential(nn.Linear(4, 6, dtype=float), nn.BatchNorm1d(6, dtype=float), nn.Linear(6, 3, dtype=float))
    wrapped = DataParallel(net, "dp")
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(wrapped(x), t), "dp", to=I) / 7
    tape.backward(loss)
    return {}


@refused("LayoutError")
def median_of_the_local_residuals(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.mean(np.median(((model(entered(p), x) - t) ** 2).sum(axis=1)), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def contrastive_loss_of_the_local_rows(mesh: Any) -> Any:
    """Every row is compared with this rank's rows only, not with all."""
    x, _ = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        y = model(entered(p), x)
        loss = cc.all_reduce(np.exp(-((y[:, None] - y[None, :]) ** 2).sum(axis=-1)).sum(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def similarities_of_the_local_rows(mesh: Any) -> Any:
    x, _ = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        y = model(entered(p), x)
        loss = cc.all_reduce((np.tanh(y @ y.T) ** 2).sum(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def targets_of_all_ranks_beside_the_rows_of_one(mesh: Any) -> Any:
    x, _ = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        y = model(entered(p), x)
        loss = cc.all_reduce(squares(y, ag.constant(T[: y.shape[0]])), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def first_rows_of_the_batch_are_left_out(mesh: Any) -> Any:
    """Meant: without the first row of all. Done: without the first row of each rank."""
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x[1:]), t[1:]), "dp", to=I) / 6
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def rows_are_reversed_locally(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    position = ag.constant(numpy.arange(7.0)[:, None])
    with ag.Tape() as tape:
        y = model(entered(p), x[::-1])
        loss = cc.all_reduce((cc.shard(position, "dp") * (y - t) ** 2).sum(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def rows_are_sorted_locally(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(np.sort(model(entered(p), x), axis=0), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def data_declared_constant(mesh: Any) -> Any:
    """The wrong answer to the question "the same on all ranks?"."""
    mine, p = row_slice(mesh), parameters()
    x, t = ag.constant(X[mine]), ag.constant(T[mine])
    optimizer = optim.SGD(p.values(), lr=0.1)
    with ag.Tape() as tape:
        loss = squares(model(p, x), t) / 7
    tape.backward(loss)
    optimizer.step()
    return gradients(p)


@refused("RingtapeError", alone=False)
def data_declared_replicated(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    x, t = (ag.tensor(a[mine], layout={"dp": R}) for a in (X, T))
    optimizer = optim.SGD(p.values(), lr=0.1)
    with ag.Tape() as tape:
        loss = cc.cast(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    optimizer.step()
    return gradients(p)


@refused("RingtapeError", alone=False)
def data_declared_invariant(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    x, t = (ag.tensor(a[mine], layout={"dp": I}) for a in (X, T))
    optimizer = optim.SGD(p.values(), lr=0.1)
    with ag.Tape() as tape:
        loss = squares(model(p, x), t) / 7
    tape.backward(loss)
    optimizer.step()
    return gradients(p)


@refused("RingtapeError", alone=False)
def data_of_every_rank_declared_as_parts(mesh: Any) -> Any:
    """All ranks loaded all rows, and say that these are their parts."""
    p = parameters()
    x, t = (ag.tensor(a, layout={"dp": Shard(0)}, global_shape=a.shape) for a in (X, T))
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / x.global_shape[0]
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def global_count_of_parts_that_nobody_agreed_on(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    x, t = (ag.tensor(a[mine], layout={"dp": Shard(0)}) for a in (X, T))
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / x.global_shape[0]
    tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def every_rank_draws_its_own_parameters(mesh: Any) -> Any:
    numbers = numpy.random.default_rng(int(mesh.axis("dp").rank))
    x, t = sharded(mesh)
    p = {n: ag.Parameter(numbers.normal(size=s), name=n) for n, s in SHAPES.items()}
    optimizer = optim.SGD(p.values(), lr=0.1)
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    optimizer.step()
    return gradients(p)


@refused("RingtapeError", alone=False)
def every_rank_seeds_its_own_dropout(mesh: Any) -> Any:
    """One mask for the whole batch, drawn from a seed that differs."""
    random.seed(int(mesh.axis("dp").rank))
    x, t = sharded(mesh)
    p = parameters()
    optimizer = optim.SGD(p.values(), lr=0.1)
    with ag.Tape() as tape:
        used = entered(p)
        hidden = np.tanh(x @ used["W1"] + used["b1"]) * random.bernoulli(random.next_key("mask"), (6,), 0.5)
        loss = cc.all_reduce(squares(hidden @ used["W2"] + used["b2"], t), "dp", to=I) / 7
    tape.backward(loss)
    optimizer.step()
    return gradients(p)


@refused("LayoutError")
def the_same_mask_on_the_rows_of_every_rank(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = entered(p)
        hidden = np.tanh(x @ used["W1"] + used["b1"])
        hidden = hidden * random.bernoulli(random.Key(1), (7, 6), 0.5)[: x.shape[0]]
        loss = cc.all_reduce(squares(hidden @ used["W2"] + used["b2"], t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", dp=3, tp=2)
def the_loss_is_summed_with_the_parameters_cast_over_another_axis(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p, "tp"), x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


@exact()
def predictions_are_gathered_and_every_rank_computes_the_loss(mesh: Any) -> Any:
    x, _ = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        y = cc.all_gather(model(entered(p), x), "dp", to=I)
        loss = squares(y, ag.constant(T)) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def predictions_are_gathered_for_separate_use(mesh: Any) -> Any:
    x, _ = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        y = cc.all_gather(model(entered(p), x), "dp")
        loss = squares(y, ag.constant(T)) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def rows_are_gathered_and_the_parameters_are_not_cast(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        y = model(p, cc.all_gather(x, "dp"))
        loss = squares(y, cc.all_gather(t, "dp")) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def losses_of_the_ranks_are_gathered_and_averaged(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        mine = squares(model(entered(p), x), t) / x.shape[0]
        loss = cc.all_gather(mine.reshape(1), "dp", to=I).mean()
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def cross_entropy_with_a_mean(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    labels = t.argmax(axis=1)
    with ag.Tape() as tape:
        loss = cc.mean(nn.cross_entropy(model(entered(p), x), labels, reduction="mean"), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError")
def mse_loss_with_its_default(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.mean(nn.mse_loss(model(entered(p), x), t), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@exact()
def parameters_are_cast_twice(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        used = entered(entered(p))
        loss = cc.all_reduce(squares(model(used, x), t), "dp", to=I) / 7
    tape.backward(loss)
    return gradients(p)


class _CastsItself(nn.Module):
    def __init__(self) -> None:
        for name, shape in SHAPES.items():
            setattr(self, name, ag.Parameter(draw(name, *shape)))

    def forward(self, x: Any) -> Any:
        return model({n: cc.cast(getattr(self, n), "dp", to=R) for n in SHAPES}, x)


@exact()
def data_parallel_of_a_module_that_casts(mesh: Any) -> Any:
    x, t = sharded(mesh)
    module = _CastsItself()
    wrapped = DataParallel(module, "dp")
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(wrapped(x), t), "dp", to=I) / 7
    tape.backward(loss)
    return {n: getattr(module, n).grad.numpy() for n in SHAPES}


@refused("LayoutError")
def a_module_is_used_beside_its_wrapper(mesh: Any) -> Any:
    """The wrapper is made, and the module is called."""
    x, t = sharded(mesh)
    net = nn.Linear(4, 3, dtype=float)
    DataParallel(net, "dp")
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(net(x), t), "dp", to=I) / 7
    tape.backward(loss)
    return {}


@refused("LayoutError", "a local extent, or computed from one", "global_shape")
def losses_of_the_rows_are_divided_by_the_local_count(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        losses = ((model(entered(p), x) - t) ** 2).sum(axis=1) / x.shape[0]
        loss = cc.all_reduce(losses.sum(), "dp", to=I)
    tape.backward(loss)
    return gradients(p)


@refused("RingtapeError", alone=False)
def losses_of_the_rows_are_divided_by_the_count_of_a_mask(mesh: Any) -> Any:
    x, t = sharded(mesh)
    valid = T[row_slice(mesh)][:, 0] > -10
    p = parameters()
    with ag.Tape() as tape:
        losses = ((model(entered(p), x) - t) ** 2).sum(axis=1) / valid.sum()
        loss = cc.all_reduce(losses.sum(), "dp", to=I)
    tape.backward(loss)
    optim.SGD(p.values(), lr=0.1).step()
    return gradients(p)


@refused("RingtapeError", alone=False)
def the_local_mean_is_taken_by_the_cotangent(mesh: Any) -> Any:
    mine, p = row_slice(mesh), parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), X[mine]), T[mine]), "dp", to=I)
    tape.backward(loss, 1 / len(X[mine]))
    optim.SGD(p.values(), lr=0.1).step()
    return gradients(p)


@refused("LayoutError", "cotangent")
def the_cotangent_depends_on_the_rank(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss, cc.world().rank + 1.0)
    return gradients(p)


@refused("RingtapeError", "requires no gradient", alone=True)
def the_weights_are_tensors_without_a_gradient(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = {n: ag.tensor(draw(n, *s), {"dp": I}) for n, s in SHAPES.items()}
    optimizer = optim.SGD(p.values(), lr=0.1)
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    optimizer.step()
    return {n: v.numpy() for n, v in p.items()}


@refused("SavedArrayError", "is not changed in place", alone=True)
def parameters_are_updated_by_their_names(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
    tape.backward(loss)
    for w in p.values():
        w -= 0.1 * w.grad
    return {n: v.numpy() for n, v in p.items()}


@refused("TapeError", alone=True)
def the_penalty_is_computed_from_gradients_without_a_record(mesh: Any) -> Any:
    x, t = sharded(mesh)
    p = parameters()
    with ag.Tape() as tape:
        loss = cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / 7
        tape.backward(loss, retain=True)
        penalty = sum((v.grad**2).sum() for v in p.values())
    for v in p.values():
        v.zero_grad()
    tape.backward(penalty)
    return gradients(p), lambda: serial(
        lambda q: sum((g**2).sum() for g in ag.grad(lambda r: squares(model(r, X), T) / 7)(q).values())
    )
