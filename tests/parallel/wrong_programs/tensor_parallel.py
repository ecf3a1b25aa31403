"""Tensor parallel: the hidden units are divided, the rows are equal on all ranks."""

from __future__ import annotations

from typing import Any

from autograd import nn, optim, random

from . import (
    SHAPES,
    I,
    P,
    R,
    Shard,
    T,
    V,
    X,
    ag,
    cc,
    draw,
    exact,
    gradients,
    np,
    numpy,
    parameters,
    refused,
    serial,
    squares,
)


def units(mesh: Any) -> slice:
    """This rank's part of the six hidden units."""
    on = mesh.axis("tp")
    each = 6 // on.size
    return slice(int(on.rank) * each, int(on.rank) * each + each)


def divided(mesh: Any) -> dict[str, Any]:
    """The parameters: W1 by columns, b1, W2 by rows; b2 is the same on every rank."""
    mine = units(mesh)
    parts = {"W1": ((slice(None), mine), Shard(1)), "b1": (mine, Shard(0)), "W2": (mine, Shard(0))}
    p = {
        n: ag.Parameter(draw(n, *SHAPES[n])[at], {"tp": label}, name=n, global_shape=SHAPES[n])
        for n, (at, label) in parts.items()
    }
    return {**p, "b2": ag.Parameter(draw("b2", 3), name="b2")}


def found(mesh: Any, p: dict[str, Any]) -> dict[str, Any]:
    mine = units(mesh)
    at = {"W1": (slice(None), mine), "b1": mine, "W2": mine, "b2": ...}
    return {n: (p[n].grad.numpy(), at[n]) for n in p}


def rows() -> Any:
    return ag.tensor(X, layout={"tp": I})


def targets() -> Any:
    return ag.constant(T)


def forward(p: dict[str, Any], x: Any, activation: Any = np.tanh) -> Any:
    return activation(x @ p["W1"] + p["b1"]) @ p["W2"]


