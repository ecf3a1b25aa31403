"""autograd.random: parts are slices of the whole, bitwise; the numbers are what they claim to be; errors are typed."""

from __future__ import annotations

import doctest
import itertools
import math
import threading
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograd.random as random
from autograd.errors import DtypeError, OptionError, RingtapeError, ShapeError
from autograd.random import Key, continuous, discrete, keys, philox
from autograd.random.discrete import multiply_high
from autograd.random.normal_quantile import standard_normal

from ...tables import each

Draw = Callable[..., np.ndarray[Any, Any]]

DRAWS: dict[str, Draw] = {
    "uniform": lambda key, shape, part=None: random.uniform(key, shape, low=-2.5, high=0.7, part=part),
    "uniform32": lambda key, shape, part=None: random.uniform(key, shape, dtype=np.float32, part=part),
    "normal": lambda key, shape, part=None: random.normal(key, shape, mean=0.3, std=1.7, part=part),
    "normal32": lambda key, shape, part=None: random.normal(key, shape, dtype=np.float32, part=part),
    "integers": lambda key, shape, part=None: random.integers(key, shape, -5, 1000, part=part),
    "wide integers": lambda key, shape, part=None: random.integers(key, shape, -(2**63), 2**63, part=part),
    "bernoulli": lambda key, shape, part=None: random.bernoulli(key, shape, 0.3, part=part),
}


def bits(x: np.ndarray[Any, Any]) -> bytes:
    return x.tobytes()


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    # Extents on both sides of the lengths at which rows are cut, jumped between, and made in blocks.
    extent = st.one_of(st.integers(0, 9), st.sampled_from([31, 511, 513, 700]))
    shape = tuple(draw(st.lists(extent, max_size=4).filter(lambda s: math.prod(s) <= 200_000)))
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    return shape, tuple(slice(a, b) for a, b in ends)


# -- parts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DRAWS)
@settings(max_examples=40, deadline=None)
@given(box=boxes(), seed=st.integers(-(2**70), 2**70), step=st.integers(0, 2**40))
def test_a_part_is_the_slice_of_the_whole(
    name: str, box: tuple[tuple[int, ...], tuple[slice, ...]], seed: int, step: int
) -> None:
    shape, part = box
    key = Key(seed, "w", step)
    whole, mine = DRAWS[name](key, shape), DRAWS[name](key, shape, part=part)
    assert whole.shape == shape
    assert mine.flags.c_contiguous and mine.dtype == whole.dtype and mine.shape == whole[part].shape
    assert bits(mine) == bits(whole[part])


