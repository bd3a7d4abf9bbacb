"""LLVM's text of a module, with functions in place of what a CPU with AVX2 alone lacks."""

from __future__ import annotations

import functools
import re

from llvmlite import ir

from support.lowered import instructions, tiles
from support.lowered.instructions import Row

ROWS = instructions.rows() | tiles.rows()
_X86 = re.compile(r'@"(llvm\.x86\.[\w.]+)"')
_THERE = re.compile(r"llvm\.x86\.(sse\d*|ssse3|avx|avx2)\.")  # with AVX2, but for what is in the table
_DECLARED = re.compile(r'^declare .*?@"([^"]+)".*\n?', re.MULTILINE)
_FEATURES = re.compile(r' ?"target-features"="[^"]*"')
_AS_SET = 4  # rounding, of those whose last argument says it
# A register that the optimiser knows nothing of: of 512 bits there is none.
_HIDDEN = re.compile(r'call (<(\d+) x (i\d+|float|double)>) asm (?:sideeffect)? *"", "=v,0"\(')
_BITS = {"float": 32, "double": 64}
_WIDEST = 256


class Unknown(NotImplementedError):
    """An intrinsic that a CPU with AVX2 lacks, and for which there is no function."""


def lowered(text: str) -> str:
    """The same module for a CPU with AVX2.

    Raises
    ------
    Unknown
        The module calls what nothing here stands for.
    """
    text = _HIDDEN.sub(_shown, _FEATURES.sub("", text))
    names = [name for name in dict.fromkeys(_X86.findall(text)) if name in ROWS or not _THERE.match(name)]
    if not names and "_shown." not in text:
        return text
    definitions = "".join(map(_defined, names)) + _identities(text)
    for name in names:
        if ROWS[name].arguments[-1:] == (ir.IntType(32),):
            calls = re.findall(rf'call [^\n]*@"{re.escape(name)}"\(.*i32 (\d+)\)', text)
            if {*calls} != {str(_AS_SET)}:
                raise Unknown(f"{name}, rounded by {calls}")
        text = re.sub(rf'^declare .*@"{re.escape(name)}".*\n?', "", text, flags=re.MULTILINE)
        text = text.replace(f'@"{name}"', f'@"{_own(name)}"')
    there = {*_DECLARED.findall(text)}
    needs = {match[1]: match[0] for match in _DECLARED.finditer(definitions)}
    declarations = "".join(f"{line.strip()}\n" for name, line in needs.items() if name not in there)
    return f"{text}\n{_DECLARED.sub('', definitions)}\n{declarations}"


def _own(name: str) -> str:
    return f"lowered.{name.removeprefix('llvm.x86.')}"


@functools.cache
def _defined(name: str) -> str:
    """The definition of what stands for an intrinsic, and the declarations that it needs."""
    row = ROWS.get(name)
    if row is None:
        raise Unknown(name)
    return _function(_own(name), row)


def _function(name: str, row: Row) -> str:
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(row.result, row.arguments), name)
    function.linkage = "internal"
    function.attributes.add("alwaysinline" if row.inlined else "noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    value = row.emit(builder, *function.args)
    builder.ret_void() if value is None else builder.ret(value)
    return "\n".join(line for line in str(module).splitlines() if not line.startswith(("target ", ";"))) + "\n"


def _shown(match: re.Match[str]) -> str:
    kind, count, element = match.groups()
    bits = _BITS.get(element) or int(element[1:])
    return match[0] if int(count) * bits <= _WIDEST else f'call {kind} @"_shown.{count}.{element}"('


def _identities(text: str) -> str:
    found = {*re.findall(r'call (<\d+ x \w+>) (@"_shown\.\d+\.\w+")', text)}
    found -= {*re.findall(r'define internal (<\d+ x \w+>) (@"_shown\.\d+\.\w+")', text)}  # of a text that is lowered
    return "".join(
        f"define internal {kind} {name}({kind} %x) alwaysinline {{\nret {kind} %x\n}}\n" for kind, name in sorted(found)
    )
