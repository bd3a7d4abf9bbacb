"""Nothing is freed while somebody may call it: who has an address keeps what it is the address of."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpuconv
from cpuconv.kernels.binding.steps import MicroRef, word_of
from cpuconv.kernels.streams.fingerprint import FingerprintTile, sum_blocks
from cpuconv.runtime import Program
from cpuconv.runtime.code import cache, kernel_files
from cpuconv.runtime.code.cache import Code
from support.running import processes

PACKAGE = Path(cpuconv.__file__).parent


def gone(what: weakref.ref[Any]) -> bool:
    gc.collect()
    return what() is None


def test_an_address_is_had_only_together_with_its_owner() -> None:
    public = [name for name in dir(Code) if not name.startswith("_")]
    assert public == ["address_for", "function", "ir_hash", "name"]
    readers = [path for path in PACKAGE.rglob("*.py") if re.search(r"\._address\b", path.read_text())]
    assert [path.relative_to(PACKAGE).as_posix() for path in readers] == ["runtime/code/cache.py"]


def test_a_c_function_keeps_its_code() -> None:
    code = Code(ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0, None)
    alive = weakref.ref(code)
    function = code.function(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int))
    del code
    assert not gone(alive) and function(-3) == 3
    del function
    assert gone(alive)


def test_a_word_keeps_the_micro_kernels_that_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Code]] = []

    def entry(tile: Any) -> Code:
        made.append(weakref.ref(code := Code(tile.lanes, None)))
        return code

    monkeypatch.setattr(sum_blocks, "entry", entry)
    kept: list[Any] = []
    tiles = [FingerprintTile(lanes) for lanes in (4, 8)]
    table = word_of(tuple(MicroRef(sum_blocks, tile) for tile in tiles), kept)
    assert list((ctypes.c_int64 * 2).from_address(table)) == [4, 8]
    assert word_of(MicroRef(sum_blocks, tiles[1]), kept) == 8
    assert len(made) == 3 and not any(map(gone, made))
    kept.clear()
    assert all(map(gone, made))


def test_a_program_keeps_all_that_it_calls_and_refers_to() -> None:
    code, block, table = Code(0, None), np.zeros(1, np.int64), np.zeros(1, np.int64)
    alive = [weakref.ref(each) for each in (code, block, table)]
    program = Program([(code, block, 0)], 1, [table])
    del code, block, table
    assert not any(map(gone, alive))
    del program
    assert all(map(gone, alive))


def test_threads_that_load_one_function_at_once_are_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, which compiles it; else each frees the other's."""
    monkeypatch.setattr(kernel_files, "folder", lambda: kernel_files.Folder(tmp_path))
    begun, go_on = threading.Event(), threading.Event()
    compiled: list[int] = []
    given: list[Code] = []

    def compile_() -> tuple[bytes, str, Code]:
        compiled.append(1)
        begun.set()
        assert go_on.wait(60)
        return b"code", "symbol", Code(1, None)

    def ask() -> None:
        given.append(cache.load_or_compile("asked", __name__, "", compile_, lambda code, symbol: Code(2, None)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
        assert begun.wait(60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(given) == 4 and len(set(map(id, given))) == 1 and len(compiled) == 1
    alive = weakref.ref(given[0])
    given.clear()
    assert gone(alive)  # it is kept by those who have it alone
    ask()
    assert len(compiled) == 1


SHUFFLED = """
import collections, gc
import numpy as np
import onnx.numpy_helper, onnx.parser
import cpuconv
from cpuconv.kernels.copies import lane_pick
from cpuconv.runtime.code.cache import Entries

Entries._latest = collections.deque(maxlen=1)
rng = np.random.default_rng(0)
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
g (float[1,48,14,14] x) => (float[1,48,14,14] y)
<int64[5] split = {1, 2, 24, 14, 14}, int64[4] end = {1, 48, 14, 14}> {
    a = Conv(x, w)
    b = Reshape(a, split)
    c = Transpose<perm = [0, 2, 1, 3, 4]>(b)
    d = Reshape(c, end)
    y = Conv<pads = [1, 1, 1, 1], group = 48>(d, v)
}''')
weights = {"w": rng.standard_normal((48, 48, 1, 1), np.float32), "v": rng.standard_normal((48, 1, 3, 3), np.float32)}
model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
x = rng.standard_normal((1, 48, 14, 14), np.float32)
made = cpuconv.compile(model, strategy="heuristic")
assert lane_pick.pick_channels._entries._found, "the network has no picks of lanes"
expected = made(x)
for width in range(3, 13):  # other functions, so that none of the network's is among the latest
    cpuconv.plan((1, 8, width, width), np.ones((8, 8, 3, 3), np.float32), padding=1, algorithm="direct")
gc.collect()
for _ in range(10):
    assert (made(x) == expected).all()
print(len(Entries._latest))
"""


def test_a_network_that_shuffles_channels_keeps_its_functions() -> None:
    """Its table of micro-kernels holds them, when thousands of others have been loaded since."""
    pytest.importorskip("onnx")
    assert processes.run("-c", SHUFFLED).stdout.split() == ["1"]


ENDING = """
import threading
import numpy as np
import cpuconv

x, w = np.ones((1, 16, 64, 64), np.float32), np.ones((16, 16, 3, 3), np.float32)
plan = cpuconv.plan(x.shape, w, padding=1)
expected, running = plan(x), threading.Semaphore(0)

def serve():
    while True:
        assert (plan(x) == expected).all()
        running.release()

for _ in range(4):
    threading.Thread(target=serve, daemon=True).start()
for _ in range(8):
    running.acquire()
"""


def test_a_process_may_end_while_daemon_threads_run_kernels() -> None:
    for _ in range(3):
        processes.run("-c", ENDING)
