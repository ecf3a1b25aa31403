"""The collector of an audit: it keeps the gradients of each optimizer step of a PyTorch program, and changes nothing.

`sitecustomize` loads this file into the program's interpreter, so it imports the standard library and NumPy, and torch
once the program has imported it. It keeps, on each rank and for each step of an optimizer:

grad      the gradient that the optimizer is given; with a closure, that of its first call
old       the gradient before its last change between backward and the step, as by clipping, if there was one
before    the parameters before the first step; the later ones are sums of updates
update    what the step has added to it
output    the first output of each module since the step before, if asked for
part M    the gradient of microbatch M, of the rows of one rank
meta      JSON: names in the order of the model, places in global arrays, losses, norms, which changes were bounds

A file `rank-R/step-S.npz` holds them under the keys ``grad:NAME`` and so on. `collectives.audit.write` writes the same.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import runpy
import tempfile
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

FORM = 2
"""The number of the form of the files."""
CHANGES = {"mul_", "div_", "__imul__", "__itruediv__", "__idiv__", "clamp_", "clip_", "clamp_max_", "copy_", "__set__",
           "_foreach_mul_", "_foreach_div_", "_foreach_clamp_max_", "_foreach_clamp_min_",
           "_amp_foreach_non_finite_check_and_unscale_"}  # fmt: skip
"""The functions that scale or bound gradients in place, or replace one."""
WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module"}
"""Names of modules that hold another one."""


def step_file(folder: str, rank: int, step: int) -> str:
    return os.path.join(folder, f"rank-{rank}", f"step-{step}.npz")


def keep(path: str, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Write a file, which takes its place when it is whole."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".part")
    with os.fdopen(descriptor, "wb") as file:
        np.savez(file, meta=np.array(json.dumps(meta)), **arrays)
    os.replace(part, path)


class Collector:
    """The steps of a process."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import torch.distributed
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        from torch.overrides import TorchFunctionMode

        self.torch, self.options, self.step, self.is_on, self.is_inside = torch, options, 0, False, False
        self.names: dict[str, Any] = {}
        self.roots: list[Any] = []
        self.calls: dict[int, int] = {}  # by module: its number in the order of the first calls
        self.optimizers: list[Any] = []
        self.losses: list[Any] = []
        self.norms: list[Any] = []
        self.outputs: dict[int, Any] = {}
        self.sums: list[dict[str, Any]] = []  # with the rows of one rank: the gradients after each backward
        self.changes: dict[int, Any] = {}  # by parameter: whether by a bound, and its gradient before the last one
        self.memory: dict[int | None, Any] = {}  # by address: the parameter whose gradient is there
        self.stepping: Any = None  # the optimizer in whose step the program is, which may call another one's
        self.kept: Any = None
        self.writer: Any = None
        collector = self

        class Changes(TorchFunctionMode):
            """Sees the changes of gradients between backward and the step."""

            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                is_inside, collector.is_inside = collector.is_inside, True
                try:
                    return collector.changed(function, args, kwargs or {})
                finally:
                    collector.is_inside = is_inside

        self.mode = Changes()
        torch.nn.modules.module.register_module_forward_pre_hook(self.entered)
        if options.get("outputs"):
            torch.nn.modules.module.register_module_forward_hook(self.left)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.wrap(torch.autograd, "backward", self.backward)
        for where in (torch.nn.utils, torch.nn.utils.clip_grad):
            self.wrap(where, "clip_grad_norm_", self.clipped)
        os.register_at_fork(after_in_child=lambda: self.is_rank() and options.update(steps=0))  # the child is no rank
        for file, asked in (("one_rank.py", {"data"}), ("start.py", {"float64", "ulp", "reset"})):
            if asked & set(options):
                runpy.run_path(os.path.join(os.path.dirname(__file__), "hook", file))["install"](self)

    def wrap(self, where: Any, name: str, wrapper: Any) -> None:
        """Replace a function by one that is given it."""
        function = getattr(where, name)
        setattr(where, name, functools.wraps(function)(lambda *args, **kwargs: wrapper(function, *args, **kwargs)))

    # -- before the step -----------------------------------------------------------------------------------------------
    def entered(self, module: Any, args: Any) -> None:
        if not self.torch.compiler.is_compiling():
            self.watch(False)
            self.calls.setdefault(id(module), len(self.calls))

    def left(self, module: Any, args: Any, output: Any) -> None:
        is_new = not self.torch.compiler.is_compiling() and id(module) not in self.outputs
        if is_new and isinstance(output, self.torch.Tensor) and output.is_floating_point():
            self.outputs[id(module)] = module, self.local(output)

    def find(self) -> None:
        """The parameters by name, in the order of the models: modules that train, and that no other one holds."""
        torch, objects = self.torch, gc.get_objects()  # of type(x), since isinstance may run code
        modules: list[Any] = [x for x in objects if issubclass(type(x), torch.nn.Module) and hasattr(x, "_modules")]
        optimizers = [x for x in objects if issubclass(type(x), torch.optim.Optimizer)]
        self.optimizers += [x for x in optimizers if all(x is not other for other in self.optimizers)]
        trained = {id(p): p for each in self.optimizers for p in self.parameters(each)}
        held = {id(child) for each in modules for child in each.children()}
        roots = [x for x in modules if id(x) not in held]
        if trained:
            roots = [x for x in roots if any(id(p) in trained for p in x.parameters())]
        self.roots, self.names = sorted(roots, key=lambda root: self.calls.get(id(root), math.inf)), {}
        loose = [(f"parameter {i}", p) for i, p in enumerate(trained.values())]  # if no module has it
        self.name_parameters([*(root.named_parameters() for root in self.roots), loose])

    def name_parameters(self, of_models: Iterable[Iterable[tuple[str, Any]]]) -> None:
        """Name the parameters of models, each once; a name of several models begins with the number of the model."""
        known: set[int] = set()
        for each in of_models:
            theirs = {".".join(word for word in name.split(".") if word not in WRAPPERS): p
                      for name, p in each if id(p) not in known and self.has_values(p)}  # fmt: skip
            prefix, n = "", 1
            while any(prefix + name in self.names for name in theirs):  # another model has such names
                n += 1
                prefix = f"model {n}."
            self.names.update({prefix + name: p for name, p in theirs.items()})
            known |= {id(p) for p in theirs.values()}

    def parameters(self, optimizer: Any) -> list[Any]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def has_values(self, p: Any) -> bool:
        """Whether a parameter is of real or complex numbers; a lazy one has none yet."""
        return not hasattr(p, "materialize") and (p.is_floating_point() or p.is_complex())

    def boxes(self, p: Any) -> Any:
        """The boxes of a rank's piece of a DTensor; None for another tensor."""
        if not hasattr(p, "placements"):
            return None
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        extents, start = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
        return [([0] * p.ndim, list(extents), list(start))]

    def backward(self, function: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self.watch(False)
        for x in (tensors,) if isinstance(tensors, self.torch.Tensor) else tensors:
            if x.numel() == 1:
                self.losses.append(x.detach().clone())
        try:
            return function(tensors, *args, **kwargs)
        finally:
            if not self.names:
                self.find()
            if self.options.get("data"):
                self.sums.append({name: self.array(p.grad) for name, p in self.names.items() if p.grad is not None})
            self.watch(True)

    def watch(self, is_on: bool) -> None:
        if self.is_inside:  # the mode is off inside its own handler, as in a backward that it sees
            return
        if is_on and not self.is_on:
            self.mode.__enter__()
        elif self.is_on and not is_on:
            self.mode.__exit__(None, None, None)
        self.is_on, self.memory = is_on, {}

    def clipped(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        norm = function(*args, **kwargs)
        self.norms.append((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).detach().clone())
        return norm

    def changed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; where it changes gradients, keep them as they were."""
        name = getattr(function, "__name__", "")
        if name in CHANGES:
            changed = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
            if name == "__set__":
                changed = [args[0].grad]
            if not self.memory:
                self.memory = {self.address(p.grad): p for p in self.names.values() if p.grad is not None}
            for x in changed:
                p = self.memory.get(self.address(x)) if isinstance(x, self.torch.Tensor) else None
                if p is not None and self.local(p.grad).shape == self.local(x).shape:
                    self.changes[id(p)] = "clamp" in name or name == "clip_", self.local(x).clone()
            if name == "__set__":
                self.memory = {}
        return function(*args, **kwargs)

    # -- at a step -----------------------------------------------------------------------------------------------------
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self.stepping not in (None, optimizer):
            return None
        self.stepping, self.kept = optimizer, None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self.take(optimizer)
            return None

        def first() -> Any:
            loss = closure()
            if self.kept is None:
                self.take(optimizer)
            return loss

        return (args, {**kwargs, "closure": first}) if "closure" in kwargs else ((args[0], first, *args[2:]), kwargs)

    def take(self, optimizer: Any) -> None:
        """Keep what a step is given."""
        self.watch(False)
        if self.step >= self.options["steps"]:
            return
        own = {id(p) for p in self.parameters(optimizer)}
        if not own <= {id(p) for p in self.names.values()}:
            self.find()
        others = {id(p) for each in self.optimizers for p in self.parameters(each)} - own
        mine = {name: p for name, p in self.names.items() if id(p) not in others}
        places, mesh = self.pieces()
        arrays = self.given(mine)
        before = {name: self.array(p) for name, p in (mine if self.step else self.names).items()}
        if self.step == 0:
            arrays.update({f"before:{name}": x for name, x in before.items()})
        rank, size = self.place()
        self.kept = mine, before, arrays, {
            "form": FORM, "engine": f"torch {self.torch.__version__}", "rank": rank, "size": size, "step": self.step,
            "names": list(self.names), "places": places, "mesh": mesh,
            "losses": [float(x) for x in self.losses], "norms": [float(x) for x in self.norms],
            "bounds": [name for name, p in mine.items() if id(p) in self.changes and self.changes[id(p)][0]],
            "dtypes": {name: str(p.dtype).removeprefix("torch.") for name, p in self.names.items()},
        }  # fmt: skip

    def pieces(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The places of this rank's pieces of DTensors in the whole arrays, by name, and the meshes of these."""
        places, mesh = {}, {}
        for name, p in self.names.items():
            if (of := self.boxes(p)) is not None:
                places[name] = {"boxes": of}
                mesh[",".join(p.device_mesh.mesh_dim_names or ["ranks"])] = p.device_mesh.mesh.tolist()
        return places, mesh

    def given(self, mine: dict[str, Any]) -> dict[str, Any]:
        """The arrays that a step is given: gradients, their parts by microbatch, and the outputs of modules."""
        arrays = {}
        grads = {name: p.grad for name, p in mine.items() if p.grad is not None}
        is_changed = all(id(mine[name]) in self.changes for name in grads)
        for name, g in grads.items():
            p = mine[name]
            if hasattr(g, "placements") and g.placements != p.placements:
                g = g.redistribute(placements=p.placements)  # as the optimizer does
            arrays[f"grad:{name}"] = self.array(g)
            if is_changed:
                arrays[f"old:{name}"] = self.array(self.changes[id(p)][1], is_copy=False)
        for m, (sums, last) in enumerate(zip(self.sums, [{}, *self.sums])):  # noqa: B905
            arrays.update({f"part {m}:{name}": sums[name] - last.get(name, 0) for name in mine if name in sums})
        names = {id(each): name for root in self.roots for name, each in root.named_modules()} if self.outputs else {}
        arrays.update({f"output:{names[key]}": self.array(x) for key, (_, x) in self.outputs.items() if key in names})
        return arrays

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is not self.stepping:
            return
        if self.kept is not None:
            mine, before, arrays, meta = self.kept
            arrays.update({f"update:{name}": self.array(p, is_copy=False) - before[name] for name, p in mine.items()})
            if self.writer is not None:
                self.writer.join()
            path = step_file(self.options["out"], meta["rank"], self.step)
            self.writer = threading.Thread(target=keep, args=(path, meta, arrays))  # Python ends after it
            self.writer.start()
        self.stepping = self.kept = None
        self.step += 1
        for each in (self.losses, self.norms, self.outputs, self.sums, self.changes):
            each.clear()

    # -- tensors and ranks ---------------------------------------------------------------------------------------------
    def local(self, x: Any) -> Any:
        return x.detach().to_local() if hasattr(x, "placements") else x.detach()

    def address(self, x: Any) -> int | None:
        x = self.local(x)
        return x.data_ptr() if x.layout == self.torch.strided and x.numel() else None

    def array(self, x: Any, is_copy: bool = True) -> Any:
        x = self.local(x).to_dense()
        dtype = self.torch.float32 if x.dtype in (self.torch.bfloat16, self.torch.float16) else x.dtype
        return x.to("cpu", dtype, copy=is_copy).numpy(force=True)

    def is_rank(self) -> bool:
        return self.torch.distributed.is_available() and self.torch.distributed.is_initialized()

    def place(self) -> tuple[int, int]:
        """The rank, and the number of ranks."""
        if self.options.get("data"):
            return 0, 1
        if self.is_rank():
            return self.torch.distributed.get_rank(), self.torch.distributed.get_world_size()
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
