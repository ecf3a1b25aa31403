"""Builds the environment of the emulated GPU: CuPy's wheel, in which one extension and the sorts are replaced.

The extension `cupy_backends.cuda.api.runtime` contains a copy of NVIDIA's runtime. It is compiled from CuPy's source
archive, and linked to the emulator. NVIDIA's libraries are found by their names, so the stand-ins have the same names.
A function that CuPy needs and the emulator has not gets a stub, which says so and returns an error.

Needs: Python 3.11 with venv, g++ 12, nm, and a package index for pip. No GPU and no CUDA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["CUDA", "CUPY", "Environment", "Unavailable", "build"]

CUPY = "14.2.0"
CUDA = {"nvidia-cuda-nvrtc-cu12": "12.9.86", "nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cuda-nvcc-cu12": "12.9.86"}
CYTHON = "3.2.4"  # which made this wheel of CuPy
TESTS = [
    "mpich", "mpi4py>=4.1", "numpy", "scipy", "ml_dtypes", "numba>=0.61", "pytest>=8", "pytest-timeout",
    "pytest-xdist>=3.2", "hypothesis", "scikit-learn", "safetensors>=0.8", "xxhash>=3", "tqdm", "matplotlib",
]  # fmt: skip
FLAGS = ["-O2", "-g1", "-std=c++20", "-fPIC", "-frounding-math", "-fwrapv", "-Wall", "-Wextra"]
SOURCE = Path(__file__).resolve().parent / "source"
MISSING = {"cuda": 801, "cublas": 15, "cufft": 16, "cusolver": 9, "curand": 999, "nccl": 3}
"""The status of a function without a stand-in, by library."""
LIBRARIES = {
    "cublas": ("libcublas.so.12", "cupy_backends/cuda/libs/cublas.*.so"),
    "cufft": ("libcufft.so.11", "cupy/cuda/cufft.*.so"),
    "cusolver": ("libcusolver.so.11", "cupy*/**/*cusolver.*.so"),
    "curand": ("libcurand.so.10", "cupy_backends/cuda/libs/curand.*.so"),
    "nccl": ("libnccl.so.2", "cupy_backends/cuda/libs/nccl.*.so"),
}
"""The name of each library, and the extensions of CuPy that call it."""

CYTHONIZE = """
import sys
from Cython.Compiler.Main import CompilationOptions, compile
environment = dict(CUPY_USE_CUDA_PYTHON=False, CUPY_CUFFT_STATIC=False, CUPY_CYTHON_VERSION=sys.argv[1],
                   CUPY_CUDA_VERSION=12090, CUPY_HIP_VERSION=0)
directives = dict(linetrace=False, profile=False, freethreading_compatible=True, binding=False, embedsignature=True,
                  c_api_binop_methods=True)
made = compile(["cupy_backends/cuda/api/runtime.pyx"], CompilationOptions(
    compile_time_env=environment, cplus=True, language_level=3, output_file=None, include_path=["."],
    compiler_directives=directives))
sys.exit(made.num_errors)
"""
INTERPRETER = "parse", "instructions", "run"
"""The sources that need no header of CUDA."""
PROFILER = """#include <cuda_runtime_api.h>
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
"""
"""A header that is in a package of its own."""


TRIED = """
import cupy
x = cupy.arange(12.0).reshape(3, 4)
name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
print(f"CuPy {cupy.__version__} on an {name}: {float((cupy.sin(x) @ x.T).sum()):.12f} = 4.516586070643")
"""


class Unavailable(RuntimeError):
    """pip does not find, or does not get, a package that the emulated GPU needs."""


class Environment:
    """The folders of an environment, and the variables with which programs run there."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self.lib, self.work, self.bin = self.root / "lib", self.root / "work", self.root / "venv" / "bin"
        self.python = self.bin / "python"

    @property
    def site(self) -> Path:
        """The folder of installed packages."""
        return next((self.root / "venv" / "lib").glob("python3.*")) / "site-packages"

    def variables(self) -> dict[str, str]:
        """The environment of a program on the emulated GPU."""

        def before(variable: str, path: Path) -> str:
            return os.pathsep.join(filter(None, [str(path), os.environ.get(variable, "")]))

        return {
            **os.environ,
            "PATH": before("PATH", self.bin),
            "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", self.lib),
            "PYTHONPATH": before("PYTHONPATH", SOURCE.parents[2]),
            "CUPY_COMPILE_WITH_PTX": "1",
            "CUPY_ACCELERATORS": "",  # CUB is compiled device code
            "CUPY_CACHE_DIR": str(self.root / "cache"),
            "EMULATED_LAPACK": str(next(self.site.glob("scipy.libs/libscipy_openblas-*.so"))),
            "OPENBLAS_NUM_THREADS": "1",
        }