@each(itertools.product(DRAWS, [1, 2, 3, 5, 8], [0, 1, 2]), lambda case: case[0])
def test_the_number_of_ranks_does_not_change_the_numbers(case: tuple[str, int, int]) -> None:
    name, ranks, dim = case
    shape = (13, 70, 45)
    whole = DRAWS[name](Key(1, "w"), shape)
    ends = [shape[dim] * r // ranks for r in range(ranks + 1)]
    parts = []
    for a, b in zip(ends, ends[1:], strict=False):
        part = tuple(slice(a, b) if d == dim else slice(0, n) for d, n in enumerate(shape))
        parts.append(DRAWS[name](Key(1, "w"), shape, part=part))
    assert bits(np.concatenate(parts, dim)) == bits(whole)


def test_a_part_far_into_a_tensor_that_fits_nowhere() -> None:
    shape, key = (2**40, 2**16), Key(3)
    a = random.normal(key, shape, part=(slice(2**40 - 2, 2**40), slice(5, 9)))
    b = random.normal(key, shape, part=(slice(2**40 - 1, 2**40), slice(2, 7)))
    assert a.shape == (2, 4) and bits(a[1, :2].copy()) == bits(b[0, 3:].copy())


def test_an_element_is_made_from_its_place_alone() -> None:
    # The same flat place in another shape has the same number: the place is the index in C order.
    flat = random.uniform(Key(3), 60)
    assert bits(random.uniform(Key(3), (3, 4, 5))) == bits(flat)
    assert bits(random.uniform(Key(3), 7)) == bits(flat[:7])


def test_only_the_part_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    class Philox(np.random.Philox):
        def random_raw(self, size: int | None = None, output: bool = True) -> Any:
            nonlocal made
            made += size or 1
            return super().random_raw(size, output)

    monkeypatch.setattr(philox._thread, "philox", Philox(0))
    random.normal(Key(0), (1_000_000, 10), part=(slice(700_001, 700_004), slice(0, 10)))
    assert made <= 30 + 3
    made = 0
    random.normal(Key(0), (100, 10_000), part=(slice(0, 100), slice(5000, 5010)))
    assert made <= 100 * (10 + 3)


WORDS = [
    17554211143227109249, 7204087041433282814, 16833176964565089340, 12030117941314872626,
    15268335425885135320, 11775013351920116008,
]
UNIFORM = [0.951615692887804, 0.39053434105483176, 0.9125283517407209]
NORMAL = [-0.12158033822849745, 1.2293747897376615, -0.22104588753500687]


# -- the stream -----------------------------------------------------------------------------------------------------
def test_the_stream_is_frozen() -> None:
    """A change here changes every run that anyone has recorded."""
    key = Key(2026, "a/b", 7)
    stream = np.empty(6, np.uint64)
    philox.write_words(stream, key, (6,), (slice(0, 6),))
    assert stream.tolist() == WORDS
    assert random.uniform(key, 3).tolist() == UNIFORM
    assert random.normal(key, 3).tolist() == NORMAL
    assert random.integers(key, 6, 0, 10).tolist() == [w * 10 >> 64 for w in WORDS]
    assert random.permutation(key, 6).tolist() == sorted(range(6), key=WORDS.__getitem__)


def test_different_keys_give_different_numbers() -> None:
    keys = [
        Key(0), Key(1), Key(-1), Key(2**64), Key(2**128), Key(0, "a"), Key(0, "b"), Key(0, "ab"), Key(0, "0"),
        Key(0, "", 1), Key(0, "", -1), Key(0, "a", 1), Key(1, "a", 0), Key(0, "1"), Key(0, "a/b"), Key(0, "a\0b"),
        Key(1, "0\0"), Key(10), Key(0, "", 2**64), Key(0, "\ud800"),
    ]
    draws = [random.uniform(key, 64) for key in keys]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert not np.isin(a, b).any()
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.6


def test_the_same_key_gives_the_same_numbers_in_any_order() -> None:
    first = random.normal(Key(4, "x"), 100)
    random.uniform(Key(5), 3)
    random.integers(Key(4, "x"), 1, 0, 3)
    assert bits(random.normal(Key(4, "x"), 100)) == bits(first)
    assert bits(random.normal(Key(np.int64(4), "x", np.int32(0)), 100)) == bits(first)


def test_keys_are_values() -> None:
    key = Key(1, "a", 2)
    assert key == Key(1, "a", 2) and hash(key) == hash(Key(1, "a", 2)) and key != Key(1, "a", 3)
    assert key.fold("b") == Key(1, "a/b", 2)
    assert Key(1).fold("b") == Key(1, "b")
    assert key.fold("b").at(9) == key.at(9).fold("b") == Key(1, "a/b", 9)
    with pytest.raises(AttributeError):
        key.seed = 3
    assert not hasattr(key, "__dict__")


# -- distributions --------------------------------------------------------------------------------------------------
N = 400_000


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_uniform_is_uniform(dtype: Any) -> None:
    x = random.uniform(Key(11, "u"), N, low=-1.0, high=3.0, dtype=dtype)
    assert x.dtype == dtype and x.min() >= -1 and x.max() < 3
    x = x.astype(np.float64)
    assert abs(x.mean() - 1) < 5 * math.sqrt(16 / 12 / N) + (2e-3 if dtype is np.float16 else 0)
    assert abs(x.var() / (16 / 12) - 1) < 0.01
    counts = np.histogram(x, 40, (-1, 3))[0]
    if dtype is not np.float16:  # whose steps are as wide as the bins are narrow
        assert ((counts - N / 40) ** 2 / (N / 40)).sum() < 39 + 5 * math.sqrt(78)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_normal_is_normal(dtype: Any) -> None:
    x = random.normal(Key(12, "n"), N, dtype=dtype)
    assert x.dtype == dtype
    x = x.astype(np.float64)
    assert abs(x.mean()) < 5 / math.sqrt(N)
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / N)
    assert abs((x**3).mean()) < 5 * math.sqrt(15 / N)
    assert abs((x**4).mean() - 3) < 5 * math.sqrt(96 / N)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / math.sqrt(N)
    assert 4.3 < np.abs(x).max() < 6.5
    y = random.normal(Key(12, "n"), N, mean=5.0, std=0.5)
    assert abs(y.mean() - 5) < 2.5 / math.sqrt(N) and abs(y.std() - 0.5) < 0.005


