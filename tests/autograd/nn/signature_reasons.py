"""Why a parameter differs from torch's: the reasons of the page ``docs/torch_signatures.md``."""

from __future__ import annotations

SCHEDULES = {
    "ChainedScheduler": "chained_lr", "ConstantLR": "constant_lr", "CosineAnnealingLR": "cosine_annealing_lr",
    "CosineAnnealingWarmRestarts": "cosine_annealing_warm_restarts", "ExponentialLR": "exponential_lr",
    "LambdaLR": "lambda_lr", "LinearLR": "linear_lr", "MultiStepLR": "multi_step_lr", "OneCycleLR": "one_cycle_lr",
    "SequentialLR": "sequential_lr", "StepLR": "step_lr",
}  # fmt: skip
"""Torch's schedulers, and the functions that make the schedules here."""

RENAMED = {("nn.init.", "generator"): "key"}
"""Parameters of torch, and the names of those here that take their places."""

_CUDA = "a choice of torch's kernels"
_BY_POSITION = "an operation: its operands are given by position"
_METHOD = "NumPy's method; `dim=` and `keepdim=` are taken too, and torch's other arguments raise a `TypeError`"

UNLIKE = {
    "Module.forward": "it is what a subclass overrides",
    "nn.Module.forward": "it is what a subclass overrides",
    "nn.ModuleDict.forward": "it has none, as in torch",
    "nn.ModuleList.forward": "it has none, as in torch",
    "nn.ParameterList.forward": "it has none, as in torch",
    "optim.Optimizer": "the base class: a subclass overrides `update`",
    "optim.lr_scheduler.ConstantLR": "`constant_lr(lr)` has one rate; a factor for the first steps is `sequential_lr`",
}
"""Names that are compared as a whole."""

ANYWHERE = {
    # only in torch: deprecated there
    "size_average": "deprecated in torch: `reduction=`", "reduce": "deprecated in torch: `reduction=`",
    "_stacklevel": "deprecated in torch: it is for a warning",
    # only in torch: how, not what
    "foreach": _CUDA, "fused": _CUDA, "capturable": _CUDA, "non_blocking": _CUDA, "memory_format": _CUDA,
    "differentiable": "a step is not recorded here",
    "_weight": "private in torch", "_freeze": "private in torch", "memo": "an internal of torch's recursion",
    "force": "the array is read-only while a tape needs it, and a view otherwise",
    "last_epoch": "a schedule is a function of the step: a run that resumes needs only the step",
    "device": "parameters begin on the host: `Module.to(device=...)`",
    "inplace": "a Tensor is not changed in place",
    # only in torch: not built
    "ceil_mode": "not built", "divisor_override": "not built", "return_indices": "not built",
    "padding_mode": "not built: `functional.pad`, then the layer",
    "max_norm": "not built", "norm_type": "not built", "scale_grad_by_freq": "not built",
    "sparse": "not built: gradients are dense", "proj_size": "not built", "beta": "not built",
    "threshold": "not needed: it does not overflow", "add_bias_kv": "not built", "add_zero_attn": "not built",
    "kdim": "not built", "vdim": "not built",
    "decoupled_weight_decay": "`AdamW`", "error_if_nonfinite": "not built: the norm is returned",
    "nn.functional.l1_loss(weight)": "not built: multiply the losses of `reduction='none'`",
    "nn.functional.mse_loss(weight)": "not built: multiply the losses of `reduction='none'`",
    "closure": "not built: no optimizer here calls the loss again",
    "epochs": "`total_steps`", "steps_per_epoch": "`total_steps`",
    "cycle_momentum": "a schedule gives the rate only", "base_momentum": "a schedule gives the rate only",
    "max_momentum": "a schedule gives the rate only", "three_phase": "not built",
    "nn(bias)": "not built: with `affine` there are both",
    "nn.functional.log_softmax(dtype)": "not built: `x.astype(dtype)`",
    "nn.functional.softmax(dtype)": "not built: `x.astype(dtype)`",
    "remove_duplicate": "each is yielded once",
    "Module.state_dict(prefix)": "not built", "keep_vars": "the values are copies",
    # only here, by name
    "key": "the random key, in place of the global generator", "axis": "another name of `dim`",
    "rotary": "rotary position embeddings", "along": "the mesh axes whose ranks drop other elements",
    "keep": "a step whose gradients the next one adds to",
    "digest_every": "how often the ranks compare replicated values", "norm": "a norm that was computed before",
    # other names
    **{f"nn.functional.{name}({x})": _BY_POSITION for name in ("relu", "sigmoid", "silu", "softplus", "tanh")
       for x in ("x", "input")},
    "nn.RMSNorm.forward(input)": "torch's `x`: called `input`, as everywhere else",
    "nn.RMSNorm.forward(x)": "called `input`, as everywhere else",
    "nn.Sequential(*modules)": "torch's `*args`", "nn.Sequential(*args)": "called `*modules`",
    "Module.to(*args)": "torch's overloads in one: a dtype, a device, or a Tensor",
    "Tensor.to(*args)": "torch's overloads in one: a dtype, a device, or a Tensor",
    "cotangent": "torch's `gradient`, by the field's term", "gradient": "called `cotangent`, by the field's term",
    "retain": "torch's `retain_graph`", "retain_graph": "called `retain`",
    "create_graph": "`tape.backward(loss, record=True)`", "inputs": "`ag.grad`, for some inputs",
    "options": "an internal of operations", "announced": "an internal of operations",
}
"""Reasons by parameter; "place(parameter)" is for one place."""