def run(*command: Any, **options: Any) -> str:
    """Run a command, which must succeed; return what it printed."""
    print("+", *command, flush=True)
    return subprocess.run([*map(str, command)], check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def symbols(library: Path, kind: str) -> set[str]:
    """The dynamic symbols of a library that are ``undefined`` or ``defined``."""
    text = subprocess.run(["nm", "-D", f"--{kind}-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].partition("@")[0] for line in text.splitlines() if line.strip()}


def stubs(file: Path, missing: Iterable[str], status: int) -> Path:
    """A source file of functions that say that they are missing."""
    text = 'extern "C" int {0}(...) {{ fprintf(stderr, "EMULATED GPU: {0} is missing\\n"); return {1}; }}\n'
    file.write_text("#include <cstdio>\n" + "".join(text.format(name, status) for name in sorted(missing)))
    return file


def pip(place: Environment, command: str, *arguments: str) -> None:
    try:
        run(place.python, "-m", "pip", command, "-q", *arguments, env={**os.environ, "CUPY_INSTALL_USE_STUB": "1"})
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"pip {command} failed") from error


def install(place: Environment) -> Path:
    """Install CuPy's wheel and what the tests need; return the folder of CuPy's source, which goes with it."""
    source = place.work / f"cupy-{CUPY}"
    if source.exists():
        return source
    venv.create(place.root / "venv", with_pip=True)
    wanted = [f"cupy-cuda12x=={CUPY}", f"Cython=={CYTHON}", "setuptools>=77", "wheel", *TESTS]
    wanted += [f"{name}=={version}" for name, version in CUDA.items()]
    pip(place, "install", *wanted)
    # its setup, which pip runs for the metadata, asks for no CUDA where stubs are asked for
    download = "--no-deps", "--no-build-isolation", "--no-binary", "cupy", f"cupy=={CUPY}", "-d", str(place.work)
    pip(place, "download", *download)
    with tarfile.open(place.work / f"cupy-{CUPY}.tar.gz") as archive:
        archive.extractall(place.work, filter="data")
    return source


def compile_source(place: Environment, name: str, include: Iterable[Path] = ()) -> None:
    """Compile a source of the emulator, if it has changed."""
    file, made = SOURCE / f"{name}.cpp", place.work / f"{name}.o"
    changed = max(each.stat().st_mtime for each in (file, *SOURCE.glob("*.h")))
    if not made.exists() or made.stat().st_mtime < changed:
        run("g++", *FLAGS, *(f"-isystem{path}" for path in include), "-c", file, "-o", made)


def link(place: Environment) -> None:
    """The emulator, as libcudart and libcuda in one, and the stand-ins for libraries."""
    fake, own = place.lib / "libemulated.so", [f"-L{place.lib}", "-lemulated", "-Wl,-rpath,$ORIGIN"]
    parts = [place.work / f"{name}.o" for name in (*INTERPRETER, "memory", "streams", "modules")]
    command = ["g++", "-shared", "-fPIC", "-Wl,-soname,libemulated.so", "-o", fake, *parts]
    run(*command)
    needing = [*place.site.glob("cupy_backends/cuda/api/driver.*.so"), *place.work.glob("runtime.*.so")]
    needed = {n for file in needing for n in symbols(file, "undefined") if re.match("cuda[A-Z]|cu[A-Z]", n)}
    run(*command, stubs(place.work / "stubs_cuda.cc", needed - symbols(fake, "defined"), MISSING["cuda"]))
    (place.lib / "libcuda.so.1").unlink(missing_ok=True)
    (place.lib / "libcuda.so.1").symlink_to(fake.name)
    for name, (library, extensions) in LIBRARIES.items():
        made = place.lib / library
        script = place.work / f"{name}.map"  # hides the rest: NumPy has a function of a name that curand.cpp has
        script.write_text(f"{library} {{ global: {name}*; local: *; }};\n")
        linker = [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
        command = ["g++", "-shared", "-fPIC", *linker, place.work / f"{name}.o", "-o", made, *own, "-lrt", "-ldl"]
        run(*command)
        needed = {n for file in place.site.glob(extensions) for n in symbols(file, "undefined") if n.startswith(name)}
        run(*command, stubs(place.work / f"stubs_{name}.cc", needed - symbols(made, "defined"), MISSING[name]))
    for name in ("libcublasLt.so.12", "libnvJitLink.so.12", "libcusparse.so.12"):  # which others need
        compile_empty(place, name)


def compile_empty(place: Environment, library: str) -> None:
    """A library without functions."""
    file = place.work / "empty.c"
    file.write_text("int nothing;\n")
    run("gcc", "-shared", "-fPIC", f"-Wl,-soname,{library}", file, "-o", place.lib / library)


def compile_extension(place: Environment, source: Path) -> None:
    """The extension of CuPy that calls the CUDA runtime."""
    suffix, include = run(
        place.python, "-c", "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'), s.get_paths()['include'])"
    ).split()
    built = place.work / f"runtime{suffix}"
    if built.exists():
        return
    (place.work / "cythonize.py").write_text(CYTHONIZE)
    run(place.python, place.work / "cythonize.py", CYTHON, cwd=source)
    (place.work / "cuda_profiler_api.h").write_text(PROFILER)
    nvidia = place.site / "nvidia"
    paths = [include, nvidia / "cuda_runtime" / "include", nvidia / "cuda_nvcc" / "include", place.work, source]
    compile_empty(place, "libemulated.so")  # it is linked before its functions are known
    run("g++", "-O1", "-fPIC", "-w", "-shared", "-fno-strict-aliasing", *(f"-I{path}" for path in paths),
        source / "cupy_backends/cuda/api/runtime.cpp", "-o", built,
        f"-L{place.lib}", "-Wl,--no-as-needed", "-lemulated", f"-Wl,-rpath,{place.lib}")  # fmt: skip
    shutil.copy(built, place.site / "cupy_backends/cuda/api" / built.name)


def replace_sorts(place: Environment) -> None:
    """Sorts are compiled device code. NumPy's are put in their place."""
    for compiled in place.site.glob("cupy/cuda/thrust.*.so"):
        compiled.unlink()
    shutil.copy(SOURCE / "thrust.py", place.site / "cupy/cuda/thrust.py")


def build(root: Path) -> Environment:
    """Make the environment, or make what has changed anew."""
    place = Environment(root)
    for folder in (place.lib, place.work):
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as threads:
        work = [threads.submit(compile_source, place, name) for name in INTERPRETER]
        source = install(place)
        nvidia = place.site / "nvidia"
        include = nvidia / "cuda_runtime" / "include", nvidia / "cuda_nvcc" / "include"
        work += [threads.submit(compile_extension, place, source)]
        others = sorted({file.stem for file in SOURCE.glob("*.cpp")} - set(INTERPRETER))
        work += [threads.submit(compile_source, place, name, include) for name in others]
        for each in work:
            each.result()
    link(place)
    replace_sorts(place)
    print(run(place.python, "-c", TRIED, env=place.variables()))
    return place
