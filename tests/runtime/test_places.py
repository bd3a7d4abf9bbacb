"""Where the library runs: no home, one that is read-only or full, no locks, another user's kernels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.running.places import EVERYTHING, ONE_CALL, run, start, uncached

posix = pytest.mark.skipif(os.name != "posix", reason="users and their homes are POSIX's")
NOBODY = """
import pwd
def _unknown(*_):
    raise KeyError("no such user")
pwd.getpwuid = pwd.getpwnam = _unknown
"""
"""As in a container that runs as a user without an entry."""

STORED = """
from autotune.machine.device import fingerprint
from autotune.store.store import Row, shared
from cpuconv.conv.choice.model import Limits, by_model
from cpuconv.tuning.workload import workload
name = str(by_model(problem, Limits()))
row = Row(fingerprint().key, problem.key, name, workload.sources_of(name), "ok", median=1e-9, score=1e-9)
store = shared(read_only=False)
claimed = store.claim(row.device, row.problem)
store.put([row])
made = cpuconv.plan(x.shape, w, threads=1)
say(right(made(x)), claimed, (made.decided_by, str(made.algorithm)) == ("store", name))
"""
"""As strategy "profile" stores what it has timed."""


@pytest.fixture(scope="session")
def stranger() -> int:
    """A user who is in no list; a process becomes that one after its imports."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    return 12345


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, as those of tests are not."""
    with tempfile.TemporaryDirectory(prefix="cpuconv-places-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def read_only(open_folder: Path) -> Iterator[Path]:
    """A folder that the user of `reader` cannot write to."""
    folder = open_folder / "read-only"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> int | None:
    """A user whom modes bind: root is another one then."""
    return request.getfixturevalue("stranger") if os.name == "posix" and os.geteuid() == 0 else None


# -- no home


@posix
def test_a_user_without_home_runs_everything(tmp_path: Path) -> None:
    uncached(run(EVERYTHING, NOBODY, cwd=tmp_path), "CPUCONV_CACHE_DIR")
    assert not list(tmp_path.iterdir())  # such as a folder named ~


def test_a_user_of_a_container_runs_everything(stranger: int) -> None:
    uncached(run(EVERYTHING, user=stranger, cwd=Path("/")), "CPUCONV_CACHE_DIR")


@posix
def test_what_a_user_without_home_tunes_is_kept_in_memory(tmp_path: Path) -> None:
    said = run(STORED, NOBODY, cwd=tmp_path)
    assert said["right"]
    kinds = sorted(each.partition(":")[0] for each in said["warnings"])
    assert kinds == ["CpuconvWarning", "StoreWarning"], said["warnings"]
    assert "stored in memory only" in "".join(said["warnings"])


COMMANDS = {
    "show": ["show"],
    "table": ["table"],
    "doctor": ["doctor"],
    "export": ["export"],
    "prune": ["prune"],
    "warmup": ["warmup", "mb1ic16ih9oc16oh9kh3ph1"],
    "missed": ["warmup", "--missed"],
    "explain": ["explain", "mb1ic16ih9oc16oh9kh3ph1"],
}
COMMAND = """
import contextlib, io, json, sys
from autotune.cli.main import main
told = {}
for name, arguments in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    told[name] = code, out.getvalue(), err.getvalue()
print(json.dumps(told))
"""


def commanded(before: str, *names: str, **settings: Any) -> Iterator[str]:
    """The one line of each command, which fails and says no more, one after another in a process."""
    done = start(before + COMMAND, json.dumps({name: COMMANDS[name] for name in names}), **settings)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == set(names)
    for code, out, err in told.values():
        assert (code, out) == (1, "")
        (line,) = err.splitlines()
        yield line


@posix
def test_commands_that_need_the_store_say_what_is_missing(tmp_path: Path) -> None:
    for line in commanded(NOBODY, *COMMANDS, cwd=tmp_path):
        assert "no usable cache folder" in line and line.endswith("name one in CPUCONV_CACHE_DIR")


@posix
def test_commands_that_write_the_store_say_why_they_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    variables = {"cwd": tmp_path, "CPUCONV_CACHE_DIR": str(tmp_path / "file")}
    for line in commanded("", "warmup", "missed", "prune", **variables):
        assert f"{tmp_path / 'file' / 'autotune.sqlite'} cannot be written" in line


@posix
def test_background_tuning_says_what_is_missing(tmp_path: Path) -> None:
    code = "import cpuconv\ntry:\n    cpuconv.tune_in_background()\nexcept OSError as error:\n    print(error)\n"
    assert "CPUCONV_CACHE_DIR" in start(NOBODY + code, cwd=tmp_path).stdout


@posix
def test_a_network_runs_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    import onnx.parser

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }'
    )
    onnx.save(model, tmp_path / "net.onnx")
    code = f"{NOBODY}import sys\nfrom cpuconv.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
    done = start(code, "run", "net.onnx", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# -- folders that cannot be used


@posix
def test_a_home_that_is_read_only(reader: int | None, read_only: Path) -> None:
    said = run(EVERYTHING, user=reader, HOME=str(read_only))
    uncached(said, str(read_only))
    assert list(read_only.iterdir()) == []


@posix
def test_a_home_that_may_not_be_entered(reader: int | None, read_only: Path) -> None:
    """As where a container runs as another user than it was made for, with HOME=/root."""
    read_only.chmod(0o600)
    uncached(run(EVERYTHING, user=reader, HOME=str(read_only / "home")), str(read_only))


@posix
@pytest.mark.parametrize("place", ["a file", "in a file", "unwritable"])
def test_a_cache_folder_that_cannot_be_used(reader: int | None, read_only: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = {"a file": tmp_path / "file", "in a file": tmp_path / "file" / "cache", "unwritable": read_only}[place]
    said = run(ONE_CALL, user=reader if place == "unwritable" else None, CPUCONV_CACHE_DIR=str(folder))
    uncached(said, str(folder))


@posix
def test_a_cache_folder_of_a_user_who_is_not_known() -> None:
    uncached(run(ONE_CALL, CPUCONV_CACHE_DIR="~no-such-user-of-ours/cache"), "CPUCONV_CACHE_DIR")


def test_a_cache_folder_by_a_relative_path_is_in_the_working_directory(tmp_path: Path) -> None:
    said = run(ONE_CALL, cwd=tmp_path, CPUCONV_CACHE_DIR="here")
    assert said["right"] and said["warnings"] == [] and list(tmp_path.glob("here/kernels/*/*.o"))
    said = run(ONE_CALL, cwd=tmp_path, CPUCONV_CACHE_DIR="here")
    assert said["compiled"] == 0 and said["loaded"] >= 1


# -- a disk that is full


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few KB."""
    place = tmp_path / "full"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or sys.platform != "linux":
        pytest.skip("no file system can be mounted here")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=16k,mode=755", "tmpfs", place], capture_output=True)
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_is_full(full: Path) -> None:
    said = run(EVERYTHING, CPUCONV_CACHE_DIR=str(full))
    uncached(said, "No space left on device")
    assert not list(full.rglob("*.part")) and not list(full.rglob("*.lock"))


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
"""


@posix
def test_files_that_cannot_grow(tmp_path: Path) -> None:
    """As where a quota is used up: files can be made, and nothing be written to them."""
    said = run(EVERYTHING, LIMITED, CPUCONV_CACHE_DIR=str(tmp_path / "cache"))
    uncached(said, "File too large")
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("*.lock"))


# -- no locks

UNLOCKED = """
import errno, fcntl, filelock
def _refuse(*_, **__):
    raise {error}
{what} = _refuse
"""


@posix
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("filelock.FileLock.acquire", "NotImplementedError('no flock here')"),
        ("fcntl.flock", "OSError(errno.ENOLCK, 'no locks available')"),
        ("fcntl.flock", "OSError(errno.EOPNOTSUPP, 'not supported')"),
    ],
)
def test_a_file_system_without_locks(tmp_path: Path, what: str, error: str) -> None:
    before = UNLOCKED.format(what=what, error=error)
    said = run(ONE_CALL, before, CPUCONV_CACHE_DIR=str(tmp_path))
    assert said["right"] and said["compiled"] >= 1
    assert len(said["warnings"]) == 1 and "cannot be locked" in said["warnings"][0]
    said = run(ONE_CALL, before, CPUCONV_CACHE_DIR=str(tmp_path))
    assert said["right"] and said["compiled"] == 0 and said["warnings"] == []


# -- kernels that another user has compiled


@pytest.fixture
def image(stranger: int, open_folder: Path) -> Path:
    """A folder of kernels that root has compiled, as into an image of a container."""
    folder = open_folder / "cache"
    said = run(ONE_CALL, "import os\nos.umask(0o022)\n", CPUCONV_CACHE_DIR=str(folder))
    assert said["right"] and said["compiled"] >= 1 and said["warnings"] == []
    return folder


def test_kernels_of_an_image_are_loaded_by_whoever_runs_it(image: Path, stranger: int) -> None:
    said = run(ONE_CALL, user=stranger, CPUCONV_CACHE_DIR=str(image))
    assert said["right"] and said["compiled"] == 0 and said["loaded"] >= 1 and said["warnings"] == []


def test_kernels_of_another_user_are_not(image: Path, stranger: int) -> None:
    for path in (image, *image.rglob("*")):
        os.chown(path, stranger + 1, stranger + 1)
    uncached(run(ONE_CALL, user=stranger, CPUCONV_CACHE_DIR=str(image)), f"uid {stranger + 1}")
    uncached(run(ONE_CALL, CPUCONV_CACHE_DIR=str(image)), f"uid {stranger + 1}")  # nor by root


def test_a_file_of_another_user_is_compiled_again(image: Path, stranger: int) -> None:
    files = sorted(image.glob("kernels/*/*.o"))
    os.chown(files[0], stranger + 1, stranger + 1)
    said = run(ONE_CALL, user=stranger, CPUCONV_CACHE_DIR=str(image))
    assert said["right"] and said["compiled"] == 1 and said["loaded"] == len(files) - 1
