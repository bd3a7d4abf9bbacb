"""The timeline of a profiled run in Chrome's trace format, for Perfetto and chrome://tracing.

Format: "Trace Event Format" of the Chromium project, complete events (phase X) and metadata events (phase M).
"""

from __future__ import annotations

import json
from typing import Any

from cpuconv.network.reports.profile import Profile


def trace(title: str, profile: Profile) -> bytes:
    """Return the timeline of a profile that was recorded with `watch`, a track per worker, as JSON."""
    if profile.watched is None:
        raise ValueError("The profile has no timeline.")
    events: list[dict[str, Any]] = [_named("process_name", 0, f"cpuconv: {title}")]
    events += [
        _named("thread_name", worker, f"worker {worker}")
        for worker in sorted({span.worker for span in profile.watched.spans})
    ]
    for span in profile.watched.spans:
        row = profile.rows[span.work]
        details = {"algorithm": row.algorithm, "layouts": row.layouts, "types": row.types, "shape": list(row.shape)}
        events.append(
            {
                "name": row.name,
                "cat": row.op,
                "ph": "X",
                "pid": 0,
                "tid": span.worker,
                "ts": span.start * 1e6,
                "dur": (span.end - span.start) * 1e6,
                "args": {"operator": row.op, **details},
            }  # fmt: skip
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False).encode()


def _named(what: str, worker: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": worker, "args": {"name": name}}
