"""Compiles loops by LLVM, and keeps the machine code: in the process, and in a store on disk.

LLVM comes with llvmlite, which the extra ``fast`` brings with Numba; Numba itself is not loaded. A loop is compiled for
the processor of the host, in about 6 ms. Its object code is kept in `ringtape/code` in the user's cache directory, or
in the folder that ``RINGTAPE_CODE`` names, from where it is loaded in 0.2 ms. The name of a file is the hash of all
that the code depends on: the loop and the sources of this package, which write its text, processor and features,
versions. A file has the hash of its content, so that one which is not whole counts as missing.

Code from the store is run, so the folder must be this user's alone (mode 0700), and none of those above it may be
written by somebody who cannot write this program (`files.is_as_safe`). Otherwise the store is left out.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..environment import value
from ..files import PrivateFolder, is_as_safe, new_file
from . import emit
from .loops import Loop, Unsupported
from .operations import divides

__all__ = ["check", "compile_loops", "compile_texts", "is_available"]

_FORMAT = b"ringtape code 1\n"
_MACHINES = ("x86_64", "aarch64", "arm64")
_OLDEST_LLVM = 16  # the first one in which all pointers have one type
_MOST_FILES = 4096  # 10 MB; the half that was written first is removed then
_NAME = "NAME"  # of a function in a text; its code has the hash in its place
_lock = threading.RLock()


def is_available() -> bool:
    """Whether loops can be compiled here: llvmlite is installed, and ``RINGTAPE_COMPILED`` is not 0.

    Examples
    --------
    >>> is_available() in (True, False)
    True
    """
    if value("RINGTAPE_COMPILED") == "0" or os.name != "posix" or platform.machine() not in _MACHINES:
        return False
    if find_spec("llvmlite") is None:
        return False
    try:
        _machine()
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError):  # an old llvmlite, or another platform
        return False
    return True


class _Machine(NamedTuple):
    """LLVM for the processor of the host."""

    binding: Any
    machine: Any
    linker: Any
    head: str  # of each module
    identity: bytes  # what the code depends on beside its text


@cache  # one entry: LLVM's objects, to which all compiled code is linked
def _machine() -> _Machine:
    import llvmlite
    from llvmlite import binding

    if binding.llvm_version_info[0] < _OLDEST_LLVM:
        raise ImportError(f"LLVM {binding.llvm_version_info}; needed: {_OLDEST_LLVM}")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    name, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    machine = target.create_target_machine(cpu=name, features=features, opt=3, reloc="pic", codemodel="default")
    linker = binding.create_lljit_compiler(use_jit_link=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(linker))  # it outlives threads that run code when the process ends
    head = f'target triple = "{target.triple}"\ntarget datalayout = "{machine.target_data}"\n'
    identity = f"{llvmlite.__version__} {binding.llvm_version_info}\n{name}\n{features}\n{head}".encode()
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    sources = sources or os.urandom(16)  # they lie in an archive: nothing is found again
    return _Machine(binding, machine, linker, head, identity + hashlib.sha256(sources).digest())


def has_vectors() -> bool:
    """Whether the processor adds and multiplies vectors of 64 bytes."""
    return b"+avx512f" in _machine().identity


_addresses: dict[Any, int] = {}
_compiled_addresses = set[int]()
_numbers = count()  # of what is linked


def _text(loop: Loop) -> str:
    return emit.function_text(loop, _NAME)


def check(loop: Loop) -> None:
    """Raise `Unsupported` if a loop has no compiled form. Nothing is compiled.

    Examples
    --------
    >>> from autograd.compiler.loops import Loop, Pointer
    >>> check(Loop((8,), (Pointer("f4", (4,)),), (("load", 0), ("exp", 0))))
    Traceback (most recent call last):
    ...
    autograd.compiler.loops.Unsupported: exp of 1 operands
    """
    _text(loop)


def compile_loops(loops: Sequence[Loop]) -> list[int]:
    """The addresses of the functions of loops; those that are not known are compiled.

    Raises
    ------
    Unsupported
        One of the loops has no compiled form, or nothing can be compiled here (`is_available`).

    Examples
    --------
    >>> from autograd.compiler.loops import Loop, Pointer
    >>> x = Pointer("f4", (4,))
    >>> loop = Loop((8,), (x, x), (("load", 0), ("square", 0), ("store", 1, 1)))
    >>> is_available() and compile_loops([loop]) == compile_loops([loop, loop])[1:] or not is_available()
    True
    """
    if not is_available():
        raise Unsupported("machine code: llvmlite is missing, or RINGTAPE_COMPILED=0")
    with _lock:
        new = [loop for loop in dict.fromkeys(loops) if loop not in _addresses]
        found = _linked({repr(loop): partial(_text, loop) for loop in new}, [_NAME])
        for loop, (address,) in zip(new, found, strict=True):
            _addresses[loop] = noted(address)
        return [_addresses[loop] for loop in loops]


def noted(address: int) -> int:
    """Note the address of a compiled function in the form of a loop, which clears no floating-point flags."""
    _compiled_addresses.add(address)
    return address


def is_compiled(address: int) -> bool:
    """Whether it is the address of a compiled function that clears no floating-point flags."""
    return address in _compiled_addresses


def compile_texts(
    texts: Sequence[str], names: Sequence[str], symbols: Mapping[str, int] = MappingProxyType({})
) -> list[list[int]]:  # fmt: skip
    """For each text the addresses of these functions in it, which call those with the addresses `symbols`.

    A text says ``NAME`` where its names must be its own.
    """
    by_text = {text: partial(str, text) for text in texts}
    found = dict(zip(by_text, _linked(by_text, names, symbols), strict=True))
    return [found[text] for text in texts]


def _linked(
    texts: Mapping[str, Callable[[], str]], names: Sequence[str], symbols: Mapping[str, int] = MappingProxyType({})
) -> list[list[int]]:
    """The addresses of the functions of texts, each of which is written where the store does not have its code."""
    if not texts:
        return []
    made, codes = _machine(), dict[str, bytes]()
    with _lock, _store() as store:
        is_written = False
        for identity, text in texts.items():
            key = hashlib.sha256(b"\0".join((_FORMAT, made.identity, identity.encode()))).hexdigest()
            code = store.read(key) if store else None
            if code is None:
                code = _compiled(text().replace(_NAME, f"loop_{key}"))
                is_written = bool(store and store.write(key, code)) or is_written
            codes[key] = code
        if store and is_written:
            store.trim()
        own = [[name.replace(_NAME, f"loop_{key}") for name in names] for key in codes]
        find = _loaded(codes.values(), {name for each in own for name in each}, symbols)
        return [[find(name) for name in each] for each in own]


def _compiled(text: str) -> bytes:
    """The object code of a module."""
    binding, machine, _, head, _ = _machine()
    text = emit.with_fields(text)
    module = binding.parse_assembly(head + emit.declarations(text) + text, binding.create_context())
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization, options.slp_vectorization = True, not divides(text)
    options.loop_unrolling = False  # a third of the time of a sum, and no gain: vectorized loops are interleaved
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def _loaded(codes: Iterable[bytes], names: Iterable[str], symbols: Mapping[str, int]) -> Callable[[str], int]:
    """The function that finds the addresses of functions in object code; `symbols` are addresses that the code needs.

    JITLink puts the parts of an object beside each other. With MCJIT's memory manager, constants may be out of the
    reach of the code in a process with large arrays.
    """
    made = _machine()
    library = made.binding.JITLibraryBuilder().add_current_process()
    for code in codes:
        library.add_object_img(code)
    for name in names:
        library.export_symbol(name)
    for name, address in symbols.items():
        library.import_symbol(name, address)
    tracker = library.link(made.linker, f"{next(_numbers)}")
    tracker.detach()  # it is never unloaded, because its addresses are everywhere
    find: Callable[[str], int] = tracker.__getitem__
    return find


# -- the store ---------------------------------------------------------------------------------------------------------
class _Store:
    """The object code in a private folder."""

    def __init__(self, folder: PrivateFolder):
        self._folder = folder

    def read(self, key: str) -> bytes | None:
        """The code of a key; None if it is missing, or not whole."""
        try:
            number = self._folder.opened(key)
            with os.fdopen(number, "rb") as file:
                if os.fstat(number).st_uid != os.geteuid():
                    return None
                data = file.read()
        except OSError:
            return None
        head = len(_FORMAT)
        digest, code = data[head : head + 32], data[head + 32 :]
        is_whole = data[:head] == _FORMAT and hashlib.sha256(code).digest() == digest
        return code if is_whole else None

    def write(self, key: str, code: bytes) -> bool:
        """Keep code. A file gets its name once it is written; `read` sees whether the disk has lost some of it."""
        part, number = f".{os.urandom(16).hex()}.part", self._folder.number
        try:
            with os.fdopen(new_file(part, folder=number, mode=0o600), "wb") as file:
                file.write(_FORMAT + hashlib.sha256(code).digest() + code)
            os.rename(part, key, src_dir_fd=number, dst_dir_fd=number)
        except OSError:  # a full disk, a folder that may not be written
            with suppress(OSError):
                os.unlink(part, dir_fd=number)
            return False
        return True

    def trim(self) -> None:
        """Remove the oldest files if there are too many."""
        with suppress(OSError):
            names = self._folder.names()
            if len(names) <= _MOST_FILES:
                return
            at = self._folder.number
            ages = sorted((os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime_ns, name) for name in names)
            for _, name in ages[: len(ages) // 2]:
                os.unlink(name, dir_fd=at)


def _path() -> str:
    """The path of the store; "" for none."""
    if given := value("RINGTAPE_CODE"):
        return "" if given == "none" else given
    above = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(above, "ringtape", "code") if os.path.isabs(above) else ""


@contextmanager
def _store() -> Iterator[_Store | None]:
    """The store, open; None if there is none, or others could write what is in it."""
    path = _path()
    folder = _private(path) if path else None
    if folder is None:
        yield None
        return
    try:
        yield _Store(folder)
    finally:
        folder.close()


def _private(path: str) -> PrivateFolder | None:
    """The folder, made if it is missing."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
    except OSError:
        return None
    if not is_as_safe(path, os.path.dirname(__file__)):
        return None
    return PrivateFolder.find(path)
