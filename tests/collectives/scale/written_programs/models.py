"""Losses by what they train: data parallel regression, vision, physics, metric learning, generative models, tasks."""

from __future__ import annotations

from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import I

from .harness import START, K, Program, Rank, Reading, X, Y, each_counts, mean, right, total, wrong

_random = numpy.random.default_rng(61)
IMAGES, WANTED = _random.normal(size=(30, 5, 6, 4)), _random.normal(size=(30, 5, 6, 3))
MAPS = _random.integers(0, 3, (30, 5, 6))
POINTS, EDGE = _random.normal(size=(40, 4)), _random.normal(size=(20, 4))
NOISE = _random.normal(size=(60, 4))
OTHER = _random.normal(size=(60, 4))


VARIANCE = 10.0  # twice it is the number of rows of one of three ranks


# -- rows --------------------------------------------------------------------------------------------------------------
def err(e: Rank) -> Any:
    return e.own(X) @ e.p("w") - e.own(Y)


def s_square(p: Any, n: int) -> Any:
    return ((X @ p["w"] - Y) ** 2).mean()


def s_half(p: Any, n: int) -> Any:
    return 0.5 * s_square(p, n)


def s_root(p: Any, n: int) -> Any:
    return np.sqrt(s_square(p, n))


def s_log_cosh(p: Any, n: int) -> Any:
    return np.log(np.cosh(X @ p["w"] - Y)).mean()


def local_sgd(e: Rank) -> Any:
    """mpi4py: each rank's mean, times its rows, reduced with the rows beside it as one array."""
    d = (err(e) ** 2).mean()
    both = total(np.stack([d * len(e.own(X)), ag.tensor(float(len(e.own(X))))]))
    return both[0] / both[1]


def local_means(e: Rank) -> Any:
    """The same without the product."""
    both = total(np.stack([(err(e) ** 2).mean(), ag.tensor(1.0)]))
    return both[0] / both[1]


def sums_and_rows(e: Rank) -> Any:
    both = total(np.stack([(err(e) ** 2).sum(), ag.tensor(float(len(e.own(X))))]))
    return both[0] / both[1]


def means_and_rows(e: Rank) -> Any:
    """The sum of the means by the mean of the rows: of neither."""
    return total((err(e) ** 2).mean()) / cc.mean(ag.tensor(1.0), "dp", to=I)


# -- images ------------------------------------------------------------------------------------------------------------
def pixels(e: Rank, m: Any = None) -> Any:
    return (e.own(IMAGES) @ e.p("m") - e.own(WANTED)) ** 2


def s_pixels(p: Any, n: int) -> Any:
    return ((IMAGES @ p["m"] - WANTED) ** 2).mean()


def s_images(p: Any, n: int) -> Any:
    """The mean over images of the sum over pixels and channels."""
    return ((IMAGES @ p["m"] - WANTED) ** 2).sum() / 30


def segmentation(e: Rank, **words: Any) -> Any:
    return nn.cross_entropy((e.own(IMAGES) @ e.p("m")).reshape(-1, 3), e.own(MAPS).reshape(-1), **words)


def s_segmentation(p: Any, n: int) -> Any:
    return nn.cross_entropy((IMAGES @ p["m"]).reshape(-1, 3), MAPS.reshape(-1))


def s_segmentation_images(p: Any, n: int) -> Any:
    return s_segmentation(p, n) * 30


def variation(images: Any, m: Any) -> Any:
    """Total variation along the rows of images."""
    z = images @ m
    return np.absolute(z[:, 1:] - z[:, :-1])


def s_variation(p: Any, n: int) -> Any:
    return variation(IMAGES, p["m"]).mean()


def dice(images: Any, maps: Any, m: Any) -> Any:
    """One overlap for each image."""
    q, t = nn.sigmoid((images @ m)[..., 0]), (maps == 0) * 1.0
    both, either = (q * t).sum(axis=(1, 2)), (q + t).sum(axis=(1, 2))
    return 1 - (2 * both + 1) / (either + 1)


def s_dice(p: Any, n: int) -> Any:
    return dice(IMAGES, MAPS, p["m"]).mean()


def focal(images: Any, maps: Any, m: Any) -> Any:
    logs = ag.ops.log_softmax((images @ m).reshape(-1, 3))
    picked = logs[numpy.arange(maps.size), maps.reshape(-1)]
    return -((1 - np.exp(picked)) ** 2) * picked


def s_focal(p: Any, n: int) -> Any:
    return focal(IMAGES, MAPS, p["m"]).mean()


# -- physics -----------------------------------------------------------------------------------------------------------
def residual(points: Any, g: Any, w: Any) -> Any:
    """The residual of u'' = u in the first coordinate, of u = tanh(x @ g) @ w in closed form."""
    t = np.tanh(points @ g)
    return ((-2 * t * (1 - t**2) * g[0] ** 2) @ w - t @ w) ** 2


