"""The GPT of the examples under tensor and sequence parallelism, against one process without a mesh, in float64.

Loss, every gradient and three steps of AdamW with clipping, with dropout and tied weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, random
from collectives import I, LayoutError, R, Shard
from examples.gpt import Loss
from parallel import DataParallel, verify
from parallel.tensor import RowLinear, SequenceModule, regions

from ...collectives.launch import launch_command
from . import models
from .models import X, Y, assert_equal, divided_loss, divided_model, program_of, serial, with_checkpoints

slow = pytest.mark.slow
FORMS = pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])


@FORMS
@pytest.mark.parametrize("ranks", [1, 4, *(pytest.param(ranks, marks=slow) for ranks in (2, 3, 5, 6))])
def test_equals_one_process(ranks: int, sequence: bool) -> None:
    """6 heads, 7 tokens and 13 classes: on 4 and 5 ranks all of them are divided unevenly."""
    for ours in cc.run(program_of(sequence, {"tp": ranks}), ranks):
        assert_equal(ours)


@FORMS
@pytest.mark.parametrize(("zero", "prepare"), [
    pytest.param(0, None, id="plain"), pytest.param(3, None, id="zero 3"),
    pytest.param(0, with_checkpoints, id="checkpoints"), pytest.param(1, None, id="zero 1", marks=slow),
    pytest.param(2, None, id="zero 2", marks=slow),
    pytest.param(3, with_checkpoints, id="zero 3, checkpoints", marks=slow),
])  # fmt: skip
@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2}, pytest.param({"tp": 3, "dp": 2}, marks=slow)], ids=str)
def test_with_data_parallelism(sizes: dict[str, int], zero: int, prepare: Any, sequence: bool) -> None:
    ranks = sizes["dp"] * sizes["tp"]
    for ours in cc.run(program_of(sequence, sizes, prepare, zero=zero), ranks):
        assert_equal(ours)


@pytest.mark.parametrize("zero", [0, pytest.param(2, marks=slow)])
def test_the_parameters_of_norms_enter_along_both_axes_at_once(zero: int) -> None:
    """With the stream in parts of the sequence, the batch is divided over "tp" too for all that is not."""
    for ours in cc.run(program_of(True, {"dp": 2, "tp": 2}, entry=("dp", "tp"), zero=zero), 4):
        assert_equal(ours)


@slow  # the trainer's test over MPI has divided layers by default
@pytest.mark.parametrize("ranks", [2, 3])
def test_over_mpi(ranks: int) -> None:
    found = launch_command(["-m", __name__], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    assert found.out.count("equal") == ranks


def main() -> None:
    assert_equal(program_of(False, {"tp": -1})())
    assert_equal(program_of(True, {"tp": -1}, prepare=with_checkpoints)())
    print("equal")


@FORMS
def test_verify_takes_a_divided_model(sequence: bool) -> None:
    def program() -> bool:
        with cc.Mesh(tp=3):
            random.seed(7)
            model, loss_of = divided_model(sequence).eval(), divided_loss()
            x, y = cc.from_local(X, {"tp": I}), cc.from_local(Y, {"tp": I})
            return bool(verify(model, lambda model, x, y: loss_of(model(x), y) / x.size, x, y).passed)

    assert cc.run(program, 3) == [True] * 3


@FORMS
def test_evaluation_and_a_second_call(sequence: bool) -> None:
    """No dropout; the logits are those of one process, and a call without a tape records nothing."""
    expected = models.make_model().eval()(X).numpy()

    def program() -> Any:
        with cc.Mesh(tp=4) as mesh:
            model = divided_model(sequence).eval()
            x = cc.from_local(X, {"tp": I})
            found = [cc.all_gather(model(x), mesh.names[0], 2).numpy() for _ in range(2)]
            model.train()
            random.seed(7)
            return *found, cc.all_gather(model(x), "tp", 2).numpy()

    for first, second, dropped in cc.run(program, 4):
        np.testing.assert_allclose(first, expected, atol=1e-13)
        np.testing.assert_array_equal(first, second)
        assert np.abs(dropped - expected).max() > 0.01


def one_gradient(model: Any, loss_of: Any, part: Any, parts: int = 1) -> dict[str, Any]:
    """The gradients of the batch, in microbatches with tapes of their own."""
    sweep(model, loss_of, part, parts)
    return models.whole_gradients(model)


def sweep(model: Any, loss_of: Any, part: Any, parts: int) -> None:
    random.seed(3)
    for x, y in zip(np.array_split(X, parts), np.array_split(Y, parts), strict=True):
        with ag.Tape() as tape:
            loss = loss_of(model(part(x)), part(y)) / X.size
        tape.backward(loss)


def assert_gradients(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, g in expected.items():
        np.testing.assert_allclose(found[name].reshape(g.shape), g, atol=1e-13, err_msg=name)


@FORMS
@pytest.mark.parametrize("zero", [2, *(pytest.param(zero, marks=slow) for zero in (0, 3))])
def test_microbatches(zero: int, sequence: bool) -> None:
    def program() -> Any:
        with cc.Mesh(dp=2, tp=2) as mesh:
            model = DataParallel(divided_model(sequence), "dp", zero=zero)
            labels = {"dp": Shard(0), "tp": I}
            own = lambda a: cc.from_local(np.array_split(a, 2)[int(mesh.axis("dp").rank)], labels)
            with model.accumulate():
                sweep(model, divided_loss(), own, 2)
            return models.whole_gradients(model)

    for found in cc.run(program, 4):
        assert_gradients(found, one_gradient(models.make_model(), Loss(), lambda a: a, 2))


@FORMS
def test_fewer_tokens_than_ranks(sequence: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sequence parallelism some ranks then have no token."""
    monkeypatch.setattr(f"{__name__}.X", X[:, :2])
    monkeypatch.setattr(f"{__name__}.Y", Y[:, :2])

    def program() -> Any:
        with cc.Mesh(tp=3):
            return one_gradient(divided_model(sequence), divided_loss(), lambda a: cc.from_local(a, {"tp": I}))

    for found in cc.run(program, 3):
        assert_gradients(found, one_gradient(models.make_model(), Loss(), lambda a: a))


