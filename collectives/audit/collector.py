"""The collector of an audit: it keeps the gradients of each optimizer step of a PyTorch program, and changes nothing.

`sitecustomize` loads this file into the program's interpreter, so it imports the standard library and NumPy, and torch
once the program has imported it. It keeps, on each rank and for each step of an optimizer:

grad      the gradient, as it was before it was clipped, by `clip_grad_norm_` or by hand
before    the parameter before the step; of several ranks before the first one, as the rest is sums of updates
update    what the step has added to it
output    the first output of each module since the step before, if asked for
meta      JSON: names in the order of the model, places in global arrays, losses, norms, the factor of clipping

A file `rank-R/step-S.npz` holds them under the keys ``grad:NAME`` and so on. `collectives.audit.write` writes the same.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.util
import json
import math
import os
import runpy
import sys
import tempfile
import zipfile
import zlib
from typing import Any

import numpy as np

FORM = 1
"""The number of the form of the files."""


def slices(box: Any) -> Any:
    """The slices of a box in its piece and in the global array."""
    at, extents, start = box
    return tuple(tuple(slice(a, a + e) for a, e in zip(of, extents)) for of in (at, start))  # noqa: B905


def step_file(folder: str, rank: int, step: int) -> str:
    return os.path.join(folder, f"rank-{rank}", f"step-{step}.npz")


def keep(path: str, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Write a file, which takes its place when it is whole."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".part")
    with os.fdopen(descriptor, "wb") as file:
        with zipfile.ZipFile(file, "w") as archive:  # as np.savez, without copies of the arrays
            for name, x in {"meta": np.array(json.dumps(meta)), **arrays}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    x = np.ascontiguousarray(x).reshape(np.shape(x))
                    np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(x))
                    member.write(x.reshape(-1).view(np.uint8).data)
    os.replace(part, path)


def install(text: str) -> None:
    """Collect, as soon as the program imports torch."""
    options = json.loads(text)
    if options.get("data"):
        rank, size = map(str, options["data"])
        os.environ.update(RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    if "torch" in sys.modules:
        Collector(options)
    else:
        sys.meta_path.insert(0, _AtImport(options))


class _AtImport(importlib.abc.MetaPathFinder):
    """Makes the collector once torch is loaded."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                Collector(self.options)

            spec.loader.exec_module = exec_module
        return spec


