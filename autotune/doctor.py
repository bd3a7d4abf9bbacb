"""What the program knows of this machine and of its own state."""

from __future__ import annotations

from typing import Any

from autotune.device import Device, fingerprint
from autotune.paths import cache_folder
from autotune.store import Store
from autotune.worker import describe
from autotune.workload import Workload

ROOFS = {
    "fma_gflops": ("FMA peak, one core", "GFLOP/s"),
    "l1_gbs": ("L1 bandwidth", "GB/s"),
    "l2_gbs": ("L2 bandwidth", "GB/s"),
    "l3_gbs": ("L3 bandwidth", "GB/s"),
    "dram_gbs": ("memory bandwidth", "GB/s"),
}


def examine(workload: Workload | None, store: Store) -> dict[str, Any]:
    """Look at device, workload, roofs, cache folder and store; a healthy store remembers the roofs.

    Returns:
        {"device", "workload", "roofs", "cache_folder", "store": {"path", "health"}, "healthy"}, ready for JSON.
    """
    device = fingerprint()
    told: dict[str, Any] = {}
    roofs: dict[str, float] = {}
    trouble = "no workload is installed" if workload is None else ""
    if workload is not None:
        try:
            told = {"name": workload.name, "sources": workload.sources, **workload.describe()}
            roofs = workload.probe(1)
        except Exception as error:  # the doctor reports what is broken
            trouble = describe(error)
    health = store.health()
    if health == "ok" and roofs:
        with Store(store.path) as writable:
            writable.register(device)
            writable.set_roofs(device.key, roofs)
    return {
        "device": device.to_dict(),
        "workload": told,
        "trouble": trouble,
        "roofs": roofs,
        "cache_folder": str(cache_folder()),
        "store": {"path": str(store.path), "health": health},
        "healthy": not trouble and health == "ok",
    }


def as_lines(findings: dict[str, Any], device: Device) -> list[tuple[str, str]]:
    """The findings as pairs of name and text."""
    quota = "none" if device.quota is None else f"{device.quota:g}"
    numbers = "/".join(part or "?" for part in (device.family, device.number, device.stepping))
    lines = [
        ("device", device.key),
        ("CPU", f"{device.model} ({device.vendor}, family/model/stepping {numbers})"),
        ("ISA", f"{device.isa} on {device.machine}, compiled for {device.cpu_name}"),
        ("caches", ", ".join(f"{level} {size >> 10} KiB" for level, size in device.caches)),
        ("cores", f"{device.cores} allowed: affinity {device.affinity}, quota {quota}"),
        ("system", f"{device.os} {device.release}"),
        ("versions", f"NumPy {device.numpy}, Numba {device.numba}, LLVM {device.llvm}"),
    ]
    lines += [(f"workload {name}", str(value)) for name, value in findings["workload"].items()]
    for name, value in findings["roofs"].items():
        title, unit = ROOFS.get(name, (name, ""))
        lines.append((title, f"{value:.1f} {unit}".strip()))
    lines += [
        ("cache folder", findings["cache_folder"]),
        ("store", findings["store"]["path"]),
        ("store health", findings["store"]["health"]),
    ]
    return lines + ([("trouble", findings["trouble"])] if findings["trouble"] else [])
