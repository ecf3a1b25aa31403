"""Programs that run to their end with wrong gradients: no check short of the serial comparison can see the mistake.

Each has the reason. `parallel.verify` sees every one of them. A program is a loss of this rank's rows, which are
Varying: the labels promise nothing about them. With rows that are Shard most of these programs are refused; the others
contain an explicit statement, or arithmetic that is legal elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import I, R, T, ag, cc, entered, model, np, numpy, squares

__all__ = ["SILENT", "Silent"]


class Silent(NamedTuple):
    """A wrong loss, the reason why it is silent, and the serial loss that is meant."""

    reason: str
    loss: Callable[[Any, dict[str, Any], Any, Any], Any]
    serial: Callable[[dict[str, Any], Any, Any], Any]


SILENT: dict[str, Silent] = {}


def mean_squares(p: dict[str, Any], x: Any, t: Any) -> Any:
    return squares(model(p, x), t) / x.shape[0]


def silent(reason: str, serial: Any = mean_squares) -> Any:
    """Decorator: a program ``loss(mesh, p, x, t)`` on Varying rows, and the loss that is meant."""

    def register(loss: Any) -> Any:
        SILENT[loss.__name__] = Silent(reason, loss, serial)
        return loss

    return register


VARYING = "the rows are Varying: p values without a promise, of which any function is a legal program"




def weighted(p: dict[str, Any], x: Any, t: Any) -> Any:
    weights = np.exp(x[:, 0])
    return (weights * ((model(p, x) - t) ** 2).sum(axis=1)).sum() / weights.sum()


@silent(VARYING + "; the weights are normalised on each rank", weighted)
def the_weights_are_normalised_on_each_rank(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    return cc.mean(weighted(entered(p), x, t), "dp", to=I)


def standardised(p: dict[str, Any], x: Any, t: Any) -> Any:
    return squares(model(p, (x - x.mean(axis=0)) / x.std(axis=0)), t)


@silent(VARYING + "; statistics of each rank's rows, as in batch normalisation that is not synchronised", standardised)
def the_statistics_are_those_of_each_rank(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    return cc.all_reduce(standardised(entered(p), x, t), "dp", to=I)


@silent("a factor that is the same on all ranks is part of the program: labels do not see scale")
def the_loss_is_multiplied_by_the_number_of_ranks(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    """To undo an average of the gradients that ringtape does not take."""
    return cc.all_reduce(squares(model(entered(p), x), t), "dp", to=I) / len(T) * mesh.axis("dp").size


@silent("a factor that is the same on all ranks is part of the program: labels do not see scale")
def the_loss_is_a_mean_over_ranks_in_the_place_of_a_sum(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    return cc.mean(squares(model(entered(p), x), t) / len(T), "dp", to=I)


def placed(p: dict[str, Any], x: Any, t: Any) -> Any:
    position = ag.constant(numpy.arange(float(x.shape[0]))[:, None])
    return squares(model(p, x + 0.1 * position), t)


@silent("a position within the part is legal data; that positions of the whole are meant is nowhere stated", placed)
def positions_are_counted_from_zero_on_every_rank(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    position = numpy.arange(x.shape[0])[:, None]
    return cc.all_reduce(squares(model(entered(p), x + 0.1 * position), t), "dp", to=I)


def neighbours(p: dict[str, Any], x: Any, t: Any) -> Any:
    y = model(p, x)
    return ((y[1:] - y[:-1]) ** 2).sum()


@silent(VARYING + "; the differences across the border of two parts are missing", neighbours)
def differences_of_neighbours_on_each_rank(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    return cc.all_reduce(neighbours(entered(p), x, t), "dp", to=I)


@silent("the rows of the halo are Varying, as all rows here; which of them to count is up to the program", neighbours)
def the_halo_is_counted_on_both_ranks(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    y = model(entered(p), cc.halo_exchange(x, "dp", 1))
    first, last = int(mesh.axis("dp").rank) == 0, int(mesh.axis("dp").rank) == mesh.axis("dp").size - 1
    y = y[int(first) : y.shape[0] - int(last)]
    return cc.all_reduce(((y[1:] - y[:-1]) ** 2).sum(), "dp", to=I)


@silent("the messages of a ring are right; that one is too few is a matter of the algorithm")
def a_ring_sum_with_one_step_too_few(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    mine = total = squares(model(entered(p), x), t) / len(T)
    size = mesh.axis("dp").size
    for _ in range(size - 2):
        mine = cc.permute(mine, "dp", [(r, (r + 1) % size) for r in range(size)])
        total = total + mine
    return cc.mean(total, "dp", to=I)


@silent("`int(rank)` is the explicit way to a plain number, and Varying values may be scaled by any")
def each_loss_has_a_weight_of_its_own(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    weight = 1.0 / (1 + int(mesh.axis("dp").rank))
    return cc.all_reduce(weight * squares(model(entered(p), x), t), "dp", to=I) / len(T)


@silent("`stop_gradient` is a statement of the program")
def a_copy_does_not_get_its_gradient(mesh: Any, p: Any, x: Any, t: Any) -> Any:
    used = {**entered(p), "b2": ag.stop_gradient(cc.cast(p["b2"], "dp", to=R))}
    return cc.all_reduce(squares(model(used, x), t), "dp", to=I) / len(T)
