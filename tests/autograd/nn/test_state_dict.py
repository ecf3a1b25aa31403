"""`load_state_dict` has torch's arguments, result and messages; `Module.to` converts what a module holds."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.nn import functional


class Tensor:
    """Stands for a tensor of torch, which is known by the module of its class."""

    def __init__(self, array: Any):
        self.array = numpy.asarray(array)

    @property
    def T(self) -> Tensor:
        return Tensor(self.array.T)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


Tensor.__module__ = "torch"


def test_keys_and_shapes_that_do_not_fit_are_listed_together() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = model.state_dict()
    shapes = {"0.weight": (3, 2), "1.weight": (2, 2), "1.bias": (1,), "a": (), "b": ()}
    state = {name: numpy.ones(shape) for name, shape in shapes.items()}
    with pytest.raises(ag.ShapeError) as caught:
        model.load_state_dict(state)
    assert str(caught.value).startswith(
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "0.bias". \n'
        '\tUnexpected key(s) in state_dict: "a", "b". \n'
        "\tsize mismatch for 0.weight: copying a param with shape (3, 2) from checkpoint, the shape in current model "
        "is (2, 3).\n\t  fix: its transpose: here it is stored [in, out]\n"
        "\tsize mismatch for 1.weight: copying a param with shape (2, 2) from checkpoint, the shape in current model "
        "is (3, 1).\n"
    )
    for name, value in model.state_dict().items():
        numpy.testing.assert_array_equal(value, before[name])


def test_without_strict_the_keys_are_returned_and_the_others_loaded() -> None:
    model = nn.Linear(2, 1)
    bias = model.bias.numpy().copy()
    found = model.load_state_dict({"weight": numpy.ones((2, 1)), "more": numpy.ones(2)}, strict=False)
    assert found.missing_keys == ["bias"] and found.unexpected_keys == ["more"]
    missing, unexpected = found
    assert (missing, unexpected) == (["bias"], ["more"]) and "missing_keys=['bias']" in repr(found)
    assert (model.weight.numpy() == 1).all() and (model.bias.numpy() == bias).all()
    with pytest.raises(ag.ShapeError, match="size mismatch for weight"):
        model.load_state_dict({"weight": numpy.ones((3, 1))}, strict=False)
    assert repr(model.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    with pytest.raises(ag.OptionError, match="assign=True"):
        model.load_state_dict(model.state_dict(), assign=True)


def test_tensors_of_torch_are_transposed_where_torch_stores_them_so() -> None:
    """A square weight has no shape that would tell."""
    for model in (nn.Linear(3, 3), nn.LSTM(3, 3), nn.GRUCell(3, 3), nn.MultiheadAttention(2, 1), nn.Embedding(3, 3)):
        state = model.state_dict()
        theirs = {name: Tensor(x.T if turned(model, name) else x) for name, x in state.items()}
        for p in model.parameters():
            nn.init.zeros_(p)
        model.load_state_dict(theirs)
        for name, value in model.state_dict().items():
            numpy.testing.assert_array_equal(value, state[name], f"{model} {name}")


def turned(model: Any, name: str) -> bool:
    return not isinstance(model, nn.Embedding) and "weight" in name


def test_to_converts_parameters_buffers_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with ag.Tape() as tape:
        loss = model(numpy.ones((4, 2), numpy.float32)).sum()
        with pytest.raises(ag.TapeError, match=r"Module.to: a tape still needs 0.weight"):
            model.double()
    tape.backward(loss)
    assert model.double() is model
    assert {x.dtype for x in model.state_dict().values()} == {numpy.dtype(float), numpy.dtype(int)}
    assert model[0].weight.grad.dtype == float
    optim.SGD(model.parameters(), lr=0.1).step()
    for call, dtype in (
        (lambda: model.float(), "float32"), (lambda: model.half(), "float16"),
        (lambda: model.to(numpy.float64), "float64"), (lambda: model.to("cpu", "float32"), "float32"),
        (lambda: model.to(numpy.ones(1)), "float64"), (lambda: model.to(device="cpu", dtype=numpy.float32), "float32"),
        (lambda: model.cpu(), "float32"),
    ):  # fmt: skip
        assert call()[0].weight.dtype == dtype
    with pytest.raises(ag.DtypeError, match="Module.to: dtype must be float64"):
        model.to(int)
    with pytest.raises(ag.OptionError, match="'cpu', 'cuda' or 'cuda:0'"):
        model.to(device="tpu")


def test_names_can_begin_with_a_prefix_and_leave_out_submodules() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert next(name for name, _ in model.named_parameters("net")) == "net.0.weight"
    assert next(name for name, _ in model.named_parameters()) == "0.weight" == model[0].weight.name
    assert model.parameters(recurse=False) == [] and len(model[0].parameters(recurse=False)) == 2
    assert [name for name, _ in model.named_buffers("net")][0] == "net.1.running_mean"
    assert list(model.buffers(recurse=False)) == []
    tied = nn.ModuleList([model[0], model[0]])
    assert len(list(tied.named_parameters())) == 2 and len(list(tied.named_parameters(remove_duplicate=False))) == 4
    model.register_buffer("scratch", numpy.zeros(2), persistent=False)
    assert "scratch" in dict(model.named_buffers()) and "scratch" not in model.state_dict()
    with pytest.raises(ag.OptionError, match="set_to_none=False"):
        model.zero_grad(set_to_none=False)


def test_an_embedding_and_a_linear_layer_cannot_share_a_weight_as_torchs_do() -> None:
    head, wte = nn.Linear(4, 4, bias=False), nn.Embedding(4, 4)  # square, so that no shape would tell
    text = r"Linear: .* stored as in torch; needed: stored \[in, out\].*\n  fix: .*functional\.linear.*\n  at test_"
    with pytest.raises(ag.ShapeError, match=text):
        head.weight = wte.weight
    with pytest.raises(ag.ShapeError, match=r"Embedding: .* stored \[in, out\].*; needed: stored as in torch"):
        copy.deepcopy(wte).weight = pickle.loads(pickle.dumps(head)).weight
    shared = ag.Parameter(numpy.ones((4, 4)))
    wte.weight = shared
    with pytest.raises(ag.ShapeError, match="stored as in torch"):
        head.weight = shared
    table = nn.Embedding(5, 3, dtype=numpy.float64)
    x = numpy.random.default_rng(0).standard_normal((2, 3))
    assert numpy.array_equal(functional.linear(x, table.weight).numpy(), x @ table.weight.numpy().T)

    class Both(nn.Module):  # two of a kind may
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.a.weight = self.b.weight

    assert len(Both().parameters()) == 3


def test_a_buffer_computed_from_constants_stays_the_same_on_all_ranks() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            self.register_buffer("mask", ag.constant(numpy.tri(3)).view(1, 3, 3))

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return (x * self.mask).sum()

    def program() -> float:
        with cc.Mesh(dp=2):
            model = Masked()
            model.load_state_dict({"mask": numpy.tri(3)[None]})
            assert model.mask.layout["dp"] is ag.C
            return float(model(cc.cast(ag.Parameter(numpy.ones((1, 3, 3))), "dp", to=ag.R)).item())

    assert cc.run(program, 2) == [6.0, 6.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_conversion_keeps_complex_numbers(dtype: str) -> None:
    """Their imaginary parts used to be dropped."""
    expected = "complex128" if dtype == "float64" else "complex64"

    class Wave(nn.Module):
        def __init__(self) -> None:
            self.weight = ag.Parameter(numpy.array([1 + 2j, 3j]))
            self.register_buffer("phase", numpy.array([1j], "complex64"))
            self.scale = ag.Parameter(numpy.ones(2))

    model = Wave().to(dtype)
    assert model.weight.dtype == expected and model.phase.dtype == expected and model.scale.dtype == dtype
    assert model.weight.numpy().tolist() == [1 + 2j, 3j] and model.phase.tolist() == [1j]
