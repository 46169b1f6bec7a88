"""A folder for each run, so that no run writes over what another one found."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from fsdpfuzz.errors import UsageError, one_line

RUNS = "runs"
LATEST = "latest"


def run_name(label: object, when: float | None = None) -> str:
    """``<date>-<label>``; the date is UTC, to the second, and sorts as text. Now, if not said."""
    date = datetime.now(UTC) if when is None else datetime.fromtimestamp(when, UTC)
    return f"{date:%Y-%m-%d-%H%M%S}-{label}"


def make_run_folder(output: Path, label: object) -> Path:
    """Makes ``<output>/runs/<date>-<label>``, which is nobody else's; ``latest`` points at it."""
    name = run_name(label)
    # Making it is the test whether it is there: two runs may begin in the same second.
    for number in range(1, 1_000):
        folder = output / RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            reason = f"{folder}: the folder cannot be made: {error.strerror}"
            raise UsageError(one_line(reason)) from None
        point_at(folder)
        return folder
    raise UsageError(one_line(f"{output / RUNS / name}: is there a thousand times already"))


def point_at(folder: Path) -> None:
    """Has the link ``latest`` beside a run's folder point at it, where links can be made."""
    temporary = folder.parent / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        # Whoever follows it meanwhile gets the old run or the new one.
        temporary.replace(folder.parent / LATEST)
