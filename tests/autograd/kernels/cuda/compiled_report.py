"""What NVIDIA's compiler reports of each kernel, as a table. It needs the extra ``nvrtc``, and no GPU.

    python -m tests.autograd.kernels.cuda.compiled_report --json > before.json
    python -m tests.autograd.kernels.cuda.compiled_report --against before.json

The second command prints the kernels that have changed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import autograd.kernels.cuda as folder
from autograd.arrays.runtime import Program
from autograd.kernels.cuda import attention

ARCHITECTURE = "sm_90"


class Used(NamedTuple):
    """What a kernel uses, by the assembler's report.

    `loop` are the PTX instructions of its longest innermost loop, and `load_bytes` those of its widest load from global
    memory, or copy from there to shared memory.
    """

    registers: int
    spilled_bytes: int
    static_bytes: int
    loop: int
    load_bytes: int = 0


def programs() -> dict[str, Program]:
    """The programs of all kernels."""
    found = {}
    for file in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{file.name}")
        found.update({p.name: p for p in vars(module).values() if isinstance(p, Program)})
    return found


def attention_programs() -> dict[str, Program]:
    """The programs of attention in 16 bits without a mask, which are made at use, for the widths of most models."""
    found = (attention.kernels(np.dtype(np.float16), width, 0).program for width in (64, 128))
    return {p.name: p for p in found}


def compile_program(nvrtc: Any, program: Program, *more: bytes) -> tuple[Any, bool, str]:
    """The compiled program, whether NVRTC accepts it, and the log."""
    _, made = nvrtc.nvrtcCreateProgram(program.text.encode(), program.name.encode(), 0, [], [])
    for kernel in program.kernels:
        nvrtc.nvrtcAddNameExpression(made, kernel.encode())
    options = [b"--std=c++17", f"--gpu-architecture={ARCHITECTURE}".encode(), *more]
    (status,) = nvrtc.nvrtcCompileProgram(made, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(made)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(made, log)
    return made, status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()


def report(nvrtc: Any, program: Program) -> dict[str, Used]:
    """What each kernel of a program uses."""
    made, _, log = compile_program(nvrtc, program, b"--ptxas-options=-v")
    _, size = nvrtc.nvrtcGetPTXSize(made)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(made, ptx)
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)^}", ptx.decode(), re.DOTALL | re.MULTILINE))
    names = {nvrtc.nvrtcGetLoweredName(made, kernel.encode())[1].decode(): kernel for kernel in program.kernels}
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        lowered = part.partition("'")[0]
        numbers = [re.search(pattern, part) for pattern in
                   (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes smem")]  # fmt: skip
        body = bodies[lowered]
        found[names[lowered]] = Used(*(int(n[1]) if n else 0 for n in numbers), longest_loop(body), widest_load(body))
    return found


def widest_load(body: str) -> int:
    """The bytes of the widest load from global memory of a kernel's PTX, or copy from there to shared memory."""
    load = r"\bld(?:\.global[\w.]*?)?(?:\.v(\d))?\.[busf](\d+)\b"  # also of addresses that were loaded themselves
    loads = [int(n or 1) * int(bits) // 8 for n, bits in re.findall(load, body)]
    copies = [int(size) for size in re.findall(r"\bcp\.async\.[\w.]+ \[\S+\], \[\S+\], (\d+)", body)]
    return max(loads + copies, default=0)


def longest_loop(body: str) -> int:
    """The instructions of the longest loop of a kernel's PTX that has no loop inside."""
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    count = 0
    for line in map(str.strip, body.splitlines()):
        if label := re.match(r"(\$\w+):", line):
            labels[label[1]] = count
        elif re.match(r"(@!?%?\w+\s+)?[a-z][\w.:]*(\s|;)", line):
            count += 1
            target = re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line)
            if target and target[1] in labels:
                loops.append((labels[target[1]], count))
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    return max((b - a for a, b in inner), default=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs, such as softmax")
    parser.add_argument("--against", metavar="FILE", help="an output of --json; prints what differs, before -> after")
    parser.add_argument("--json", action="store_true", help="one object: kernel -> the numbers")
    args = parser.parse_args(arguments)
    from cuda.bindings import nvrtc

    found = {}
    for name, program in sorted((programs() | attention_programs()).items()):
        if not args.only or name in args.only:
            found.update(report(nvrtc, program))
    if args.json:
        print(json.dumps({kernel: used._asdict() for kernel, used in found.items()}))
        return
    before = json.loads(Path(args.against).read_text()) if args.against else {}
    print(f"{'kernel':44}" + "".join(f"{name:>16}" for name in Used._fields))
    for kernel, used in found.items():
        old = used._asdict() | before.get(kernel, {})  # a file of before may lack a column
        if args.against and kernel in before and old == used._asdict():
            continue
        cells = [str(n) if n == old[k] else f"{old[k]} -> {n}" for k, n in used._asdict().items()]
        print(f"{kernel:44}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
