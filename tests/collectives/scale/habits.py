"""Programs as users of other systems write them, each whole, right or wrong in its scale, with the loss of one process.

The habits are those of torch's DDP and FSDP, Hugging Face's Trainer, Horovod, Megatron-LM and DeepSpeed, of detection,
language, contrastive and generative models, of reinforcement learning, physics, ensembles and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import I, R, Shard, V

from .meshes import LABELS, SEQUENCES, START, K, Ranks, X, Y, mean, total

__all__ = ["ERROR", "HABITS", "MEETS", "RIGHT", "SILENT", "UNEVEN", "WARNED", "Habit"]

RIGHT, WARNED, ERROR, SILENT = "right", "a ScaleWarning", "a ScaleError", "silent"
UNEVEN, MEETS = "a GradientWarning", "a ReplicaWarning"
LARGE, SMALL, UNEQUAL = "times too large", "times too small", "terms of unequal scale"
BOTH, TOKENS = ("dp", "cp"), ("dp", "tp")
Loss = Callable[[Ranks], Any]


class Habit(NamedTuple):
    """A program: ``loss(e)`` on each rank, ``serial(p, n)`` of the whole parameters, what is told, and the words of it.

    For a silent one, `says` is the reason.
    """

    loss: Loss
    serial: Callable[..., Any]
    told: str = RIGHT
    says: str = ""
    axes: Callable[[int], Mapping[str, int]] = lambda n: {"dp": n}


def two(other: str) -> Callable[[int], Mapping[str, int]]:
    return lambda n: {"dp": n, other: 2}


def parts(n: int, f: Callable[[Any], Any]) -> list[Any]:
    """``f`` of the indices of each rank's rows."""
    return [f(mine) for mine in numpy.array_split(numpy.arange(60), n)]


# -- language: labels that are ignored, and token counts ---------------------------------------------------------------
FLAT, FLAT_LABELS = SEQUENCES.reshape(-1, 4), LABELS.reshape(-1)
UNMASKED = float((LABELS != -100).sum())


def flat(e: Ranks) -> tuple[Any, Any]:
    return e.own(SEQUENCES).reshape(-1, 4) @ e.p("m"), e.own(LABELS).reshape(-1)


def s_tokens(p: Any, n: int) -> Any:
    return nn.cross_entropy(FLAT @ p["m"], FLAT_LABELS, ignore_index=-100)


def trainer_items_in_batch(e: Ranks) -> Any:
    """Hugging Face's Trainer: the sum over this rank's tokens by the number of items of the batch of all ranks."""
    logits, labels = flat(e)
    items = cc.all_reduce(ag.tensor(float((labels != -100).sum())), "dp")
    return total(nn.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / items)


def trainer_averages(e: Ranks) -> Any:
    """The same under a hook that averages, which `num_processes` makes up for."""
    logits, labels = flat(e)
    items = cc.all_reduce(ag.tensor(float((labels != -100).sum())), "dp")
    return mean(nn.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / items * e.dp.size)


def trainer_forgets_processes(e: Ranks) -> Any:
    logits, labels = flat(e)
    items = cc.all_reduce(ag.tensor(float((labels != -100).sum())), "dp")
    return mean(nn.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / items)


def trainer_local_items(e: Ranks) -> Any:
    """The sum by the number of this rank's tokens, and summed."""
    logits, labels = flat(e)
    loss = nn.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    return total(loss / float((labels != -100).sum()))


def masked_mean(e: Ranks) -> Any:
    """GPT's ``sum(losses * mask) / mask.sum()`` on each rank, summed."""
    logits, labels = flat(e)
    mask = (labels != -100) * 1.0
    losses = nn.cross_entropy(logits, numpy.maximum(labels, 0), reduction="none")
    return total((losses * mask).sum() / mask.sum())


def masked_mean_of_all(e: Ranks) -> Any:
    logits, labels = flat(e)
    mask = (labels != -100) * 1.0
    losses = nn.cross_entropy(logits, numpy.maximum(labels, 0), reduction="none")
    return total((losses * mask).sum()) / total(ag.tensor(mask.sum()))


def masked_mean_by_a_number(e: Ranks) -> Any:
    """The sum of the unmasked losses by the number of all unmasked tokens, as a number, under a mean over the ranks."""
    logits, labels = flat(e)
    mask = (labels != -100) * 1.0
    losses = nn.cross_entropy(logits, numpy.maximum(labels, 0), reduction="none")
    return mean((losses * mask).sum() / UNMASKED)


def megatron_masked(e: Ranks) -> Any:
    """Megatron's ``average_losses_across_data_parallel_group`` of masked means, which have unequal counts."""
    logits, labels = flat(e)
    mask = (labels != -100) * 1.0
    losses = nn.cross_entropy(logits, numpy.maximum(labels, 0), reduction="none")
    return mean((losses * mask).sum() / mask.sum())


def where_mask(e: Ranks) -> Any:
    """``where(mask, losses, 0)``, its sum by the number of the mask's ones, and summed."""
    logits, labels = flat(e)
    losses = nn.cross_entropy(logits, numpy.maximum(labels, 0), reduction="none")
    kept = np.where(labels != -100, losses, 0.0)
    return total(kept.sum() / float((labels != -100).sum()))


def picked_tokens(e: Ranks) -> Any:
    """The losses of the unmasked tokens alone, whose mean is summed."""
    logits, labels = flat(e)
    losses = nn.cross_entropy(logits, numpy.maximum(labels, 0), reduction="none")
    return total(losses[numpy.flatnonzero(labels != -100)].mean())


def perplexity(e: Ranks) -> Any:
    return np.exp(mean(nn.cross_entropy(e.own(X[:, :4]) @ e.p("m"), e.own(K))))


def perplexity_of_a_sum(e: Ranks) -> Any:
    return np.exp(total(nn.cross_entropy(e.own(X[:, :4]) @ e.p("m"), e.own(K))))


def perplexity_by_the_size(e: Ranks) -> Any:
    losses = nn.cross_entropy(e.rows(X) @ e.p("m"), e.rows(K), reduction="none")
    return np.exp(total(losses.mean()) / e.dp.size)


def s_perplexity(p: Any, n: int) -> Any:
    return np.exp(sum(parts(n, lambda i: nn.cross_entropy(X[i] @ p["m"], K[i]))) / n)


def s_perplexity_of_all(p: Any, n: int) -> Any:
    return np.exp(nn.cross_entropy(X @ p["m"], K))


# -- regression under the habits of DDP, FSDP, Horovod, DeepSpeed ------------------------------------------------------
def err(e: Ranks) -> Any:
    return (e.own(X) @ e.p("w") - e.own(Y)) ** 2


