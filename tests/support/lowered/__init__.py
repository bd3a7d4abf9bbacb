"""Code for CPUs with AVX-512 on those that have AVX2 alone, so that its results are tested everywhere.

With the variable CPUCONV_TEST_LOWERED, such as znver4, all that asks which CPU code is generated for hears of that one:
instruction set, tiles, layouts, solvers and products are its own. Their code is then generated for a CPU with AVX2:
LLVM makes two vectors of each that is too long, and what its instructions are named by has functions in its place
(`instructions.py`, `tiles.py`). Assembly of micro-kernels is still the named CPU's.

Kernels are kept apart from all others. `install()` comes before cpuconv is imported; processes that tests start have
it from `child/sitecustomize.py`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from support.lowered.features import FEATURES

VARIABLE = "CPUCONV_TEST_LOWERED"
CHILD = Path(__file__).parent / "child"
HOST = "x86-64-v3"  # LLVM's name of what code is generated for
NEEDS = ("avx2", "fma", "bmi2", "lzcnt", "movbe", "f16c")  # what it has, and this CPU must have

_reading: contextvars.ContextVar[bool] = contextvars.ContextVar("reading", default=False)


def cpu() -> str:
    """The CPU that this process believes in; empty: its own."""
    return os.environ.get(VARIABLE, "")


def install() -> None:
    """Have this process, and those that it starts, believe in the CPU that the variable names, if it names one."""
    if not cpu() or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if early := [name for name in _CHANGES if name in sys.modules]:
        raise ImportError(f"{', '.join(early)} imported too early")
    os.environ["CPUCONV_PACKS"] = "0"  # those of the named CPU's class cannot run
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(CHILD) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, str(CHILD)]))
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Changes modules after they are imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        change = _CHANGES.get(name)
        if change is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            _extend(spec.loader, change)
        return spec


def _extend(loader: Any, change: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def changed(module: Any) -> None:
        execute(module)
        change(module)

    loader.exec_module = changed


# --- changes of modules ----------------------------------------------------------------------------------------------


def _of_the_cpu(host_cpu: Any) -> None:
    """What is asked of the host."""
    chosen = host_cpu.chosen
    features = dict.fromkeys(FEATURES[cpu()], True)

    def answered(environ: Mapping[str, str]) -> tuple[str, dict[str, bool] | str]:
        stated = environ.get("NUMBA_CPU_NAME") or environ.get("NUMBA_CPU_FEATURES") is not None
        return chosen(environ) if stated else (cpu(), features)

    host_cpu.chosen = answered


def _of_machine_code(machine_code: Any) -> None:
    """Kernels are compiled for the host, and read as the named CPU's."""
    named, assembly = machine_code.target_machine, machine_code.assembly
    machine_code.target_machine = lambda opt=3: named(opt) if _reading.get() else _machine(named, opt)

    def read(*given: Any) -> str:
        with _as_named():
            return assembly(*given)

    machine_code.assembly = functools.wraps(assembly)(read)


def _machine(named: Callable[[], Any], opt: int) -> Any:
    import llvmlite.binding as llvm

    named()  # it initialises LLVM
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=HOST, opt=opt, reloc="static", codemodel="jitdefault")


@contextlib.contextmanager
def _as_named() -> Iterator[None]:
    before = _reading.set(True)
    try:
        yield
    finally:
        _reading.reset(before)


def _of_llvm(binding: Any) -> None:
    """Every module that becomes code, of micro-kernels and Numba's."""
    parse = binding.parse_assembly

    def parsed(text: Any, *arguments: Any) -> Any:
        from support.lowered.text import lowered  # imports llvmlite's language

        return parse(text if _reading.get() else lowered(str(text)), *arguments)

    binding.parse_assembly = parsed


def _of_files(kernel_files: Any) -> None:
    """The folder of kernels."""
    target = kernel_files.target
    kernel_files.target = lambda: (*target(), "lowered", _version())


@functools.cache
def _version() -> str:
    """A hash of all that code follows from here."""
    from autotune.machine import host_cpu

    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(repr((host_cpu.host(), sources)).encode()).hexdigest()


def _of_features(features: Any) -> None:
    """Leave to use AMX's tiles, where the CPU has them."""
    if "amx-tile" in FEATURES[cpu()]:
        from support.lowered import tiles  # imports llvmlite's language

        tiles.reserve()
        features.amx_permitted = functools.cache(lambda: True)  # which tests clear


_CHANGES: dict[str, Callable[[Any], None]] = {
    "autotune.machine.host_cpu": _of_the_cpu,
    "cpuconv.runtime.machine_code": _of_machine_code,
    "cpuconv.runtime.code.kernel_files": _of_files,
    "cpuconv.isa.features": _of_features,
    "llvmlite.binding": _of_llvm,
}
