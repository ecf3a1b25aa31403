"""Planted faults, which tests marked ``gpu`` must see on the emulated GPU: ``python -m tests.emulator faults``.

Each replaces a text in a copy of the library, where the tests that it names run. A test that fails has seen the fault.
The tests are run once without a fault, too, and must pass. `KINDS` is the table, by the kind of the fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from .build import SOURCE, Environment

__all__ = ["KINDS", "Fault", "run"]

ROOT = SOURCE.parents[2]
LIMIT_S = 900  # a collective that the other ranks do not make may hang


class Fault(NamedTuple):
    """A text of a file, the wrong text in its place, and the tests that see it, as arguments of pytest."""

    file: str
    found: str
    instead: str
    tests: str


CU = "autograd/kernels/cuda/source"
KERNELS = "tests/autograd/kernels/cuda"
DEVICE = "collectives/transports/device"
HALVES = f"{KERNELS}/test_attention.py -k 'attention_in_float16 and 64'"
DOUBLES = f"{KERNELS}/test_attention.py -k 'attention_in_float64 and (causal or odd)'"
SOFTMAX = f"{KERNELS}/test_rows.py -k 'every_width and float32 and softmax and not log'"
NORMS = f"{KERNELS}/test_rows.py -k 'weights_of_many_rows and float32 and layer'"
LOSSES = f"{KERNELS}/test_rows.py -k 'labels_of_every_dtype'"
SEGMENTS = f"{KERNELS}/test_segments.py -k 'sums_of_all_widths and float32'"
BIASES = f"{KERNELS}/test_biases.py -k 'every_width and float32'"
CASTS = f"{KERNELS}/test_biases.py -k 'test_casts'"
ADAM = f"{KERNELS}/test_adam.py -k 'many_parameters and float32'"
PRODUCTS = "tests/autograd/arrays/test_cublas.py"
CAPTURE = "tests/autograd/transforms/test_launch_graph.py -k 'replays_are_steps and AdamW'"
WAITS = "tests/collectives/transports/device/test_gpu.py -k 'without_a_wait and {}'"
STAGED, SHARED, NCCL = WAITS.format("staged"), WAITS.format("ipc"), WAITS.format("nccl")
CALLS = "tests/collectives/transports/device/test_gpu.py -k 'gpu_each and 2'"
STEP = "        wait_for_copies();\n        __syncthreads();\n        if (step + 1 < steps) {\n"
OFFLOAD = "tests/autograd/optim/test_offload.py"

KINDS: dict[str, dict[str, Fault]] = {
    "kernels": {
        "the halves of a fragment are swapped": Fault(
            f"{CU}/matrix.cuh", "c[n + i / 2][i % 2 * 2], c[n + i / 2][i % 2 * 2 + 1]);",
            "c[n + i / 2][i % 2 * 2 + 1], c[n + i / 2][i % 2 * 2]);", HALVES),
        "a fragment has the columns of another one": Fault(
            f"{CU}/matrix.cuh", "load_matrices<false>(x, tile + bytes_to<P, STRIDE>(lane % 16, 0) + lane / 16 * 16);",
            "load_matrices<false>(x, tile + bytes_to<P, STRIDE>(lane % 16, 0));", HALVES),
        "a wait for cp.async is missing": Fault(
            f"{CU}/attention.cu", STEP, STEP.replace("        wait_for_copies();\n", ""), HALVES),
        "a barrier before tiles are used is missing": Fault(
            f"{CU}/attention.cu", STEP, STEP.replace("        __syncthreads();\n", ""), HALVES),
        "rows beyond the end are written": Fault(
            f"{CU}/attention.cu", "if (row >= y.count) continue;", "", DOUBLES),
        "a row is used before its copies have arrived": Fault(
            f"{CU}/softmax.cu", "wait_for_copies<0>();\n    Wide<T> top", "Wide<T> top", SOFTMAX),
        "elements beyond the row are written": Fault(
            f"{CU}/rows.cuh", "if (has(pack, i)) at[i] = given.at[i];", "at[i] = given.at[i];", SOFTMAX),
        "scratch is used again without a barrier": Fault(
            f"{CU}/norms.cu", "over_row(sums, scratch[parity], Add());", "over_row(sums, scratch[0], Add());", NORMS),
        "an operation of a warp names half of the lanes": Fault(
            f"{CU}/rows.cuh", "__shfl_xor_sync(0xffffffffu,", "__shfl_xor_sync(0x0000ffffu,", SOFTMAX),
        "the logit of a label out of range is read": Fault(
            f"{CU}/losses.cu", "label.is_inside ? wide(logits[start + label.at]) * (Wide<T>)(1 - smoothing) : 0",
            "wide(logits[start + label.at]) * (Wide<T>)(1 - smoothing)", LOSSES),
        "a chunk goes on beyond the last row": Fault(
            f"{CU}/segments.cu", "Index end = min(first + CHUNK, rows);", "Index end = first + CHUNK;", SEGMENTS),
        "a barrier between parts and their sum is missing": Fault(
            f"{CU}/segments.cu", "    __syncthreads();\n    if (threadIdx.y > 0", "    if (threadIdx.y > 0", SEGMENTS),
        "rows are read together beyond the last one": Fault(
            f"{CU}/biases.cu", "if (is_fast && first + (U - 1) * step < rows) {", "if (is_fast) {", BIASES),
        "bfloat16 is cut off, not rounded": Fault(f"{CU}/common.cuh", "cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32", CASTS),
        "the elements after the last pack are left out": Fault(
            f"{CU}/adam.cu", "int i = packs * N + threadIdx.x; i < count;", "int i = packs * N; i < 0;", ADAM),
    },
    "calls of CuPy and cuBLAS": {
        "the leading dimension is the number of columns": Fault(
            "autograd/arrays/cublas.py", "return Operand(x, False, down if rows > 1 else columns, stride)",
            "return Operand(x, False, columns, stride)", PRODUCTS),
        "the stride from matrix to matrix is that of a row": Fault(
            "autograd/arrays/cublas.py", "integer(n), long(m * n), integer(prod(batch))",
            "integer(n), long(n), integer(prod(batch))", PRODUCTS),
        "which operand is transposed": Fault(
            "autograd/arrays/cublas.py", "integer(right.is_transposed), integer(left.is_transposed)",
            "integer(left.is_transposed), integer(right.is_transposed)", PRODUCTS),
        "float16 is told to be bfloat16": Fault("autograd/arrays/cublas.py", '"float16": 2', '"float16": 14', PRODUCTS),
        "the factors of float64 are float32": Fault(
            "autograd/arrays/cublas.py", "ctypes.c_double if", "ctypes.c_float if", PRODUCTS),
        "products of a captured step on another stream": Fault(
            "autograd/arrays/cuda.py", "                    cublas.use(stream, workspace)\n",
            "                    pass\n", CAPTURE),
        "kernels are launched on the default stream": Fault(
            "autograd/arrays/cuda.py", "call(function, *sizes, stream_of().ptr, ready.address, 0)",
            "call(function, *sizes, 0, ready.address, 0)", CAPTURE),
        "copies have elements for bytes": Fault(
            "autograd/arrays/cuda.py", "x.nbytes, cuda.memcpyDefault", "x.size, cuda.memcpyDefault", STAGED),
    },
    "waits": {
        "copies down do not wait for what was computed": Fault(
            f"{DEVICE}/pinned.py", "        self._down.wait_event(now)\n", "", STAGED),
        "operations do not wait for the copies up": Fault(
            f"{DEVICE}/pinned.py", "self._runtime.current_stream().wait_event(call.last)", "pass", STAGED),
        "the host reads a copy too soon": Fault(
            f"{DEVICE}/pinned.py", "                chunk.down.synchronize()\n            y = self._made",
            "                pass\n            y = self._made", STAGED),
        "page-locked memory is used again early": Fault(
            f"{DEVICE}/pinned.py", "self._buffers.give(buffer, event)", "self._buffers.give(buffer, None)", STAGED),
        "the memory of a chunk is used again early": Fault(
            f"{DEVICE}/pinned.py", "self._copy_down(call, later, event)", "self._copy_down(call, later, None)", STAGED),
        "a result is given back while it is copied up": Fault(
            f"{DEVICE}/pinned.py", "        self._uploads.append((event, into, call))\n", "", STAGED),
        "NCCL does not wait for what was computed": Fault(
            f"{DEVICE}/nccl.py", "        self._stream.wait_event(before)\n", "", NCCL),
        "operations do not wait for NCCL": Fault(
            f"{DEVICE}/nccl.py", "            current.wait_event(after)\n", "", NCCL),
        "an operand is given back while NCCL reads it": Fault(
            f"{DEVICE}/nccl.py", "        kept = [x, y]\n", "        kept = []\n", NCCL),
        "slots do not wait for what was computed": Fault(
            f"{DEVICE}/ipc.py", "        arena.stream.wait_event(before)\n", "", SHARED),
        "operations do not wait for the slots' sum": Fault(
            f"{DEVICE}/ipc.py", "        runtime.current_stream().wait_event(after)\n", "", SHARED),
        "an offloaded optimizer reads gradients too soon": Fault(
            "autograd/optim/offload.py", "chunk.arrived.synchronize()", "pass", OFFLOAD),
    },
    "transports": {
        "ranks meet before their copies are made": Fault(
            f"{DEVICE}/ipc.py", "        self.stream.synchronize()\n        word", "        word", SHARED),
        "a slot is used again at once": Fault(f"{DEVICE}/ipc.py", "return self.number & 1", "return 0", SHARED),
        "memory of other ranks is closed early": Fault(
            f"{DEVICE}/ipc.py", "        self.slots = [[part[parity]",
            "        self._close_opened()\n        self.slots = [[part[parity]", SHARED),
        "memory is given back that other ranks have open": Fault(
            f"{DEVICE}/ipc.py", "        self._close_opened()\n        quietly(self.group.barrier)",
            "        self._mine = []\n        quietly(self.group.barrier)\n        self._close_opened()", SHARED),
        "each rank adds its own part first": Fault(
            f"{DEVICE}/ipc.py", "self._add([slot[:nbytes] for slot in slots],",
            "self._add([slot[:nbytes] for slot in [*slots[self._index:], *slots[: self._index]]],", SHARED),
        "a collective on another stream": Fault(
            f"{DEVICE}/nccl.py", "pointer: Any = self._stream\n",
            'pointer: Any = self.__dict__.setdefault("_other", self._runtime.new_stream())\n', NCCL),
        "float32 is reduced as int32": Fault(
            f"{DEVICE}/nccl.py", '"<f4": "FLOAT32", "<f8"', '"<f4": "INT32", "<f8"', CALLS),
    },
}  # fmt: skip


class Copy:
    """A copy of the checkout, in which faults are planted."""

    def __init__(self, place: Environment):
        self.root = Path(tempfile.mkdtemp(prefix="emulator-faults-"))
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.root / name)
        self.variables = place.variables()
        self.variables["PYTHONPATH"] = os.pathsep.join([str(self.root), os.environ.get("PYTHONPATH", "")])
        self.python = str(place.python)
        self.out = ""  # of the last tests

    def passes(self, tests: str) -> bool:
        """Whether tests pass. One that does not end is a failure; none at all, an error."""
        options = "-m 'gpu and not slow' -n 0 -x -q -p no:cacheprovider -o timeout=900"
        command = f"exec '{self.python}' -m pytest {options} {tests}"
        started = subprocess.Popen(
            command, shell=True, cwd=self.root, env=self.variables, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            out, _ = started.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, 9)
            self.out, _ = started.communicate()
            return False
        self.out = out
        if started.returncode not in (0, 1) and started.returncode > 0:
            raise RuntimeError(f"{tests}: status {started.returncode}\n{out}")
        return started.returncode == 0

    def sees(self, fault: Fault) -> bool:
        """Whether its tests see a fault."""
        file = self.root / fault.file
        text = file.read_text()
        assert fault.found in text, f"{fault.file} has no {fault.found!r}"
        file.write_text(text.replace(fault.found, fault.instead))
        try:
            return not self.passes(fault.tests)
        finally:
            file.write_text(text)


def run(place: Environment, words: Sequence[str] = (), workers: int = 2) -> int:
    """Plant all faults, or those whose kind or name has one of the words; print what was seen, and return a status."""
    chosen = [
        (kind, name, fault) for kind, faults in KINDS.items() for name, fault in faults.items()
        if not words or any(word in f"{kind} {name}" for word in words)
    ]  # fmt: skip
    copies: Queue[Copy] = Queue()
    for _ in range(workers):
        copies.put(Copy(place))
    start = time.monotonic()

    def with_copy(use: str | Fault) -> tuple[bool, str]:
        copy = copies.get()
        try:
            return (copy.passes(use) if isinstance(use, str) else copy.sees(use)), copy.out
        finally:
            copies.put(copy)

    seen = 0
    with ThreadPoolExecutor(workers) as pool:
        tests = list(dict.fromkeys(fault.tests for _, _, fault in chosen))
        for each, (passes, out) in zip(tests, pool.map(with_copy, tests), strict=True):
            print(f"{'passes' if passes else 'FAILS '}  without a fault: {each}", flush=True)
            if not passes:
                print(out)
                return 1
        for (kind, name, _), (is_seen, _) in zip(chosen, pool.map(with_copy, [c[2] for c in chosen]), strict=True):
            seen += is_seen
            print(f"{'seen  ' if is_seen else 'UNSEEN'}  {kind}: {name}", flush=True)
    for copy in list(copies.queue):
        shutil.rmtree(copy.root)
    took_s = time.monotonic() - start
    print(f"emulated GPU, not a GPU: {seen} of {len(chosen)} planted faults are seen ({took_s:.0f} s)")
    return int(seen < len(chosen))