def test_normal_is_the_inverse_of_the_distribution_function() -> None:
    exact = NormalDist()
    # Everything from the middle to the last cell of both tails: p down to 2^-54.
    p = np.concatenate([np.linspace(0.01, 0.5, 300), 2.0 ** -np.linspace(1, 52.9, 300)])
    s = np.floor((0.5 - p) * 2.0**53).astype(np.int64)
    x = standard_normal((s << 11).view(np.uint64))
    y = standard_normal(((-s - 1) << 11).view(np.uint64))
    assert (x == -y).all()
    for value, cell in zip(x.tolist(), s.tolist(), strict=True):
        tail = (2.0**52 - (cell + 0.5)) * 2.0**-53
        # statistics.NormalDist has the same approximation; erfc is an independent check of both.
        assert math.isclose(value, -exact.inv_cdf(tail), rel_tol=2e-15, abs_tol=1e-15)
        assert math.isclose(math.erfc(value / math.sqrt(2)) / 2, tail, rel_tol=1e-13)
    last = standard_normal(np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64))
    assert last[0] == -last[3] > 0 and last[1] == -last[2] and 8.2 < last[1] < 8.3


def test_float32_is_float64_rounded() -> None:
    for key in (Key(i) for i in range(20)):
        assert bits(random.normal(key, 999, dtype="f4")) == bits(random.normal(key, 999).astype("f4"))
        x, y = random.uniform(key, 999, dtype="f4"), random.uniform(key, 999).astype("f4")
        assert bits(x) == bits(np.minimum(y, np.float32(1 - 2**-24)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_upper_bound_is_never_returned(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def greatest(out: np.ndarray[Any, Any], *_: Any) -> None:
        out[...] = 2**64 - 1

    monkeypatch.setattr(philox, "write_words", greatest)
    next_ = np.nextafter(dtype(1), dtype(2))
    for low, high in [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.001), (-512.0, -511.5), (1.0, next_)]:
        x = random.uniform(Key(0), 1, low=low, high=high, dtype=dtype)[0]
        assert dtype(low) <= x < dtype(high)
    assert random.uniform(Key(0), 1, low=2.0, high=2.0, dtype=dtype)[0] == 2


@given(n=st.integers(1, 2**64), words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_multiply_high_is_exact(n: int, words: list[int]) -> None:
    assert multiply_high(np.array(words, np.uint64), n).tolist() == [w * n >> 64 for w in words]


def test_integers_are_uniform_and_in_range() -> None:
    x = random.integers(Key(13), N, -3, 4)
    assert x.dtype == np.int64
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert ((counts - N / 7) ** 2 / (N / 7)).sum() < 6 + 5 * math.sqrt(12)
    assert (random.integers(Key(13), 100, 5, 6) == 5).all()
    wide = random.integers(Key(13), 10_000, -(2**63), 2**63)
    assert wide.min() < -9e18 and wide.max() > 9e18
    top = random.integers(Key(13), 1000, 2**63 - 2, 2**63)
    assert set(top.tolist()) == {2**63 - 2, 2**63 - 1}


@pytest.mark.parametrize("p", [0.0, 2.0**-40, 0.1, 0.5, 1 - 2.0**-53, 1.0])
def test_bernoulli_is_uniform_below_p(p: float) -> None:
    x = random.bernoulli(Key(14), N, p)
    assert x.dtype == bool
    assert (x == (random.uniform(Key(14), N) < p)).all()
    assert abs(x.mean() - p) <= 5 * math.sqrt(p * (1 - p) / N)


@pytest.mark.parametrize("p", [2.0**-60, 0.1, 0.3, 0.5, 1 - 2.0**-53])
def test_bernoulli_decides_the_nearest_words_as_uniform_does(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    near = [min(max((int(p * 2.0**53) << 11) + d, 0), 2**64 - 1) for d in (-2049, -2048, -1, 0, 1, 2047, 2048, 4096)]

    def near_words(out: np.ndarray[Any, Any], *_: Any) -> None:
        out[...] = np.array(near, np.uint64)

    monkeypatch.setattr(philox, "write_words", near_words)
    expected = [w // 2**11 * 2.0**-53 < p for w in near]
    assert random.bernoulli(Key(0), 8, p).tolist() == (random.uniform(Key(0), 8) < p).tolist() == expected


def test_permutation_is_a_permutation_and_unbiased() -> None:
    for n in (0, 1, 2, 1000):
        x = random.permutation(Key(15), n)
        assert x.dtype == np.int64 and sorted(x.tolist()) == list(range(n))
    counts = np.zeros((4, 4))
    for step in range(4000):
        counts[np.arange(4), random.permutation(Key(15).at(step), 4)] += 1
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_no_dimension() -> None:
    x = random.normal(Key(1), ())
    assert isinstance(x, np.ndarray) and x.shape == () and x == random.normal(Key(1), 1)[0]
    assert bits(random.normal(Key(1), (), part=())) == bits(x)


# -- errors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(
    "shape, part",
    [
        (-1, None),
        ((2, -3), None),
        (2.5, None),
        ("ab", None),
        ((2, None), None),
        ((4, 4), (slice(0, 2),)),
        ((4, 4), slice(0, 2)),
        ((4, 4), [slice(0, 2), slice(0, 2)]),
        ((4, 4), (slice(0, 2), 1)),
        ((4, 4), (slice(0, 5), slice(0, 4))),
        ((4, 4), (slice(-2, 4), slice(0, 4))),
        ((4, 4), (slice(3, 2), slice(0, 4))),
        ((4, 4), (slice(0, 4, 2), slice(0, 4))),
        ((4, 4), (slice(None, 4), slice(0, 4))),
        ((4, 4), (slice(0, None), slice(0, 4))),
        ((4, 4), (slice(0, 1.5), slice(0, 4))),
    ],
)
def test_shapes_and_parts_that_do_not_fit(name: str, shape: Any, part: Any) -> None:
    with pytest.raises(ShapeError):
        DRAWS[name](Key(0), shape, part=part)


@pytest.mark.parametrize("n", [-1, 2.0, (2, 3)])
def test_permutation_of_no_length(n: Any) -> None:
    with pytest.raises(ShapeError):
        random.permutation(Key(0), n)


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
@pytest.mark.parametrize("dtype", [np.int64, bool, complex, object, np.longdouble, "no dtype", "datetime64[s]"])
def test_dtypes_without_numbers(draw: Draw, dtype: Any) -> None:
    with pytest.raises(DtypeError):
        draw(Key(0), 3, dtype=dtype)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Key(1.0),
        lambda: Key("1"),
        lambda: Key(0, 1),
        lambda: Key(0, "a", 0.5),
        lambda: Key(0).at(0.5),
        lambda: random.seed(0.5),
        lambda: random.integers(Key(0), 3, 0.0, 3),
    ],
)
def test_what_must_be_an_integer_or_a_name(call: Callable[[], object]) -> None:
    with pytest.raises(DtypeError):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: random.uniform(Key(0), 3, low=1.0, high=0.0),
        lambda: random.uniform(Key(0), 3, high=math.inf),
        lambda: random.uniform(Key(0), 3, low=math.nan),
        lambda: random.uniform(Key(0), 3, high=1e6, dtype=np.float16),
        lambda: random.uniform(Key(0), 3, low=-1.7e308, high=1.7e308),
        lambda: random.normal(Key(0), 3, std=-1.0),
        lambda: random.normal(Key(0), 3, mean=math.nan),
        lambda: random.integers(Key(0), 3, 3, 3),
        lambda: random.integers(Key(0), 3, 0, 2**63 + 1),
        lambda: random.bernoulli(Key(0), 3, 1.5),
        lambda: random.bernoulli(Key(0), 3, -0.1),
        lambda: random.bernoulli(Key(0), 3, math.nan),
    ],
)
def test_parameters_out_of_range(call: Callable[[], object]) -> None:
    with pytest.raises(RingtapeError, match="finite|needed"):
        call()


