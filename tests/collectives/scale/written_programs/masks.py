"""Means over the elements that a mask leaves: sums by counts, clamped, with an epsilon, by float weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import V

from ..meshes import LABELS, SEQUENCES
from .harness import K, Program, Rank, Reading, X, Y, each_counts, mean, right, total, wrong

MASK = (numpy.arange(60) % 7 > 1) * 1.0
MASK[:9] = 0.0  # the first rank has fewer
WEIGHTS = numpy.abs(numpy.random.default_rng(31).normal(size=60)) + 0.1
SOFT = numpy.where(numpy.arange(60) < 20, 0.25, 1.0) * MASK
PADDED = (numpy.arange(10) < (3 + numpy.arange(12) % 8)[:, None]) * 1.0  # 12 sequences of 3 to 10 tokens
TOKENS = float((LABELS != -100).sum())


def plain(q: Any) -> Any:
    """The number of a count on or off the tape."""
    return getattr(q, "array", q)


Divide = Callable[[Any], Any]
COUNTS: dict[str, Divide] = {
    "sum": lambda q: q,
    "max(sum, 1)": lambda q: np.maximum(q, 1.0),
    "clip(sum, 1, inf)": lambda q: np.clip(q, 1.0, 1e9),
    "sum + 1e-6": lambda q: q + 1e-6,
    "1e-8 + sum": lambda q: 1e-8 + q,
    "float(sum)": lambda q: float(plain(q)),
    "max(float(sum), 1)": lambda q: max(float(plain(q)), 1.0),
}


def masked(e: Rank, how: str, divide: Divide, mask: Any = MASK) -> Any:
    """Each rank's masked mean, which are summed; of Shards the sums of the ranks are cast to V first."""
    x, y, m = (e.own(a) for a in (X, Y, mask)) if how == "plain" else e.labelled(X, Y, mask)
    d = (x @ e.p("w") - y) ** 2 * m
    if how == "cast":
        d, m = cc.cast(d, "dp", to=V), cc.cast(m, "dp", to=V)
    return total(d.sum() / divide(m.sum()))


def s_masked(p: Any, n: int, mask: Any = MASK) -> Any:
    return ((X @ p["w"] - Y) ** 2 * mask).sum() / mask.sum()


def s_weighted(p: Any, n: int) -> Any:
    return s_masked(p, n, WEIGHTS)


def s_soft(p: Any, n: int) -> Any:
    return s_masked(p, n, SOFT)


def of_all(e: Rank, divide: Divide, mask: Any = MASK) -> Any:
    """The masked sum of all ranks by the count of all."""
    d = (e.own(X) @ e.p("w") - e.own(Y)) ** 2 * e.own(mask)
    return total(d.sum()) / divide(total(ag.tensor(e.own(mask).sum())))


def of_all_labelled(e: Rank, divide: Divide, mask: Any = MASK) -> Any:
    x, y, m = e.labelled(X, Y, mask)
    return total(((x @ e.p("w") - y) ** 2 * m).sum()) / divide(total(m.sum()))


def tokens(e: Rank) -> tuple[Any, Any]:
    return e.own(SEQUENCES) @ e.p("m"), e.own(LABELS)


def s_tokens(p: Any, n: int) -> Any:
    return nn.cross_entropy(SEQUENCES.reshape(-1, 4) @ p["m"], LABELS.reshape(-1), ignore_index=-100)


