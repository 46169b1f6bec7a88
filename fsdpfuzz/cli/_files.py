"""The files of a run: result and report in its folder, and those that were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import (
    Event,
    FindingDone,
    FindingMet,
    RunFinished,
    RunStarted,
    Summary,
    summary_document,
    write_json,
)

if TYPE_CHECKING:
    from fsdpfuzz.show import Recorder

REPORT = "report.html"
SECONDS = 10.0
"""How old the report of a run that goes on may grow."""
SHARE = 50
"""One part of so many of the controller's time may go into the report, also where findings come
one after the other: each is told of and on disk without it."""


class Files:
    """Writes a run's files: the report every now and then, the rest when the run ends.

    What cannot be written is remembered in ``faults``; no run ends for it.
    """

    def __init__(
        self,
        folder: Path,
        recorder: Recorder,
        *,
        json: Path | None = None,
        junit: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = folder / REPORT
        self.faults: list[str] = []
        self._folder = folder
        self._recorder = recorder
        self._json = json
        self._junit = junit
        self._clock = clock
        self._due = 0.0
        self._free = 0.0
        self._news = False
        """Whether a finding waits for a report that shows it."""

    def __call__(self, event: Event) -> None:
        """Takes an event after the recorder has."""
        match event:
            case RunFinished(summary=summary):
                self._end(summary)
                return
            case RunStarted() | FindingMet() | FindingDone():
                self._news = True
            case _:
                pass
        if self._clock() >= (self._free if self._news else self._due):
            self._refresh()

    def _refresh(self) -> None:
        began = self._clock()
        # A disk that is full now may have room when the run ends.
        self._try(self._write_report)
        self.faults.clear()
        end = self._clock()
        # By how long it took: the report of a long run is large.
        self._free = end + SHARE * (end - began)
        self._due = max(end + SECONDS, self._free)
        self._news = False

    def _end(self, summary: Summary) -> None:
        from fsdpfuzz.cli._junit import write_junit
        from fsdpfuzz.corpus import RESULT

        document = summary_document(summary)
        json, junit = self._json, self._junit
        if json is not None:
            self._try(lambda: write_json(json, document))
        if junit is not None:
            self._try(lambda: write_junit(junit, summary))
        self._try(lambda: write_json(self._folder / RESULT, document))
        self._try(self._write_report)

    def _write_report(self) -> None:
        from fsdpfuzz.show import write_report

        write_report(self.report, self._recorder.record())

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except UsageError as error:
            self.faults.append(str(error))