DEFAULTS = {
    "dtype": "torch's None is its global default, which is float32",
    "dim": "torch's None is deprecated there; here it is the last dimension",
    "modules": "the same: no modules", "values": "the same: no parameters",
    "nn.MultiheadAttention.forward(key)": "self-attention may leave them out",
    "nn.MultiheadAttention.forward(value)": "self-attention may leave them out",
    "activation": "the same: torch names the function", "total_steps": "`epochs` and `steps_per_epoch` are not built",
    "device": "the same: unchanged", "non_blocking": "the same: not given", "Module.to(dtype)": "the same: unchanged",
    "Tensor.unsqueeze(dim)": "it may be given as `axis=`",
}
"""Reasons of other defaults."""

TENSOR_METHODS = {
    "": _METHOD,
    "argsort": "NumPy's: `descending` raises a `TypeError`; sort the negative",
    "flatten": "both: `flatten(start_dim, end_dim)` of integers, `flatten(order)` of a text",
    "max": "NumPy's: the maximum alone, also with `dim=`, where torch returns a pair with the indices: `argmax`",
    "min": "NumPy's: the minimum alone, also with `dim=`, where torch returns a pair with the indices: `argmin`",
    "nonzero": "NumPy's: an array of indices for each dimension, where torch has one array with a row for each element",
    "put": "it would change the Tensor in place: refused", "resize": "it would change the Tensor in place: refused",
    "sort": "it would change the Tensor in place: refused; `autograd.numpy.sort`",
    "repeat": "NumPy's: each element several times; torch's tiles: `autograd.numpy.tile`",
    "std": "NumPy's: divided by n, where torch divides by n - 1: `correction=1` is taken by both",
    "var": "NumPy's: divided by n, where torch divides by n - 1: `correction=1` is taken by both",
    "view": "torch's: another shape",
    "squeeze": "NumPy's: a dimension of another extent than 1 is an error, where torch leaves it",
    "transpose": "both: `transpose(dim0, dim1)` and `transpose(axes)`",
}
"""Why a method that NumPy's arrays have is as it is."""

STATES = [
    "Linear(2, 3)", "Linear(2, 3, bias=False)", "Embedding(4, 2, padding_idx=1)", "Conv1d(2, 4, 3, groups=2)",
    "Conv2d(2, 4, (3, 2))", "LayerNorm(3)", "RMSNorm(3)", "GroupNorm(2, 4)", "BatchNorm1d(3)", "BatchNorm2d(3)",
    "MultiheadAttention(4, 2)", "MultiheadAttention(4, 2, bias=False)", "RNNCell(2, 3)", "GRUCell(2, 3)",
    "LSTMCell(2, 3)", "LSTM(2, 3, num_layers=2, bidirectional=True)", "LSTM(2, 3, bias=False)",
    "TransformerEncoderLayer(4, 2, 8)",
]  # fmt: skip
"""Modules whose parameters and buffers have torch's names, order and shapes; matrices may be transposed."""
