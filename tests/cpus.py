"""The tests on other CPUs than this one, as far as this machine can execute or emulate them.

    python tests/cpus.py [--slice]              code for other CPUs of x86, on this one
    python tests/cpus.py --lowered [--slice]    code for CPUs with AVX-512 and AMX, on one with AVX2 (`support.lowered`)
    python tests/cpus.py --arm [--slice]        an emulated ARM; its root folder is made when it is missing
    python tests/cpus.py --arm --part 2/8       every eighth file of tests, from the second on: all parts are the whole
    python tests/cpus.py --arm --problems --types int8      random problems; their kernels are compiled on this machine
    python tests/cpus.py --arm --models --precision float16     the same of random models

Exit codes: 0 all pass, 1 some fail, 77 ARM cannot be emulated here.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import arm
import llvmlite.binding as llvm

from baselib.interpreter import VARIABLE, python
from bench.packs.features import environment
from support import emulated, lowered
from support.lowered.features import FEATURES
from support.running.kept import kept

TESTS = Path(__file__).resolve().parent
TESTED = ("-m", "pytest")  # what an interpreter is started with
JUDGED = {each: (str(TESTS / f"random_{each}.py"),) for each in ("problems", "models")}
COMPILED_HERE = ("tests/api/", "tests/network/", "tests/solvers/")  # an emulator runs their kernels
PASSED, FAILED, CANNOT = 0, 1, 77

NATIVE = {name: FEATURES[name] for name in ("x86-64", "haswell", "skylake-avx512", "znver4", "znver5")}
_KINDS = ("avx512f", "avxvnni", "avx2")  # what code of a CPU differs by, the first that it has
ARM = ("cortex-a55", "cortex-a76", "neoverse-n1", "neoverse-v1")
ARM_SECONDS = 1800  # a test may take: some kernels are compiled by an emulated compiler
HERE_SECONDS = 120  # a test may take that only compiles


def _tests(*names: str) -> tuple[str, ...]:
    """Test files, as ``room/file``, or single tests of these, as ``room/file::test``."""
    return tuple(re.sub(r"^([\w/]*)/(\w+)", r"tests/\1/test_\2.py", name) for name in names)


# A run of minutes: the results of every kernel at its edges, on the CPUs that differ most from those of today.
_AROUND = _tests("solvers/overlapping", "solvers/lanewise", "solvers/blocked", "api/reorder", "api/conv2d")
_KERNELS = (*_tests("solvers/solvers"), *_AROUND)
_NAMED = ("edges_of_a_tile", "channels_around_a_block", "epilogue", "not_finite")
_EDGES = _tests(*(f"solvers/solvers::test_{name}" for name in _NAMED))
_SAMPLE, _SAMPLE_ON_ARM = 96, 12  # of exhaustive cases that run lowered, and emulated
_FEW = ("PRelu", "MaxPool", "Softmax")
_OPERATORS = (  # one or two of each kind of kernel of networks
    *("Add", "PRelu", "Gelu", "Elementwise", "Concat", "Split", "Slice", "Pad", "Transpose", "Gather", "Resize"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "VolumeNormalization", "LayerNormalization", "LRN", "Softmax"),
    *("ReduceMean", "MatMul", "Linear", "DepthToSpace", "ScaledDotProductAttention", "GridSample"),
    *("TopK", "ArgMax", "CumSum", "BoundedNonZero", "BoundedNonMaxSuppression"),
)


def _operators(*names: str) -> tuple[str, ...]:
    return _tests(*(f"graph/ops/kernels::test_offers[{name}]" for name in names))


_NETWORKS = _tests("network/model::test_a_random_network", "network/whole::test_network[squeezenet]")
_SIZES = tuple(
    f"tests/project/test_random_sizes.py::test_a_slice[{name}]"
    for name in ("images", "attention", "int8", "dynamic int8")
)
SLICES: dict[str, tuple[str, ...]] = {
    "x86-64": (*_EDGES, *_AROUND, *_tests("conv/caches/fingerprint"), *_operators(*_FEW), *_NETWORKS[:1]),
    "haswell": (
        *_KERNELS,
        *_tests("solvers/im2col", "solvers/fft", "solvers/asm"),
        *_operators(*_OPERATORS),
        *_NETWORKS,
        *_SIZES,
        *_tests("network/sizes/program_templates"),
    ),
    "cortex-a76": (
        *_EDGES,
        *_tests("solvers/lanewise", "solvers/blocked", "solvers/asm"),
        *_tests("solvers/float16_sums::test_errors_are_within_the_bound"),
        *_operators(*_FEW[1:], "ScaledDotProductAttention"),
        *_NETWORKS[1:],
        *_tests("project/cpus", "autotune/tuning/search::test_workers_end_with_their_parent"),  # processes are launched
    ),
    "neoverse-v1": (f"--sample={_SAMPLE_ON_ARM}", *_tests("solvers/typed")),
}

# What runs on CPUs with AVX2 as if they were these, which they are not: options and tests of a slice.
LOWERED: dict[str, tuple[str, ...]] = {
    "arrowlake": (),
    "skylake-avx512": (),
    "znver4": (
        f"--sample={_SAMPLE}",
        *_tests("solvers/solvers::test_edges_of_a_tile", "solvers/solvers::test_not_finite"),
        *_tests("solvers/asm", "solvers/lanewise", "solvers/typed", "solvers/row_patches", "solvers/patches"),
        *_tests("solvers/winograd_integer", "solvers/depthwise_taps", "solvers/few_outputs", "network/precision/kept"),
        *_operators(*_FEW, "Gelu", "Elementwise", "MatMul"),
        *_NETWORKS[:1],
        *_tests("network/quantised::test_every_step_of_random_networks", "network/bfloat16::test_a_random_network"),
    ),
    "sapphirerapids": _tests(
        "solvers/typed::test_every_solver_at_the_edges[amx-u8:s8:u8]",
        "solvers/typed::test_every_solver_at_the_edges[amx-bf16:bf16:f32]",
        "solvers/typed::test_residuals_and_threads[amx-s8:s8:s8]",
        "solvers/split_bf16",
        "graph/ops/products_on_amx",
        "solvers/bf16_parts",
    ),
}
READ = {"znver4": _tests("solvers/asm")}  # in a slice, where there is no AVX2 either: compiled and read


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run the tests on other CPUs than this one.", allow_abbrev=False)
    parser.add_argument("--arm", action="store_true", help="on an emulated ARM")
    parser.add_argument("--lowered", action="store_true", help="as if this CPU had AVX-512 or AMX, which it has not")
    parser.add_argument("--slice", action="store_true", help="only what takes minutes, on fewer CPUs")
    parser.add_argument("--cpus", help="names of CPUs, with commas between them")
    parser.add_argument("--part", metavar="I/N", type=_part, default=[], help="one of N parts of all files of tests")
    parser.add_argument("--problems", action="store_true", help="with --arm: random problems, by options of their own")
    parser.add_argument("--models", action="store_true", help="with --arm: random models, by options of their own")
    asked, options = parser.parse_known_args(arguments)
    judged = next((each for each in JUDGED if vars(asked)[each]), "")
    if asked.arm and asked.lowered:
        parser.error("argument --lowered: not allowed with argument --arm")
    if asked.slice and asked.part:
        parser.error("argument --part: not allowed with argument --slice")
    if judged and (asked.slice or asked.part or not asked.arm):
        parser.error(f"argument --{judged}: with --arm, --cpus and options of tests/random_{judged}.py alone")
    slices = LOWERED if asked.lowered else SLICES
    on_arm = emulated.CLASSES if judged else ARM
    there = LOWERED if asked.lowered else on_arm if asked.arm else NATIVE
    known = [name for name in there if slices.get(name) or not asked.slice]
    usual = asked.slice and not (asked.arm or asked.lowered or asked.cpus)
    names = asked.cpus.split(",") if asked.cpus else [*_others(known)] if usual else known
    if not {*names} <= {*known}:
        parser.error(f"argument --cpus: must be among {','.join(known)}, not {asked.cpus}")
    run_on_arm = functools.partial(_judge_on_arm, JUDGED[judged]) if judged else _run_on_arm
    run = run_on_arm if asked.arm else _run_lowered if asked.lowered else _run
    try:
        found = [run(name, [*(slices[name] if asked.slice else asked.part), *options]) for name in names]
        if usual:
            found += [_run_in_place(name, options) for name, tests in LOWERED.items() if tests]
    except arm.Unavailable as error:
        print(f"ARM cannot be emulated here: {error}", file=sys.stderr)
        return CANNOT
    return FAILED if any(found) else PASSED


def _part(text: str) -> list[str]:
    """The files of part I of N."""
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise argparse.ArgumentTypeError(f"must be two numbers I/N with I from 1 to N, not {text!r}")
    files = sorted(path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py"))
    return files[int(first) - 1 :: int(count)]


def _others(names: Iterable[str]) -> Iterator[str]:
    """The CPUs whose code is of another kind than this one's own, which all tests run on."""
    have = llvm.get_host_cpu_features()
    own = next((kind for kind in _KINDS if have.get(kind)), "")
    for name in names:
        if own != next((kind for kind in _KINDS if kind in NATIVE[name]), ""):
            yield name
        else:
            print(f"== {name}: left out of the slice, as this CPU's own code is of its kind", flush=True)