# -- planted faults ----------------------------------------------------------------------------------------------------


def differs(program: Any, ranks: int) -> bool:
    """Whether the comparison with one process finds that a program is wrong."""
    for ours in cc.run(program, ranks):
        try:
            assert_equal(ours)
        except AssertionError:
            return True
    return False


def test_the_cast_at_the_beginning_of_a_region_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel.tensor.layers.enter", lambda x, axis, caller: x)
    with pytest.raises(LayoutError, match=r"axis 'tp': Invariant[\s\S]*cast"):
        cc.run(program_of(False, {"tp": 2}), 2)


def test_the_cast_of_a_norms_parameters_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequenceModule, "forward", lambda self, x: self.module(x))
    with pytest.raises(LayoutError, match=r"layer_norm[\s\S]*cast\("):
        cc.run(program_of(True, {"tp": 2}), 2)


def test_the_sum_at_the_end_of_a_region_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel.tensor.layers.leave", lambda y, axis, to: y)
    with pytest.raises(LayoutError, match="Partial"):
        cc.run(program_of(False, {"tp": 2}), 2)


@FORMS
def test_the_bias_is_added_on_every_rank(monkeypatch: pytest.MonkeyPatch, sequence: bool) -> None:
    """By its label that is an error. Declared as addends, it is counted once per rank, which the comparison finds."""

    def forward(self: RowLinear, x: Any, as_addends: bool = False) -> Any:
        bias: Any = self.bias
        if as_addends:
            bias = cc.declare_partial(cc.cast(cc.cast(bias, self.axis, to=R), self.axis, to=cc.V), self.axis)
        return regions.leave(x @ self.weight + bias, self.axis, self.output_label)

    monkeypatch.setattr(RowLinear, "forward", forward)
    with pytest.raises(LayoutError, match="Partial"):
        cc.run(program_of(sequence, {"tp": 3}), 3)

    def prepare(model: nn.Module) -> nn.Module:
        for p in model.parameters():  # biases are not zero
            if p.array.ndim == 1 and p.layout is not None and p.layout["tp"] is I:
                p.data = p.numpy() + 0.1
        return model

    monkeypatch.setattr(RowLinear, "forward", lambda self, x: forward(self, x, True))
    assert differs(program_of(sequence, {"tp": 3}), 3)


