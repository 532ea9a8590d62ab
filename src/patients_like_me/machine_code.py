"""Compiled loops whose machine code is kept, so that the next process loads neither numba nor compiles anything.

Loading numba takes most of a second, which is more than the work of many commands. A loop that takes arrays and whole
numbers, makes no arrays of its own and returns a whole number needs nothing of numba once it is compiled: its object
code is kept in the user's cache and loaded with llvmlite alone, in a tenth of a second. Such loops run without Python's
lock, so that threads work at the same time.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Final, get_args, get_type_hints

import numpy as np

from patients_like_me.kept import kept

_PREFIX: Final = "plm_"
_lock = Lock()
_loops: dict[Path, list[Loop]] = {}
#: Engines own the loaded code; they live as long as the process.
_engines: list[Any] = []


class Loop:
    """A function that is called as machine code; arrays are given as they lie in memory and are not copied."""

    def __init__(self, function: Callable[..., int]) -> None:
        self.function = function
        self.name = function.__name__
        self.path = Path(inspect.getfile(function))
        self._call: Callable[..., int] | None = None
        self._types: list[np.dtype[Any] | None] = []
        _loops.setdefault(self.path, []).append(self)

    def types(self) -> list[np.dtype[Any] | None]:
        """Return the type of each argument as it is annotated: that of an array's elements, None for a whole number."""
        if not self._types:
            hints = get_type_hints(self.function)
            hints.pop("return")
            self._types = [None if hint is int else np.dtype(get_args(get_args(hint)[1])[0]) for hint in hints.values()]
        return self._types

    def __call__(self, *given: Any) -> int:
        """Run the loop; an array of another type or with gaps would be read wrongly, and is refused."""
        call = self._call or self._loaded()
        return call(
            *(
                value if wanted is None else _address(value, wanted, self.name)
                for value, wanted in zip(given, self.types(), strict=True)
            )
        )

    def take(self, address: int) -> None:
        """Use the machine code at an address."""
        kinds = [ctypes.c_int64 if wanted is None else ctypes.c_void_p for wanted in self.types()]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)

    def _loaded(self) -> Callable[..., int]:
        load(self.path)
        if self._call is None:
            raise RuntimeError(f"the loop '{self.name}' was not loaded")
        return self._call


def loop(function: Callable[..., int]) -> Loop:
    """Let a function run as machine code; all loops of a file are compiled and loaded together, at the first call.

    Its arguments are annotated as arrays (``npt.NDArray[np.int64]``) or ``int``, and it returns an ``int``. It must not
    make arrays, ask for a length or raise.
    """
    return Loop(function)


def load(path: Path) -> None:
    """Load the loops of a file; the first time on this machine they are compiled, which takes some seconds."""
    with _lock:
        wanted = [each for each in _loops[path] if each._call is None]
        if not wanted:
            return
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = _machine(llvm)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f'target triple = "{machine.triple}"'), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(_object_code(path, llvm)))
        engine.finalize_object()
        _engines.append(engine)
        for each in wanted:
            each.take(engine.get_function_address(_PREFIX + each.name))


def _object_code(path: Path, llvm: Any) -> bytes:
    """Return the kept machine code of a file's loops; where there is none, or it is damaged, compile them."""
    of_machine = (llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    made_from = (path.read_bytes(), version("numba"), version("llvmlite"), *of_machine)
    return kept(f"{path.stem}.o", made_from, lambda: _compiled(_loops[path], llvm))


def _compiled(loops: list[Loop], llvm: Any) -> bytes:
    """Compile loops with numba and return their object code, in which each is called by its own name."""
    import numba

    # Its types are not declared.
    compiler: Any = numba
    types = compiler.types
    whole = None
    for each in loops:
        arguments = [
            types.int64 if wanted is None else types.CPointer(compiler.from_dtype(wanted)) for wanted in each.types()
        ]
        options = {"nopython": True, "error_model": "numpy", "boundscheck": False}
        compiled = compiler.cfunc(types.int64(*arguments), **options)(each.function)
        module = llvm.parse_assembly(compiled.inspect_llvm())
        if needed := [item.name for item in module.functions if item.is_declaration and _is_of_python(item.name)]:
            raise TypeError(f"the loop '{each.name}' can fail, which machine code alone cannot report ({needed[0]})")
        module.get_function(compiled.native_name).name = _PREFIX + each.name
        if whole is None:
            whole = module
        else:
            whole.link_in(module)
    code: bytes = _machine(llvm).emit_object(whole)
    return code


def _is_of_python(name: str) -> bool:
    return name.startswith(("Py", "_Py", "numba_", "NRT_"))


def _machine(llvm: Any) -> Any:
    """Return how code is made for this machine."""
    # LLVM loads object code at run time in one format on every system.
    triple = llvm.get_process_triple() + ("-elf" if sys.platform == "win32" else "")
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


def _address(array: Any, wanted: np.dtype[Any], name: str) -> int:
    if not isinstance(array, np.ndarray) or array.dtype != wanted or not array.flags.c_contiguous:
        found = f"{array.dtype} with strides {array.strides}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"the loop '{name}' takes an array of {wanted} without gaps, not {found}")
    return int(array.ctypes.data)