class Collector:
    """The steps of a process."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import torch.distributed
        from torch.nn.modules import module
        from torch.optim import optimizer
        from torch.overrides import TorchFunctionMode

        self.torch, self.options = torch, options
        self.step, self.is_ready, self.is_on, self.is_inside = 0, False, False, False
        self.names: dict[str, Any] = {}
        self.whose: dict[int, int] = {}  # by parameter: the number of its optimizer
        self.optimizers: list[Any] = []
        self.roots: list[Any] = []
        self.losses: list[Any] = []
        self.norms: list[Any] = []
        self.outputs: dict[int, Any] = {}
        self.sums: list[dict[str, Any]] = []  # with the rows of one rank: the gradients after each backward
        self.changes: dict[int, Any] = {}  # by parameter: whether by a bound, and its gradient before the last one
        self.memory: dict[int, Any] = {}  # by address: the parameter whose gradient is there
        self.kept: Any = None
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
        self.change_names = {"mul_", "div_", "__imul__", "__itruediv__", "__idiv__", "clamp_", "clip_", "clamp_max_",
                             "_foreach_mul_", "_foreach_div_", "_foreach_clamp_max_", "_foreach_clamp_min_",
                             "_amp_foreach_non_finite_check_and_unscale_", "copy_", "__set__"}  # fmt: skip
        module.register_module_forward_pre_hook(self.entered)
        if options.get("outputs"):
            module.register_module_forward_hook(self.left)
        optimizer.register_optimizer_step_pre_hook(self.before_step)
        optimizer.register_optimizer_step_post_hook(self.after_step)
        self.wrap(torch.autograd, "backward", self.backward)
        for where in (torch.nn.utils, torch.nn.utils.clip_grad):
            self.wrap(where, "clip_grad_norm_", self.clipped)
        if options.get("float64"):
            torch.set_default_dtype(torch.float64)
        if options.get("data"):
            self.wrap(torch.distributed, "init_process_group", self.one_of)

    def wrap(self, where: Any, name: str, wrapper: Any) -> None:
        """Replace a function by one that is given it."""
        function = getattr(where, name)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(function, *args, **kwargs)

        setattr(where, name, wrapped)

    # -- before a step's forward ---------------------------------------------------------------------------------------
    def entered(self, module: Any, args: Any) -> Any:
        if self.torch.compiler.is_compiling():
            return None
        self.watch(False)
        if not self.is_ready:
            self.is_ready = True
            self.prepare()
        if self.options.get("float64"):
            torch = self.torch
            return tuple(x.double() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x for x in args)
        return None

    def left(self, module: Any, args: Any, output: Any) -> None:
        if not self.torch.compiler.is_compiling() and id(module) not in self.outputs:
            if isinstance(output, self.torch.Tensor) and output.is_floating_point():
                self.outputs[id(module)] = module, self.local(output)

    def prepare(self) -> None:
        """Find the parameters, and set their values: moved by a last bit, or those of a reference."""
        torch, options = self.torch, self.options
        if not self.names:
            self.find()
        if self.step == 0 and options.get("float64"):
            for root in self.roots:
                root.double()
        if options.get("reset") and os.path.exists(path := step_file(options["reset"], 0, self.step)):
            with np.load(path) as found, torch.no_grad():
                for name, p in self.names.items():
                    if f"before:{name}" in found:
                        mine, whole = self.local(p), torch.from_numpy(found[f"before:{name}"])
                        for box in self.boxes(name, p) or [([0] * mine.ndim, mine.shape, [0] * mine.ndim)]:
                            here, there = slices(box)
                            mine[here] = whole[there].to(mine.dtype)
        if self.step == 0 and options.get("ulp"):
            with torch.no_grad():
                for name, p in self.names.items():
                    mine = self.local(p)
                    if mine.is_floating_point():
                        random = np.random.default_rng([options["ulp"], zlib.crc32(name.encode())])
                        up = torch.from_numpy(random.random(tuple(mine.shape)) < 0.5).to(mine.device)
                        rounded = mine.to(self.computes_in() or mine.dtype)
                        far = torch.full_like(rounded, math.inf)
                        bit = torch.nextafter(rounded, far).to(mine.dtype) - rounded.to(mine.dtype)
                        mine.add_(torch.where(up, bit, -bit))

    def computes_in(self):
        """The type in which autocast computes, of which a last bit is moved; None without it."""
        for device in ("cuda", "cpu"):
            if self.torch.is_autocast_enabled(device):
                return self.torch.get_autocast_dtype(device)
        return None

    def find(self) -> None:
        """The parameters by name, in the order of the models, which are modules that no other module holds."""
        torch = self.torch
        objects = gc.get_objects()
        modules: list[Any] = [x for x in objects if issubclass(type(x), torch.nn.Module)]  # isinstance may run code
        held = {id(child) for each in modules for child in each.children()}
        self.roots = [x for x in modules if id(x) not in held and next(x.parameters(), None) is not None]
        self.names = {}
        for root in self.roots:
            for name, p in root.named_parameters():
                name = ".".join(each for each in name.split(".") if each not in ("module", "_orig_mod"))
                if self.names.setdefault(name, p) is not p and all(p is not other for other in self.names.values()):
                    self.names[f"{type(root).__name__}.{name}"] = p
        self.optimizers = self.optimizers or [x for x in objects if issubclass(type(x), torch.optim.Optimizer)]
        known = {id(p) for p in self.names.values()}
        for i, optimizer in enumerate(self.optimizers):
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                self.whose[id(p)] = i
                if id(p) not in known:
                    self.names[f"parameter {len(self.names)}"] = p

    def boxes(self, name: str, p: Any) -> Any:
        """The boxes of a rank's piece; None for a whole parameter."""
        if hasattr(p, "placements"):
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            extents, start = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
            return [([0] * p.ndim, list(extents), list(start))]
        return self.options.get("boxes", {}).get(str(self.rank()), {}).get(name)

    # -- between backward and the step ---------------------------------------------------------------------------------
    def backward(self, function: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.watch(False)
        for x in (tensors,) if isinstance(tensors, self.torch.Tensor) else tensors:
            if x.numel() == 1:
                self.losses.append(x.detach().clone())
        try:
            return function(tensors, grad_tensors, *args, **kwargs)
        finally:
            if self.options.get("data"):
                grads = {name: self.array(p.grad) for name, p in self.names.items() if p.grad is not None}
                self.sums.append(grads)
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
        full = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self.norms.append(full.detach().clone())
        return norm

    def changed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; where it scales gradients, keep them as they were."""
        name = getattr(function, "__name__", "")
        if name not in self.change_names:
            return function(*args, **kwargs)
        changed = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
        if name == "__set__":
            changed = [args[0].grad]
        if not self.memory:
            self.memory = {self.local(p.grad).data_ptr(): p for p in self.names.values() if p.grad is not None}
        for x in changed:
            p = self.memory.get(self.local(x).data_ptr()) if isinstance(x, self.torch.Tensor) else None
            if p is not None and self.local(p.grad).shape == self.local(x).shape:
                self.changes[id(p)] = "clamp" in name or name == "clip_", self.local(x).clone()
        if name == "__set__":
            self.memory = {}
        return function(*args, **kwargs)

    # -- at a step -----------------------------------------------------------------------------------------------------
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watch(False)
        if self.step >= self.options["steps"]:
            return
        if optimizer not in self.optimizers or not self.names:
            self.optimizers += [optimizer] * (optimizer not in self.optimizers)
            self.find()
        number = self.optimizers.index(optimizer)
        mine = {name: p for name, p in self.names.items() if self.whose.get(id(p), number) == number}
        factor = self.factor([p for p in mine.values() if p.grad is not None])
        arrays, before, places, mesh = {}, {}, {}, {}
        for name, p in mine.items():
            before[name] = self.array(p)
            places[name] = {"shape": list(p.shape), "boxes": self.boxes(name, p)} if hasattr(p, "placements") else None
            if places[name] and p.device_mesh.mesh_dim_names:
                mesh[",".join(p.device_mesh.mesh_dim_names)] = p.device_mesh.mesh.tolist()
            if p.grad is not None:
                g = p.grad
                if hasattr(g, "placements") and g.placements != p.placements:
                    g = g.redistribute(placements=p.placements)  # as the optimizer does
                arrays[f"grad:{name}"] = self.array(g if factor is None else self.changes[id(p)][1])
        for m, (sums, last) in enumerate(zip(self.sums, [{}, *self.sums])):  # noqa: B905
            arrays.update({f"part {m}:{name}": sums[name] - last.get(name, 0) for name in mine if name in sums})
        names = {id(each): name for root in self.roots for name, each in root.named_modules()}
        for key, (_, x) in self.outputs.items():
            if names.get(key) is not None:
                arrays[f"output:{names[key]}"] = self.array(x)
        if self.step == 0 or self.size() == 1:
            arrays.update({f"before:{name}": x for name, x in before.items()})
        self.kept = mine, before, arrays, {
            "form": FORM, "engine": f"torch {self.torch.__version__}", "rank": self.rank(), "size": self.size(),
            "step": self.step, "optimizer": number, "names": list(mine), "places": places, "mesh": mesh,
            "losses": [float(x) for x in self.losses], "norms": [float(x) for x in self.norms], "clip": factor,
            "dtypes": {name: str(p.dtype).removeprefix("torch.") for name, p in mine.items()},
        }  # fmt: skip

    def factor(self, parameters: list[Any]) -> Any:
        """The factor by which all gradients were clipped at last, "bound" if by their values; None if they were not."""
        if not parameters or any(id(p) not in self.changes for p in parameters):
            return None
        factors: list[Any] = []
        for p in parameters:
            is_bound, old = self.changes[id(p)]
            new, top = self.local(p.grad), old.abs().max() if old.numel() else 0
            if is_bound or not top:
                factors += ["bound"] * is_bound
                continue
            at = int(old.abs().argmax())
            factors.append(float(new.flatten()[at]) / float(old.flatten()[at]))
            if not (new - old * factors[-1]).abs().max() <= 1e-3 * top * abs(factors[-1]):
                return None  # what came after it was no multiple: a sum over the ranks, say
        if not factors or "bound" in factors:
            return "bound" if factors else None
        number = max(factors[0], 1 / factors[0]) if factors[0] > 0 else 0.0
        is_count = abs(number - round(number)) < 1e-6 * number  # of ranks or microbatches, or a scale of the loss
        alike = all(abs(each - factors[0]) <= 1e-3 * abs(factors[0]) for each in factors)
        return factors[0] if alike and not is_count else None

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.kept is not None:
            mine, before, arrays, meta = self.kept
            for name, p in mine.items():
                arrays[f"update:{name}"] = self.array(p, is_copy=False) - before[name]
            path = step_file(self.options["out"], meta["rank"], self.step)
            keep(path, meta, arrays)
        self.kept, self.is_ready = None, False
        self.step += 1
        for each in (self.losses, self.norms, self.outputs, self.sums, self.changes):
            each.clear()

    # -- tensors and ranks ---------------------------------------------------------------------------------------------
    def local(self, x: Any) -> Any:
        x = x.detach()
        return x.to_local() if hasattr(x, "placements") else x

    def array(self, x: Any, is_copy: bool = True) -> Any:
        x = self.local(x).cpu()
        x = (x.float() if x.dtype in (self.torch.bfloat16, self.torch.float16) else x).numpy()
        return x.copy() if is_copy else x

    def rank(self) -> int:
        of = self.torch.distributed
        if self.options.get("data"):
            return 0
        return of.get_rank() if of.is_initialized() else int(os.environ.get("RANK", "0"))

    def size(self) -> int:
        of = self.torch.distributed
        if self.options.get("data") or not of.is_initialized():
            return 1
        return of.get_world_size()

    def one_of(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A process group in which this process is one rank of several, and each collective gives its own values."""
        one_rank = runpy.run_path(os.path.join(os.path.dirname(__file__), "hook", "one_rank.py"))
        return one_rank["start"](function, *self.options["data"])
