"""A stranger's first minutes: the commands of the README and the pages, on a machine that has nothing yet.

No kernel is compiled, no folder of ours exists, and the package onnx is not installed. Nothing may end in a traceback,
and no table be wider than a terminal of 80 columns. `make walk` also installs a fresh clone, warms it up as the README
says, and holds the times of an idle machine of two cores to limits; the ordinary suite runs the commands from this
checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from baselib.interpreter import VARIABLE
from support import lowered
from support.pages import html_pages
from support.running.processes import ROOT
from support.running.terminal import COLUMNS, Screen, on_terminal

WHOLE = "CPUCONV_WALK" in os.environ
MAX_LOAD = 0.5  # of other programs, at which times are held to limits
MESSAGES = ("cpuconv: ", "autotune: ", "cpuconv compiles ")  # sentences, which a terminal wraps
PROBLEM = "mb1ic64ih56oc64oh56kh3ph1"
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("onnx", "onnxruntime", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX"),
    pytest.mark.skipif(bool(lowered.cpu()) or VARIABLE in os.environ, reason="times and screens of this CPU alone"),
]
whole = pytest.mark.skipif(not WHOLE, reason="a part of `make walk`")


@dataclass(frozen=True)
class Machine:
    """A machine that has nothing yet: a home, and how its commands are started."""

    home: Path
    python: str
    environ: dict[str, str]
    idle: bool

    def run(self, *command: str, code: int = 0, limit: float | None = None) -> Screen:
        """Run a command in the home folder; see that its screen is tidy, and that it ends in time."""
        words = [self.python, "-m", *command] if command[0] in ("cpuconv", "autotune") else [*command]
        screen = on_terminal(words, folder=self.home, environ=self.environ)
        shown = "\n".join(screen.lines)
        assert screen.code == code, shown
        assert "Traceback" not in shown and "Exception ignored" not in shown, shown
        shortened = (line.replace(str(self.home), "~") for line in screen.lines if not line.startswith(MESSAGES))
        wide = [line for line in shortened if len(line) > COLUMNS]
        assert wide == [], wide
        if WHOLE and self.idle and limit is not None:
            assert screen.seconds <= limit, f"{' '.join(command)}: {screen.seconds:.1f} s, at most {limit:.1f}"
        return screen


def bare(home: Path) -> dict[str, str]:
    """The variables of a user who has just logged in."""
    home.mkdir()
    kept = ("PATH", "LANG", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CERT", "SSL_CERT_FILE")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"HOME": str(home), "TERM": "xterm"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """This checkout by a hidden onnx; of the whole walk, a clone that pip has installed in a new environment."""
    folder = tmp_path_factory.mktemp("first")
    idle = os.getloadavg()[0] < MAX_LOAD
    environ = bare(folder / "home")
    if WHOLE:
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder / "clone")], check=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        python = str(folder / "venv" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(folder / "clone")], check=True, env=environ)
    else:
        (folder / "hidden").mkdir()
        (folder / "hidden" / "sitecustomize.py").write_text(HIDDEN)
        environ["PYTHONPATH"] = os.pathsep.join((str(folder / "hidden"), str(ROOT)))
        environ["CPUCONV_PACKS"] = "0"
        environ["CPUCONV_BACKGROUND"] = "0"  # whose processes would outlive this test
        python = sys.executable
    return Machine(folder / "home", python, environ, idle)


@pytest.fixture(scope="module")
def model(machine: Machine) -> str:
    """A network: a small one, or the ResNet-50 of the package onnx in the whole walk."""
    onnx = pytest.importorskip("onnx")
    if WHOLE:
        return str(Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx")
    from support.graphs import parse

    weights = ", ".join(str(at % 5 - 2) for at in range(16 * 3))
    text = f"""g (float[1,3,32,32] images) => (float[1,16] logits) <float[16,3,1,1] w = {{{weights}}}>
        {{ c = Conv(images, w) r = Relu(c) m = GlobalAveragePool(r) logits = Flatten(m) }}"""
    onnx.save(parse(text), machine.home / "model.onnx")
    return "model.onnx"


def test_the_first_convolution(machine):
    """The README's example, on a machine that has compiled nothing; then again."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL).groups()
    (machine.home / "example.py").write_text(example)
    screen = machine.run(machine.python, "example.py", limit=3.0)
    assert printed.strip() in screen.lines
    assert machine.run(machine.python, "example.py", limit=1.0).lines[-2] == printed.strip()


def test_the_first_network(machine, model):
    assert any("second run" in line for line in machine.run("cpuconv", "run", model, limit=6.0).lines)
    machine.run("cpuconv", "compile", model, "-o", "model.cpuconv")
    assert any("second run" in line for line in machine.run("cpuconv", "run", "model.cpuconv", limit=2.0).lines)


def test_a_network_is_explained_and_profiled(machine, model):
    assert any("memory" in line or "arena" in line for line in machine.run("cpuconv", "explain", model).lines)
    machine.run("cpuconv", "profile", model, "--runs", "2", "--html", "profile.html")
    assert (machine.home / "profile.html").stat().st_size > 10_000


@html_pages.needs_browser
def test_the_page_of_a_profile_is_read_on_two_screens(machine, model, tmp_path):
    page = machine.home / "profile.html"
    if not page.exists():
        machine.run("cpuconv", "profile", model, "--runs", "2", "--html", page.name)
    with html_pages.shown(tmp_path, page.read_text(encoding="utf-8")) as (window, address):
        for size in (html_pages.PHONE, html_pages.DESKTOP):
            html_pages.check_readable(window, address, size, dark=False)
        assert window.said == []


def test_what_is_typed_wrong_is_one_line(machine, model):
    for command, suggested in (("rnu", "run"), ("profil", "profile")):
        lines = [line for line in machine.run("cpuconv", command, model, code=2).lines if line]
        assert len(lines) <= 2 and suggested in lines[-1], lines
    missing = [line for line in machine.run("cpuconv", "run", "missing.onnx", code=2).lines if line]
    assert len(missing) == 1 and "missing.onnx" in missing[0]


def test_quantize_says_what_to_install(machine, model):
    samples = machine.home / "samples"
    samples.mkdir()
    np.savez(samples / "sample.npz", images=np.zeros((1, 3, 32, 32), np.float32))
    screen = machine.run("cpuconv", "quantize", model, "-o", "small.onnx", "--data", "samples", code=2)
    (line,) = [line for line in screen.lines if line][-1:]
    assert "pip install 'cpuconv[onnx]'" in " ".join(screen.lines), line


@pytest.mark.parametrize(
    "command",
    [
        ("cpuconv", "--version"),
        ("cpuconv", "--help"),
        ("cpuconv", "run", "--help"),
        ("autotune", "--version"),
        ("autotune", "--help"),
        ("autotune", "warmup", "--help"),
        ("autotune", "show"),
        ("autotune", "doctor"),
        ("autotune", "explain", PROBLEM),
    ],
    ids=" ".join,
)
def test_a_command_fits_the_terminal(machine, command):
    assert any(machine.run(*command).lines)


@whole
@pytest.mark.timeout(1200)
def test_the_first_command_of_the_readme(machine):
    """Install, compile, tune and print the table, from a fresh clone."""
    clone = machine.home.parent / "clone"
    subprocess.run(["make", "--silent", ".venv/.has-onnx"], cwd=clone, env=machine.environ, check=True)
    screen = machine.run("make", "-C", str(clone), "warmup", limit=150.0)
    assert any("total" in line.lower() for line in screen.lines)
    if machine.idle:
        assert screen.first(r"GFLOP/s, \d+ of \d+") <= 60.0  # the first tuned line
