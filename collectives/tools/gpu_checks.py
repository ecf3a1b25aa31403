"""``python -m collectives doctor --gpu``: tries what programs need of a GPU, each check in a process of its own.

A row is printed when it is known, so that a check that crashes, hangs or fails loses none of the others. Each process
has a time limit. ``python -m collectives.tools.gpu_checks NAME`` runs one check alone, and shows its traceback.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import autograd.numpy as anp
from autograd import kernels, nn, ops, optim, random
from autograd.arrays import cuda
from autograd.arrays.device import dtype_named, runtime_of, to_host

from ..transports.device.nccl import Nccl
from ..transports.device.probe import MARK, alone
from ..transports.protocol import Request

__all__ = ["CHECKS", "Row", "rows", "run_checks"]


class Row(NamedTuple):
    """The outcome of a check."""

    name: str
    is_ok: bool
    text: str
    seconds: float


def _there(x: Any, dtype: Any = None) -> Any:
    """A host array, as an array of the GPU."""
    return ag.tensor(np.asarray(x, dtype), device="cuda").array


def _bfloat16() -> list[Any]:
    try:
        return [dtype_named("bfloat16")]
    except Exception:  # without ml_dtypes
        return []


def _kernel(name: str, xs: Sequence[Any]) -> Any:
    found = kernels.find(name, xs)
    assert found is not None, f"there is no kernel of {name}"
    return found


# -- the checks --------------------------------------------------------------------------------------------------------


def _libraries() -> str:
    """A product, a sum, a sort, an elementwise function: each loads or compiles something of its own."""
    x = np.arange(12.0, dtype="f4").reshape(3, 4)
    a = _there(x)
    found = [to_host(each) for each in (a @ a.T, a.sum(0), np.argsort(-a, kind="stable"), np.exp(a - a))]
    right = [x @ x.T, x.sum(0), np.argsort(-x, kind="stable"), np.ones_like(x)]
    assert all(np.array_equal(*pair) for pair in zip(found, right, strict=True)), "wrong values"
    return "products, sums, sorts and elementwise functions"


def _compiler() -> str:
    x = np.linspace(-3, 3, 1000, dtype="f4")
    found = to_host(ops.gelu(ag.tensor(x, device="cuda")).array)
    difference = float(abs(found - ops.gelu(x)).max())
    assert difference < 1e-5, f"gelu differs from the host's by {difference:.1e}"
    return "a kernel was compiled and run"


def _shared_memory() -> str:
    """Widths whose static and dynamic shared memory lie on both sides of 48 KiB."""
    refused = []
    for name, options in (("softmax.softmax", (1,)), ("norms.normalize", (1e-5,))):
        for width in (760, 762, 764, 1530, 3060, 6130, 12_250):
            x = _there(np.random.default_rng(width).standard_normal((7, width)), "f4")
            try:
                kernel = _kernel(name, (x,))
                y, kept = kernel.forward((x,), options, True)
                kernel.backward(y, kept, (x,), options, [True], True)
                to_host(y)
            except Exception as error:
                refused.append(f"{name}[{width}]: {type(error).__name__} {str(error)[:80]}")
    assert not refused, "; ".join(refused)
    return "all launched"


def _rows() -> str:
    worst = 0.0
    for width in (1, 33, 763, 1023, 1025, 4096, 12_250):
        for dtype, most in (("f4", 1e-5), ("f2", 2e-3)):
            x = np.random.default_rng(width).standard_normal((5, width)).astype(dtype)
            exact = np.exp(x.astype(float) - x.max(1, keepdims=True))
            exact /= exact.sum(1, keepdims=True)
            difference = float(abs(to_host(ops.softmax(_there(x))) - exact).max())
            assert difference < most, f"softmax[{width}] of {dtype} differs by {difference:.1e}"
            worst = max(worst, difference / most)
            constant = np.full((5, width), 9999.7 if dtype == "f4" else 7, dtype)
            left = float(abs(to_host(ops.layer_norm(_there(constant)))).max())
            assert left == 0, f"layer_norm of constant rows of {width} {dtype} is {left}"
    return f"softmax and layer norm, {worst:.0%} of what is allowed"


def _sums_of_rows() -> str:
    """Gradients of rows that were taken by index: no atomics, in float32, of every dtype."""
    for dtype in (np.dtype("f2"), *_bfloat16()):
        table, index = ag.Parameter(_there(np.ones((4, 8), dtype))), ag.tensor(_there(np.zeros(5000, int)))
        with ag.Tape() as tape:
            loss = ops.take_rows(table, index).astype("float32").sum()
        tape.backward(loss)
        assert table.grad is not None
        found = float(to_host(table.grad.array)[0, 0])
        assert found == float(np.asarray(5000, dtype)), f"5,000 ones of {dtype} are {found:g}"
    x = ag.Parameter(_there(np.ones(5, "c8")))
    with ag.Tape() as tape:
        loss = anp.real(x[ag.tensor(_there([1, 1]))]).sum()
    tape.backward(loss)
    assert x.grad is not None and to_host(x.grad.array).tolist() == [0, 2, 0, 0, 0], "of complex numbers"
    rng = np.random.default_rng(0)
    xs, at = _there(rng.standard_normal((50_000, 64)), "f4"), _there(rng.integers(0, 64, 50_000))
    bits = {to_host(ops.nn.embedding.add_rows(xs, at, options=(64,))).tobytes() for _ in range(3)}
    assert len(bits) == 1, "another result each time"
    return "float16, bfloat16 and complex64; the same bits each time"


def _random() -> str:
    for dtype in ("float32", "float64"):
        for draw in (random.normal, random.uniform):
            like = ag.tensor(np.zeros((1001, 7), dtype))
            here, there = (draw(random.Key(3, "x"), x, dtype=dtype) for x in (like, like.to("cuda")))
            same = to_host(getattr(there, "array", there)).tobytes() == getattr(here, "array", here).tobytes()
            assert same, f"{draw.__name__} of {dtype}"
    return "those of the host, bit by bit"


def _attention() -> str:
    worst = 0.0
    for width in (24, 64, 128):
        q, k, v = (np.random.default_rng(i).standard_normal((2, 3, 70, width)) for i in range(3))
        right = ops.attention(q, k, v, causal=True)
        for dtype, most in (("f4", 1e-4), ("f2", 5e-3)):
            found = to_host(ops.attention(*(_there(x, dtype) for x in (q, k, v)), causal=True)).astype(float)
            difference = float(abs(found - right).max())
            assert difference < most, f"of width {width} and {dtype} differs by {difference:.1e}"
            worst = max(worst, difference / most)
    return f"{worst:.0%} of what is allowed"


def _captured() -> str:
    rows = ag.tensor(np.random.default_rng(0).standard_normal((32, 64)).astype("f4"), device="cuda")
    labels = ag.tensor(np.arange(32) % 10, device="cuda")

    def trained(is_captured: bool) -> list[Any]:
        model = nn.Sequential(nn.Linear(64, 64, key=random.Key(0)), nn.ReLU(), nn.Linear(64, 10, key=random.Key(1)))
        model = model.to(device="cuda")
        optimizer = optim.AdamW(model.parameters(), lr=lambda step: 1e-2 / (1 + step))

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(x), y)
            tape.backward(loss)
            optimizer.step()
            return loss

        run = ag.capture(step) if is_captured else step
        for _ in range(20):
            run(rows, labels)
        return [to_host(p.array) for p in model.parameters()]

    pairs = zip(trained(False), trained(True), strict=True)
    difference = max(float(abs(a - b).max()) for a, b in pairs)
    assert difference < 1e-5, f"a captured step differs from the eager one by {difference:.1e} after 20 steps"
    return f"20 steps of AdamW differ by {difference:.1e} from eager ones"


class _One:
    """A group of one rank."""

    index, size, ranks, name = 0, 1, (0,), "one rank"

    def exchange(self, data: bytes, of: str = "") -> list[bytes]:
        return [data]


def _nccl() -> str:
    x = _there(np.zeros(1))
    runtime: Any = runtime_of(type(x))
    library = runtime.nccl()
    assert library is not None, "CuPy finds no NCCL library (pip install 'ringtape[gpu]')"
    group: Any = _One()
    carrier = Nccl(group, runtime, library)
    dtypes = [np.dtype(each) for each in ("f4", "f8", "f2", "i4", "c8", "?")]
    for dtype in dtypes:
        values = (np.arange(1000) % (2 if dtype.kind == "b" else 7)).astype(dtype)
        found = carrier.run(Request("all_reduce", _there(values), op="max" if dtype.kind == "b" else "sum"))
        assert np.array_equal(to_host(found), values), f"all_reduce of {dtype}"
        found = carrier.run(Request("all_gather", _there(values), counts=[1000]))
        assert np.array_equal(to_host(found), values), f"all_gather of {dtype}"
    carrier.close()
    return f"{library.get_version()}: a communicator of one rank; {', '.join(map(str, dtypes))}"


def _long() -> str:
    """Offsets that do not fit 32 bits."""
    n, width = (1 << 19) + 3, 4096 + 8  # 4.3 GB of float16
    needed = 3 * 2 * n * width
    if cuda.runtime().memory().free_bytes < needed:
        return f"left out: it needs {needed / 2**30:.0f} GiB"
    x = np.full_like(_there(np.zeros(1), "f2"), 0.5, shape=(n, width))
    x[-1, -1] = 3
    y, _ = _kernel("activations.gelu", (x,)).forward((x,), ("tanh",), False)
    last = float(to_host(y[-1:, -1:])[0, 0])
    assert abs(last - 2.996) < 5e-3, f"gelu of the last element is {last}"
    del y
    y, _ = _kernel("softmax.softmax", (x,)).forward((x,), (1,), False)
    total = float(to_host(y[-1]).astype(float).sum())
    assert abs(total - 1) < 1e-2, f"the last row of softmax has the sum {total}"
    return f"{n * width:,} elements"


def _sanitizer() -> str:
    """NVIDIA's compute-sanitizer, which the CUDA toolkit has, over the kernels that use shared memory most.

    CuPy's arrays are parts of larger allocations: `memcheck` sees only accesses outside of these.
    """
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return "left out: compute-sanitizer is not on the path"
    kinds = ("memcheck", "racecheck", "synccheck")
    for kind in kinds:
        command = [tool, "--tool", kind, "--error-exitcode", "9", *_command("shared memory")]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        told = [json.loads(line[len(MARK) :]) for line in done.stdout.splitlines() if line.startswith(MARK)]
        reported = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        problem = told[-1][1] if told and not told[-1][0] else _last("\n".join(reported) or done.stderr)
        assert done.returncode == 0 and told and told[-1][0], f"{kind}: status {done.returncode}; {problem}"
    return f"{', '.join(kinds)}: no error in softmax and norms"


CHECKS: dict[str, tuple[Callable[[], str], float]] = {
    "GPU": (lambda: ", ".join(f"{name}: {text}" for name, text in cuda.facts().items()), 30),
    "CUDA libraries": (_libraries, 60), "compiler": (_compiler, 60),
    "shared memory": (_shared_memory, 90), "rows": (_rows, 120), "sums of rows": (_sums_of_rows, 90),
    "random numbers": (_random, 60), "attention": (_attention, 180), "captured steps": (_captured, 120),
    "NCCL": (_nccl, 90), "more than 2**31 elements": (_long, 120),
    "compute-sanitizer": (_sanitizer, 240),
}  # fmt: skip
"""The checks by name, and the seconds that each may take."""


# -- running them ------------------------------------------------------------------------------------------------------


def _command(name: str) -> list[str]:
    return [sys.executable, "-P", "-m", "collectives.tools.gpu_checks", name]


def rows(names: Sequence[str], command: Callable[[str], list[str]] = _command, limit_s: float | None = None) -> Any:
    """Run checks, one after the other, each in a process of its own. Yields a `Row` when it is known."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    for name in names:
        begin, limit = time.monotonic(), CHECKS[name][1] if limit_s is None else limit_s
        with subprocess.Popen(
            command(name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env={**alone(os.environ), "PYTHONPATH": path}, start_new_session=True,
        ) as child:  # fmt: skip
            try:
                out, err = child.communicate(timeout=limit)
                end = f"signal {signal.Signals(-child.returncode).name}" if child.returncode < 0 else (
                    f"status {child.returncode}")  # fmt: skip
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                out, err = child.communicate()
                end = f"it did not end within {limit:g} s"
        told = [line[len(MARK) :] for line in out.splitlines() if line.startswith(MARK)]
        is_ok, text = json.loads(told[-1]) if told else (False, "; ".join(filter(None, [end, _last(err)])))
        yield Row(name, is_ok, text, round(time.monotonic() - begin, 1))


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run_checks(as_json: bool = False) -> int:
    """Run all checks and print their rows; at the end one JSON object if that is asked for. Returns 1 if one fails."""
    why = cuda.why_not()
    if why:
        print(f"doctor: {why}\n  fix: pip install 'ringtape[gpu]', on a machine with an NVIDIA GPU and its driver")
        return 1
    found = []
    for row in rows(list(CHECKS)):
        found.append(row)
        line = f"{'ok' if row.is_ok else 'FAILS':7}  {row.name:26}  {row.text}   [{row.seconds:g} s]"
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps({row.name: {"ok": row.is_ok, "text": row.text, "seconds": row.seconds} for row in found}))
    return int(not all(row.is_ok for row in found))


def _main(name: str) -> None:
    try:
        is_ok, text = True, CHECKS[name][0]()
    except Exception as error:
        is_ok, text = False, f"{type(error).__name__}: {error}".splitlines()[0]
        if sys.stderr.isatty():
            raise
    print(MARK + json.dumps([is_ok, text]), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
