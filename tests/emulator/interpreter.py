"""The interpreter of PTX alone, without CuPy: it is compiled here, and runs texts on NumPy's arrays."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).resolve().parent / "source"
WHY_NOT = "" if shutil.which("g++") else "there is no g++, which compiles the interpreter of PTX"
_FLAGS = ("-O1", "-g0", "-std=c++20", "-fPIC", "-frounding-math", "-fwrapv", "-shared")


class Fault(RuntimeError):
    """An error of a kernel, or of its text."""


@cache
def _object(file: str, found: str = "", instead: str = "") -> Path:
    """An object file of a source, in which a text may be replaced by another one."""
    folder = Path(tempfile.mkdtemp(prefix="emulator-"))
    text = (SOURCE / file).read_text()
    assert found in text, f"{found!r} is not in {file}"
    (folder / file).write_text(text.replace(found, instead, 1) if found else text)
    made = folder / f"{file}.o"
    flags = [flag for flag in _FLAGS if flag != "-shared"]
    subprocess.run(["g++", *flags, f"-I{SOURCE}", "-c", folder / file, "-o", made], check=True)
    return made


@cache
def library(file: str = "", found: str = "", instead: str = "") -> Any:
    """The interpreter; with arguments, one in whose `file` the text `found` is replaced."""
    sources = ("parse.cpp", "instructions.cpp", "run.cpp", "testing.cpp")
    parts = [_object(name, found, instead) if name == file else _object(name) for name in sources]
    made = Path(tempfile.mkdtemp(prefix="emulator-")) / "interpreter.so"
    subprocess.run(["g++", *_FLAGS, *parts, "-o", made], check=True)
    loaded = ctypes.CDLL(str(made))
    loaded.emulated_run.restype = ctypes.c_char_p
    return loaded


def run(
    text: str, name: str, arguments: Sequence[Any], threads: int = 32, *, blocks: int = 1, dynamic_bytes: int = 0,
    by: Any = None,
) -> None:  # fmt: skip
    """Run a kernel of a module. Arrays are passed by address, and are 8 bytes each, as numbers are.

    Raises
    ------
    Fault
        The text is no PTX that the interpreter knows, or the kernel failed.
    """
    numbers = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments]
    packed = np.array(numbers, np.int64).tobytes()
    used = library() if by is None else by
    error = used.emulated_run(text.encode(), name.encode(), blocks, threads, dynamic_bytes, packed).decode()
    if error:
        raise Fault(error)


def kernel(body: str, arrays: int, shared_bytes: int = 0) -> str:
    """A module with a kernel `f` of some arrays, whose addresses are in %A0, %A1, ...; %t is the thread.

    Registers of its body: %p0 to %p9, %h0 to %h19 (16 bits), %r0 to %r39 (32), %d0 to %d19 (64), and for floats of 32
    and 64 bits %f0 to %f19 and %g0 to %g19.
    """
    parameters = ", ".join(f".param .u64 f_{i}" for i in range(arrays))
    loads = "".join(f"ld.param.u64 %A{i}, [f_{i}];\n" for i in range(arrays))
    memory = f".shared .align 16 .b8 memory[{shared_bytes}];" if shared_bytes else ""
    return f"""
    .version 8.8
    .target sm_90
    .address_size 64
    .visible .entry f({parameters})
    {{
        .reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %d<20>; .reg .f32 %f<20>; .reg .f64 %g<20>;
        .reg .b32 %t; .reg .b64 %A<{arrays + 1}>; {memory}
        {loads}
        mov.u32 %t, %tid.x;
        {body}
        ret;
    }}
    """


_WORDS = {1: ("b8", "h"), 2: ("b16", "h"), 4: ("b32", "r"), 8: ("b64", "d")}


def compute(body: str, operands: Sequence[np.ndarray], dtype: Any, by: Any = None) -> np.ndarray:
    """What an instruction gives for each element of its operands.

    The body reads ``a``, ``b`` and ``c``, and writes ``y``; these words are replaced by registers of the right size.
    """
    n, result = len(operands[0]), np.dtype(dtype)
    out = np.zeros(n, result)
    code, last = "", ""
    names: dict[str, str] = {}
    for i, x in enumerate([*operands, out]):
        kind, letter = _WORDS[x.itemsize]
        name, register = "abcy"[i if i < len(operands) else 3], f"%{letter}{i + 10}"
        names[name] = register
        code += f"mul.wide.u32 %d{i}, %t, {x.itemsize}; add.s64 %d{i}, %d{i}, %A{i};\n"
        if i < len(operands):
            code += f"ld.global.{kind} {register}, [%d{i}];\n"
        else:
            last = f"st.global.{kind} [%d{i}], {register};\n"
    written = re.sub(r"(?<![\w.%])[abcy](?![\w.])", lambda found: names[found[0]], body)
    run(kernel(code + written + last, len(operands) + 1), "f", [*map(np.ascontiguousarray, operands), out], n, by=by)
    return out
