"""`check_grads` and `check_adjoint` of distributed functions: right ones pass, wrong ones fail, on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.testing import GradientMismatch, check_adjoint, check_grads
from collectives import I, P, R, Rooted, V

X = numpy.random.default_rng(0).standard_normal((4, 6, 3))
CHECKS: list[Callable[..., None]] = [check_adjoint, check_grads]


def outcomes(rank_main: Callable[[], Any], ranks: int) -> list[str]:
    """The errors of all ranks; "" for a rank without one."""

    def guarded() -> str:
        try:
            rank_main()
        except GradientMismatch as error:
            return str(error)
        return ""

    return cc.run(guarded, ranks)


# -- a collective of the user's, with a right adjoint and with wrong ones ----------------------------------------------
def shift(by: int, back: int, own_rank_only: bool = False) -> Callable[[Any], Any]:
    """A shift along `dp` whose adjoint shifts by `back`; `own_rank_only` plants the fault on rank 2 alone."""

    def moved(x: Any, call: Any, k: int) -> Any:
        n = call.group.size
        every = call.group.all_gather(x.ravel(), [x.size] * n).reshape((n, *x.shape))
        return every[(call.group.index - (0 if own_rank_only and k < 0 and call.group.index == 2 else k)) % n]

    there = cc.Collective(f"shift {by} {back} {own_rank_only}", takes=(V,), gives=V, registered=False)
    again = cc.Collective(f"adjoint {by} {back} {own_rank_only}", takes=(V,), gives=V, registered=False)
    there.forward(lambda x, call: moved(x, call, by))
    again.forward(lambda x, call: moved(x, call, back))
    there.adjoint(lambda ct, call: again(ct, call))
    again.adjoint(lambda ct, call: there(ct, call))
    return lambda x: np.sin(cc.apply(there, x, "dp")) * 2.0


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_shift_of_varying_values(check: Callable[..., None], ranks: int) -> None:
    def rank_main(f: Callable[[Any], Any]) -> None:
        with cc.Mesh(dp=-1) as mesh:
            x = X[int(mesh.axis("dp").rank), 0, :2]
            check(f, x)  # a plain array is Varying
            if check is check_adjoint:
                check(f, ag.Parameter(x, {"dp": V}))

    assert outcomes(lambda: rank_main(shift(1, -1)), ranks) == [""] * ranks
    if check is check_adjoint:
        ring = [(r, (r + 1) % ranks) for r in range(ranks)]
        assert outcomes(lambda: rank_main(lambda x: cc.permute(x, "dp", ring)), ranks) == [""] * ranks
    texts = outcomes(lambda: rank_main(shift(1, 0)), ranks)  # the identity as adjoint
    assert all(texts) if ranks > 1 else not any(texts)
    texts = outcomes(lambda: rank_main(shift(1, 1)), ranks)  # the shift as its own adjoint
    assert all(texts) if ranks > 2 else not any(texts)


@pytest.mark.parametrize("check", CHECKS)
def test_a_fault_on_one_rank_raises_on_all_of_them(check: Callable[..., None]) -> None:
    def rank_main() -> None:
        with cc.Mesh(dp=-1) as mesh:
            check(shift(1, -1, True), ag.Parameter(X[int(mesh.axis("dp").rank), 0, :1], {"dp": V}))

    assert all("argument 0 of shape (3, 1) {dp: V} (first index: the ranks along 'dp')" in t
               for t in outcomes(rank_main, 3))  # fmt: skip


# -- every label of an argument and of a result ------------------------------------------------------------------------
def argument(label: Any, mesh: Any, axis: str) -> Any:
    """A value of 3 x 1 elements with a label along one axis, and I along the others."""
    place = int(mesh.axis(axis).rank)
    others = dict.fromkeys(mesh.names, I)
    if label == "shard":
        return ag.Parameter(cc.shard(ag.tensor(X[0, :3, :1], {**others, axis: R}), axis))
    return ag.tensor(X[0 if label in (R, I) else place, :3, :1], {**others, axis: label})


def to_replicated(x: Any, label: Any, axis: str) -> Any:
    if label == "shard":
        return cc.all_gather(x, axis, dim=0)
    if label is V:
        return cc.all_reduce(np.sin(x), axis, to=R)
    if isinstance(label, Rooted):
        return cc.broadcast(x, axis, label.root, to=R)
    return {P: lambda: cc.all_reduce(x, axis, to=R), I: lambda: cc.cast(x, axis, to=R), R: lambda: x}[label]()


def from_varying(y: Any, label: Any, axis: str) -> Any:
    """A result with a label, made of a Varying value."""
    if label == "shard":
        return cc.shard(cc.all_reduce(y, axis, to=R), axis)
    if label is P:
        return cc.cast(y, axis, to=P)
    if label is V:
        return y
    return cc.reduce(y, axis, label.root) if isinstance(label, Rooted) else cc.all_reduce(y, axis, to=label)


LABELS = [R, P, I, V, "shard", Rooted(1)]


def passes(check: Callable[..., None], shifted: Callable[[Any], Any], given: Any, gives: Any, mesh: Any) -> bool:
    """Whether the check of a function with these labels passes; `shifted` is a part of the function."""

    def f(x: Any) -> Any:
        y = cc.cast(to_replicated(x, given, "dp"), "dp", to=V)
        place = int(mesh.axis("dp").rank)
        weights = ag.tensor(X[place, :3, :1], {**dict.fromkeys(mesh.names, I), "dp": V})
        return from_varying(shifted(y * weights), gives, "dp")

    try:
        check(f, argument(given, mesh, "dp"), **({"order": 1} if check is check_grads else {}))
    except GradientMismatch:
        return False
    return True


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("given", LABELS, ids=str)
def test_every_label_of_an_argument_and_of_a_result(given: Any, check: Callable[..., None]) -> None:
    right, wrong = shift(1, -1), shift(1, 1)

    def rank_main(sizes: dict[str, int], labels: list[Any]) -> list[tuple[bool, bool]]:
        with cc.Mesh(**sizes) as mesh:
            return [(passes(check, right, given, gives, mesh),
                     check is check_grads and gives is not V or passes(check, wrong, given, gives, mesh))
                    for gives in labels]  # fmt: skip
    # `check_grads` takes long: it is called for the argument's own label of the result and V, and it fails for V only
    labels = LABELS if check is check_adjoint else list(dict.fromkeys((V, given)))
    expected = [(True, check is check_grads and gives is not V) for gives in labels]
    assert cc.run(lambda: rank_main({"dp": 3}, labels), 3) == [expected] * 3
    if check is check_adjoint and given in (P, "shard"):  # the ranks of the axis are not those of the world
        some = [label for label in LABELS if label is given or label in (R, V)]
        assert cc.run(lambda: rank_main({"dp": 3, "tp": 2}, some), 6) == [[(True, False)] * len(some)] * 6


def test_second_order_with_sharded_parameters() -> None:
    """A normalization over a sharded dimension, and the mistake to detach its mean."""

    def rank_main() -> None:
        with cc.Mesh(tp=-1):
            whole = [ag.tensor(a, {"tp": R}) for a in (X[0, :2], X[1, 0])]
            x, s = (ag.Parameter(cc.shard(a, "tp", dim=a.ndim - 1)) for a in whole)

            def loss(x: Any, s: Any, detach: bool) -> Any:
                mean = cc.all_reduce(x.sum(1, keepdims=True), "tp", to=R) / x.global_shape[1]
                d = x - (ag.stop_gradient(mean) if detach else mean)
                v = cc.all_reduce((d**2).sum(1, keepdims=True), "tp", to=R) / x.global_shape[1]
                return cc.all_reduce(np.tanh(d / np.sqrt(v + 0.1) * s).sum(), "tp", to=I)

            check_grads(lambda x, s: loss(x, s, False), x, s)
            check_adjoint(lambda x, s: loss(x, s, False), x, s)
            check_grads(lambda x, s: loss(x, s, True), x, s)

    texts = outcomes(rank_main, 2)  # 2 ranks: uneven parts of 3 columns
    assert all("reverse mode, order 1, argument 0" in text and "flattened, in order of: the ranks" in text
               for text in texts)  # fmt: skip


def test_copies_of_an_invariant_gradient_are_compared() -> None:
    same = cc.Collective("same", takes=(I,), gives=I, registered=False)
    same.forward(lambda x, call: x.copy())
    doubled = cc.Collective("doubled on rank 1", takes=(I,), gives=I, registered=False)
    doubled.forward(lambda x, call: x * (2.0 if call.group.index == 1 else 1.0))
    same.adjoint(lambda ct, call: doubled(ct, call))
    doubled.adjoint(lambda ct, call: same(ct, call))

    def rank_main(check: Callable[..., None]) -> None:
        with cc.Mesh(dp=-1):
            check(lambda w: cc.apply(same, np.sin(w), "dp"), ag.Parameter([0.5, 1.0]))

    for check in CHECKS:
        for text in outcomes(lambda: rank_main(check), 2):  # noqa: B023 - called here
            assert "the gradient of argument 0 differs between ranks 0 and 1" in text


def test_the_declaration_of_an_operation_is_tested_on_all_ranks() -> None:
    from autograd.extend import broadcast, op, registry
    from autograd.testing import DeclarationMismatch

    odd = op("odd (test)", "a", lambda x: x if x.size < 4 else x + 1.0, lambda ct, y, x: ct, dims=broadcast)
    del registry[odd.name]  # other tests look at all operations

    def rank_main() -> None:
        with cc.Mesh(dp=-1) as mesh:
            x = ag.tensor(numpy.arange(2.0 + 4 * int(mesh.axis("dp").rank)), {"dp": V})
            check_adjoint(odd, x)

    for text in cc.run(lambda: str(pytest.raises(DeclarationMismatch, rank_main).value), 2):
        assert "on rank 1" in text


def test_plain_arrays_are_named_in_an_error_of_labels() -> None:
    def rank_main(check: Callable[..., None]) -> str:
        with cc.Mesh(dp=-1), pytest.raises(ag.LayoutError) as caught:
            check(lambda w: cc.all_reduce(np.sin(cc.cast(w, "dp", to=R)), "dp", to=I), X[0, 0])
        return str(caught.value)

    for check in CHECKS:
        text = cc.run(lambda: rank_main(check), 2)[0]  # noqa: B023 - called here
        assert "argument 0: a plain array, which is Varying" in text
        assert f"fix: {check.__name__}(f, ag.Parameter(w), ...)" in text


def test_a_dry_run_has_nothing_to_check() -> None:
    for check in CHECKS:
        with cc.dry(4), cc.Mesh(dp=-1), pytest.raises(ag.AbsentError, match="outside of the dry run"):
            check(np.sin, ag.Parameter([1.0]))


def test_checks_of_one_rank_are_refused_under_a_mesh() -> None:
    from autograd import test_util
    from autograd.testing import numeric_gradient

    def rank_main() -> None:
        with cc.Mesh(dp=-1):
            x = X[0, 0]
            for check in (lambda: test_util.check_vjp(np.sin, x), lambda: test_util.check_jvp(np.sin, x),
                          lambda: test_util.check_grads(np.sin)(x)):  # fmt: skip
                with pytest.raises(ag.MeshError, match="fix: autograd.testing.check_grads"):
                    check()
            with pytest.raises(ag.MeshError, match=r"fix: check_grads\(f"):
                numeric_gradient(np.sin, [x], 0, numpy.ones(3), 1e-6)
            check_grads(np.sin, x)

    cc.run(rank_main, 2)


def test_the_point_is_the_one_that_is_given() -> None:
    """The function gets the values that the arguments have on each rank."""

    def rank_main() -> None:
        with cc.Mesh(dp=3, tp=2) as mesh:
            place = int(mesh.axis("dp").rank)
            for given in LABELS:
                x, seen = argument(given, mesh, "dp"), []
                check_adjoint(lambda x: seen.append(x) or to_replicated(x, given, "dp"), x)  # noqa: B023 - called here
                for y in seen:
                    assert y.layout is x.layout or dict(y.layout) == dict(x.layout)
                    assert y.absent or numpy.array_equal(y.array, x.array)
            with pytest.raises(ag.ReplicaMismatch, match="differ"):
                check_adjoint(np.sin, ag.tensor(numpy.arange(2.0) + place, {"dp": R, "tp": R}))

    cc.run(rank_main, 6)


def test_the_message_says_how_many_elements_were_examined() -> None:
    tripled = ag.op("tripled (examined)", "N", lambda x: x**3, (lambda ct, y, x: ct * 2 * x**2,), saves="0")
    del ag.registry["tripled (examined)"]
    with cc.Mesh(dp=1), pytest.raises(GradientMismatch) as error:
        check_grads(tripled, ag.Parameter([0.5, 1.0, 2.0]), order=1)
    assert "the 2 worst of 3 elements were examined, and 2 of them differ\n" in str(error.value)