@exact(tp=3)
def the_layer_as_it_should_be(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def the_sum_after_the_second_layer_is_missing(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        loss = squares(forward(p, cc.cast(rows(), "tp", to=R)), targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def the_bias_is_added_before_the_sum(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)) + p["b2"], "tp", to=I)
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def the_cast_bias_is_added_before_the_sum(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)) + cc.cast(p["b2"], "tp", to=R), "tp", to=I)
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def a_third_of_the_bias_is_added_on_each_rank(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)) + p["b2"] / 3, "tp", to=I)
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "all_gather(x, 'tp', dim=1)", tp=3)
def the_columns_of_the_first_layer_are_summed(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        h = cc.all_reduce(np.tanh(cc.cast(rows(), "tp", to=R) @ p["W1"] + p["b1"]), "tp", to=I)
        y = cc.all_reduce(cc.cast(h, "tp", to=R) @ p["W2"], "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Invariant", "cast(", tp=3)
def the_input_is_not_cast(mesh: Any) -> Any:
    p = divided(mesh)
    before = ag.Parameter(draw("before", 4), name="before")
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, rows() * before), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_sum_is_replicated_and_every_rank_differentiates(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp") + cc.cast(p["b2"], "tp", to=R)
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_sum_is_taken_twice(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I)
        loss = squares(cc.all_reduce(y, "tp", to=I) + p["b2"], targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_loss_is_summed_although_every_rank_has_it(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp") + cc.cast(p["b2"], "tp", to=R)
        loss = cc.all_reduce(squares(y, targets()) / 7, "tp", to=I)
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def the_nonlinearity_comes_before_the_sum(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(np.tanh(forward(p, cc.cast(rows(), "tp", to=R))), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def relu_of_addends(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = forward(p, cc.cast(rows(), "tp", to=R))
        y = cc.all_reduce(np.where(y > 0, y, 0.0), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", "Partial", tp=3)
def square_of_addends(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = forward(p, cc.cast(rows(), "tp", to=R))
        loss = cc.all_reduce((y * y).sum(), "tp", to=I)
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def addends_are_cast_to_copies(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.cast(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def hidden_units_are_cast_to_copies(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        hidden = np.tanh(cc.cast(rows(), "tp", to=R) @ p["W1"] + p["b1"])
        loss = (cc.cast(hidden, "tp", to=I) ** 2).sum()
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def hidden_units_are_gathered_and_meet_the_part_of_the_weight(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        hidden = cc.all_gather(np.tanh(cc.cast(rows(), "tp", to=R) @ p["W1"] + p["b1"]), "tp", dim=1)
        y = cc.all_reduce(hidden[:, : p["W2"].shape[0]] @ p["W2"], "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def hidden_units_are_gathered_along_the_rows(mesh: Any) -> Any:
    p = divided(mesh)
    whole = ag.Parameter(draw("W2", 6, 3), name="W2")
    with ag.Tape() as tape:
        hidden = cc.all_gather(np.tanh(cc.cast(rows(), "tp", to=R) @ p["W1"] + p["b1"]), "tp", dim=0, to=I)
        loss = squares(hidden @ whole + p["b2"], targets()) / 7
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def softmax_over_the_divided_units(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R), nn.softmax), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def layer_norm_over_the_divided_units(mesh: Any) -> Any:
    p = divided(mesh)
    norm = nn.LayerNorm(6 // mesh.axis("tp").size, dtype=float)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R), norm), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_largest_unit_of_this_rank_is_subtracted(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = forward(p, cc.cast(rows(), "tp", to=R), lambda h: np.exp(h - h.max(axis=1, keepdims=True)))
        loss = squares(cc.all_reduce(y, "tp", to=I) + p["b2"], targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_norm_of_the_units_of_this_rank_divides(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = forward(p, cc.cast(rows(), "tp", to=R), lambda h: h / np.sqrt((h * h).sum(axis=1, keepdims=True)))
        loss = squares(cc.all_reduce(y, "tp", to=I) + p["b2"], targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_logarithm_of_the_partial_sum_of_exponentials(mesh: Any) -> Any:
    """Cross-entropy over classes that are divided: the logarithm before the sum."""
    W = ag.Parameter(draw("V", 4, 6)[:, units(mesh)], {"tp": Shard(1)}, global_shape=(4, 6), name="V")
    with ag.Tape() as tape:
        logits = cc.cast(rows(), "tp", to=R) @ W
        loss = cc.all_reduce(np.log(np.exp(logits).sum(axis=1)).sum(), "tp", to=I)
    tape.backward(loss)
    return {"V": (W.grad.numpy(), (slice(None), units(mesh)))}


@exact(tp=3)
def the_logarithm_of_the_sum_of_exponentials(mesh: Any) -> Any:
    W = ag.Parameter(draw("V", 4, 6)[:, units(mesh)], {"tp": Shard(1)}, global_shape=(4, 6), name="V")
    with ag.Tape() as tape:
        logits = cc.cast(rows(), "tp", to=R) @ W
        loss = np.log(cc.all_reduce(np.exp(logits).sum(axis=1), "tp", to=I)).sum()
    tape.backward(loss)
    wanted = lambda: {"V": ag.grad(lambda V: np.log(np.exp(X @ V).sum(axis=1)).sum())(draw("V", 4, 6))}
    return {"V": (W.grad.numpy(), (slice(None), units(mesh)))}, wanted


@refused("LayoutError", tp=3)
def cross_entropy_of_divided_classes(mesh: Any) -> Any:
    W = ag.Parameter(draw("V", 4, 6)[:, units(mesh)], {"tp": Shard(1)}, global_shape=(4, 6), name="V")
    labels = ag.constant(numpy.arange(7) % 2)
    with ag.Tape() as tape:
        loss = cc.all_reduce(nn.cross_entropy(cc.cast(rows(), "tp", to=R) @ W, labels, reduction="sum"), "tp", to=I)
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def the_logit_of_the_class_is_taken_from_the_part(mesh: Any) -> Any:
    """A global class number, used in this rank's part of the classes."""
    W = ag.Parameter(draw("V", 4, 6)[:, units(mesh)], {"tp": Shard(1)}, global_shape=(4, 6), name="V")
    labels = numpy.arange(7) % 2
    with ag.Tape() as tape:
        logits = cc.cast(rows(), "tp", to=R) @ W
        loss = cc.all_reduce(logits[numpy.arange(7), labels].sum(), "tp", to=I)
    tape.backward(loss)
    return {"V": (W.grad.numpy(), (slice(None), units(mesh)))}


@refused("LayoutError", tp=3)
def rows_of_a_divided_embedding_by_their_global_numbers(mesh: Any) -> Any:
    E = ag.Parameter(draw("E", 6, 3)[units(mesh)], {"tp": Shard(0)}, global_shape=(6, 3), name="E")
    with ag.Tape() as tape:
        loss = (cc.all_reduce(E[numpy.array([0, 1, 1])], "tp", to=I) ** 2).sum()
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def embedding_of_a_divided_table(mesh: Any) -> Any:
    E = ag.Parameter(draw("E", 6, 3)[units(mesh)], {"tp": Shard(0)}, global_shape=(6, 3), name="E")
    with ag.Tape() as tape:
        loss = (cc.all_reduce(nn.embedding(ag.constant(numpy.array([0, 1, 1])), E), "tp", to=I) ** 2).sum()
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def one_mask_for_the_units_of_all_ranks(mesh: Any) -> Any:
    p = divided(mesh)
    mask = random.bernoulli(random.Key(3), (6 // mesh.axis("tp").size,), 0.5)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R), lambda h: np.tanh(h) * mask), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def every_rank_drops_other_outputs(mesh: Any) -> Any:
    """Dropout after the sum must be the same on all ranks."""
    p = divided(mesh)
    mask = numpy.random.default_rng(int(mesh.axis("tp").rank)).random(3) > 0.5
    with ag.Tape() as tape:
        y = (cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]) * mask
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def the_parts_are_sliced_from_whole_weights(mesh: Any) -> Any:
    """Each rank's gradient of its slice, in a weight that is called the same everywhere."""
    p, mine = parameters(), units(mesh)
    with ag.Tape() as tape:
        hidden = np.tanh(ag.constant(X) @ p["W1"][:, mine.start : mine.stop] + p["b1"][mine.start : mine.stop])
        y = cc.all_reduce(hidden @ p["W2"][mine.start : mine.stop], "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", tp=3)
def the_parts_are_sliced_by_the_rank(mesh: Any) -> Any:
    p, rank = parameters(), mesh.axis("tp").rank
    with ag.Tape() as tape:
        hidden = np.tanh(ag.constant(X) @ p["W1"][:, rank * 2 : rank * 2 + 2] + p["b1"][rank * 2 : rank * 2 + 2])
        y = cc.all_reduce(hidden @ p["W2"][rank * 2 : rank * 2 + 2], "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return gradients(p)


@exact(tp=3)
def the_parts_are_sharded_from_whole_weights(mesh: Any) -> Any:
    p = parameters()
    with ag.Tape() as tape:
        hidden = np.tanh(ag.constant(X) @ cc.shard(p["W1"], "tp", dim=1) + cc.shard(p["b1"], "tp"))
        y = cc.all_reduce(hidden @ cc.shard(p["W2"], "tp"), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", tp=3)
def the_first_layer_is_divided_by_rows_and_the_input_is_not(mesh: Any) -> Any:
    on = mesh.axis("tp")
    W1 = ag.Parameter(numpy.array_split(draw("W1", 4, 6), on.size)[int(on.rank)], {"tp": Shard(0)},
                      global_shape=(4, 6), name="W1")  # fmt: skip
    with ag.Tape() as tape:
        loss = (cc.all_reduce(cc.cast(rows(), "tp", to=R)[:, : W1.shape[0]] @ W1, "tp", to=I) ** 2).sum()
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def the_gate_and_the_value_are_divided_along_different_dimensions(mesh: Any) -> Any:
    mine = units(mesh)
    gate = ag.Parameter(draw("gate", 6, 6)[:, mine], {"tp": Shard(1)}, global_shape=(6, 6), name="gate")
    up = ag.Parameter(draw("up", 6, 6)[mine], {"tp": Shard(0)}, global_shape=(6, 6), name="up")
    h = ag.tensor(draw("h", 6, 6), layout={"tp": R})
    with ag.Tape() as tape:
        loss = cc.all_reduce((np.tanh(h @ gate) * (h[:, mine] @ up)).sum(), "tp", to=I)
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def weight_decay_of_the_part_beside_the_loss(mesh: Any) -> Any:
    """The squares of this rank's part only."""
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7 + 0.1 * (p["W1"] ** 2).sum()
    tape.backward(loss)
    return found(mesh, p)


@exact(tp=3)
def weight_decay_of_the_part_in_an_objective_of_addends(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7 + 0.1 * cc.all_reduce((p["W1"] ** 2).sum(), "tp", to=I)
    tape.backward(loss)
    whole = lambda q: squares(np.tanh(X @ q["W1"] + q["b1"]) @ q["W2"] + q["b2"], T) / 7 + 0.1 * (q["W1"] ** 2).sum()
    return found(mesh, p), lambda: serial(whole)


@exact(tp=3)
def gradients_of_parts_are_clipped_by_their_norm(mesh: Any) -> Any:
    """The norm of this rank's parts is not that of the parameters. `clip_grad_norm_` uses that of the parameters."""
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    optim.clip_grad_norm_(p.values(), 0.5)

    def clipped() -> Any:
        whole = serial(lambda q: squares(np.tanh(X @ q["W1"] + q["b1"]) @ q["W2"] + q["b2"], T) / 7)
        norm = sum(float((g**2).sum()) for g in whole.values()) ** 0.5
        return {name: g * (0.5 / (norm + 1e-6)) for name, g in whole.items()}

    return found(mesh, p), clipped


@refused("LayoutError", tp=3)
def the_norm_of_the_gradients_is_computed_by_hand(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    norm = np.sqrt(sum((v.grad**2).sum() for v in p.values()))
    for v in p.values():
        v.grad = v.grad * (0.5 / norm)
    return found(mesh, p)


@refused("LayoutError", "Varying", tp=3)
def targets_are_a_plain_array(mesh: Any) -> Any:
    """Every rank has the same targets, and does not say so."""
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y, T) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def rows_are_a_plain_array(mesh: Any) -> Any:
    p = parameters()
    with ag.Tape() as tape:
        loss = squares(np.tanh(X @ p["W1"] + p["b1"]) @ p["W2"] + p["b2"], T) / 7
    tape.backward(loss)
    return gradients(p)


@refused("LayoutError", tp=3)
def a_layer_of_sequence_parallel_whose_scale_is_not_cast(mesh: Any) -> Any:
    scale = ag.Parameter(draw("scale", 4), name="scale")
    with ag.Tape() as tape:
        part = cc.shard(rows(), "tp")
        loss = cc.all_reduce(np.tanh(part * scale).sum(), "tp", to=I)
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def addends_are_gathered(mesh: Any) -> Any:
    """all_gather in the place of reduce_scatter."""
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_gather(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I)
        loss = (y**2).sum()
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def copies_are_scattered_with_a_sum(mesh: Any) -> Any:
    """reduce_scatter of copies: every part would be three times too large."""
    with ag.Tape() as tape:
        W = ag.Parameter(draw("W1", 4, 6), name="W1")
        loss = cc.all_reduce((cc.reduce_scatter(cc.cast(W, "tp", to=R), "tp", dim=1) ** 2).sum(), "tp", to=I)
    tape.backward(loss)
    return {}


@refused("LayoutError", tp=3)
def values_that_differ_are_declared_copies(mesh: Any) -> Any:
    x = ag.tensor(draw("own", 3, 4)[int(mesh.axis("tp").rank)], requires_grad=True)
    with ag.Tape() as tape:
        loss = (cc.cast(x, "tp", to=I) ** 2).sum()
    tape.backward(loss)
    return {}


@refused("LayoutError", dp=2, tp=3)
def the_sum_is_taken_over_the_axis_of_the_data(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        x = cc.cast(cc.cast(ag.tensor(X, layout={"dp": I, "tp": I}), "tp", to=R), "dp", to=R)
        loss = squares(cc.all_reduce(forward(p, x), "dp", to=I), targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", dp=2, tp=3)
def the_data_are_divided_and_the_tensor_parallel_weights_are_not_cast(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        x = cc.shard(ag.tensor(X, layout={"dp": R, "tp": R}), "dp")
        y = cc.all_reduce(forward(p, x), "tp", to=R)
        loss = cc.all_reduce((y**2).sum(), "dp", to=I)
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", dp=2, tp=3)
def plain_rows_on_a_mesh_of_two_axes(mesh: Any) -> Any:
    """The rows differ along dp only; without a label they vary along tp too."""
    p = divided(mesh)
    half = numpy.array_split(X, 2)[int(mesh.axis("dp").rank)]
    with ag.Tape() as tape:
        used = {n: cc.cast(v, "dp", to=R) for n, v in p.items()}
        y = cc.all_reduce(forward(used, half), "tp") + cc.cast(used["b2"], "tp", to=R)
        loss = cc.all_reduce((y**2).sum(), ("dp", "tp"), to=I)
    tape.backward(loss)
    return found(mesh, p), lambda: serial(lambda q: ((np.tanh(X @ q["W1"] + q["b1"]) @ q["W2"] + q["b2"]) ** 2).sum())


@refused("LayoutError", tp=3)
def partial_values_are_declared_of_a_sum_that_is_taken(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp")
        loss = (cc.all_reduce(cc.declare_partial(y, "tp"), "tp", to=I) ** 2).sum()
    tape.backward(loss)
    return found(mesh, p)


@exact(tp=3)
def a_copy_is_counted_once(mesh: Any) -> Any:
    p = divided(mesh)
    with ag.Tape() as tape:
        x = cc.cast(rows(), "tp", to=R)
        y = cc.all_reduce(forward(p, x) + cc.cast(p["b2"], "tp", to=P), "tp", to=I)
        loss = squares(y, targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@refused("LayoutError", tp=3)
def outputs_of_one_rank_are_used_by_all(mesh: Any) -> Any:
    """A boolean that differs between ranks selects the values."""
    p = divided(mesh)
    rank = mesh.axis("tp").rank
    with ag.Tape() as tape:
        y = cc.all_reduce(forward(p, cc.cast(rows(), "tp", to=R)), "tp", to=I) + p["b2"]
        loss = squares(y * (rank == 0), targets()) / 7
    tape.backward(loss)
    return found(mesh, p)


@exact(tp=3)
def parts_that_vary_are_gathered(mesh: Any) -> Any:
    """Fully sharded: the parts have no label but V, and are gathered where they are used."""
    mine = units(mesh)
    W1 = ag.Parameter(draw("W1", 4, 6)[:, mine], {"tp": V}, name="W1")
    with ag.Tape() as tape:
        whole = cc.all_gather(W1, "tp", dim=1, to=R)
        loss = cc.all_reduce((np.tanh(cc.shard(ag.tensor(X, layout={"tp": R}), "tp") @ whole) ** 2).sum(), "tp", to=I)
    tape.backward(loss)
    wanted = lambda: serial(lambda q: (np.tanh(X @ q["W1"]) ** 2).sum() + 0.0 * q["b1"].sum())
    return {"W1": (W1.grad.numpy(), (slice(None), mine))}, wanted