def at_edge(points: Any, g: Any, w: Any) -> Any:
    return (np.tanh(points @ g) @ w - 0.5) ** 2


def s_physics(p: Any, n: int) -> Any:
    return residual(POINTS, p["g"], p["w"]).mean() + 3.7 * at_edge(EDGE, p["g"], p["w"]).mean()


def physics(e: Rank, of: Any) -> Any:
    return of(residual(e.own(POINTS), e.p("g"), e.p("w")), at_edge(e.own(EDGE), e.p("g"), e.p("w")))


VOLUMES = numpy.abs(_random.normal(size=40)) + 0.2


def quadrature(e: Rank, weights: Any) -> Any:
    """An integral by weights of cells."""
    return (residual(e.own(POINTS), e.p("g"), e.p("w")) * weights).sum()


def s_quadrature(p: Any, n: int) -> Any:
    return (residual(POINTS, p["g"], p["w"]) * VOLUMES).sum()


def s_quadrature_mean(p: Any, n: int) -> Any:
    return s_quadrature(p, n) / VOLUMES.sum()


def energy(e: Rank) -> Any:
    """Kinetic and potential energy of this rank's particles."""
    v = np.tanh(e.own(X) @ e.p("g"))
    return 0.5 * (v**2).sum(axis=1) + (v * e.p("w")).sum(axis=1)


def s_energy(p: Any, n: int) -> Any:
    v = np.tanh(X @ p["g"])
    return (0.5 * (v**2).sum(axis=1) + (v * p["w"]).sum(axis=1)).sum()


def s_energy_a_particle(p: Any, n: int) -> Any:
    return s_energy(p, n) / 60


# -- metric learning ---------------------------------------------------------------------------------------------------
def own_pairs(e: Rank, of: Any) -> Any:
    """All pairs of this rank's rows: ``of(losses of pairs)``, where the batch is in fact this rank's."""
    z = np.tanh(e.own(X) @ e.p("g"))
    d = ((z[:, None] - z[None]) ** 2).sum(axis=2)
    same = e.own(K)[:, None] == e.own(K)[None]
    return of(np.where(same, d, np.maximum(1.0 - d, 0.0)))


def s_own_pairs(p: Any, n: int) -> Any:
    """The mean over the ranks of the mean over the pairs of each."""
    found = 0.0
    for i in numpy.array_split(numpy.arange(60), n):
        z = np.tanh(X[i] @ p["g"])
        d = ((z[:, None] - z[None]) ** 2).sum(axis=2)
        found = found + np.where(K[i][:, None] == K[i][None], d, np.maximum(1.0 - d, 0.0)).mean()
    return found / n


def upper_pairs(e: Rank) -> Any:
    """The pairs i < j of this rank's rows, by their indices."""
    z = np.tanh(e.own(X) @ e.p("g"))
    i, j = numpy.triu_indices(len(z), 1)
    return ((z[i] - z[j]) ** 2).sum(axis=1)


def s_upper_pairs(p: Any, n: int) -> Any:
    found = 0.0
    for mine in numpy.array_split(numpy.arange(60), n):
        z = np.tanh(X[mine] @ p["g"])
        i, j = numpy.triu_indices(len(z), 1)
        found = found + ((z[i] - z[j]) ** 2).sum(axis=1).mean()
    return found / n


def rank_pairs(e: Rank) -> Any:
    """RankNet: one neighbour of each row, as pairs of rows."""
    s = e.own(X) @ e.p("w")
    return nn.softplus(-(s[::2] - s[1::2]) * numpy.sign(e.own(Y)[::2] - e.own(Y)[1::2]))


def s_rank_pairs(p: Any, n: int) -> Any:
    s = X @ p["w"]
    return nn.softplus(-(s[::2] - s[1::2]) * numpy.sign(Y[::2] - Y[1::2])).mean()


def nt_xent(e: Rank) -> Any:
    """SimCLR's loss of this rank's rows and their other views, against each other: 2 b rows."""
    z = np.concatenate([e.own(X) @ e.p("g"), e.own(OTHER) @ e.p("g")])
    z = z / np.sqrt((z * z).sum(axis=1, keepdims=True) + 1e-6)
    scores = z @ z.T / 0.5 - 1e4 * numpy.eye(len(z))
    b = len(z) // 2
    return scores, numpy.concatenate([numpy.arange(b, 2 * b), numpy.arange(b)])


def s_nt_xent(p: Any, n: int) -> Any:
    found = 0.0
    for i in numpy.array_split(numpy.arange(60), n):
        z = np.concatenate([X[i] @ p["g"], OTHER[i] @ p["g"]])
        z = z / np.sqrt((z * z).sum(axis=1, keepdims=True) + 1e-6)
        b = len(i)
        found = found + nn.cross_entropy(
            z @ z.T / 0.5 - 1e4 * numpy.eye(2 * b), numpy.concatenate([numpy.arange(b, 2 * b), numpy.arange(b)]))
    return found / n


