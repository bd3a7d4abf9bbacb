"""Hashes of LLVM IR: equal whatever names are, different wherever the code is."""

from __future__ import annotations

import subprocess

import pytest

from cpuconv.elements import F32
from cpuconv.isa import current
from cpuconv.kernels.copies.tail_lanes import ZeroTailTile, zero_tail_lanes
from cpuconv.runtime import machine_code
from cpuconv.runtime.code import checked_file, kernel_files
from cpuconv.runtime.code.cache import name_of
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.llvm import imported, ir
from support.running.processes import python

I64 = ir.IntType(64)


def written(*names: str, constant: int = 3, tune: str = "", swapped: bool = False) -> str:
    """The hash of a function whose module, arguments, values and blocks have these names."""
    imported()
    module, first, second, value, block = (*names, *["", "", "", "", ""][len(names) :])

    def write(builder, a, b) -> None:
        if first:
            a.name, b.name = first, second
        with builder.if_then(builder.icmp_signed("<", a, b)):
            made = builder.add(*((b, a) if swapped else (a, b)), name=value)
            inside = builder.append_basic_block(block or "then")
            builder.branch(inside)
            builder.position_at_end(inside)
            builder.store(builder.mul(made, I64(constant)), builder.inttoptr(b, I64.as_pointer()))

    kind = ir.FunctionType(ir.VoidType(), [I64, I64])
    return machine_code.ir_hash(module or "m", "symbol", kind, write, tune)


def test_names_do_not_count() -> None:
    plain = written()
    assert len(plain) == 16 and plain == written("other.module", "x", "y", "sum", "block")
    assert plain == written("m", "then", "entry", "a b", "x.y")


@pytest.mark.parametrize("change", [{"constant": 4}, {"swapped": True}, {"tune": "znver4"}])
def test_code_counts(change) -> None:
    assert written() != written(**change)


def test_a_kernel_s_file_holds_the_hash() -> None:
    tile = ZeroTailTile(current().lanes, 3, F32)
    before = zero_tail_lanes.ir_hash(tile)
    code = zero_tail_lanes.entry(tile)
    kernel = KernelBody.of(checked_file.read(kernel_files.named(name_of(zero_tail_lanes, tile)).path))
    assert before and code.ir_hash == kernel.ir_hash == zero_tail_lanes.ir_hash(tile) == before
    assert zero_tail_lanes.ir_hash(ZeroTailTile(current().lanes, 2, F32)) != before


HASHES = """
import cpuconv
from cpuconv.conv.choice.model import ranking
from cpuconv.conv.kernels_hash import kernels_hash
from cpuconv.runtime.code.cache import Statistics
problem = cpuconv.ConvProblem(1, 16, 12, 13, 16, 3, 3, pads=(1, 1, 1, 1))
print({str(each.candidate): kernels_hash(problem, each.candidate) for each in ranking(problem)[::5]})
assert Statistics.compiled == 0
"""


def test_other_processes_find_the_same(environ: dict[str, str], tmp_path) -> None:
    told = []
    for seed, folder in ("1", "a"), ("2", "b"), ("3", "b"):
        variables = {**environ, "PYTHONHASHSEED": seed, "CPUCONV_CACHE_DIR": str(tmp_path / folder)}
        done = subprocess.run(python("-c", HASHES), env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(eval(done.stdout))
    assert told[0] == told[1] == told[2]
    assert len({*told[0].values()}) == len(told[0]) > 3 and all(told[0].values())
    assert (tmp_path / "b" / "kernels" / "hashes").exists()
