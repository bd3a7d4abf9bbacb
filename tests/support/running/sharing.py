"""Work of any size shared by threads, so that small problems test sharing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cpuconv.kernels.binding import partition, processor


@contextmanager
def small_work_is_shared() -> Iterator[None]:
    """Convolutions and steps have several workers, however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "SERIAL_FLOPS", -1)
        patch.setattr(processor, "PARALLEL_BYTES", 0)
        yield


@contextmanager
def cut_finely(most_parts: int = 8) -> Iterator[None]:
    """Parts of work may be of any size, and each worker has at most so many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "_PART_FLOPS", 1.0)
        patch.setattr(partition, "_MAX_PARTS", most_parts)
        patch.setattr(processor, "PART_BYTES", 64)
        yield
