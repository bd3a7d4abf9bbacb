"""Reports of a model: profile, explanation, selection of precisions, statistics, and its table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from baselib.screen import Column, Table, as_html
from baselib.text import count_of
from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.network.background_runs import BackgroundRuns
from cpuconv.network.definition import Definition
from cpuconv.network.ports import Port, fed
from cpuconv.network.program_cache import ProgramCache
from cpuconv.network.reports.stats import RunLog, Stats
from cpuconv.network.variants import BranchModels, DefaultModels
from cpuconv.runtime.code.cache import Statistics

if TYPE_CHECKING:
    from cpuconv.images.preprocessing import Pictures
    from cpuconv.network.reports.explain import Explanation
    from cpuconv.network.reports.precisions import PrecisionTable
    from cpuconv.network.reports.profile import Profile


class ModelReports(BackgroundRuns):
    """Base class of `Model`, whose attributes it reads."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    defaults: tuple[Port, ...]
    _definition: Definition
    _programs: ProgramCache
    pictures: Pictures | None
    _opened: DefaultModels[Any]
    _branches: BranchModels[Any] | None

    def __init__(self) -> None:
        super().__init__()
        self._precisions: PrecisionTable | None = None
        self._log = RunLog()

    def _repr_html_(self) -> str:
        """Return the inputs and outputs as a table, for a notebook."""
        sides = {"input": self.inputs, "output": self.outputs}
        rows = [(side, *str(port).split(": ", 1)) for side, ports in sides.items() for port in ports]
        table = Table([Column("tensor"), Column("name"), Column("type")], rows)
        return as_html(iter([f"cpuconv.Model {self._definition.name}, {count_of(self.threads, 'thread')}", table]))

    def profile(self, feed: Mapping[str, Any], runs: int = 20, *, watch: bool = False) -> Profile:
        """Time each operator separately, and whole runs.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`.
        runs : int
            Number of timed repetitions; medians are reported.
        watch : bool
            Whether to record a timeline of each worker in a run as well, by timestamps before and after each kernel.

        Returns
        -------
        Profile
            Seconds per operator and per run. It prints itself, and has `.to_dict()`.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            `runs` is not an integer of at least 1, or the feed is wrong, as for `run`.
        """
        if isinstance(runs, bool) or not hasattr(runs, "__index__") or int(runs) < 1:
            raise ArgumentError(must("runs", "an integer, 1 or more", repr(runs)))
        if self.pictures is None:
            return self._profile(feed, int(runs), watch)
        with self.pictures.fed(feed) as (given, _):
            return self._profile(given, int(runs), watch)

    def _profile(self, feed: Mapping[str, Any], runs: int, watch: bool) -> Profile:
        from cpuconv.network.reports.profile import combined, profile

        if self.defaults and (opened := self._opened.find(feed)) is not None:
            return opened.model.profile({**opened.arrays, **feed}, runs, watch=watch)
        arrays = fed(self.inputs, feed)
        if self._branches is not None:
            return self._branches.find(arrays).profile(feed, runs, watch=watch)
        made, given = self._programs.fitting(arrays)
        made = self._programs.builder.detailed(made)
        outputs = made.executable.output_arrays.new()
        head = profile(made.executable, given, list(outputs.values()), runs, watch=watch)
        if made.suffix is None:
            return head
        values = {**dict(zip(self._definition.inputs, arrays, strict=True)), **outputs}
        return combined([head, *made.suffix.profiles(values, runs)])

    def explain(self) -> Explanation:
        """Explain fused, folded and removed nodes, layouts and algorithms per operator, and arena and weight sizes.

        It describes the sizes that the model states, or those that ran last.

        Returns
        -------
        Explanation
            It prints itself, and has `.to_dict()`.

        Raises
        ------
        SourceError
            Sizes are open, and nothing has run yet.
        """
        ran = self._ran
        made = ran._programs.last or ran._programs.find(ran._definition.fixed_shapes())
        explanation = ran._programs.builder.explained(made)
        return explanation if made.suffix is None else made.suffix.explained(explanation)

    def precision_table(self) -> PrecisionTable:
        """Report the selection of precisions: precision, error and time per operator, and the effect of the other one.

        Returns
        -------
        PrecisionTable
            It prints itself, and has `.to_dict()`.

        Raises
        ------
        SourceError
            The model was not made by `cpuconv.compile` with ``precision="auto"``.
        """
        if self._precisions is None:
            wanted = "made by cpuconv.compile with precision='auto', to have a table of precisions"
            raise SourceError(must(self._definition.name, wanted, "another model"))
        return self._precisions

    def with_table(self, precisions: PrecisionTable) -> Any:
        """Attach the report of the selection of precisions, and return the model."""
        self._precisions = precisions
        return self

    def stats(self) -> Stats:
        """Report runs and their latencies, cached programs, kernels, and memory.

        Returns
        -------
        Stats
            It prints itself, and has `.to_dict()` and `.prometheus()`, Prometheus' text format.
        """
        models = self._parts()
        weights = {id(array): array.nbytes for each in models for array in each._programs.builder.packed.arrays}
        return Stats.of(
            self._definition.name,
            self._log,
            programs=sum(len(each._programs) for each in models),
            program_bytes=sum(each._programs.nbytes for each in models),
            weight_bytes=sum(weights.values()),
            kernels_compiled=Statistics.compiled,
            kernels_loaded=Statistics.loaded + Statistics.packed,
        )

    def _parts(self) -> Sequence[ModelReports]:
        """The models of single batch sizes, or of branches, that this one consists of, and itself."""
        branches = [] if self._branches is None else self._branches.made
        return [self, *(part for model in branches for part in model._parts())]

    @property
    def _ran(self) -> ModelReports:
        """The model of the branches that ran last; this one if inputs decide no branches."""
        last = None if self._branches is None else self._branches.last
        return self if last is None else last._ran
