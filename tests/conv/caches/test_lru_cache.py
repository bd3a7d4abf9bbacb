"""The LRU cache with a limit in bytes, against a list in the order of use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.caches.lru_cache import LruCache, default_limit

LIMIT = 100
KEYS = st.integers(0, 9)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(0, LIMIT + 20)),
    st.tuples(st.sampled_from(["get", "drop"]), KEYS, st.just(0)),
    st.tuples(st.sampled_from(["resize", "clear"]), st.just(0), st.integers(0, 2 * LIMIT)),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=60))
def test_the_least_recently_used_goes_first(steps):
    cache, limit = LruCache(LIMIT), LIMIT
    order: dict[int, tuple[int, int]] = {}  # key to (number of the put, size), the latest used last
    entries = {}
    for number, (step, key, size) in enumerate(steps):
        if step == "put":
            order.pop(key, None)
            entry = cache.put(key, number, size)
            assert (entry is None) == (size > limit)
            if entry is not None:
                order[key] = number, size
                entries[number] = entry
        elif step == "get":
            expected = order.get(key)
            assert cache.get(key) == (expected and expected[0])
            if expected:
                order[key] = order.pop(key)
        elif step == "drop":
            cache.drop(key)
            order.pop(key, None)
        elif step == "resize":
            cache.resize(limit := size)
        else:
            cache.clear()
            order.clear()
        kept = dict(cache.items())
        gone = [key for key in order if key not in kept]
        assert gone == list(order)[: len(gone)]  # the oldest, and no others
        assert not gone or sum(size for _, size in order.values()) > limit
        for old in gone:
            assert entries[order.pop(old)[0]].value is None
        assert kept == {key: number for key, (number, _) in order.items()}
        assert cache.nbytes == sum(size for _, size in order.values()) <= limit
        assert len(cache) == len(order)


def test_eight_threads():
    cache = LruCache(1000)

    def work(seed: int) -> None:
        for turn in range(3000):
            key = (seed * 7 + turn * turn) % 50
            if turn % 3 == 0:
                cache.put(key, key, 30 + key)
            else:
                assert cache.get(key) in (None, key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cache.nbytes == sum(30 + key for key, _ in cache.items()) <= 1000


def test_the_default_limit_is_a_share_of_the_memory():
    assert 0 < default_limit() <= 2 << 30