def byol(e: Rank) -> Any:
    """Two views that predict each other: 2 - 2 cos."""
    a, b = e.own(X) @ e.p("g"), e.own(OTHER) @ e.p("g")
    return 2 - 2 * (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1) + 1e-9)


def s_byol(p: Any, n: int) -> Any:
    a, b = X @ p["g"], OTHER @ p["g"]
    return (2 - 2 * (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1) + 1e-9)).mean()


# -- generative models -------------------------------------------------------------------------------------------------
def vae(x: Any, noise: Any, g: Any) -> tuple[Any, Any]:
    """The reconstruction and the divergence of each row."""
    mu = x @ g
    z = mu + 0.1 * noise
    recon = ((np.tanh(z) @ g.T - x) ** 2).sum(axis=1)
    return recon, 0.5 * (mu**2).sum(axis=1)


def own_vae(e: Rank) -> tuple[Any, Any]:
    return vae(e.own(X), e.own(NOISE), e.p("g"))


def s_vae(p: Any, n: int) -> Any:
    recon, kl = vae(X, NOISE, p["g"])
    return recon.mean() + 0.3 * kl.mean()


def s_vae_of_squares(p: Any, n: int) -> Any:
    """With squares in the divergence in place of half of them."""
    recon, kl = vae(X, NOISE, p["g"])
    return recon.mean() + 0.6 * kl.mean()


def s_vae_elements(p: Any, n: int) -> Any:
    """torch's example: mean over elements, and the divergence by rows and features."""
    recon, kl = vae(X, NOISE, p["g"])
    return recon.sum() / 240 + kl.sum() / 240


def free_bits(e: Rank, reduce: Any) -> Any:
    """The divergence of each latent, its mean over the rows, not below a number."""
    mu = e.own(X) @ e.p("g")
    return np.maximum(reduce(0.5 * mu**2), 0.01).sum()


def s_free_bits(p: Any, n: int) -> Any:
    return np.maximum((0.5 * (X @ p["g"]) ** 2).mean(axis=0), 0.01).sum()


def s_free_bits_of_squares(p: Any, n: int) -> Any:
    return np.maximum(((X @ p["g"]) ** 2).mean(axis=0), 0.01).sum()


def gan(e: Rank) -> tuple[Any, Any, Any]:
    """A discriminator's losses of real and false rows, and R1's penalty of its slope, in closed form."""
    w, g = e.p("w"), e.p("g")
    t = np.tanh(e.own(X) @ g)
    slope = ((1 - t**2) * w) @ g.T
    return nn.softplus(-(t @ w)), nn.softplus(np.tanh(e.own(NOISE) @ g) @ w), (slope**2).sum(axis=1)


def s_gan(p: Any, n: int) -> Any:
    w, g = p["w"], p["g"]
    t = np.tanh(X @ g)
    slope = ((1 - t**2) * w) @ g.T
    return (nn.softplus(-(t @ w)) + nn.softplus(np.tanh(NOISE @ g) @ w) + 2.3 * (slope**2).sum(axis=1)).mean()


def s_gan_means(p: Any, n: int) -> Any:
    """The penalty as the mean over the ranks of the means over their elements, of which each has 60."""
    slope = ((1 - np.tanh(X @ p["g"]) ** 2) * p["w"]) @ p["g"].T
    return s_gan(p, n) + 2.3 * (1 / n - 1) * (slope**2).sum(axis=1).mean()


def denoise(e: Rank, sigma: Any) -> Any:
    """A score's squared error, weighted by a noise level of each row."""
    x = e.own(X) + sigma[:, None] * e.own(NOISE)
    return ((np.tanh(x @ e.p("g")) + e.own(NOISE)) ** 2).sum(axis=1) * sigma


SIGMA = numpy.abs(_random.normal(size=60)) + 0.1


def s_denoise(p: Any, n: int) -> Any:
    x = X + SIGMA[:, None] * NOISE
    return (((np.tanh(x @ p["g"]) + NOISE) ** 2).sum(axis=1) * SIGMA).mean()


# -- tasks -------------------------------------------------------------------------------------------------------------
def teacher(x: Any) -> Any:
    z = x @ (START["m"] * 1.3)
    z = numpy.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


def student(x: Any, m: Any) -> Any:
    """The divergence of each row from its teacher."""
    q = teacher(x)
    return (q * (numpy.log(q) - ag.ops.log_softmax(x @ m))).sum(axis=1)


def own_student(e: Rank) -> Any:
    return student(e.own(X), e.p("m"))


def s_student(p: Any, n: int) -> Any:
    return student(X, p["m"]).mean()


def s_soft_and_hard(p: Any, n: int) -> Any:
    return 0.7 * student(X, p["m"]).mean() + 0.3 * nn.cross_entropy(X @ p["m"], K)


