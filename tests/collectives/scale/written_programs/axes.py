"""Meshes of two axes, of equal and of unequal sizes: sums along one and means along the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import I, R, Shard, V

from ..meshes import SEQUENCES
from .harness import K, Program, Rank, Reading, X, Y, each_counts, mean, right, total, wrong

BOTH, TP = ("dp", "cp"), ("dp", "tp")


def equal(other: str) -> Callable[[int], Mapping[str, int]]:
    return lambda n: {"dp": n, other: n}


def two(other: str) -> Callable[[int], Mapping[str, int]]:
    return lambda n: {"dp": n, other: 2}


def parts(e: Rank) -> Any:
    """The losses of this rank's part of its sequences, as plain arrays: (sequences, tokens)."""
    cp = e.mesh.axis("cp")
    x = numpy.array_split(e.own(SEQUENCES), int(cp.size), axis=1)[int(cp.rank)]
    return (x @ e.p("w") - x.sum(axis=2)) ** 2


def labelled_parts(e: Rank) -> Any:
    cp = e.mesh.axis("cp")
    own = numpy.ascontiguousarray(numpy.array_split(e.own(SEQUENCES), int(cp.size), axis=1)[int(cp.rank)])
    x, y = (cc.from_local(a, {"dp": Shard(0), "cp": Shard(1)}) for a in (own, own.sum(axis=2)))
    return (x @ e.p("w") - y) ** 2


def s_tokens(p: Any, n: int) -> Any:
    return ((SEQUENCES @ p["w"] - SEQUENCES.sum(axis=2)) ** 2).mean()


def s_sequences(p: Any, n: int) -> Any:
    """The mean over the sequences of the sums over their tokens."""
    return ((SEQUENCES @ p["w"] - SEQUENCES.sum(axis=2)) ** 2).sum(axis=1).mean()


def rows(e: Rank) -> Any:
    """The same rows on each rank of tp, as a data loader gives them, as plain arrays."""
    return (e.own(X) @ e.p("w") - e.own(Y)) ** 2


def plain_on_tp(e: Rank) -> Any:
    """Rows that are known to be the same along tp."""
    x, y = (ag.tensor(e.own(a), {"dp": V, "tp": R}) for a in (X, Y))
    return (x @ e.p("w") - y) ** 2


def column_row(e: Rank, x: Any) -> Any:
    """A layer that is divided by columns, and one by rows, with a sum of their outputs."""
    h = np.tanh(x @ e.divided("up", 1, "tp"))
    return cc.all_reduce(h @ e.divided("down", 0, "tp"), "tp", to=I)


def s_column_row(p: Any, n: int) -> Any:
    return nn.cross_entropy(np.tanh(X @ p["up"]) @ p["down"], K)


def tensor_parallel(e: Rank, **words: Any) -> Any:
    """A cross-entropy of logits that are the same along tp, of plain rows."""
    x = ag.tensor(e.own(X), {"dp": V, "tp": R})
    return nn.cross_entropy(column_row(e, x), ag.tensor(e.own(K), {"dp": V, "tp": I}), **words)


def tensor_parallel_labelled(e: Rank, **words: Any) -> Any:
    x, k = (cc.from_local(numpy.ascontiguousarray(e.own(a)), {"dp": Shard(0), "tp": on}) for a, on in ((X, R), (K, I)))
    return nn.cross_entropy(column_row(e, x), k, **words)


def weights_of_tp(e: Rank) -> Any:
    """The squares of this rank's part of a parameter that is divided along tp."""
    return (e._made["up"][0] ** 2).sum()


def s_with_weights(p: Any, n: int) -> Any:
    return s_column_row(p, n) + 0.01 * (p["up"] ** 2).sum()


def tokens(e: Rank) -> int:
    """The tokens of this dp rank's sequences, of all ranks of cp."""
    return 10 * len(e.own(SEQUENCES))


def hierarchy(e: Rank) -> Any:
    """Rows that are divided along two axes, as hosts and their devices."""
    on = e.mesh.axis(BOTH)
    mine = numpy.array_split(numpy.arange(60), int(on.size))[int(on.rank)]
    return (X[mine] @ e.p("w") - Y[mine]) ** 2


