"""Machine code of functions that are written as LLVM IR with llvmlite."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from typing import Any

from cpuconv.runtime.code.cache import Compiled, link_object
from cpuconv.runtime.code.llvm import imported, ir
from cpuconv.runtime.in_order.pipeline import IN_ORDER
from cpuconv.runtime.in_order.reordering import reordered, reordered_code
from cpuconv.runtime.target import target, target_machine

_lock = threading.Lock()  # llvmlite's identified types and pass builders are not thread-safe

Write = Callable[..., None]
"""write(builder, *arguments) writes a function's body without its return."""


def compiled(name: str, symbol: str, kind: ir.FunctionType, write: Write, tune: str = "") -> Compiled:
    """Compile a function; return object code, symbol and function.

    Parameters
    ----------
    name : str
        Name of the LLVM module.
    kind : llvmlite.ir.FunctionType
        Its return type is void or a pointer; a null pointer is returned.
    tune : str
        LLVM's name of the CPU for instruction scheduling; empty: the target CPU.
    """
    with _lock:
        imported()
        machine = target_machine()
        text = _text(machine, name, symbol, kind, write, tune)
        # LLVM may select other instructions for a module that it has compiled already, and for a copy of one.
        written = str(machine.emit_assembly(_optimised(machine, text))) if target()[1] in IN_ORDER else ""
        code = machine.emit_object(_optimised(machine, text))
    code = reordered_code(code, written) if written else code
    function = link_object(code, symbol)
    function.ir_hash = hash_of(text)
    return code, symbol, function


def assembly(name: str, symbol: str, kind: ir.FunctionType, write: Write, tune: str = "") -> str:
    """Return the assembly text of a function; parameters as for `compiled`."""
    with _lock:
        imported()
        machine = target_machine()
        found = str(machine.emit_assembly(_optimised(machine, _text(machine, name, symbol, kind, write, tune))))
    return reordered(found)[0] if target()[1] in IN_ORDER else found


def ir_hash(name: str, symbol: str, kind: ir.FunctionType, write: Write, tune: str = "") -> str:
    """Return `hash_of` a function's LLVM IR, without compiling it; parameters as for `compiled`."""
    with _lock:
        imported()
        return hash_of(_text(target_machine(), name, symbol, kind, write, tune))


_NAMES = re.compile(r'%"([^"]*)"|^([^\s:;]+):', re.MULTILINE)  # uses of values and blocks; block labels


def hash_of(text: str) -> str:
    """Return a hash of an LLVM IR module that ignores the names of the module, its values and its blocks."""
    _, _, content = text.partition("\n")  # drop the module's name
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[1] or found[2], f"%{len(numbers)}")

    return hashlib.sha256(_NAMES.sub(number, content).encode()).hexdigest()[:16]


def _text(machine: Any, name: str, symbol: str, kind: ir.FunctionType, write: Write, tune: str) -> str:
    """Return the module as LLVM IR text."""
    module = ir.Module(name)
    module.triple, module.data_layout = target()[0], str(machine.target_data)
    function = ir.Function(module, kind, symbol)
    if tune:
        set.add(function.attributes, f'"tune-cpu"="{tune}"')  # bypasses llvmlite's check of attribute names
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    write(builder, *function.args)
    if isinstance(kind.return_type, ir.VoidType):
        builder.ret_void()
    else:
        builder.ret(kind.return_type(None))
    return str(module)


def _optimised(machine: Any, text: str) -> Any:
    import llvmlite.binding as llvm

    parsed = llvm.parse_assembly(text, llvm.create_context())  # LLVM's common context keeps all types and constants
    parsed.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return parsed
