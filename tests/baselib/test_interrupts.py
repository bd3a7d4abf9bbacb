"""Ctrl-C that waits for the end of a context, and one that a callback would swallow."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from baselib.interpreter import python
from baselib.signals import deliver_interrupt, interrupts_delayed


@pytest.fixture(autouse=True)
def handler(monkeypatch: pytest.MonkeyPatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_delayed("wait"):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with interrupts_delayed("within"):
            done.append(1)
        done.append(2)
    assert done == [1, 2] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_waits_for_others_may_be_interrupted() -> None:
    with interrupts_delayed("wait"):
        deliver_interrupt()  # there is none
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            deliver_interrupt()
    deliver_interrupt()


def test_other_handlers_and_threads_stay_as_they_are() -> None:
    met = []
    signal.signal(signal.SIGINT, lambda *_: met.append(1))
    with interrupts_delayed("wait"):
        signal.raise_signal(signal.SIGINT)
        assert met == []
    assert met == [1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_delayed("wait"):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def elsewhere() -> None:
        with interrupts_delayed("wait"):
            met.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert met[-1] is signal.default_int_handler


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_an_interrupt_in_a_callback_ends_the_program_all_the_same() -> None:
    code = (
        "import signal, time, weakref\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from baselib.signals import interrupts_arrive\n"
        "class Gone: pass\n"
        "gone = Gone()\n"
        "kept = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "with interrupts_arrive():\n"
        "    try:\n"
        "        del gone\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        print('ended')\n"
    )
    done = subprocess.run(python("-c", code), capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)