def token_losses(e: Rank) -> Any:
    """The losses of this rank's tokens, (sequences, tokens), and the mask."""
    logits, labels = tokens(e)
    logs = ag.ops.log_softmax(logits)
    picked = np.take_along_axis(logs, numpy.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -picked, (labels != -100) * 1.0


def padded_losses(e: Rank) -> Any:
    return (e.own(SEQUENCES) @ e.p("w") - 1.0) ** 2, e.own(PADDED)


def s_padded_tokens(p: Any, n: int) -> Any:
    return ((SEQUENCES @ p["w"] - 1.0) ** 2 * PADDED).sum() / PADDED.sum()


def s_padded_sequences(p: Any, n: int) -> Any:
    """The mean over the sequences of their means over tokens."""
    return (((SEQUENCES @ p["w"] - 1.0) ** 2 * PADDED).sum(axis=1) / PADDED.sum(axis=1)).mean()


def s_padded_sums(p: Any, n: int) -> Any:
    return ((SEQUENCES @ p["w"] - 1.0) ** 2 * PADDED).sum(axis=1).mean()


def in_a_loop(e: Rank) -> Any:
    """Sequences one by one, each the mean of its tokens, and their mean: the code of a collator without padding."""
    w, found = e.p("w"), []
    for x, m in zip(e.own(SEQUENCES), e.own(PADDED), strict=True):
        length = int(m.sum())
        found.append(((x[:length] @ w - 1.0) ** 2).mean())
    return found


def sequence_means(e: Rank) -> Any:
    d, m = padded_losses(e)
    return (d * m).sum(axis=1) / m.sum(axis=1)


def packed(e: Rank) -> Any:
    """The tokens of all sequences of this rank in one row, with the number of each token's sequence."""
    m = e.own(PADDED) > 0
    return (e.own(SEQUENCES)[m] @ e.p("w") - 1.0) ** 2


def classes_weighted(e: Rank, reduction: str, **words: Any) -> Any:
    return nn.cross_entropy(e.own(X) @ e.p("m"), e.own(K), CLASS_WEIGHTS, reduction=reduction, **words)


CLASS_WEIGHTS = numpy.array([0.2, 1.0, 1.7])


def s_classes_weighted(p: Any, n: int) -> Any:
    return nn.cross_entropy(X @ p["m"], K, CLASS_WEIGHTS)


def weights_of_own(e: Rank) -> float:
    return float(CLASS_WEIGHTS[e.own(K)].sum())


PROGRAMS: dict[str, Program] = {
    **{f"each rank's own mask, {how}, by {name}": wrong(
        lambda e, how=how, d=d: masked(e, how, d), s_masked)
       for how in ("plain", "cast") for name, d in COUNTS.items()},
    **{f"all masks, by {name}": right(lambda e, d=d: of_all(e, d), s_masked) for name, d in COUNTS.items()
       if "1e-" not in name},
    **{f"all masks, labelled, by {name}": right(lambda e, d=d: of_all_labelled(e, d), s_masked)
       for name, d in COUNTS.items() if "1e-" not in name},
    **{f"all masks, by sum + {eps}": right(
        lambda e, eps=eps: of_all(e, lambda q: q + eps), lambda p, n, eps=eps: s_masked(p, n) * MASK.sum() / (
            MASK.sum() + eps)) for eps in (1e-6, 1.0)},
    "each rank's weighted mean times its share": right(
        lambda e: total(np.average((e.own(X) @ e.p("w") - e.own(Y)) ** 2, weights=e.own(WEIGHTS))
                        * (e.own(WEIGHTS).sum() / WEIGHTS.sum())), s_weighted),
    "its share times each rank's weighted mean": right(
        lambda e: total((e.own(WEIGHTS).sum() / WEIGHTS.sum()) * (
            ((e.own(X) @ e.p("w") - e.own(Y)) ** 2 * e.own(WEIGHTS)).sum() / e.own(WEIGHTS).sum())), s_weighted),
    "own weights, cast, by sum": wrong(lambda e: masked(e, "cast", lambda q: q, WEIGHTS), s_weighted),
    "own weights, cast, by sum + 1e-6": wrong(lambda e: masked(e, "cast", lambda q: q + 1e-6, WEIGHTS), s_weighted),
    "own weights, plain, by max(sum, 1)": wrong(
        lambda e: masked(e, "plain", lambda q: np.maximum(q, 1.0), WEIGHTS), s_weighted),
    "own weights, plain, by sum + 1e-6": wrong(
        lambda e: masked(e, "plain", lambda q: q + 1e-6, WEIGHTS), s_weighted),
    "own soft mask, plain": wrong(lambda e: masked(e, "plain", lambda q: q, SOFT), s_soft),
    "all weights": right(lambda e: of_all(e, lambda q: q, WEIGHTS), s_weighted),
    "all weights, labelled": right(lambda e: of_all_labelled(e, lambda q: np.maximum(q, 1.0), WEIGHTS), s_weighted),
    "weights that are normalised over all ranks": right(
        lambda e: total(((e.own(X) @ e.p("w") - e.own(Y)) ** 2 * e.own(WEIGHTS / WEIGHTS.sum())).sum()), s_weighted),
    "weights that each rank normalises": wrong(
        lambda e: total(((e.own(X) @ e.p("w") - e.own(Y)) ** 2 * (e.own(WEIGHTS) / e.own(WEIGHTS).sum())).sum()),
        s_weighted),
    "np.average with weights": wrong(
        lambda e: total(np.average((e.own(X) @ e.p("w") - e.own(Y)) ** 2, weights=e.own(WEIGHTS))), s_weighted),
    "np.average with a mask": wrong(
        lambda e: total(np.average((e.own(X) @ e.p("w") - e.own(Y)) ** 2, weights=e.own(MASK))), s_masked),
    "np.average": wrong(
        lambda e: total(np.average((e.own(X) @ e.p("w") - e.own(Y)) ** 2)),
        lambda p, n: ((X @ p["w"] - Y) ** 2).mean()),
    "rows that a boolean mask picks, mean": wrong(
        lambda e: total((((e.own(X) @ e.p("w") - e.own(Y)) ** 2)[e.own(MASK) > 0]).mean()), s_masked),
    "inputs that a boolean mask picks, mean": wrong(
        lambda e: total(((e.own(X)[e.own(MASK) > 0] @ e.p("w") - e.own(Y)[e.own(MASK) > 0]) ** 2).mean()), s_masked),
    "inputs that a boolean mask picks, by all": right(
        lambda e: total(((e.own(X)[e.own(MASK) > 0] @ e.p("w") - e.own(Y)[e.own(MASK) > 0]) ** 2).sum() / MASK.sum()),
        s_masked),
    "nanmean": wrong(
        lambda e: total(np.where(e.own(MASK) > 0, (e.own(X) @ e.p("w") - e.own(Y)) ** 2, 0).sum()
                        / np.count_nonzero(e.own(MASK))), s_masked),
    "a dot product with the mask": wrong(
        lambda e: total(((e.own(X) @ e.p("w") - e.own(Y)) ** 2) @ e.own(MASK) / e.own(MASK).sum()), s_masked),
    "a dot product with the mask, by all": right(
        lambda e: total(((e.own(X) @ e.p("w") - e.own(Y)) ** 2) @ e.own(MASK) / MASK.sum()), s_masked),
    "a masked mean that is divided by the fraction of ones": wrong(
        lambda e: total(((e.own(X) @ e.p("w") - e.own(Y)) ** 2 * e.own(MASK)).mean() / e.own(MASK).mean()), s_masked),
    # language
    "tokens: masked sum by own count, clamped": wrong(
        lambda e: total((lambda d, m: (d * m).sum() / max(m.sum(), 1))(*token_losses(e))), s_tokens),
    "tokens: mean of means of ranks, then of counts": right(
        lambda e: total((lambda d, m: (d * m).sum())(*token_losses(e))) / total(
            ag.tensor((e.own(LABELS) != -100).sum() * 1.0)), s_tokens),
    "tokens: by a count of all, clamped": right(
        lambda e: total((lambda d, m: (d * m).sum())(*token_losses(e)) / max(TOKENS, 1.0)), s_tokens),
    "tokens: nll_loss of each rank": wrong(
        lambda e: total(nn.nll_loss(ag.ops.log_softmax(tokens(e)[0].reshape(-1, 3)), tokens(e)[1].reshape(-1),
                                    ignore_index=-100)), s_tokens),
    "tokens: nll_loss, sum by all": right(
        lambda e: total(nn.nll_loss(ag.ops.log_softmax(tokens(e)[0].reshape(-1, 3)), tokens(e)[1].reshape(-1),
                                    ignore_index=-100, reduction="sum") / TOKENS), s_tokens),
    "tokens: own mean times own share": right(
        lambda e: total(nn.cross_entropy(tokens(e)[0].reshape(-1, 3), tokens(e)[1].reshape(-1), ignore_index=-100)
                        * ((e.own(LABELS) != -100).sum() / TOKENS)), s_tokens),
    "tokens: own share times own mean": right(
        lambda e: total(((e.own(LABELS) != -100).sum() / TOKENS) * nn.cross_entropy(
            tokens(e)[0].reshape(-1, 3), tokens(e)[1].reshape(-1), ignore_index=-100)), s_tokens),
    "sequences: mean of means, summed": wrong(lambda e: total(sequence_means(e).mean()), s_padded_sequences),
    "sequences: sum of means by own sequences": wrong(
        lambda e: total(sequence_means(e).sum() / len(e.own(SEQUENCES))), s_padded_sequences),
    "sequences: sum of means by all sequences": right(
        lambda e: total(sequence_means(e).sum() / 12), s_padded_sequences),
    "sequences: mean over ranks of means of means": right(
        lambda e: mean(sequence_means(e).mean()), s_padded_sequences, ranks=(2, 3, 4)),
    "sequences: mean over ranks of sums by all": wrong(
        lambda e: mean(sequence_means(e).sum() / 12), s_padded_sequences),
    "sequences in a loop, by their number": wrong(
        lambda e: total(sum(in_a_loop(e)) / len(e.own(SEQUENCES))), s_padded_sequences),
    "sequences in a loop, stacked": wrong(lambda e: total(np.stack(in_a_loop(e)).mean()), s_padded_sequences),
    "sequences in a loop, by all": right(lambda e: total(sum(in_a_loop(e)) / 12), s_padded_sequences),
    "packed tokens, mean": wrong(lambda e: total(packed(e).mean()), s_padded_tokens),
    "packed tokens, by all": right(lambda e: total(packed(e).sum() / PADDED.sum()), s_padded_tokens),
    "packed tokens, mean by own sequences": wrong(
        lambda e: total(packed(e).sum() / len(e.own(SEQUENCES))), s_padded_sums,
        reading=Reading("a part of each of these sequences on each rank", each_counts(s_padded_sums), (2, 3, 4))),
    "packed tokens, by all sequences": right(lambda e: total(packed(e).sum() / 12), s_padded_sums),
    "padded tokens, by batch and length": wrong(
        lambda e: total((lambda d, m: (d * m).sum() / (d.shape[0] * d.shape[1]))(*padded_losses(e))),
        lambda p, n: ((SEQUENCES @ p["w"] - 1.0) ** 2 * PADDED).sum() / 120),
    "padded tokens, by batch and length of all": right(
        lambda e: total((lambda d, m: (d * m).sum() / (12 * d.shape[1]))(*padded_losses(e))),
        lambda p, n: ((SEQUENCES @ p["w"] - 1.0) ** 2 * PADDED).sum() / 120),
    # weights of classes
    "weights of classes, own mean, smoothed": wrong(
        lambda e: total(classes_weighted(e, "mean")), s_classes_weighted),
    "weights of classes, sum by own weights": wrong(
        lambda e: total(classes_weighted(e, "sum") / weights_of_own(e)), s_classes_weighted),
    "weights of classes, sum by all weights": right(
        lambda e: total(classes_weighted(e, "sum") / CLASS_WEIGHTS[K].sum()), s_classes_weighted),
    "weights of classes, mean times own share": right(
        lambda e: total(classes_weighted(e, "mean") * (weights_of_own(e) / CLASS_WEIGHTS[K].sum())),
        s_classes_weighted),
}  # fmt: skip