def test_the_sum_is_taken_over_the_axis_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel.tensor.layers.leave", lambda y, axis, to: cc.all_reduce(y, "dp", to=I))
    with pytest.raises(LayoutError, match="axis 'dp'"):
        cc.run(program_of(False, {"dp": 2, "tp": 2}), 4)


def test_heads_of_one_rank_are_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused projection that is divided without its blocks: the first rank has queries only."""
    from parallel.plan import Shards

    divide = Shards.divide

    def contiguous(self: Any, p: Any, axis: str, dim: int, blocks: int = 1, unit: int = 1) -> Any:
        made = divide(self, p, axis, dim, blocks, unit)
        if blocks > 1:
            parts = np.array_split(p.numpy(), self.mesh.axis(axis).size, dim)
            made.data = parts[int(self.mesh.axis(axis).rank)].reshape(made.array.shape)
        return made

    monkeypatch.setattr(Shards, "divide", contiguous)
    assert differs(program_of(False, {"tp": 3}), 3)


def test_a_mask_of_each_rank_in_the_place_of_a_part_of_the_mask() -> None:
    """The comparison finds a dropout whose masks are not parts of the serial one."""

    class OwnDropout(nn.Module):
        def forward(self, x: Any) -> Any:
            if not self.training:
                return x
            generator = np.random.default_rng(int(cc.current_mesh().axis("tp").rank))
            mask = (generator.random(x.array.shape) > 0.3) / 0.7
            return x * cc.cast(ag.tensor(mask), "tp", to=x.layout["tp"])

    def prepare(model: Any) -> Any:
        for block in model.layers[1:-1]:
            block.dropout1 = OwnDropout()
        return model

    assert differs(program_of(True, {"tp": 2}, prepare=prepare), 2)


@FORMS
def test_labels_of_the_stream(sequence: bool) -> None:
    """The stream is I, or Shard(1); within a region features are Shard of the last dimension."""
    seen: dict[str, Any] = {}

    def program() -> Any:
        with cc.Mesh(tp=2):
            model = divided_model(sequence)
            for name in ("norm1", "attend", "proj"):
                module = getattr(model[1], name)

                def forward(x: Any, name: str = name, run: Any = module.forward) -> Any:
                    y = run(x)
                    seen[name] = (x.layout["tp"], y.layout["tp"])
                    return y

                module.forward = forward
            logits = model(cc.from_local(X, {"tp": I}))
            return logits.layout["tp"]

    stream = Shard(1) if sequence else I
    assert cc.run(program, 2) == [Shard(2)] * 2
    assert seen == {"norm1": (stream, stream), "attend": (Shard(3), Shard(2)), "proj": (Shard(2), stream)}


def test_the_serial_model_is_used_without_a_mesh() -> None:
    """A plan changes nothing where no mesh is current, so that one program serves one process."""
    model = divided_model()
    with ag.Tape() as tape:
        random.seed(7)
        loss = divided_loss()(model(X), Y) / X.size
    tape.backward(loss)
    assert float(loss) == serial().losses[0] and isinstance(divided_loss(), Loss)
    assert anp.abs(model[0].table.weight.grad.numpy() - serial().gradients["0.table.weight"]).max() == 0


if __name__ == "__main__":
    main()