def s_rows(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def half(serial: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    return lambda p, n: 0.5 * serial(p, n)


CP, CP2, TPN, TP2 = equal("cp"), two("cp"), equal("tp"), two("tp")

PROGRAMS: dict[str, Program] = {}
for _name, _axes, _ranks in (("dp = cp", CP, (2, 3)), ("cp of 2", CP2, (3, 4))):
    PROGRAMS |= {
        f"{_name}: sum over cp by own tokens, mean over dp": right(
            lambda e: mean(total(parts(e).sum(), "cp") / tokens(e)), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over cp times 1 / own tokens, mean over dp": right(
            lambda e: mean((1 / tokens(e)) * total(parts(e).sum(), "cp")), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over dp, mean over cp, of means times sequences": right(
            lambda e: total(mean(parts(e).sum() * e.mesh.axis("cp").size, "cp") / 120), s_tokens, axes=_axes,
            ranks=_ranks),
        f"{_name}: sums over both by the tokens of all": right(
            lambda e: total(parts(e).sum(), BOTH) / 120, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: 1 / 120 times the sum over both": right(
            lambda e: (1 / 120) * total(total(parts(e).sum(), "dp"), "cp"), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sums of sequences over cp, mean over dp of means": right(
            lambda e: mean(total(parts(e).sum(axis=1), "cp").mean()), s_sequences, axes=_axes, ranks=_ranks),
        f"{_name}: sums of sequences over cp, sum over dp by 12": right(
            lambda e: total(total(parts(e).sum(axis=1), "cp").sum() / 12), s_sequences, axes=_axes, ranks=_ranks),
        f"{_name}: labelled mean over both": right(
            lambda e: total(labelled_parts(e).mean(), BOTH), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: rows over both, by all": right(
            lambda e: total(hierarchy(e).sum(), BOTH) / 60, s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: rows over both, mean of sums by all times both sizes": right(
            lambda e: mean(e.size * (e.mesh.axis("cp").size * hierarchy(e).sum() / 60), BOTH), s_rows, axes=_axes,
            ranks=_ranks),
        f"{_name}: half of squares by twice own tokens, mean over both": right(
            lambda e: mean(mean(parts(e).sum(), "cp") / (2 * parts(e).size)), half(s_tokens), axes=_axes,
            ranks=tuple(r for r in _ranks if _name == "cp of 2" or r == 2)),
        f"{_name}: half of squares by twice the rows of each of dp, mean over dp": right(
            lambda e: mean(total(hierarchy(e).sum() / (2 * (60 // e.n)), "cp"), "dp"), half(s_rows), axes=_axes,
            ranks=(2, 3) if _name == "dp = cp" else (3,)),
        f"{_name}: sum over cp by own tokens, sum over dp": wrong(
            lambda e: total(total(parts(e).sum(), "cp") / tokens(e)), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: mean over cp by own tokens, mean over dp": wrong(
            lambda e: mean(mean(parts(e).sum(), "cp") / tokens(e)), s_tokens, axes=_axes, ranks=_ranks,
            reading=Reading("half of the squares: the tokens of two ranks are twice those of each", half(s_tokens),
                            (2,) if _name == "dp = cp" else (3, 4))),
        f"{_name}: sum over cp of means, mean over dp": wrong(
            lambda e: mean(total(parts(e).mean(), "cp")), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over both of means": wrong(
            lambda e: total(parts(e).mean(), BOTH), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over both of means, by the size of dp": wrong(
            lambda e: total(parts(e).mean(), BOTH) / e.size, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over both of sums by own tokens": wrong(
            lambda e: total(parts(e).sum() / parts(e).size, BOTH), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sum over both, by 120 and the size": wrong(
            lambda e: total(parts(e).sum(), BOTH) / (120 * e.size), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: mean over dp, sum over cp, by 120": wrong(
            lambda e: total(mean(parts(e).sum()), "cp") / 120, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: sums of sequences over cp, sum over dp of means": wrong(
            lambda e: total(total(parts(e).sum(axis=1), "cp").mean()), s_sequences, axes=_axes, ranks=_ranks,
            reading=Reading("rows in the second dimension, which both axes divide", each_counts(s_sequences))),
        f"{_name}: labelled mean over both, size of cp times it": wrong(
            lambda e: e.mesh.axis("cp").size * total(labelled_parts(e).mean(), BOTH), s_tokens, axes=_axes,
            ranks=_ranks),
        f"{_name}: labelled mean over both, 1 / size of dp times it": wrong(
            lambda e: (1 / e.size) * total(labelled_parts(e).mean(), BOTH), s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: labelled mean over both, by the world": wrong(
            lambda e: total(labelled_parts(e).mean(), BOTH) / cc.world().size, s_tokens, axes=_axes, ranks=_ranks),
        f"{_name}: rows over both, means over both summed": wrong(
            lambda e: total(total(hierarchy(e).mean(), "cp"), "dp"), s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: rows over both, mean inside, sum outside": wrong(
            lambda e: total(mean(hierarchy(e).mean(), "cp"), "dp"), s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: rows over both, all by 60, mean outside": wrong(
            lambda e: mean(total(hierarchy(e).sum() / 60, "cp"), "dp"), s_rows, axes=_axes, ranks=_ranks,
            reading=Reading("half of the squares: all rows are twice those of each of two ranks of dp", half(s_rows),
                            (2,) if _name == "dp = cp" else ())),
    }
for _name, _axes, _ranks in (("dp = tp", TPN, (2, 3)), ("tp of 2", TP2, (3, 4))):
    PROGRAMS |= {
        f"{_name}: cross-entropy, mean over dp": right(
            lambda e: mean(tensor_parallel(e)), s_column_row, axes=_axes, ranks=_ranks),
        f"{_name}: cross-entropy, sum by all": right(
            lambda e: total(tensor_parallel(e, reduction="sum") / 60), s_column_row, axes=_axes, ranks=_ranks),
        f"{_name}: cross-entropy, labelled": right(
            lambda e: total(tensor_parallel_labelled(e)), s_column_row, axes=_axes, ranks=_ranks),
        f"{_name}: a penalty of divided weights": right(
            lambda e: mean(tensor_parallel(e)) + 0.01 * total(weights_of_tp(e), "tp"), s_with_weights, axes=_axes,
            ranks=_ranks),
        f"{_name}: the same rows along tp, mean over both": right(
            lambda e: mean(rows(e).mean(), TP), s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows along tp, mean along tp of sums over dp": right(
            lambda e: mean(total(rows(e).sum() / 60, "dp"), "tp"), s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: cross-entropy, sum over dp": wrong(
            lambda e: total(tensor_parallel(e)), s_column_row, axes=_axes, ranks=_ranks),
        f"{_name}: cross-entropy, mean over dp, by the size of tp": wrong(
            lambda e: mean(tensor_parallel(e)) / e.mesh.axis("tp").size, s_column_row, axes=_axes, ranks=_ranks),
        f"{_name}: cross-entropy, sum over dp, by the size of tp": wrong(
            lambda e: total(tensor_parallel(e)) / e.mesh.axis("tp").size, s_column_row, axes=_axes,
            ranks=tuple(r for r in _ranks if _name == "tp of 2")),
        f"{_name}: cross-entropy, labelled, 1 / size of tp times it": wrong(
            lambda e: (1 / e.mesh.axis("tp").size) * total(tensor_parallel_labelled(e)), s_column_row, axes=_axes,
            ranks=_ranks),
        f"{_name}: size of tp times a cross-entropy, labelled": wrong(
            lambda e: total(e.mesh.axis("tp").size * tensor_parallel_labelled(e)), s_column_row, axes=_axes,
            ranks=_ranks),
        f"{_name}: cross-entropy, by the world": wrong(
            lambda e: total(tensor_parallel(e)) / cc.world().size, s_column_row, axes=_axes, ranks=_ranks),
        f"{_name}: a penalty of divided weights, averaged over tp": wrong(
            lambda e: mean(tensor_parallel(e)) + 0.01 * mean(weights_of_tp(e), "tp"), s_with_weights,
            axes=_axes, ranks=_ranks),
        f"{_name}: a penalty of divided weights beside a sum of means": wrong(
            lambda e: total(tensor_parallel(e)) + 0.01 * total(weights_of_tp(e), "tp"), s_with_weights,
            axes=_axes, ranks=_ranks),
        f"{_name}: a penalty of divided weights, by the size of tp": wrong(
            lambda e: mean(tensor_parallel(e)) + 0.01 * total(weights_of_tp(e), "tp") / e.mesh.axis("tp").size,
            s_with_weights, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows along tp, sum over both by all": wrong(
            lambda e: total(rows(e).sum() / 60, TP), s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: the same rows along tp, sum along tp of a mean": wrong(
            lambda e: total(mean(rows(e).mean(), "dp"), "tp"), s_rows, axes=_axes, ranks=_ranks),
        f"{_name}: known rows, sum of means": wrong(
            lambda e: total(cc.cast(plain_on_tp(e).mean(), "tp", to=I)), s_rows, axes=_axes, ranks=_ranks),
    }
PROGRAMS = {name: row for name, row in PROGRAMS.items() if row.ranks}