def missing(needs: Iterable[str]) -> list[str]:
    """The features that this CPU does not have."""
    have = llvm.get_host_cpu_features()
    return [name for name in needs if not have.get(name)]


def _run(name: str, options: list[str]) -> bool:
    """Run pytest with code for a CPU; gives whether it failed."""
    if lacks := missing(NATIVE[name]):
        print(f"== {name}: left out, as this CPU has no {', '.join(lacks)}", flush=True)
        return False
    return _started(name, options)


def _run_as(name: str) -> str:
    """The emulated CPU that runs code of a class: emulators lack Cortex-A55, and Cortex-A76 has all that it has."""
    return "cortex-a76" if name == "cortex-a55" else name


def _run_on_arm(name: str, options: list[str]) -> bool:
    """Run pytest on an emulated ARM, with kernels that this machine compiles before, as far as the tests go here.

    Tests fail here where they compare results, as nothing runs: what they would compile after that is compiled there.
    """
    root = arm.root()
    script = str(arm.interpreter(root, _run_as(name)))
    cache = str((kept() or root) / "arm")
    stands_for = {**environment(emulated.CLASSES[name]), emulated.VARIABLE: name, "CPUCONV_TEST_CACHE": cache}
    files = [each for each in options if each.startswith("tests/")] or COMPILED_HERE
    if files := [each for each in files if each.startswith(COMPILED_HERE)]:
        others = [each for each in options if not each.startswith("tests/")]
        _started(f"{name}, compiled here", [f"--timeout={HERE_SECONDS}", *others, *files], more=stands_for, quiet=True)
    launched = {VARIABLE: shlex.join(arm.launcher(root, _run_as(name))), "CPUCONV_TEST_PYTHON": script}
    return _started(f"{name}, emulated", [f"--timeout={ARM_SECONDS}", *options], [script], {**stands_for, **launched})


