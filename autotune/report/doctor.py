"""Report on this machine and the program's state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autotune.machine.device import Device, allowed_cores, fingerprint, microarchitecture
from autotune.machine.roofline import DTYPE, GFLOPS, MEASURED, newest_roofs, roofs_for
from autotune.store.store import Store
from autotune.tuning.worker import describe
from autotune.workload import Workload
from baselib.paths import cache_folder
from baselib.text import count_of

LEVELS = {"l1_gbs": "L1", "l2_gbs": "L2", "l3_gbs": "L3", "dram_gbs": "memory"}
GBS = "_gbs"

# Items shown without --verbose: figures of roofs, and facts of a workload with their labels.
_MAIN_FIGURES = {f"{DTYPE}{GFLOPS}", f"bfloat16{GFLOPS}", f"int8{GFLOPS}", "l2_gbs", "dram_gbs"}
_MAIN_FACTS = {"kernel_pack": "kernel pack", "kernels_compiled": "kernels compiled"}

Listener = Callable[[int, str, float], None]


def measure(
    workload: Workload,
    store: Store,
    listener: Listener = lambda threads, name, value: None,
    counts: Iterable[int] | None = None,
    *,
    keep_higher: bool = False,
) -> dict[str, Any]:
    """Measure the roofs for some numbers of threads, about 1 s each, and store them in addition to those of others.

    Parameters
    ----------
    listener : callable
        Called with the threads, name and value of each measured figure.
    counts : iterable of int or None
        Numbers of threads; None: 1 and all allowed cores.
    keep_higher : bool
        Whether higher previous figures stay, for a machine that may be busy now.

    Returns
    -------
    dict
        Figures by name, and the time of measurement, by the number of threads as text.
    """
    roofs: dict[str, dict[str, float]] = {}
    for threads in sorted({1, allowed_cores()} if counts is None else counts):
        figures = roofs[str(threads)] = {}
        for name, value in workload.probe(threads):
            figures[name] = value
            listener(threads, name, value)
        figures[MEASURED] = time.time()
    device = fingerprint()
    with Store(store.path, strict=True) as writable:
        kept = writable.devices().get(device.key, {}).get("roofs", {})
        if keep_higher:
            for count, figures in roofs.items():
                before = kept.get(count, {})
                roofs[count] = {name: max(value, before.get(name, 0.0)) for name, value in figures.items()}
        writable.write([(device, newest_roofs(kept, roofs))])
    return roofs


def missing_roofs(store: Store, counts: Iterable[int], peaks: Iterable[str] = ()) -> list[int]:
    """Return the numbers of threads, within the allowed cores, whose roofs are missing for this device.

    Roofs without the peak of one of the data types `peaks` also count as missing; older versions measured fewer.
    """
    kept, needed = store.devices().get(fingerprint().key, {}), set(peaks)

    def are_missing(count: int) -> bool:
        roofs = roofs_for(kept, count)
        return roofs is None or any(roofs.peak(dtype) is None for dtype in needed)

    return [count for count in sorted(counts) if count <= allowed_cores() and are_missing(count)]


def examine(workload: Workload | None, store: Store, listener: Listener | None = None) -> dict[str, Any]:
    """Examine device, workload, roofs, cache folder and store.

    Parameters
    ----------
    listener : callable or None
        Called while the roofs are measured and stored, if the store is healthy; None: stored roofs are returned.

    Returns
    -------
    dict
        {"device", "workload", "trouble", "roofs", "cache_folder", "store": {"path", "health"}, "healthy"}, as JSON
        types; roofs as returned by `measure`.
    """
    device = fingerprint()
    described: dict[str, Any] = {}
    health = store.health()
    roofs = store.devices().get(device.key, {}).get("roofs", {}) if health == "ok" else {}
    trouble = "no workload is installed" if workload is None else ""
    if workload is not None:
        try:
            described = {"name": workload.name, "sources": sorted(workload.sources), **workload.describe()}
            if listener is not None and health == "ok":
                roofs = measure(workload, store, listener)
        except Exception as error:  # reported as trouble
            trouble = describe(error)
    return {
        "device": device.to_dict(),
        "workload": described,
        "trouble": trouble,
        "roofs": roofs,
        "cache_folder": str(cache_folder()),
        "store": {"path": str(store.path), "health": health},
        "healthy": not trouble and health == "ok",
    }


def figure_text(name: str, value: float) -> tuple[str, str]:
    """Return the label of a figure of `Workload.probe`, and its value with its unit."""
    if name.endswith(GFLOPS):
        what = name.removesuffix(GFLOPS)
        return f"FMA peak, {what}" if what == DTYPE else f"peak, {what}", f"{value:.1f} GFLOP/s"
    what = "vector stores" if name == "store_gbs" else f"{LEVELS.get(name, name.removesuffix(GBS))} bandwidth"
    return what, f"{value:.1f} GB/s"


def _roof_lines(roofs: Mapping[str, Any], verbose: bool) -> list[tuple[str, str]]:
    lines: dict[str, list[str]] = {}
    for threads, figures in roofs.items():
        for name, value in figures.items():
            if name == MEASURED:
                what, text = "roofs measured", time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
            elif verbose or name in _MAIN_FIGURES:
                what, text = figure_text(name, value)
            else:
                continue
            lines.setdefault(what, []).append(f"{text} ({count_of(int(threads), 'thread')})")
    return [(what, ", ".join(texts)) for what, texts in lines.items()] or [
        ("roofs", "not measured; run 'autotune warmup' or 'autotune doctor --measure'")
    ]


def _told(device: Device) -> str:
    known = microarchitecture(device.cpu_name, device.features)
    return "" if known == device.cpu_name else f", its features match {known}"


def as_lines(findings: dict[str, Any], device: Device, *, verbose: bool = True) -> list[tuple[str, str]]:
    """Return the findings as pairs of label and text; unless `verbose`, only the most useful ones."""
    quota = "none" if device.quota is None else f"{device.quota:g}"
    numbers = "/".join(part or "?" for part in (device.family, device.number, device.stepping))
    maker = f" ({device.vendor}, family/model/stepping {numbers})" if verbose else ""
    lines = [
        ("device", f"{device.key} ({device.name})"),
        ("CPU", f"{device.model}{maker}"),
        ("ISA", f"{device.isa} on {device.machine}, compiled for {device.cpu_name}{_told(device)}"),
        ("cores", f"{device.cores} allowed: affinity {device.affinity}, quota {quota}"),
    ]
    if verbose:
        lines += [
            ("caches", ", ".join(f"{level} {size >> 10} KiB" for level, size in device.caches)),
            ("system", f"{device.os} {device.release}"),
        ]
    lines.append(("versions", f"NumPy {device.numpy}, Numba {device.numba}, LLVM {device.llvm}"))
    facts = findings["workload"]
    if verbose:
        lines += [(f"workload {name}", str(value)) for name, value in facts.items()]
    else:
        lines += [(label, str(facts[name]).partition(" (")[0]) for name, label in _MAIN_FACTS.items() if name in facts]
    lines += _roof_lines(findings["roofs"], verbose)
    lines += [
        ("cache folder", findings["cache_folder"]),
        ("store", f"{findings['store']['path']}, {findings['store']['health']}"),
    ]
    return lines + ([("trouble", findings["trouble"])] if findings["trouble"] else [])
