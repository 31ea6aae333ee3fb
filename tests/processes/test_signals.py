"""Ctrl-C while a process is being started."""

from __future__ import annotations

import signal
import threading

import pytest

from reading_services.processes.signals import ctrl_c_held


def test_ctrl_c_waits_for_the_end_of_a_start_and_is_not_lost() -> None:
    def take() -> None:
        held.wait(60)
        signal.raise_signal(signal.SIGINT)

    # Not by os.kill(): whichever thread takes that one may do so long after the block
    reached, held = [], threading.Event()
    thread = threading.Thread(target=take)
    thread.start()  # before the block: else it would inherit what is blocked
    for send in (lambda: signal.raise_signal(signal.SIGINT), lambda: (held.set(), thread.join())):
        with pytest.raises(KeyboardInterrupt), ctrl_c_held():
            send()
            reached.append(send)
        assert reached[-1] is send
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_ctrl_c_that_the_main_process_ignores_or_handles_stays_so() -> None:
    came = []
    for handler in (signal.SIG_IGN, lambda number, frame: came.append(number)):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with ctrl_c_held():
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_a_start_in_another_thread_leaves_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def hold() -> None:
        with ctrl_c_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [before]
