"""A short check of every solver, for processes that generate code for another CPU: prints one JSON line."""

from __future__ import annotations

import json
from dataclasses import replace

import layouts
from cpuconv.isa import current
from support import oracle
from support.running.sharing import small_work_is_shared


def main() -> None:
    with small_work_is_shared():
        check_all()


def check_all() -> None:
    """Run every solver and print which candidates ran."""
    blocked = layouts.blocked(current().lanes).name
    ran = {}
    for solver in oracle.SOLVERS:
        problem = oracle.home(solver)
        blocks = replace(problem, in_layout=blocked if problem.in_layout == "NCHW" else "NHWC", out_layout=blocked)
        ran[solver.name] = [
            oracle.check(option, solver.name).algorithm
            for option in (
                replace(problem, threads=oracle.THREADS),
                replace(blocks, residual=True, activation=("clip", -0.5, 0.75)),
            )
        ]
    oracle.check(replace(oracle.HOME["direct"], activation="gelu", in_layout="NHWC", out_layout="NHWC"))
    print(json.dumps({"isa": current().name, "lanes": current().lanes, "ran": ran}))


if __name__ == "__main__":
    main()
