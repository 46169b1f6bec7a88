"""A signal that ends a run leaves no case on disk that its summary does not know."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop._held import signals_held
from fsdpfuzz.loop._ledger import Ledger
from fsdpfuzz.loop._ports import Sighting
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Verdict
from tests.unit.loop.standins import Bench, FakeKnown, finding, make_case, outs_of, verdict_of

BIG = finding("big")


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def is_big(case: CaseSpec, _seen: Observation) -> Verdict:
    return verdict_of(*[BIG] * (max(outs_of(case)) > 100))


@pytest.mark.parametrize("known", [None, "K1"])
def test_a_case_that_was_kept_is_booked_before_a_signal_ends_the_run(
    bench: Bench, known: str | None
) -> None:
    """For one that is new, and for one that is known."""
    bench.judge, bench.known = is_big, FakeKnown(when=lambda _case, _finding: known)
    _stop_when_kept(bench, 1)
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        ledger.begin(make_case((200,)), "toy")
        with pytest.raises(KeyboardInterrupt):
            ledger.finish()
    assert [(found.case, found.known) for found in ledger.found] == [(_kept(bench)[0], known)]


def test_a_smaller_case_is_booked_with_its_file(bench: Bench) -> None:
    bench.judge = is_big
    _stop_when_kept(bench, 2)
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        ledger.begin(make_case((200, 3)), "toy")
        with pytest.raises(KeyboardInterrupt):
            ledger.finish()
    first, smaller = _kept(bench)
    assert bench.archive.dropped == [first]
    assert [found.case for found in ledger.found] == [smaller]


def _kept(bench: Bench) -> list[Path]:
    return [bench.archive.keep(sighting) for sighting in tuple(bench.archive.kept)]


def _stop_when_kept(bench: Bench, number: int) -> None:
    """The signal comes right after so many cases were put on disk."""
    keep = bench.archive.keep

    def kept(sighting: Sighting) -> Path:
        path = keep(sighting)
        if len(bench.archive.kept) == number:
            signal.raise_signal(signal.SIGINT)
        return path

    bench.archive.keep = kept  # type: ignore[method-assign]


def interrupted(seen: list[str]) -> None:
    with signals_held():
        signal.raise_signal(signal.SIGINT)
        seen.append("inner")


def test_a_signal_is_handled_at_the_end_of_the_block() -> None:
    before, seen = signal.getsignal(signal.SIGINT), list[str]()
    with pytest.raises(KeyboardInterrupt):
        interrupted(seen)
    assert seen == ["inner"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_block_in_a_block_is_ended_with_the_outer_one() -> None:
    seen = list[str]()

    def outer() -> None:
        with signals_held():
            interrupted(seen)
            seen.append("outer")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert seen == ["inner", "outer"]


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_no_handler_runs_nothing_is_held() -> None:
    entered = []

    def enter() -> None:
        with signals_held():
            entered.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [before]
