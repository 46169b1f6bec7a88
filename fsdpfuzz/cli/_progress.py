"""The progress of a run: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fsdpfuzz.cli._output import console
from fsdpfuzz.loop import (
    Also,
    CaseDone,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    RunFinished,
    RunStarted,
    Scripting,
    Shrinking,
)

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.1
ENDLESS = 100_000_000
"""So many examples are as many as there is time for."""


class Tally:
    """The figures of the progress line."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._total: int | None = None
        self._seconds: float | None = None
        self._examples = 0
        self._new: set[str] = set()
        self._known = 0
        self._restarts = 0
        self._doing = ""

    def take(self, event: Event) -> None:
        """Keeps up with an event."""
        match event:
            case RunStarted():
                self._seconds = event.max_seconds
                # With a bound on the time alone the number of cases is not worth a word.
                bounded = event.max_seconds is None or event.max_examples < ENDLESS
                self._total = event.max_examples if bounded else None
                self._began = time.monotonic()
            case CaseDone():
                self._examples, self._restarts = event.index, event.restarts
                self._doing = ""
            case FindingMet(found=found):
                if found.known is None:
                    self._new.add(found.finding.key)
                else:
                    self._known += 1
            case Also(key=key):
                self._new.discard(key)
                self._doing = ""
            case Shrinking():
                self._restarts = event.restarts
                self._doing = f", shrinking {event.key}: {event.tries} tried, {event.bytes} bytes"
            case Scripting():
                self._doing = f", writing and running the script of {event.key}"
            case FindingDone(found=found):
                self._new.difference_update(found.also)
                self._new.update([] if found.known else [found.finding.key])
                self._doing = ""
            case Notice() | RunFinished():
                pass

    @property
    def line(self) -> str:
        """The progress line."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        examples = f"{self._examples}" if self._total is None else f"{self._examples}/{self._total}"
        time_left = "" if self._seconds is None else f"{seconds:.0f}/{self._seconds:.0f} s, "
        return (
            f"{examples} examples, {time_left}{self._examples / seconds:.1f}/s, "
            f"findings {len(self._new)} new {self._known} known, "
            f"restarts {self._restarts}{self._doing}"
        )


def headline(event: Event) -> str | None:
    """The line that an event deserves of its own, if any."""
    match event:
        case RunStarted():
            ranks = " or ".join(str(size) for size in event.world_sizes)
            jobs = f"{event.jobs} jobs, " if event.jobs > 1 else ""
            against = f" against {event.against}" if event.against else ""
            return (
                f"fsdpfuzz: torch {event.torch}{against}, {event.backend}, {jobs}{ranks} ranks, "
                f"profile {event.profile}, seed {event.seed}, {', '.join(event.properties)}"
            )
        case FindingMet(found=found):
            return f"{_kind(found)} after {found.examples_to_find}: {found.finding.key}"
        case Also(found=found, key=key):
            return f"{key}: the same cause as {found.finding.key}"
        case FindingDone(found=found):
            how = f"shrunk, {found.shrink_steps} steps" if found.shrunk else "not shrunk"
            return f"{found.finding.key}: {how}, {found.case}"
        case Notice():
            return event.text
        case _:
            return None


@contextmanager
def progress() -> Iterator[Callable[[Event], None]]:
    """Shows what happens on standard error until the block ends."""
    if not sys.stderr.isatty():
        yield _plain()
        return
    from rich.live import Live
    from rich.text import Text

    tally, last = Tally(), [0.0]
    with Live(console=console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(event: Event) -> None:
            tally.take(event)
            text = headline(event)
            if text is not None:
                live.console.print(Text(text))
            now = time.monotonic()
            if text is not None or now - last[0] >= LIVE_SECONDS:
                last[0] = now
                line = Text(tally.line, overflow="ellipsis", no_wrap=True)
                live.update(line, refresh=True)

        yield show


def _plain() -> Callable[[Event], None]:
    tally, last = Tally(), [time.monotonic()]

    def show(event: Event) -> None:
        tally.take(event)
        text = headline(event)
        if text is not None:
            print(text, file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - last[0] >= PLAIN_SECONDS:
            last[0] = now
            print(tally.line, file=sys.stderr, flush=True)

    return show


def _kind(found: Found) -> str:
    return f"known finding ({found.known})" if found.known else "finding"
