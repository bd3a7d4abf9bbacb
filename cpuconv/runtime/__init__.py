"""Kernels, their compilation and disk cache, the launcher, threads."""

from __future__ import annotations

from cpuconv.runtime.kernel import Kernel, kernel
from cpuconv.runtime.launch import Program
from cpuconv.runtime.threads import get_num_threads, set_num_threads

__all__ = ["Kernel", "Program", "get_num_threads", "kernel", "set_num_threads"]
