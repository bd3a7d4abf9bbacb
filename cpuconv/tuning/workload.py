"""Convolution as a workload of the tuner: the entry point `autotune.workloads`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import autotune.workload as protocol
from autotune.machine.roofline import Work
from autotune.store.rows import Row
from autotune.store.store import Store
from cpuconv.conv.choice import auto_settings, model, select
from cpuconv.conv.choice.model import AUTO, Limits
from cpuconv.conv.choice.target import PRECISION_F32
from cpuconv.conv.choice.tuned import same_kernels
from cpuconv.conv.kernels_hash import kernels_hash
from cpuconv.conv.least_work import DTYPES, work_of
from cpuconv.conv.recipe import Candidate, assemble, current_sources, effective_threads
from cpuconv.conv.session import TABLES
from cpuconv.elements import F32
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from cpuconv.isa import Isa, current
from cpuconv.kernels.emit.product import matrix_product_of, product_of
from cpuconv.network.problems.compiled import problems_of
from cpuconv.network.problems.original import original_problems
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading import sources
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.packs.account import account
from cpuconv.runtime.threads import pool
from cpuconv.tuning.network_race import race_networks
from cpuconv.tuning.networks import time_networks
from cpuconv.tuning.probes import MEASURED, probe
from cpuconv.tuning.speed_probe import speed_probe
from cpuconv.tuning.trial import ConvTrial


class ConvWorkload:
    """The convolutions of ONNX files and benchdnn lines."""

    name = "cpuconv"

    @property
    def sources(self) -> frozenset[str]:
        """`sources_of` the candidates of all solvers."""
        return current_sources()

    @property
    def isa(self) -> str:
        """Instruction set that kernels are generated for."""
        return current().name

    tables: Path | None = TABLES

    def sources_of(self, name: str) -> str:
        """Return a hash of the kernel sources that a candidate depends on."""
        return Candidate.parse(name).sources

    def kernels_hash(self, key: str, name: str) -> str:
        """Return a hash of a candidate's kernel calls (`cpuconv.conv.kernels_hash`)."""
        return kernels_hash(ConvProblem.parse(key), Candidate.parse(name))

    def same_kernels(self, row: Row) -> bool:
        """Whether a row was timed with kernel calls identical to the current ones."""
        return same_kernels(row)

    def with_threads(self, key: str, threads: int) -> str:
        """Return the key of the same problem for another number of threads."""
        return replace(ConvProblem.parse(key), threads=threads).key

    def load(self, source: str, reading: protocol.Reading = protocol.AS_IT_IS) -> list[protocol.Problem]:
        """Load the problems of a source; the cost model resolves `auto` layouts.

        For an ONNX model without requested layouts, these are the problems of `cpuconv.compile`, after fusion and
        layout planning. Problems of a model are timed with cold weights, as its layers evict one another's data from
        caches.

        Raises
        ------
        autotune.workload.SourceError
            The source cannot be read; the message gives the reason.
        """
        wanted = reading.layouts or ("NCHW", "NCHW")
        first, second = ("NCHW" if name == AUTO else name for name in wanted)
        is_model = sources.is_model(source)
        try:
            if is_model and reading.layouts is None and not reading.types:
                entries = problems_of(
                    source, reading.threads, reading.batches, reading.inputs, reading.precision or PRECISION_F32
                )
            else:
                types = Types.parse(reading.types) if reading.types else ALL_F32
                layouts = first, second
                if is_model:
                    entries = original_problems(
                        source, layouts, reading.threads, reading.batches, reading.inputs, types
                    )
                else:
                    entries = sources.load(source, layouts, reading.threads, types)
            for entry in entries:
                model.check_types(entry.problem)
        except (ArgumentError, ArgumentTypeError, SourceError) as error:
            raise protocol.SourceError(str(error)) from error
        weights = "cold" if is_model else "warm"
        problems = []
        for entry in entries:
            problem = entry.problem
            if AUTO in wanted:
                problem = auto_settings.resolve_layouts(problem, *wanted, Limits())
            stated = entry.label, entry.count, float(problem.flops), entry.network
            problems.append(protocol.Problem(problem.key, *stated, problem.threads, weights))
        return problems

    def time_whole(self, source: str, reading: protocol.Reading = protocol.AS_IT_IS) -> list[tuple[str, int, float]]:
        """Return (network, threads, seconds of a run) of a model with the current tuning; nothing for other sources."""
        if not sources.is_model(source):
            return []
        return time_networks(
            source, reading.threads, reading.batches, reading.inputs, reading.precision or PRECISION_F32
        )

    def race_whole(
        self,
        source: str,
        store: Store,
        reading: protocol.Reading = protocol.AS_IT_IS,
        effort: str = "quick",
        again: bool = True,
    ) -> Iterator[tuple[str, int, str]]:
        """Race the plans of a model; nothing for other sources."""
        if not sources.is_model(source):
            return
        for each in race_networks(
            source,
            reading.threads,
            store,
            batches=reading.batches,
            inputs=reading.inputs,
            precision=reading.precision or PRECISION_F32,
            effort=effort,
            again=again,
        ):
            told = f"plan {each.plan!r} of {each.plans} is the fastest"
            yield each.name, each.threads, told + (f", by {100 * (each.gain - 1):.1f}%" if each.gain > 1 else "")

    def candidates(self, key: str, effort: str) -> tuple[list[protocol.Candidate], list[protocol.Rejected]]:
        """Return every candidate, the model's choice first, and the solvers that do not apply, with their reasons."""
        problem = ConvProblem.parse(key)
        ranked = model.tuning_order(model.ranking(problem))
        rejected = [protocol.Rejected(name, why) for name, why in model.applicable(problem) if why is not None]
        return [model.as_tuner_candidate(problem, item) for item in ranked], rejected

    def untuned(self, key: str, older: Sequence[str] = ()) -> tuple[str, str]:
        """Return the candidate used without limits and without a row of current kernels, and the deciding source."""
        choice = select.untuned(ConvProblem.parse(key), Limits(), older=older)
        return str(choice.candidate), choice.decided_by

    def compile(self, key: str, name: str) -> None:
        """Compile the candidate's kernels into the disk cache."""
        for step in assemble(ConvProblem.parse(key), Candidate.parse(name)).steps:
            step.compile()

    def prepare(self, key: str, name: str, weights: str = "warm") -> ConvTrial:
        """Bind the candidate to random data, ready to run."""
        return ConvTrial(ConvProblem.parse(key), Candidate.parse(name), weights)

    def speed_probe(self, key: str) -> Callable[[], None]:
        """Return the speed probe for the problem's number of threads: a fixed amount of FMAs and stores."""
        return speed_probe(effective_threads(ConvProblem.parse(key)))

    def work(self, key: str, name: str) -> Work | None:
        """Return the operations and bytes of a candidate; None for an unknown candidate or problem."""
        try:
            return work_of(ConvProblem.parse(key), name)
        except ValueError:
            return None

    @property
    def dtypes(self) -> frozenset[str]:
        """Data types of multiplications: float32 and those of low precision."""
        return frozenset(DTYPES[element] for element in (F32, *MEASURED))

    def probe(self, threads: int) -> Iterator[tuple[str, float]]:
        """Measure peaks (GFLOP/s), and bandwidth of each memory level and of stores (GB/s); yields them one by one."""
        return probe(threads)

    def summary(self, key: str) -> str:
        """Describe channels, kernel, stride and plane, such as "3→64 7x7/2 @224x224", and types other than float32; ""
        for an invalid key."""
        try:
            problem = ConvProblem.parse(key)
        except ValueError:
            return ""
        stride, gap = ("x".join(map(str, dict.fromkeys(pair))) for pair in (problem.stride, problem.dilation))
        groups = "depthwise" if problem.cg == problem.kg == 1 else f"{problem.groups} groups"
        parts = {
            f"{problem.c}→{problem.k}": True,
            f"{problem.r}x{problem.s}" + (f"/{stride}" if stride != "1" else ""): True,
            f"@{problem.h}x{problem.w}": True,
            groups: problem.groups > 1,
            f"dilation {gap}": gap != "1",
            f"batch {problem.n}": problem.n != 1,
            f"{problem.types}": problem.types != ALL_F32,
        }
        return " ".join(part for part, is_stated in parts.items() if is_stated)

    def describe(self) -> dict[str, Any]:
        """Return instruction set, multiply instructions, threads, kernel cache and kernel pack of this process."""
        isa = current()
        place = kernel_files.folder()
        kept = f"{place.path or 'none'}{f' (nothing is written: {place.trouble})' if place.trouble else ''}"
        return {
            "isa": isa.name,
            "lanes": isa.lanes,
            "products": ", ".join(f"{types.x}:{types.w} by {by}" for types, by in _products(isa)),
            "threading_layer": pool().layer,
            "kernel_cache": kept,
            **account(),
        }


def _products(isa: Isa) -> Iterator[tuple[Types, str]]:
    """Yield types of problems, with the instructions that multiply them on this CPU."""
    for text in ("f32", "bf16", "f16", "u8", "s8"):
        types = Types.parse(text)
        found = product_of(types, isa), matrix_product_of(types)
        yield types, " and ".join(product.name for product in found if product is not None)


workload = ConvWorkload()
