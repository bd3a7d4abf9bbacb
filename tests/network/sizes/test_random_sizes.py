"""Networks at sizes of any order, from any thread, in any batch: results depend on nothing but the arrays."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support import oracle  # noqa: E402
from support.graphs import close, programs_of  # noqa: E402
from support.random_sizes import Judge  # noqa: E402
from support.running.callers import at_once  # noqa: E402
from support.sized_networks import BY_NAME  # noqa: E402

CALLERS = 8
MAX_IMAGES = 64


@pytest.mark.parametrize("name", BY_NAME)
def test_equal_arrays_give_equal_bits_whatever_sizes_ran_before(name: str) -> None:
    judge = Judge(BY_NAME[name])
    assert judge.reordered(range(6)) == []


@pytest.mark.parametrize("name", ["images", "attention", "recurrent", "int8"])
def test_eight_threads_on_random_sizes(name: str) -> None:
    """Programs are forgotten and made again meanwhile, and give the bits that they gave before."""
    judge = Judge(BY_NAME[name], threads=oracle.THREADS)
    numbers = range(5)
    feeds = [judge.feed(number) for number in numbers]
    expected = [judge.model.run(feed) for feed in feeds]
    programs = programs_of(judge.model)
    programs.resize(1)

    def call(caller: int) -> None:
        for number in np.random.default_rng(caller).integers(0, len(numbers), 8):
            for name, array in judge.model.run(feeds[number]).items():
                np.testing.assert_array_equal(array, expected[number][name])

    at_once(CALLERS, call)
    assert len(programs_of(judge.model)) < len(numbers)


@pytest.mark.parametrize("name", ["images", "attention", "int8"])
def test_batches_from_one_to_64_give_what_each_image_gives_alone(name: str) -> None:
    judge = Judge(BY_NAME[name])
    rng = np.random.default_rng(3)
    shape = [size if isinstance(size, int) else min(17, size[1]) for size in judge.network.inputs["x"]]
    images = rng.standard_normal((MAX_IMAGES, *shape[1:]), np.float32)
    alone = [judge.model.run({"x": image[None]}) for image in images]
    whole = {name: np.concatenate([each[name] for each in alone]) for name in alone[0]}
    for count in (2, 3, 5, 8, 13, 31, 32, 33, 63, MAX_IMAGES):
        results = judge.model.run({"x": images[:count]})
        for name, array in results.items():
            close(array, whole[name][:count], 1e-4)