def labelled(e: Ranks) -> Any:
    return (e.rows(X) @ e.p("w") - e.rows(Y)) ** 2


def s_rows(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def s_ranks(p: Any, n: int) -> Any:
    """The mean over the ranks of the means of their rows."""
    return sum(parts(n, lambda i: ((X[i] @ p["w"] - Y[i]) ** 2).mean())) / n


def horovod_scaled(e: Ranks) -> Any:
    """``hvd.allreduce(loss * n)``, of a loss that was divided by the number of all rows, under a mean."""
    return mean(err(e).sum() / 60 * e.dp.size)


def fsdp_predivide(e: Ranks) -> Any:
    """FSDP's ``gradient_predivide_factor``, by hand: the root of the number of ranks before the sum and after it."""
    factor = float(e.dp.size) ** 0.5
    return total(err(e).mean() / factor) / factor


def deepspeed_twice(e: Ranks) -> Any:
    """The mean loss by the world's size, and a mean over the ranks."""
    return mean(err(e).mean() / cc.world().size)


def last_batch(e: Ranks) -> Any:
    """``drop_last=False``: the last ranks have fewer rows, and the means are averaged."""
    mine = slice(7 * e.rank, 7 * e.rank + 7) if e.rank + 1 < e.n else slice(7 * e.rank, 60)
    return mean(((X[mine] @ e.p("w") - Y[mine]) ** 2).mean())


def last_batch_of_all(e: Ranks) -> Any:
    mine = slice(7 * e.rank, 7 * e.rank + 7) if e.rank + 1 < e.n else slice(7 * e.rank, 60)
    d = (X[mine] @ e.p("w") - Y[mine]) ** 2
    return total(d.sum()) / total(ag.tensor(float(len(d))))


def uneven_join(e: Ranks) -> Any:
    """DDP's ``join``: a rank whose rows have run out gives zeros, and the sum is by the number of rows of all."""
    mine = numpy.array_split(numpy.arange(60), e.n - 1)[e.rank] if e.rank < e.n - 1 else numpy.arange(0)
    d = (X[mine] @ e.p("w") - Y[mine]) ** 2
    return total(d.sum() / 60)


def empty_rank(e: Ranks) -> Any:
    """A rank without rows divides by ``max(len, 1)``, and the means are summed."""
    mine = numpy.array_split(numpy.arange(60), e.n - 1)[e.rank] if e.rank < e.n - 1 else numpy.arange(0)
    d = (X[mine] @ e.p("w") - Y[mine]) ** 2
    return total(d.sum() / max(len(d), 1))


def weighted_rows(e: Ranks) -> Any:
    """A weight for each row: the weighted sum by the sum of the weights of all ranks."""
    weights = numpy.abs(e.own(X)[:, 0])
    return total((err(e) * weights).sum()) / total(ag.tensor(weights.sum()))


def s_weighted(p: Any, n: int) -> Any:
    weights = numpy.abs(X[:, 0])
    return (((X @ p["w"] - Y) ** 2) * weights).sum() / weights.sum()


def weighted_by_means(e: Ranks) -> Any:
    """The same, where both are means over the ranks."""
    weights = numpy.abs(e.own(X)[:, 0])
    return mean((err(e) * weights).sum() / 60) / mean(ag.tensor(weights.sum() / 60))


def weighted_by_a_number(e: Ranks) -> Any:
    """The same, where the mean of the weights is read as a number."""
    weights = numpy.abs(e.own(X)[:, 0])
    return mean((err(e) * weights).sum() / 60) / float(mean(ag.tensor(weights.sum() / 60)).numpy())


def weighted_by_own(e: Ranks) -> Any:
    """The weighted mean of each rank, summed."""
    weights = numpy.abs(e.own(X)[:, 0])
    return total((err(e) * weights).sum() / weights.sum())


def penalised_on_each_rank(e: Ranks) -> Any:
    """A weight decay in the loss of each rank's rows, which are summed."""
    return total(err(e).sum() / 60 + 0.01 * (e.p("w") ** 2).sum())


def s_penalised(p: Any, n: int) -> Any:
    return s_rows(p, n) + 0.01 * (p["w"] ** 2).sum()


def hierarchical(e: Ranks) -> Any:
    """A sum inside of a node, and one over the nodes."""
    return total(total(err_on_two(e).sum() / 120, "cp"), "dp")


def hierarchical_mean(e: Ranks) -> Any:
    """A mean inside of a node, and a sum over the nodes."""
    return total(mean(err_on_two(e).mean(), "cp"), "dp")


def err_on_two(e: Ranks) -> Any:
    x, y = (
        numpy.array_split(e.own(a), 2, axis=1)[int(e.mesh.axis("cp").rank)] for a in (SEQUENCES, SEQUENCES.sum(axis=2))
    )
    return (x @ e.p("w") - y) ** 2


def sums_of_sequences(e: Ranks) -> Any:
    """The mean over the tokens of each rank, times its sequences, summed: the sum over sequences of their means."""
    d = (e.own(SEQUENCES[:, :7]) @ e.p("w") - 1.0) ** 2
    return total(d.mean()) * 3.0 if e.n == 4 else total(d.mean() * len(d))


def s_sums_of_sequences(p: Any, n: int) -> Any:
    return ((SEQUENCES[:, :7] @ p["w"] - 1.0) ** 2).mean(axis=1).sum()


def s_sequences(p: Any, n: int) -> Any:
    return ((SEQUENCES @ p["w"] - SEQUENCES.sum(axis=2)) ** 2).mean()


# -- Megatron ----------------------------------------------------------------------------------------------------------
def vocabulary_parallel(e: Ranks) -> Any:
    """The cross-entropy of logits whose classes are divided along tp, and whose rows along dp."""
    logits = np.tanh(e.rows(X) @ e.divided("up", 1, "tp"))
    picked = (logits * cc.from_local(one_hot(e), {"dp": Shard(0), "tp": Shard(1)})).sum(axis=1)
    losses = np.log(cc.all_reduce(np.exp(logits).sum(axis=1), "tp", to=I)) - cc.all_reduce(picked, "tp", to=I)
    return total(losses.mean())


def one_hot(e: Ranks) -> Any:
    columns = numpy.array_split(numpy.arange(20), 2)[int(e.mesh.axis("tp").rank)]
    return (e.own(K)[:, None] == columns) * 1.0


def s_vocabulary(p: Any, n: int) -> Any:
    return nn.cross_entropy(np.tanh(X @ p["up"]), K)


def cp_sum_and_count(e: Ranks) -> Any:
    """Megatron's context parallel: the sum and the count of a sequence over cp, then the mean over dp."""
    d = err_on_two(e)
    sums, count = total(d.sum(), "cp"), total(ag.tensor(float(d.size)), "cp")
    return mean(sums / count, "dp")


def cp_means(e: Ranks) -> Any:
    """The means of the parts of a sequence, summed over cp."""
    return mean(total(err_on_two(e).mean(), "cp"), "dp")


def s_sequences_of_ranks(p: Any, n: int) -> Any:
    found = [((a @ p["w"] - a.sum(axis=2)) ** 2).mean() for a in numpy.array_split(SEQUENCES, n)]
    return sum(found) / n


# -- experts -----------------------------------------------------------------------------------------------------------
def balance(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """Switch's balance of experts: the share of the tokens of each, times the mean of its gate."""
    gates = nn.softmax(e.own(X) @ e.p("m"))
    share = cc.mean(ag.tensor((numpy.argmax(e.own(X) @ START["m"], axis=1)[:, None] == numpy.arange(3)).mean(axis=0)),
                    "dp", to=I)  # fmt: skip
    return 3 * (share * reduce(gates.mean(axis=0))).sum()


def s_balance(p: Any, n: int) -> Any:
    share = sum(parts(n, lambda i: (numpy.argmax(X[i] @ START["m"], axis=1)[:, None] == numpy.arange(3)).mean(axis=0)))
    return 3 * (share / n * sum(parts(n, lambda i: nn.softmax(X[i] @ p["m"]).mean(axis=0))) / n).sum()


def importance_of_experts(e: Ranks) -> Any:
    """The squared variation of the gates' sums: of all tokens, of which each rank has some."""
    gates = total(nn.softmax(e.own(X) @ e.p("m")).sum(axis=0))
    return ((gates - gates.mean()) ** 2).mean() / gates.mean() ** 2


def s_importance(p: Any, n: int) -> Any:
    gates = nn.softmax(X @ p["m"]).sum(axis=0)
    return ((gates - gates.mean()) ** 2).mean() / gates.mean() ** 2


def router_z(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    return 0.01 * reduce((ag.ops.logsumexp(e.own(X) @ e.p("m"), axis=1) ** 2).mean())


def s_router_z(p: Any, n: int) -> Any:
    return 0.01 * sum(parts(n, lambda i: (ag.ops.logsumexp(X[i] @ p["m"], axis=1) ** 2).mean())) / n


def one_expert_a_rank(e: Ranks) -> Any:
    """An expert on each rank, which sees all rows: the loss is their mean, by the number of ranks."""
    scales = cc.from_local(numpy.array([1.0 + 0.1 * e.rank]), {"dp": Shard(0)})
    outputs = scales[:, None] * (ag.tensor(X, {"dp": R}) @ e.p("w"))
    return total((np.tanh(outputs) ** 2).sum()) / e.dp.size


def mean_of_one_each(e: Ranks) -> Any:
    """The same by `mean`."""
    scales = cc.from_local(numpy.array([1.0 + 0.1 * e.rank]), {"dp": Shard(0)})
    outputs = scales[:, None] * (ag.tensor(X, {"dp": R}) @ e.p("w"))
    return total((np.tanh(outputs) ** 2).sum(axis=1).mean())


def s_one_expert(p: Any, n: int) -> Any:
    return sum((np.tanh((1.0 + 0.1 * r) * (X @ p["w"])) ** 2).sum() for r in range(n)) / n


def mixture_of_one_each(e: Ranks) -> Any:
    """The output is the mean of those of an expert of each rank."""
    scales = cc.from_local(numpy.array([1.0 + 0.1 * e.rank]), {"dp": Shard(0)})
    outputs = np.sin(scales[:, None] * (ag.tensor(X, {"dp": R}) @ e.p("w")))
    return (np.tanh(total(outputs.sum(axis=0)) / e.dp.size) ** 2).sum()


def s_mixture(p: Any, n: int) -> Any:
    return (np.tanh(sum(np.sin((1.0 + 0.1 * r) * (X @ p["w"])) for r in range(n)) / n) ** 2).sum()


# -- generative models -------------------------------------------------------------------------------------------------
def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def generator(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """A generator's loss that does not saturate."""
    return reduce(softplus(-(np.tanh(e.own(X) @ e.p("g")) @ e.p("w"))).mean())


def s_generator(p: Any, n: int) -> Any:
    return sum(parts(n, lambda i: softplus(-(np.tanh(X[i] @ p["g"]) @ p["w"])).mean())) / n


def critic(e: Ranks, of_penalty: Callable[[Any], Any]) -> Any:
    """WGAN-GP's critic ``tanh(x @ g) @ w``, with its gradient by x in closed form."""
    def f(x: Any) -> Any:
        return np.tanh(x @ e.p("g")) @ e.p("w")

    real = e.own(X)
    slope = ((1 - np.tanh(real @ e.p("g")) ** 2) * e.p("w")) @ e.p("g").T
    norms = np.sqrt((slope**2).sum(axis=1) + 1e-6)
    return mean((f(real + 1) - f(real)).mean()) + 10.0 * of_penalty(((norms - 1) ** 2).mean())


def s_critic(p: Any, n: int) -> Any:
    def f(x: Any) -> Any:
        return np.tanh(x @ p["g"]) @ p["w"]

    def one(i: Any) -> Any:
        slope = ((1 - np.tanh(X[i] @ p["g"]) ** 2) * p["w"]) @ p["g"].T
        norms = np.sqrt((slope**2).sum(axis=1) + 1e-6)
        return (f(X[i] + 1) - f(X[i])).mean() + 10.0 * ((norms - 1) ** 2).mean()

    return sum(parts(n, one)) / n


def variational(e: Ranks, of_divergence: Callable[[Any], Any]) -> Any:
    """A variational autoencoder: a reconstruction that is summed over features, and a divergence."""
    code = e.own(X) @ e.p("g")
    recon = ((np.tanh(code) - e.own(X)) ** 2).sum(axis=1).mean()
    return mean(recon) + 0.7 * of_divergence((code**2 - 1).sum(axis=1).mean())


def s_variational(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        code = X[i] @ p["g"]
        return ((np.tanh(code) - X[i]) ** 2).sum(axis=1).mean() + 0.7 * (code**2 - 1).sum(axis=1).mean()

    return sum(parts(n, one)) / n


def diffusion(e: Ranks) -> Any:
    """A weighted mean of squares over noise levels, labelled, and divided by the number of ranks again."""
    losses = (np.tanh(e.rows(X) @ e.p("g")) - e.rows(X)) ** 2
    return total(losses.mean()) / e.dp.size


def s_diffusion(p: Any, n: int) -> Any:
    return ((np.tanh(X @ p["g"]) - X) ** 2).mean()


# -- contrastive and metric learning -----------------------------------------------------------------------------------
def clip(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """CLIP with ``local_loss``: this rank's rows against the rows of all."""
    z = e.own(X) @ e.p("g")
    whole = cc.all_gather(z, "dp")
    starts = [len(part) for part in numpy.array_split(numpy.arange(60), e.n)]
    labels = sum(starts[: e.rank]) + numpy.arange(len(z))
    return reduce(nn.cross_entropy(z @ whole.T, labels))


def s_clip(p: Any, n: int) -> Any:
    z = X @ p["g"]
    return sum(parts(n, lambda i: nn.cross_entropy(z[i] @ z.T, i))) / n


def whole_contrastive(e: Ranks) -> Any:
    """All ranks compute the loss of all rows from what they have gathered."""
    z = cc.all_gather(e.own(X) @ e.p("g"), "dp", to=I)
    return nn.cross_entropy(z @ z.T, ag.constant(numpy.arange(60)))


def s_contrastive(p: Any, n: int) -> Any:
    z = X @ p["g"]
    return nn.cross_entropy(z @ z.T, numpy.arange(60))


def triplet(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    z = np.tanh(e.own(X) @ e.p("g"))
    near, far = ((z[:-2] - z[1:-1]) ** 2).sum(axis=1), ((z[:-2] - z[2:]) ** 2).sum(axis=1)
    return reduce(np.maximum(near - far + 0.2, 0.0).mean())


def s_triplet(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        z = np.tanh(X[i] @ p["g"])
        near, far = ((z[:-2] - z[1:-1]) ** 2).sum(axis=1), ((z[:-2] - z[2:]) ** 2).sum(axis=1)
        return np.maximum(near - far + 0.2, 0.0).mean()

    return sum(parts(n, one)) / n


def barlow(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """Barlow Twins: the correlation of features over the rows of all ranks, near to the identity."""
    z = np.tanh(e.own(X) @ e.p("g"))
    moments = reduce(z.T @ z / 60)
    return ((moments - ag.constant(numpy.eye(4))) ** 2).sum()


def s_barlow(p: Any, n: int) -> Any:
    z = np.tanh(X @ p["g"])
    return ((z.T @ z / 60 - numpy.eye(4)) ** 2).sum()


# -- detection ---------------------------------------------------------------------------------------------------------
POSITIVE = (Y > 0.3) * 1.0


def focal(e: Ranks) -> Any:
    """Detectron's normaliser: the mean over the ranks of their numbers of positives, under a mean over the ranks."""
    positives = cc.mean(ag.tensor(e.own(POSITIVE).sum()), "dp")
    return mean((softplus(-(e.own(X) @ e.p("w"))) * e.own(POSITIVE)).sum() / positives)


def focal_summed(e: Ranks) -> Any:
    """The same, under a sum over the ranks."""
    positives = cc.mean(ag.tensor(e.own(POSITIVE).sum()), "dp")
    return total((softplus(-(e.own(X) @ e.p("w"))) * e.own(POSITIVE)).sum() / positives)


def focal_own(e: Ranks) -> Any:
    """By the positives of the rank, and summed."""
    losses = softplus(-(e.own(X) @ e.p("w"))) * e.own(POSITIVE)
    return total(losses.sum() / max(float(e.own(POSITIVE).sum()), 1.0))


def s_focal(p: Any, n: int) -> Any:
    return (softplus(-(X @ p["w"])) * POSITIVE).sum() / POSITIVE.sum()


def boxes_and_classes(e: Ranks) -> Any:
    """The losses of boxes by the positives of all ranks, and of classes as a mean, which are summed."""
    boxes = (np.absolute(e.own(X) @ e.p("w") - e.own(Y)) * e.own(POSITIVE)).sum() / POSITIVE.sum()
    return total(boxes) + total(nn.cross_entropy(e.own(X) @ e.p("m"), e.own(K)))


def s_boxes(p: Any, n: int) -> Any:
    boxes = (np.absolute(X @ p["w"] - Y) * POSITIVE).sum() / POSITIVE.sum()
    return boxes + nn.cross_entropy(X @ p["m"], K)


# -- reinforcement learning, estimators --------------------------------------------------------------------------------
def policy(e: Ranks, of_entropy: Callable[[Any], Any]) -> Any:
    """A policy gradient with advantages that are normalised over all ranks, and a bonus for entropy."""
    rewards, logits = e.own(Y), e.own(X) @ e.p("m")
    center = cc.all_reduce(ag.tensor(rewards.sum()), "dp").numpy() / 60
    spread = numpy.sqrt(cc.all_reduce(ag.tensor(((rewards - center) ** 2).sum()), "dp").numpy() / 60)
    logs = ag.ops.log_softmax(logits)
    chosen = logs[numpy.arange(len(rewards)), e.own(K)]
    loss = total(-(((rewards - center) / spread) * chosen).sum() / 60)
    return loss + 0.1 * of_entropy((np.exp(logs) * logs).sum(axis=1))


def s_policy(p: Any, n: int) -> Any:
    logs = ag.ops.log_softmax(X @ p["m"])
    chosen = logs[numpy.arange(60), K]
    return -((Y - Y.mean()) / Y.std() * chosen).mean() + 0.1 * (np.exp(logs) * logs).sum(axis=1).mean()


def clipped(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """PPO's ratio of probabilities, clipped."""
    ratio = np.exp(e.own(X) @ e.p("w") - e.own(X) @ (START["w"] * 0.9))
    return reduce(-np.minimum(ratio * e.own(Y), np.clip(ratio, 0.8, 1.2) * e.own(Y)).mean())


def s_clipped(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        ratio = np.exp(X[i] @ p["w"] - X[i] @ (START["w"] * 0.9))
        return -np.minimum(ratio * Y[i], np.clip(ratio, 0.8, 1.2) * Y[i]).mean()

    return sum(parts(n, one)) / n


def importance_bound(e: Ranks) -> Any:
    """The importance-weighted bound of samples of all ranks."""
    return -np.log(total(np.exp(e.own(X) @ e.p("w") / 3.5).sum()) / 60)


def importance_bound_of_each(e: Ranks) -> Any:
    """The bounds of the ranks' own samples, summed."""
    return total(-np.log(np.exp(e.own(X) @ e.p("w") / 3.5).mean()))


def s_bound(p: Any, n: int) -> Any:
    return -np.log(np.exp(X @ p["w"] / 3.5).mean())


def s_bound_of_each(p: Any, n: int) -> Any:
    return sum(parts(n, lambda i: -np.log(np.exp(X[i] @ p["w"] / 3.5).mean()))) / n


def quantile(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    d = e.own(Y) - e.own(X) @ e.p("w")
    return reduce(np.maximum(0.9 * d, -0.1 * d).mean())


def s_quantile(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        d = Y[i] - X[i] @ p["w"]
        return np.maximum(0.9 * d, -0.1 * d).mean()

    return sum(parts(n, one)) / n


# -- physics -----------------------------------------------------------------------------------------------------------
def all_pairs(e: Ranks, is_labelled: bool = False) -> Any:
    """The mean potential of pairs, block by block, as the rows of the ranks go around the ring."""
    rows = e.rows(X) if is_labelled else e.own(X)
    own = np.tanh(rows * e.p("w"))
    own = cc.cast(own, "dp", to=V) if is_labelled else own
    other, energy = own, 0.0
    for _ in range(e.n):
        energy = energy + np.exp(-((own[:, None] - other[None]) ** 2).sum(axis=2)).mean()
        other = cc.permute(other, "dp", [(i, (i + 1) % e.n) for i in range(e.n)])
    return energy


def s_all_pairs(p: Any, n: int) -> Any:
    z = np.tanh(X * p["w"])
    blocks = [[np.exp(-((z[i][:, None] - z[j][None]) ** 2).sum(axis=2)).mean() for j in parts(n, lambda k: k)]
              for i in parts(n, lambda k: k)]  # fmt: skip
    return sum(map(sum, blocks)) / n / n


def gathered_pairs(e: Ranks) -> Any:
    """The same of blocks that were gathered, for equal numbers of rows."""
    own = np.tanh(X[: 12 * e.n][e.rank :: e.n] * e.p("w"))
    blocks = cc.all_gather(own[None], "dp")
    energy = sum(np.exp(-((own[:, None] - blocks[k][None]) ** 2).sum(axis=2)).mean() for k in range(e.n))
    return total(energy) / e.dp.size / e.dp.size


def s_gathered_pairs(p: Any, n: int) -> Any:
    z = np.tanh(X[: 12 * n] * p["w"])
    return np.exp(-((z[:, None] - z[None]) ** 2).sum(axis=2)).mean()


def lattice(e: Ranks) -> Any:
    """The energy of a chain of spins, with the neighbours of other ranks by a halo."""
    spins = np.tanh(e.rows(X) @ e.p("w"))
    wide = cc.halo_exchange(spins, "dp", 1)
    return total((-wide[1:-1] * wide[2:]).sum())


def s_lattice(p: Any, n: int) -> Any:
    spins = np.tanh(X @ p["w"])
    return -(spins[:-1] * spins[1:]).sum()


def lattice_by_sites(e: Ranks) -> Any:
    """The energy of each rank by the number of its sites, summed."""
    spins = np.tanh(e.rows(X) @ e.p("w"))
    wide = cc.halo_exchange(spins, "dp", 1)
    return total((-wide[1:-1] * wide[2:]).mean())


def s_lattice_by_sites(p: Any, n: int) -> Any:
    return s_lattice(p, n) / 60


def boundary(e: Ranks, of_inside: Callable[[Any], Any]) -> Any:
    """A residual inside, on labelled points, and of the boundary, which all ranks have."""
    inside = (np.sin(e.rows(X) @ e.p("w")) - e.rows(Y)) ** 2
    edge = ((ag.constant(X[:3]) @ cc.cast(e.p("w"), "dp", to=I) - 1) ** 2).mean()
    return of_inside(inside) + edge


def s_boundary(p: Any, n: int) -> Any:
    return ((np.sin(X @ p["w"]) - Y) ** 2).mean() + ((X[:3] @ p["w"] - 1) ** 2).mean()


def conserved(e: Ranks) -> Any:
    """A penalty for the total mass, which is a sum over all cells."""
    mass = total((e.rows(X) @ e.p("w")).sum())
    return total(labelled(e).mean()) + 0.01 * (mass - 2.0) ** 2


def s_conserved(p: Any, n: int) -> Any:
    return s_rows(p, n) + 0.01 * ((X @ p["w"]).sum() - 2.0) ** 2


# -- ensembles, several tasks, distillation ----------------------------------------------------------------------------
def members(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """A member on each rank, which all see all rows: the likelihood of the mixture."""
    p = nn.sigmoid((X @ e.p("w")) * (1 + 0.2 * e.rank))
    return -np.log(reduce(p)).mean()


def s_members(p: Any, n: int) -> Any:
    return -np.log(sum(nn.sigmoid((X @ p["w"]) * (1 + 0.2 * r)) for r in range(n)) / n).mean()


def one_loss_each(e: Ranks) -> Any:
    """The losses of the ranks as the items of a Shard, whose mean is over the ranks."""
    losses = cc.cast(np.reshape(err(e).mean(), (1,)), "dp", to=Shard(0))
    return total(losses.sum()) / e.dp.size


def uncertainty(e: Ranks) -> Any:
    """Kendall's weights of tasks: ``exp(-s) * loss + s`` of each rank's rows, averaged."""
    s = e.p("w")[0]
    return mean(np.exp(-s) * err(e).mean() + s)


def uncertainty_summed(e: Ranks) -> Any:
    """The loss of each rank's rows summed, and the term of the weight once."""
    s = e.p("w")[0]
    return total(np.exp(-s) * err(e).mean()) + cc.cast(s, "dp", to=I)


def s_uncertainty(p: Any, n: int) -> Any:
    return np.exp(-p["w"][0]) * s_ranks(p, n) + p["w"][0]


def _softmax(x: Any) -> Any:
    return numpy.exp(x) / numpy.exp(x).sum(axis=1, keepdims=True)


def distilled(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    """The divergence of a student from a teacher, with ``batchmean`` and a temperature."""
    teacher = _softmax(e.own(X) @ START["m"] / 5.5)
    student = ag.ops.log_softmax(e.own(X) @ e.p("m") / 2.5)
    return reduce((teacher * (numpy.log(teacher) - student)).sum() / len(teacher)) * 2.5**2


def s_distilled(p: Any, n: int) -> Any:
    teacher = _softmax(X @ START["m"] / 5.5)
    kl = (teacher * (numpy.log(teacher) - ag.ops.log_softmax(X @ p["m"] / 2.5))).sum(axis=1)
    return sum(parts(n, lambda i: kl[i].mean())) / n * 2.5**2


def mixup(e: Ranks, reduce: Callable[[Any], Any]) -> Any:
    logits, other = e.own(X) @ e.p("m"), (e.own(K) + 1) % 3
    return reduce(0.7 * nn.cross_entropy(logits, e.own(K)) + 0.3 * nn.cross_entropy(logits, other))


def s_mixup(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        logits = X[i] @ p["m"]
        return 0.7 * nn.cross_entropy(logits, K[i]) + 0.3 * nn.cross_entropy(logits, (K[i] + 1) % 3)

    return sum(parts(n, one)) / n


# -- metrics as losses -------------------------------------------------------------------------------------------------
def explained(e: Ranks) -> Any:
    """One minus the explained variance of all rows."""
    center = cc.all_reduce(ag.tensor(e.own(Y).sum()), "dp", to=I) / 60
    return total(err(e).sum()) / total(((ag.tensor(e.own(Y)) - cc.cast(center, "dp", to=R)) ** 2).sum())


def s_explained(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).sum() / ((Y - Y.mean()) ** 2).sum()


def overlap(e: Ranks) -> Any:
    """The soft overlap of a mask over all rows."""
    p, t = nn.sigmoid(e.own(X) @ e.p("w")), e.own(POSITIVE)
    return 1 - total((p * t).sum()) / total((p + t - p * t).sum())


def overlap_of_each(e: Ranks) -> Any:
    """The overlap on each rank, summed."""
    p, t = nn.sigmoid(e.own(X) @ e.p("w")), e.own(POSITIVE)
    return total(1 - (p * t).sum() / (p + t - p * t).sum())


def s_overlap(p: Any, n: int) -> Any:
    q = nn.sigmoid(X @ p["w"])
    return 1 - (q * POSITIVE).sum() / (q + POSITIVE - q * POSITIVE).sum()


def s_overlap_of_each(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        q, t = nn.sigmoid(X[i] @ p["w"]), POSITIVE[i]
        return 1 - (q * t).sum() / (q + t - q * t).sum()

    return sum(parts(n, one)) / n


def root_mean_square(e: Ranks) -> Any:
    return np.sqrt(total(labelled(e).sum()) / 60)


def root_of_a_mean_by_the_size(e: Ranks) -> Any:
    return np.sqrt(total(labelled(e).mean()) / e.dp.size)


def s_root(p: Any, n: int) -> Any:
    return np.sqrt(s_rows(p, n))


# -- what a number counts ----------------------------------------------------------------------------------------------
MASK = numpy.where(numpy.arange(60) % 7 < 2, 0.0, 1.0)
MASK[:9] = 0.0
SOFT = MASK * (1.0 + numpy.arange(60) / 60)
LENGTHS = 3 + numpy.arange(12) % 7


def by_mask(e: Ranks, of: Callable[[Any], Any], weights: Any = MASK, is_cast: bool = False) -> Any:
    """The sum of each rank's weighted losses by a function of the sum of its own weights."""
    if not is_cast:
        return total((err(e) * e.own(weights)).sum() / of(e.own(weights).sum()))
    d, m = (cc.cast(x, "dp", to=V) for x in (labelled(e) * e.rows(weights), e.rows(weights)))
    return total(d.sum() / of(m.sum()))


def by_both_sums(e: Ranks) -> Any:
    """The fix of a ratio of two sums over each rank's rows."""
    d, m = (cc.cast(x, "dp", to=V) for x in (labelled(e) * e.rows(MASK), e.rows(MASK)))
    return total(d.sum()) / total(m.sum())


def by_means_and_sums(e: Ranks) -> Any:
    """The fix of a mean by each rank's own weights."""
    own = e.own(SOFT).sum()
    return total((err(e) * e.own(SOFT)).sum() / own * own) / total(ag.tensor(own))


def s_by_mask(p: Any, n: int, weights: Any = MASK) -> Any:
    return (((X @ p["w"] - Y) ** 2) * weights).sum() / weights.sum()


def s_by_weights(p: Any, n: int) -> Any:
    return s_by_mask(p, n, SOFT)


def episodes(e: Ranks) -> list[Any]:
    """The mean loss of each of this rank's episodes, which have lengths of their own."""
    w = e.p("w")
    return [((SEQUENCES[i, : LENGTHS[i]] @ w - 1.0) ** 2).mean() for i in e.own(numpy.arange(12))]


def s_episodes(p: Any, n: int) -> Any:
    return sum(((SEQUENCES[i, : LENGTHS[i]] @ p["w"] - 1.0) ** 2).mean() for i in range(12)) / 12


def padded(e: Ranks) -> Any:
    """The mean loss of each of this rank's padded sequences."""
    mask = (numpy.arange(10) < e.own(LENGTHS)[:, None]) * 1.0
    return ((e.own(SEQUENCES) @ e.p("w") - 1.0) ** 2 * mask).sum(axis=1) / mask.sum(axis=1)


def own_pairs(e: Ranks) -> Any:
    z = np.tanh(e.own(X) @ e.p("g"))
    return (((z[:, None] - z[None]) ** 2).sum(axis=2)).sum() / (len(z) * (len(z) - 1))


def s_own_pairs(p: Any, n: int) -> Any:
    def one(i: Any) -> Any:
        z = np.tanh(X[i] @ p["g"])
        return ((z[:, None] - z[None]) ** 2).sum() / (len(z) * (len(z) - 1))

    return sum(parts(n, one)) / n


def s_half(p: Any, n: int) -> Any:
    return 0.5 * s_rows(p, n)


def s_two_terms(p: Any, n: int) -> Any:
    return s_rows(p, n) + (np.tanh(X @ p["g"]) ** 2).mean()


def decay(e: Ranks) -> Any:
    return 0.3 * (e.p("w") ** 2).sum()


def s_decay(p: Any, n: int) -> Any:
    return s_rows(p, n) + 0.3 * (p["w"] ** 2).sum()


OWN: dict[str, Callable[[Any], Any]] = {
    "its ones": lambda k: k, "at least 1": lambda k: np.maximum(k, 1.0), "clipped": lambda k: np.clip(k, 1.0, 1e9),
    "ones + 1e-6": lambda k: k + 1e-6, "1e-8 + ones": lambda k: 1e-8 + k,
}  # fmt: skip
MEAN_OF_DATA = "data whose mean over the ranks was taken may be sums of their rows"
OFF_TAPE = "a scalar that was computed off the tape may count anything"
FUNCTION = "a function of Varying values may be one of a sum of different ones"
OWN_RATIO = "a ratio of two sums of a rank may be a total of its own"
HABITS: dict[str, Habit] = {
    # language
    "Trainer: items in batch": Habit(trainer_items_in_batch, s_tokens),
    "Trainer: times num_processes": Habit(trainer_averages, s_tokens),
    "Trainer: num_processes forgotten": Habit(trainer_forgets_processes, s_tokens, SILENT, OFF_TAPE),
    "Trainer: items of the rank": Habit(trainer_local_items, s_tokens, WARNED, LARGE),
    "masked mean": Habit(masked_mean, s_tokens, WARNED, LARGE),
    "masked mean of all": Habit(masked_mean_of_all, s_tokens),
    "masked mean by a number": Habit(masked_mean_by_a_number, s_tokens, WARNED, SMALL),
    "Megatron: averaged masked means": Habit(megatron_masked, s_tokens, UNEVEN, "a count of its own"),
    "where mask": Habit(where_mask, s_tokens, WARNED, LARGE),
    "picked tokens": Habit(picked_tokens, s_tokens, WARNED, LARGE),
    "perplexity": Habit(perplexity, s_perplexity),
    "perplexity of a sum": Habit(perplexity_of_a_sum, s_perplexity, SILENT, FUNCTION),
    "perplexity by the size": Habit(perplexity_by_the_size, s_perplexity_of_all, WARNED, "exp in the objective"),
    # regression
    "Horovod: times the size": Habit(horovod_scaled, s_rows),
    "FSDP: predivide": Habit(fsdp_predivide, s_ranks),
    "DeepSpeed: by the size twice": Habit(deepspeed_twice, s_ranks, WARNED, SMALL),
    "last batch": Habit(last_batch, s_rows, UNEVEN, "a count of its own"),
    "last batch of all": Habit(last_batch_of_all, s_rows),
    "join": Habit(uneven_join, s_rows),
    "a rank without rows": Habit(empty_rank, s_rows, WARNED, LARGE, lambda n: {"dp": max(n, 3)}),
    "weights of rows": Habit(weighted_rows, s_weighted),
    "weights by means": Habit(weighted_by_means, s_weighted),
    "weights by a mean that is a number": Habit(weighted_by_a_number, s_weighted),
    "weights of each rank": Habit(weighted_by_own, s_weighted, WARNED, LARGE),
    "decay on each rank": Habit(penalised_on_each_rank, s_penalised, MEETS, "Replicated"),
    "sum in a node and over nodes": Habit(hierarchical, s_sequences, axes=two("cp")),
    "mean in a node, sum over nodes": Habit(hierarchical_mean, s_sequences, WARNED, LARGE, two("cp")),
    "means of sequences, added": Habit(sums_of_sequences, s_sums_of_sequences),
    # Megatron
    "vocabulary parallel": Habit(vocabulary_parallel, s_vocabulary, axes=two("tp")),
    "vocabulary parallel by tp": Habit(
        lambda e: vocabulary_parallel(e) / e.mesh.axis("tp").size, s_vocabulary, ERROR, "'tp'", two("tp")),
    "context parallel: sum and count": Habit(cp_sum_and_count, s_sequences_of_ranks, axes=two("cp")),
    "context parallel: means": Habit(cp_means, s_sequences_of_ranks, WARNED, "'cp'", two("cp")),
    # experts
    "balance of experts": Habit(lambda e: balance(e, mean), s_balance),
    "balance of experts, summed": Habit(lambda e: balance(e, total), s_balance, SILENT, MEAN_OF_DATA),
    "importance of experts": Habit(importance_of_experts, s_importance),
    "router z": Habit(lambda e: router_z(e, mean), s_router_z),
    "router z, summed": Habit(lambda e: router_z(e, total), s_router_z, WARNED, LARGE),
    "an expert on each rank": Habit(one_expert_a_rank, s_one_expert),
    "a mean over one element of each rank, by the size": Habit(
        lambda e: mean_of_one_each(e) / e.dp.size, s_one_expert, ERROR, SMALL),
    "mixture of one expert on each rank": Habit(mixture_of_one_each, s_mixture),
    # generative models
    "generator": Habit(lambda e: generator(e, mean), s_generator),
    "generator, summed": Habit(lambda e: generator(e, total), s_generator, WARNED, LARGE),
    "critic": Habit(lambda e: critic(e, mean), s_critic),
    "critic, penalty summed": Habit(lambda e: critic(e, total), s_critic, WARNED, UNEQUAL),
    "autoencoder": Habit(lambda e: variational(e, mean), s_variational),
    "autoencoder, divergence summed": Habit(lambda e: variational(e, total), s_variational, WARNED, UNEQUAL),
    "diffusion by the size": Habit(diffusion, s_diffusion, ERROR, SMALL),
    # contrastive and metric learning
    "CLIP": Habit(lambda e: clip(e, mean), s_clip),
    "CLIP, summed": Habit(lambda e: clip(e, total), s_clip, WARNED, LARGE),
    "contrastive on all ranks": Habit(whole_contrastive, s_contrastive),
    "triplets": Habit(lambda e: triplet(e, mean), s_triplet),
    "triplets, summed": Habit(lambda e: triplet(e, total), s_triplet, WARNED, LARGE),
    "Barlow Twins": Habit(lambda e: barlow(e, total), s_barlow),
    "Barlow Twins, averaged": Habit(lambda e: barlow(e, mean), s_barlow, WARNED, SMALL),
    # detection
    "focal": Habit(focal, s_focal),
    "focal, summed": Habit(focal_summed, s_focal, SILENT, OFF_TAPE),
    "focal, own positives": Habit(focal_own, s_focal, WARNED, LARGE),
    "boxes and classes": Habit(boxes_and_classes, s_boxes, WARNED, UNEQUAL),
    # reinforcement learning, estimators
    "policy": Habit(lambda e: policy(e, lambda h: total(h.sum() / 60)), s_policy),
    "policy, entropy of means": Habit(lambda e: policy(e, lambda h: total(h.mean())), s_policy, WARNED, UNEQUAL),
    "clipped ratio": Habit(lambda e: clipped(e, mean), s_clipped),
    "clipped ratio, summed": Habit(lambda e: clipped(e, total), s_clipped, WARNED, LARGE),
    "importance-weighted bound": Habit(importance_bound, s_bound),
    "importance-weighted bound of each": Habit(importance_bound_of_each, s_bound_of_each, WARNED, LARGE),
    "quantile": Habit(lambda e: quantile(e, mean), s_quantile),
    "quantile, summed": Habit(lambda e: quantile(e, total), s_quantile, WARNED, LARGE),
    # physics
    "all pairs on a ring": Habit(lambda e: total(all_pairs(e)) / e.dp.size / e.dp.size, s_all_pairs),
    "all pairs on a ring, mean": Habit(lambda e: mean(all_pairs(e)) / e.dp.size, s_all_pairs),
    "all pairs on a ring, labelled": Habit(lambda e: total(all_pairs(e, True)) / e.dp.size / e.dp.size, s_all_pairs),
    "all pairs on a ring, summed": Habit(lambda e: total(all_pairs(e)), s_all_pairs, WARNED, LARGE),
    "all pairs on a ring, labelled, summed": Habit(lambda e: total(all_pairs(e, True)), s_all_pairs, ERROR, LARGE),
    "all pairs on a ring, declared": Habit(
        lambda e: total(cc.declare_partial(all_pairs(e), "dp")) / e.dp.size / e.dp.size, s_all_pairs),
    "all pairs, gathered": Habit(gathered_pairs, s_gathered_pairs),
    "spins": Habit(lattice, s_lattice),
    "spins by the sites of a rank": Habit(lattice_by_sites, s_lattice_by_sites, ERROR, LARGE),
    "boundary": Habit(lambda e: boundary(e, lambda d: total(d.mean())), s_boundary),
    "boundary, inside by the size": Habit(
        lambda e: boundary(e, lambda d: total(d.mean()) / e.dp.size), s_boundary, ERROR, UNEQUAL),
    "conserved mass": Habit(conserved, s_conserved),
    # ensembles, tasks
    "members": Habit(lambda e: members(e, mean), s_members),
    "members, summed, behind a log": Habit(lambda e: members(e, total), s_members),
    "a loss of each rank as a Shard": Habit(one_loss_each, s_ranks),
    "weights of tasks": Habit(uncertainty, s_uncertainty),
    "weights of tasks, summed": Habit(uncertainty_summed, s_uncertainty, WARNED, UNEQUAL),
    "distillation": Habit(lambda e: distilled(e, mean), s_distilled),
    "distillation, summed": Habit(lambda e: distilled(e, total), s_distilled, WARNED, LARGE),
    "mixup": Habit(lambda e: mixup(e, mean), s_mixup),
    "mixup, summed": Habit(lambda e: mixup(e, total), s_mixup, WARNED, LARGE),
    # metrics
    "explained variance": Habit(explained, s_explained),
    "overlap": Habit(overlap, s_overlap),
    "overlap of each rank": Habit(overlap_of_each, s_overlap_of_each, SILENT, OWN_RATIO),
    "root of a mean of squares": Habit(root_mean_square, s_root),
    "root of a mean by the size": Habit(root_of_a_mean_by_the_size, s_root, ERROR, SMALL),
    # what a number counts
    **{f"a mask by {name}": Habit(lambda e, of=of: by_mask(e, of), s_by_mask, WARNED, LARGE)
       for name, of in OWN.items()},
    **{f"a mask by {name}, cast": Habit(lambda e, of=of: by_mask(e, of, is_cast=True), s_by_mask, ERROR, LARGE)
       for name, of in OWN.items()},
    "weights by their sum": Habit(lambda e: by_mask(e, lambda k: k, SOFT), s_by_weights, WARNED, LARGE),
    "weights by their sum, cast": Habit(lambda e: by_mask(e, lambda k: k, SOFT, True), s_by_weights, ERROR, LARGE),
    "a ratio of two sums, each over the ranks": Habit(by_both_sums, s_by_mask),
    "weights by their sum, times it": Habit(by_means_and_sums, s_by_weights),
    "a masked mean by the mean of the mask": Habit(
        lambda e: total((err(e) * e.own(MASK)).mean() / e.own(MASK).mean()), s_by_mask, WARNED, LARGE),
    "weights that were normalised": Habit(
        lambda e: total((err(e) * (e.own(SOFT) / e.own(SOFT).sum())).sum()), s_by_weights, WARNED, LARGE),
    "a mask by all of its ones": Habit(lambda e: total((err(e) * e.own(MASK)).sum() / MASK.sum()), s_by_mask),
    "rows by their number, and added": Habit(lambda e: total((err(e) / len(e.own(Y))).sum()), s_rows, WARNED, LARGE),
    "one over their number times rows": Habit(
        lambda e: total((1 / len(e.own(Y)) * err(e)).sum()), s_rows, WARNED, LARGE),
    "rows by that of all, and averaged": Habit(lambda e: mean((err(e) / 60).sum()), s_rows, WARNED, SMALL),
    "rows by that of all, and added": Habit(lambda e: total((err(e) / 60).sum()), s_rows),
    "an averaged sum by all": Habit(lambda e: mean(err(e).sum()) / 60, s_rows, WARNED, SMALL),
    "one over all times an averaged sum": Habit(lambda e: 1 / 60 * mean(err(e).sum()), s_rows, WARNED, SMALL),
    "an averaged sum over two axes by all": Habit(
        lambda e: mean(total(err_on_two(e).sum(), "cp"), "dp") / 120, s_sequences, WARNED, SMALL, two("cp")),
    "a sum over cp by its tokens, averaged over dp": Habit(
        lambda e: mean(total(err_on_two(e).sum(), "cp") / (10 * len(e.own(SEQUENCES))), "dp"),
        lambda p, n: s_sequences_of_ranks(p, min(n, 4)), axes=lambda n: {"dp": min(n, 4), "cp": 2}),
    "episodes by their number": Habit(
        lambda e: total(sum(episodes(e)) / len(e.own(LENGTHS))), s_episodes, WARNED, LARGE,
        lambda n: {"dp": min(n, 4)}),
    "episodes by that of all": Habit(lambda e: total(sum(episodes(e)) / 12), s_episodes),
    "episodes by that of all, outside": Habit(lambda e: total(sum(episodes(e))) / 12, s_episodes),
    "episodes by that of all, averaged": Habit(lambda e: mean(sum(episodes(e)) / 12), s_episodes, WARNED, SMALL),
    "means of padded sequences": Habit(
        lambda e: total(padded(e).mean()), lambda p, n: s_episodes(p, n), WARNED, LARGE,
        lambda n: {"dp": min(n, 4)}),
    "padded sequences by all": Habit(lambda e: total(padded(e).sum() / 12), s_episodes),
    "pairs of own rows": Habit(lambda e: total(own_pairs(e)), s_own_pairs, WARNED, LARGE),
    "pairs of own rows, averaged": Habit(lambda e: mean(own_pairs(e)), s_own_pairs),
    "half of squares by own rows": Habit(
        lambda e: total(err(e).sum() / (2 * len(e.own(Y)))), s_half, WARNED, LARGE, lambda n: {"dp": max(n, 3)}),
    "only the penalty by the size": Habit(
        lambda e: total(err(e).mean() + decay(e) / e.dp.size), s_decay, WARNED, UNEQUAL),
    "one over the size times the penalty": Habit(
        lambda e: total(err(e).mean() + 1 / e.dp.size * decay(e)), s_decay, WARNED, UNEQUAL),
    "the penalty by the size, and rows by all": Habit(
        lambda e: total(err(e).sum() / 60 + decay(e) / e.dp.size), s_decay),
    "a term by all, and a mean": Habit(
        lambda e: total(err(e).sum() / 60 + (np.tanh(e.own(X) @ e.p("g")) ** 2).mean()), s_two_terms, WARNED, UNEQUAL),
}  # fmt: skip
"""Programs by what they train."""
