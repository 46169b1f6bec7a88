"""A run: generate cases, meet findings, shrink each, report."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdpfuzz.errors import PoolError
from fsdpfuzz.loop._events import Emit, Notice, RunFinished, RunStarted, Summary
from fsdpfuzz.loop._ledger import Ledger, WriteScript
from fsdpfuzz.loop._peers import Alone, Peers
from fsdpfuzz.loop._portions import Portion
from fsdpfuzz.loop._properties import Property, properties_named
from fsdpfuzz.loop._session import Session
from fsdpfuzz.loop._settings import RunSettings

if TYPE_CHECKING:
    from fsdpfuzz.loop._hunt import Hunt

DIGESTS = "digests.txt"
LONG_RUN = 10_000
"""Examples after which a known finding that was not met is worth a word."""


class Stopped(KeyboardInterrupt):
    """A signal asks the run to end in good order."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def run(
    settings: RunSettings,
    emit: Emit,
    *,
    session: Session | None = None,
    script: WriteScript | None = None,
    peers: Peers | None = None,
) -> Summary:
    """Runs the properties and tells ``emit`` of everything that happens, in order.

    `KeyboardInterrupt`, and `Stopped` for other signals, ends the run early with a summary
    of what was done, and so do ranks that cannot be started again. The case that was under way
    then counts for nothing; it stays on disk, and the next run begins with it. ``script``
    writes and runs the standalone script of a new finding, as `write_script` does. A session
    given by the caller stays open. ``peers`` are the other jobs of a campaign. The digests of the
    generated cases are written to ``digests.txt`` in the folder of the run, one a line, in order.
    """
    if session is not None:
        return _run(settings, emit, session, script, peers)
    with Session(settings.session) as own:
        return _run(settings, emit, own, script, peers)


def _run(
    settings: RunSettings,
    emit: Emit,
    session: Session,
    script: WriteScript | None,
    peers: Peers | None,
) -> Summary:
    properties = properties_named(settings.properties)
    ledger = Ledger(session, emit, script, peers)
    started = started_with(settings)
    interrupted: int | None = None
    failure: str | None = None
    try:
        emit(started)
        _search(settings, ledger, properties, peers or Alone())
        if peers is None:
            tell_silent(ledger.counts.examples, session.silent_known(), emit)
    except KeyboardInterrupt as stop:
        interrupted = stop.number if isinstance(stop, Stopped) else int(signal.SIGINT)
        session.abandon()
        emit(Notice(text=f"ended early by {signal.Signals(interrupted).name}"))
    except PoolError as error:
        failure = str(error)
        session.abandon()
        emit(Notice(text=f"ended early: {failure}"))
    summary = Summary(
        started=replace(started, torch=session.torch),
        counts=ledger.counts,
        seconds=ledger.seconds,
        pool_restarts=session.restarts,
        findings=ledger.found,
        strict=settings.session.strict,
        interrupted=interrupted,
        failure=failure,
        silent_known=session.silent_known(),
        unconfirmed=ledger.unconfirmed,
        harness_errors=len(session.harness_errors),
        harness=tuple(map(str, session.harness_errors)),
    )
    emit(RunFinished(summary=summary))
    return summary


def _search(
    settings: RunSettings, ledger: Ledger, properties: tuple[Property, ...], peers: Peers
) -> None:
    from fsdpfuzz.loop._hunt import Hunt, is_over

    folder = settings.notes or settings.session.folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DIGESTS).open("w", encoding="ascii", buffering=1) as ledger.digests:
        # What killed the last run comes first, and once for all properties.
        for case in ledger.session.pending():
            ledger.meet(ledger.session.examine(case), properties[0].name)
        number, jobs = settings.place
        for case in ledger.session.first[number::jobs]:
            if case.api in settings.apis and case.world_size <= max(settings.world_sizes):
                ledger.meet(ledger.session.examine(case), properties[0].name)
        shares = shares_of(settings.max_examples, len(properties))
        hunts = [
            Hunt(settings, ledger, item, share)
            for item, share in zip(properties, shares, strict=True)
        ]
        while any(hunt.left for hunt in hunts) and not is_over(settings, ledger):
            # In turns, so that each property is looked at from the first seconds on.
            for hunt in hunts:
                if hunt.left and not is_over(settings, ledger):
                    hunt.round()
            if not any(hunt.left for hunt in hunts) and not is_over(settings, ledger):
                _go_on(hunts, ledger, peers.more())
        ledger.finish_all()


def _go_on(hunts: Sequence[Hunt], ledger: Ledger, portion: Portion | None) -> None:
    """With what is left of a campaign's examples."""
    if portion is not None:
        # Whatever was run before: else its cases would hang on which job has it.
        ledger.seen.clear()
        for hunt, share in zip(hunts, shares_of(portion.examples, len(hunts)), strict=True):
            hunt.go_on(share, portion.seed)


def tell_silent(examples: int, silent: Iterable[str], emit: Emit) -> None:
    """Says of a long run which known findings it did not meet."""
    if examples >= LONG_RUN:
        for entry in silent:
            emit(Notice(text=f"known finding {entry} did not show; does it still exist?"))


def started_with(settings: RunSettings) -> RunStarted:
    """What there is to say of a run before its first case."""
    session = settings.session
    return RunStarted(
        torch=session.torch,
        backend=session.backend,
        world_sizes=settings.world_sizes,
        profile=session.profile.name,
        seed=session.seed,
        properties=tuple(item.name for item in properties_named(settings.properties)),
        max_examples=settings.max_examples,
        output=session.folder,
        max_seconds=settings.max_seconds,
        python=session.python.executable if session.python is not None else "",
        against=session.against.torch if session.against is not None else "",
    )


def shares_of(total: int, parts: int) -> list[int]:
    """A number in parts that are as equal as can be."""
    return [total // parts + (i < total % parts) for i in range(parts)]