def _judge_on_arm(program: Sequence[str], name: str, options: list[str]) -> bool:
    """Judge random problems or models by kernels that this machine compiles before; returns whether some fail."""
    root = arm.root()
    stands_for = {**environment(emulated.CLASSES[name]), emulated.VARIABLE: name}
    ways = (f"{name}, compiled here", ()), (f"{name}, emulated", [str(arm.interpreter(root, _run_as(name)))])
    return any([_started(title, options, interpreter, stands_for, program) for title, interpreter in ways])


def _run_lowered(name: str, options: list[str]) -> bool:
    if lacks := missing(lowered.NEEDS):
        print(f"== {name}: left out, as this CPU has no {', '.join(lacks)}", flush=True)
        return False
    return _started(f"{name}, lowered", options, more={lowered.VARIABLE: name})


def _run_in_place(name: str, options: list[str]) -> bool:
    """Run the lowered slice of a CPU whose code cannot run here, or read what of its code can only be read."""
    if not missing(FEATURES[name]):
        return False
    if not missing(lowered.NEEDS):
        return _run_lowered(name, [*LOWERED[name], *options])
    return name in READ and _started(name, [*READ[name], *options])


def _started(
    title: str, options: list[str], interpreter: Sequence[str] = (), more: Mapping[str, str] = {},
    program: Sequence[str] = TESTED, quiet: bool = False,
) -> bool:  # fmt: skip
    """Run pytest, or another program, with code for a CPU; gives whether it failed. quiet: what it says is left out."""
    environ = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    if lowered.VARIABLE not in more:
        # Without features of its own choice Numba would add this machine's.
        environ |= {"NUMBA_CPU_NAME": title, "NUMBA_CPU_FEATURES": ""}
    print(f"== {title}", flush=True)
    command = [*(interpreter or python()), *program, *options]
    said = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, env=environ | more, cwd=TESTS.parent, stdout=said, stderr=said).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