# -- the thread's keys ----------------------------------------------------------------------------------------------
def test_ordinals_count_per_name() -> None:
    random.seed(9)
    names = [random.next_key(name) for name in ("w", "b", "w", "w", "b")]
    assert names == [Key(9, "w.0"), Key(9, "b.0"), Key(9, "w.1"), Key(9, "w.2"), Key(9, "b.1")]
    random.seed(10)
    assert random.next_key("w") == Key(10, "w.0")


def test_state_replays() -> None:
    random.seed(9)
    random.next_key("w")
    state = random.get_state()
    keys = [random.next_key("w"), random.next_key("m")]
    random.seed(1)
    random.set_state(state)
    assert [random.next_key("w"), random.next_key("m")] == keys
    random.set_state(state)  # it was not changed by what came after
    assert random.next_key("w") == keys[0]


def test_threads_are_independent() -> None:
    random.seed(100)
    random.next_key("w")
    results: dict[int, list[Any]] = {}
    barrier = threading.Barrier(4)

    def rank(n: int) -> None:
        with pytest.raises(OptionError, match="has set no seed"):
            random.next_key("w")
        random.seed(5)
        out = []
        for _ in range(50):
            barrier.wait()  # so that draws of different threads interleave
            key = random.next_key("w")
            out.append((key, bits(random.normal(key, (40, 30), part=(slice(10 * n, 10 * n + 10), slice(0, 30))))))
        results[n] = out

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(results) == 4
    for n, out in results.items():
        for i, (key, data) in enumerate(out):
            assert key == Key(5, f"w.{i}")
            assert data == bits(random.normal(key, (40, 30))[10 * n : 10 * n + 10])
    assert random.next_key("w") == Key(100, "w.1")


def test_the_examples_run() -> None:
    results = [doctest.testmod(module) for module in (keys, continuous, discrete)]
    assert sum(r.attempted for r in results) > 20 and not any(r.failed for r in results)