def hard(e: Rank, **words: Any) -> Any:
    return nn.cross_entropy(e.own(X) @ e.p("m"), e.own(K), **words)


def s_two(p: Any, n: int) -> Any:
    return nn.cross_entropy(X @ p["m"], K) + 0.4 * s_square(p, n)


def s_three(p: Any, n: int) -> Any:
    return s_two(p, n) + 0.2 * np.absolute(X @ p["w"] - Y).mean()


def calibrated(e: Rank) -> Any:
    """A confidence penalty: minus the entropy of the predictions of each row."""
    logs = ag.ops.log_softmax(e.own(X) @ e.p("m"))
    return (np.exp(logs) * logs).sum(axis=1)


def s_calibrated(p: Any, n: int) -> Any:
    logs = ag.ops.log_softmax(X @ p["m"])
    return nn.cross_entropy(X @ p["m"], K) + 0.17 * (np.exp(logs) * logs).sum(axis=1).mean()


OWN_ELEMENTS = "the mean over the ranks of the means over the elements of each, as many as all rows"
BANDS = Reading("a band of each of these images on each rank", each_counts(s_images), (2, 3, 5))

PROGRAMS: dict[str, Program] = {
    # rows
    "half of the squares by own rows": wrong(lambda e: total((err(e) ** 2).sum() / (2 * len(e.own(X)))), s_half,
        reading=Reading("twice the rows of one of two ranks are all rows", s_square, (2,))),
    "half times a mean": wrong(
        lambda e: total(0.5 * (err(e) ** 2).mean()), s_half,
        reading=Reading("the mean over the ranks, times n / 2", lambda p, n: n / 2 * s_square(p, n), (2,))),
    "half of the squares by all": right(lambda e: total(0.5 * (err(e) ** 2).sum() / 60), s_half),
    "squares by 2 N": right(lambda e: total((err(e) ** 2).sum() / 120), s_half),
    "a dot product by own rows": wrong(lambda e: total(err(e) @ err(e) / len(e.own(X))), s_square),
    "a dot product by all": right(lambda e: total(err(e) @ err(e)) / 60, s_square),
    "np.linalg.norm squared by own rows": wrong(
        lambda e: total(np.linalg.norm(err(e)) ** 2 / len(e.own(X))), s_square),
    "np.linalg.norm squared by all": right(lambda e: total(np.linalg.norm(err(e)) ** 2 / 60), s_square),
    "np.einsum by own rows": wrong(lambda e: total(np.einsum("i,i->", err(e), err(e)) / len(e.own(X))), s_square),
    "np.einsum by all": right(lambda e: total(np.einsum("i,i->", err(e), err(e)) / 60), s_square),
    "np.mean of squares": wrong(lambda e: total(np.mean(np.square(err(e)))), s_square),
    "np.var around nothing": wrong(lambda e: total(np.mean(err(e) ** 2, axis=0, keepdims=True)[0]), s_square),
    "a vector of equal weights": wrong(
        lambda e: total(numpy.full(len(e.own(X)), 1 / len(e.own(X))) @ err(e) ** 2), s_square,
        reading=Reading("the weights of an integral over a cell of each rank", each_counts(s_square))),
    "a vector of equal weights of all": right(
        lambda e: total(numpy.full(len(e.own(X)), 1 / 60) @ err(e) ** 2), s_square),
    "sum of squares of scaled rows": wrong(
        lambda e: total(((err(e) / len(e.own(X)) ** 0.5) ** 2).sum()), s_square,
        reading=Reading("squares of errors in units of a noise", each_counts(s_square))),
    "sum of squares of scaled rows of all": right(lambda e: total(((err(e) / 60**0.5) ** 2).sum()), s_square),
    "a mean over ranks of losses by own rows": right(lambda e: mean((err(e) ** 2 / len(e.own(X))).sum()), s_square),
    "losses by own rows, by the size": right(
        lambda e: (1 / e.size) * total((err(e) ** 2 / len(e.own(X))).sum()), s_square),
    "losses by all rows": right(lambda e: total((err(e) ** 2 / 60).sum()), s_square),
    "losses by twice a variance, by all": right(
        lambda e: total((err(e) ** 2 / (2 * VARIANCE)).sum() / 60), lambda p, n: s_square(p, n) / (2 * VARIANCE)),
    "half a log of the variance beside it, by all": right(
        lambda e: total((err(e) ** 2 / (2 * VARIANCE) + 0.5 * np.log(2 * numpy.pi * VARIANCE + 0 * err(e))).sum()) / 60,
        lambda p, n: s_square(p, n) / (2 * VARIANCE)),
    "losses by twice a variance, mean": wrong(
        lambda e: total((err(e) ** 2 / (2 * VARIANCE)).mean()), lambda p, n: s_square(p, n) / (2 * VARIANCE),
        reading=Reading(
            "the mean over the ranks, by 20 / n", lambda p, n: s_square(p, n) / (2 * VARIANCE / n), (2, 4, 5))),
    "log cosh, mean": wrong(lambda e: total(np.log(np.cosh(err(e))).mean()), s_log_cosh),
    "log cosh, by all": right(lambda e: total(np.log(np.cosh(err(e))).sum() / 60), s_log_cosh),
    "root of a sum of means": wrong(lambda e: np.sqrt(total((err(e) ** 2).mean())), s_root),
    "root of a mean over ranks by the size": wrong(lambda e: np.sqrt(mean((err(e) ** 2).mean()) / e.size), s_root),
    "root of a mean over ranks": right(lambda e: np.sqrt(mean((err(e) ** 2).mean())), s_root),
    "norm by the root of all rows": right(lambda e: np.sqrt(total((err(e) ** 2).sum())) / numpy.sqrt(60), s_root),
    "a mean by 1 / all behind a mean over ranks": wrong(lambda e: mean((err(e) ** 2).sum()) / 60, s_square),
    "1 / all times a mean over ranks of sums": wrong(lambda e: (1 / 60) * mean((err(e) ** 2).sum()), s_square),
    "a mean over ranks of sums by own rows": right(lambda e: mean((err(e) ** 2).sum() / len(e.own(X))), s_square),
    "a mean over ranks of sums, by own rows": right(lambda e: mean((err(e) ** 2).sum()) / len(e.own(X)), s_square),
    "mean times rows beside the rows": right(local_sgd, s_square),
    "means beside ones": right(local_means, s_square),
    "sums beside rows": right(sums_and_rows, s_square),
    "sum of means by a mean of ones": wrong(means_and_rows, s_square),
    "reduce_scatter and all_gather of means": wrong(
        lambda e: cc.all_gather(np.reshape((err(e) ** 2).mean(), (1,)), "dp", to=I).sum(), s_square),
    "all_gather of means, mean": right(
        lambda e: cc.all_gather(np.reshape((err(e) ** 2).mean(), (1,)), "dp", to=I).mean(), s_square),
    "all_gather of sums, sum by all": right(
        lambda e: cc.all_gather(np.reshape((err(e) ** 2).sum(), (1,)), "dp", to=I).sum() / 60, s_square),
    "all_gather of sums, mean by all": wrong(
        lambda e: cc.all_gather(np.reshape((err(e) ** 2).sum(), (1,)), "dp", to=I).mean() / 60, s_square),
    "all_gather of losses, sum by own": wrong(
        lambda e: cc.all_gather(err(e) ** 2, "dp", to=I).sum() / len(e.own(X)), s_square),
    "all_gather of losses, mean": right(lambda e: cc.all_gather(err(e) ** 2, "dp", to=I).mean(), s_square),
    "reduce to the root of means": wrong(lambda e: cc.reduce((err(e) ** 2).mean(), "dp", 0), s_square),
    "reduce to the root of sums by all": right(lambda e: cc.reduce((err(e) ** 2).sum() / 60, "dp", 0), s_square),
    # images
    "pixels, mean": wrong(lambda e: total(pixels(e).mean()), s_pixels),
    "pixels, sums of images, mean": wrong(
        lambda e: total(pixels(e).sum(axis=(1, 2, 3)).mean()), s_images, reading=BANDS),
    "pixels, sum by own images": wrong(
        lambda e: total(pixels(e).sum() / len(e.own(IMAGES))), s_images, reading=BANDS),
    "pixels, sum by own images, outside": wrong(
        lambda e: total(pixels(e).sum()) / len(e.own(IMAGES)), s_images, reading=BANDS),
    "pixels, means of channels, by own images and pixels": wrong(
        lambda e: total(pixels(e).mean(axis=3).sum() / (len(e.own(IMAGES)) * 30)), s_pixels),
    "pixels, by all elements": right(lambda e: total(pixels(e).sum() / IMAGES[..., :3].size), s_pixels),
    "pixels, by all images": right(lambda e: total(pixels(e).sum()) / 30, s_images),
    "pixels, means of images by all": right(lambda e: total(pixels(e).mean(axis=(1, 2, 3)).sum() / 30), s_pixels),
    "pixels, averaged sums of images by all": wrong(
        lambda e: mean(pixels(e).sum() / 30), s_images,
        reading=Reading("the mean over 30 pixels, of one of several systems", lambda p, n: s_images(p, n) / n)),
    "pixels, labelled, sum by images and the size": wrong(
        lambda e: total(((e.labelled(IMAGES) @ e.p("m") - e.labelled(WANTED)) ** 2).sum()) / (30 * e.size), s_images),
    "pixels, labelled, sum by images": right(
        lambda e: total(((e.labelled(IMAGES) @ e.p("m") - e.labelled(WANTED)) ** 2).sum()) / 30, s_images),
    "segmentation, mean": wrong(lambda e: total(segmentation(e)), s_segmentation),
    "segmentation, sum by own pixels": wrong(
        lambda e: total(segmentation(e, reduction="sum") / e.own(MAPS).size), s_segmentation),
    "segmentation, sum by all pixels": right(
        lambda e: total(segmentation(e, reduction="sum") / MAPS.size), s_segmentation),
    "segmentation, sum by own images": wrong(
        lambda e: total(segmentation(e, reduction="sum") / len(e.own(MAPS))), s_segmentation_images,
        reading=Reading(BANDS.why, each_counts(s_segmentation_images), BANDS.at)),
    "total variation, mean": wrong(lambda e: total(variation(e.own(IMAGES), e.p("m")).mean()), s_variation),
    "total variation, by all": right(
        lambda e: total(variation(e.own(IMAGES), e.p("m")).sum() / (30 * 4 * 6 * 3)), s_variation),
    "an overlap of each image, mean": wrong(lambda e: total(dice(e.own(IMAGES), e.own(MAPS), e.p("m")).mean()), s_dice),
    "an overlap of each image, sum by all": right(
        lambda e: total(dice(e.own(IMAGES), e.own(MAPS), e.p("m")).sum() / 30), s_dice),
    "an overlap of each image, averaged": right(
        lambda e: mean(dice(e.own(IMAGES), e.own(MAPS), e.p("m")).mean()), s_dice, ranks=(2, 3, 5)),
    "focal, mean": wrong(lambda e: total(focal(e.own(IMAGES), e.own(MAPS), e.p("m")).mean()), s_focal),
    "focal, by all pixels": right(
        lambda e: total(focal(e.own(IMAGES), e.own(MAPS), e.p("m")).sum() / MAPS.size), s_focal),
    # physics
    "residual and edge, means": wrong(lambda e: physics(e, lambda a, b: total(a.mean() + 3.7 * b.mean())), s_physics),
    "residual as a mean, edge by all": wrong(
        lambda e: physics(e, lambda a, b: total(a.mean() + 3.7 * b.sum() / 20)), s_physics),
    "residual by all, edge as a mean": wrong(
        lambda e: physics(e, lambda a, b: total(a.sum() / 40) + 3.7 * total(b.mean())), s_physics),
    "residual averaged, edge summed": wrong(
        lambda e: physics(e, lambda a, b: mean(a.mean()) + 3.7 * total(b.mean())), s_physics),
    "residual and edge, averaged": right(
        lambda e: physics(e, lambda a, b: mean(a.mean() + 3.7 * b.mean())), s_physics, ranks=(2, 4, 5)),
    "residual and edge, by all": right(
        lambda e: physics(e, lambda a, b: total(a.sum() / 40 + 3.7 * b.sum() / 20)), s_physics),
    "residual and edge by all, averaged": wrong(
        lambda e: physics(e, lambda a, b: mean(a.sum() / 40 + 3.7 * b.sum() / 20)), s_physics),
    "an integral by the volumes of cells": right(lambda e: total(quadrature(e, e.own(VOLUMES))), s_quadrature),
    "an integral by the volume of all": right(
        lambda e: total(quadrature(e, e.own(VOLUMES)) / VOLUMES.sum()), s_quadrature_mean),
    "an integral by the volume of each rank": wrong(
        lambda e: total(quadrature(e, e.own(VOLUMES)) / e.own(VOLUMES).sum()), s_quadrature_mean),
    "an integral of averaged parts": wrong(
        lambda e: mean(quadrature(e, e.own(VOLUMES))), s_quadrature,
        reading=Reading("the mean over systems, of which each rank has one",
                        lambda p, n: s_quadrature(p, n) / n)),
    "energy of all particles": right(lambda e: total(energy(e).sum()), s_energy),
    "energy a particle": right(lambda e: total(energy(e).sum()) / 60, s_energy_a_particle),
    "energy a particle, by own": wrong(lambda e: total(energy(e).sum() / len(e.own(X))), s_energy_a_particle),
    "energy a particle, averaged by all": wrong(
        lambda e: mean(energy(e).sum() / 60), s_energy_a_particle,
        reading=Reading(OWN_ELEMENTS, lambda p, n: s_energy_a_particle(p, n) / n, (4,))),
    # metric learning
    "pairs of own rows, mean": wrong(lambda e: total(own_pairs(e, lambda d: d.mean())), s_own_pairs),
    "pairs of own rows, sum by b * b": wrong(
        lambda e: total(own_pairs(e, lambda d: d.sum() / len(d) ** 2)), s_own_pairs),
    "pairs of own rows, sum by b * (b - 1)": wrong(
        lambda e: total(own_pairs(e, lambda d: d.sum() / (len(d) * (len(d) - 1)))),
        lambda p, n: s_own_pairs(p, n) * (60 / n) / (60 / n - 1)),
    "pairs of own rows, means of rows, mean": wrong(
        lambda e: total(own_pairs(e, lambda d: d.mean(axis=1).mean())), s_own_pairs),
    "pairs of own rows, averaged": right(lambda e: mean(own_pairs(e, lambda d: d.mean())), s_own_pairs),
    "pairs of own rows, averaged sum by b * b": right(
        lambda e: mean(own_pairs(e, lambda d: d.sum() / len(d) ** 2)), s_own_pairs),
    "pairs of own rows, mean by the size": right(
        lambda e: total(own_pairs(e, lambda d: d.mean()) / e.size), s_own_pairs),
    "pairs of own rows, means of rows by all": right(
        lambda e: total(own_pairs(e, lambda d: d.mean(axis=1).sum() / 60)), s_own_pairs),
    "pairs i < j, mean": wrong(lambda e: total(upper_pairs(e).mean()), s_upper_pairs),
    "pairs i < j, sum by their number": wrong(
        lambda e: total(upper_pairs(e).sum() / (len(e.own(X)) * (len(e.own(X)) - 1) / 2)), s_upper_pairs),
    "pairs i < j, averaged": right(lambda e: mean(upper_pairs(e).mean()), s_upper_pairs),
    "pairs i < j, sum by the number of all ranks'": right(
        lambda e: total(upper_pairs(e).sum() / (e.n * (60 // e.n) * (60 // e.n - 1) / 2)), s_upper_pairs),
    "pairs of neighbours, mean": wrong(lambda e: total(rank_pairs(e).mean()), s_rank_pairs, ranks=(2, 3, 5)),
    "pairs of neighbours, sum by own rows": wrong(
        lambda e: total(rank_pairs(e).sum() / (len(e.own(X)) // 2)), s_rank_pairs, ranks=(2, 3, 5)),
    "pairs of neighbours, by all pairs": right(
        lambda e: total(rank_pairs(e).sum() / 30), s_rank_pairs, ranks=(2, 3, 5)),
    "two views, mean": wrong(lambda e: total(nn.cross_entropy(*nt_xent(e))), s_nt_xent),
    "two views, sum by 2 b": wrong(
        lambda e: total(nn.cross_entropy(*nt_xent(e), reduction="sum") / (2 * len(e.own(X)))), s_nt_xent),
    "cosine of two views, mean": wrong(lambda e: total(byol(e).mean()), s_byol),
    "cosine of two views, by own": wrong(lambda e: total((1 / len(e.own(X))) * byol(e).sum()), s_byol),
    "cosine of two views, by all": right(lambda e: total(byol(e).sum()) / 60, s_byol),
    "cosine of two views, averaged": right(lambda e: mean(byol(e).mean()), s_byol),
    # generative
    "VAE, means": wrong(lambda e: total(own_vae(e)[0].mean() + 0.3 * own_vae(e)[1].mean()), s_vae),
    "VAE, reconstruction as a mean, divergence by all": wrong(
        lambda e: total(own_vae(e)[0].mean() + 0.3 * own_vae(e)[1].sum() / 60), s_vae),
    "VAE, divergence as a mean, reconstruction by all": wrong(
        lambda e: total(own_vae(e)[0].sum() / 60 + 0.3 * own_vae(e)[1].mean()), s_vae,
        reading=Reading("0.5 is one over the number of ranks: the mean over them", s_vae_of_squares, (2,))),
    "VAE, by all": right(lambda e: total((own_vae(e)[0] + 0.3 * own_vae(e)[1]).sum() / 60), s_vae),
    "VAE, averaged": right(lambda e: mean(own_vae(e)[0].mean()) + 0.3 * mean(own_vae(e)[1].mean()), s_vae),
    "VAE, by all elements": right(lambda e: total((own_vae(e)[0] + own_vae(e)[1]).sum() / 240), s_vae_elements),
    "VAE, by own elements": wrong(
        lambda e: total((own_vae(e)[0].sum() + own_vae(e)[1].sum()) / e.own(X).size), s_vae_elements,
        reading=Reading("half, or all, of the sum by the rows of all", each_counts(s_vae_elements), (2, 4))),
    "VAE, averaged sums by all elements": wrong(
        lambda e: mean((own_vae(e)[0].sum() + own_vae(e)[1].sum()) / 240), s_vae_elements),
    "free bits over all rows": right(lambda e: free_bits(e, lambda d: total(d.sum(axis=0) / 60)), s_free_bits),
    "free bits, averaged": right(lambda e: free_bits(e, lambda d: mean(d.mean(axis=0))), s_free_bits),
    "free bits, means summed": wrong(
        lambda e: free_bits(e, lambda d: total(d.mean(axis=0))), s_free_bits,
        reading=Reading("the mean over two ranks", s_free_bits_of_squares, (2,))),
    "discriminator, means": wrong(
        lambda e: total(gan(e)[0].mean() + gan(e)[1].mean() + 2.3 * gan(e)[2].mean()), s_gan),
    "discriminator, penalty as a mean": wrong(
        lambda e: total((gan(e)[0] + gan(e)[1]).sum() / 60) + total(2.3 * gan(e)[2].mean()), s_gan),
    "discriminator, penalty averaged, by all": wrong(
        lambda e: total((gan(e)[0] + gan(e)[1]).sum() / 60) + mean(2.3 * gan(e)[2].sum() / 60), s_gan,
        reading=Reading(OWN_ELEMENTS, s_gan_means, (4,))),
    "discriminator, by all": right(
        lambda e: total((gan(e)[0] + gan(e)[1]).sum() / 60) + 2.3 * total(gan(e)[2].sum()) / 60, s_gan),
    "discriminator, averaged": right(
        lambda e: mean(gan(e)[0].mean() + gan(e)[1].mean() + 2.3 * gan(e)[2].mean()), s_gan),
    "noise levels, mean": wrong(lambda e: total(denoise(e, e.own(SIGMA)).mean()), s_denoise),
    "noise levels, by all": right(lambda e: total(denoise(e, e.own(SIGMA)).sum() / 60), s_denoise),
    # tasks
    "distillation, batchmean": wrong(lambda e: total(own_student(e).sum() / len(e.own(X))), s_student),
    "distillation, mean of rows": wrong(lambda e: total(own_student(e).mean()), s_student),
    "distillation, by all": right(lambda e: total(own_student(e).sum() / 60), s_student),
    "distillation, soft as batchmean, hard by all": wrong(
        lambda e: total(0.7 * own_student(e).mean() + 0.3 * hard(e, reduction="sum") / 60), s_soft_and_hard),
    "distillation, soft by all, hard as a mean": wrong(
        lambda e: total(0.7 * own_student(e).sum() / 60) + 0.3 * total(hard(e)), s_soft_and_hard),
    "distillation, both by all": right(
        lambda e: total(0.7 * own_student(e).sum() + 0.3 * hard(e, reduction="sum")) / 60, s_soft_and_hard),
    "distillation, both averaged": right(lambda e: mean(0.7 * own_student(e).mean() + 0.3 * hard(e)), s_soft_and_hard),
    "two tasks, one averaged": wrong(lambda e: total(hard(e)) + 0.4 * mean((err(e) ** 2).mean()), s_two),
    "two tasks, both summed means": wrong(lambda e: total(hard(e) + 0.4 * (err(e) ** 2).mean()), s_two),
    "two tasks, by all and a mean": wrong(
        lambda e: total(hard(e, reduction="sum") / 60 + 0.4 * (err(e) ** 2).mean()), s_two),
    "two tasks, by all": right(
        lambda e: total(hard(e, reduction="sum") / 60) + 0.4 * total((err(e) ** 2).sum() / 60), s_two),
    "two tasks, one averaged, one by all": right(
        lambda e: mean(hard(e)) + 0.4 * total((err(e) ** 2).sum() / 60), s_two),
    "three tasks in a list, sum of means": wrong(
        lambda e: sum(total(t) for t in (hard(e), 0.4 * (err(e) ** 2).mean(), 0.2 * np.absolute(err(e)).mean())),
        s_three),
    "three tasks in a list, averaged": right(
        lambda e: sum(mean(t) for t in (hard(e), 0.4 * (err(e) ** 2).mean(), 0.2 * np.absolute(err(e)).mean())),
        s_three),
    "three tasks in an array, sum of means": wrong(
        lambda e: total(np.stack([hard(e), 0.4 * (err(e) ** 2).mean(), 0.2 * np.absolute(err(e)).mean()])).sum(),
        s_three),
    "three tasks in an array, averaged": right(
        lambda e: mean(np.stack([hard(e), 0.4 * (err(e) ** 2).mean(), 0.2 * np.absolute(err(e)).mean()])).sum(),
        s_three),
    "three tasks in an array by weights": right(
        lambda e: mean(np.stack([hard(e), (err(e) ** 2).mean(), np.absolute(err(e)).mean()]))
        @ ag.constant(numpy.array([1.0, 0.4, 0.2])), s_three),
    "a confidence penalty as a mean": wrong(
        lambda e: total(hard(e, reduction="sum") / 60 + 0.17 * calibrated(e).mean()), s_calibrated),
    "a confidence penalty outside as a mean": wrong(
        lambda e: total(hard(e, reduction="sum")) / 60 + 0.17 * total(calibrated(e).mean()), s_calibrated),
    "a confidence penalty by all": right(
        lambda e: total(hard(e, reduction="sum") / 60 + 0.17 * calibrated(e).sum() / 60), s_calibrated),
}  # fmt: skip
