"""The runs that lie in one output folder, for the report of the newest."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from fsdpfuzz.corpus import RESULT

MAX_RUNS = 30
MAX_BYTES = 16 << 20
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(\d\d)(\d\d)\d\d-.+")


class _Met(msgspec.Struct, frozen=True):
    known: str | None = None


class _Result(msgspec.Struct, frozen=True):
    """What the history shows of a result; the file has more, and may be of another version."""

    torch: str
    examples: int
    examples_per_second: float
    seconds: float
    seed: int
    profile: str = ""
    findings: tuple[_Met, ...] = ()


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run in the same output folder."""

    name: str
    """Of its folder, which lies beside that of the run that is reported."""
    date: str
    torch: str
    profile: str
    seed: int
    examples: int
    examples_per_second: float
    seconds: float
    new: int
    known: int


def past_runs(folder: Path) -> tuple[PastRun, ...]:
    """The runs beside the one in ``folder``, newest first; those without a result are left out."""
    found: list[PastRun] = []
    try:
        # Their names begin with the date.
        names = sorted((path.name for path in folder.parent.iterdir()), reverse=True)
    except OSError:
        return ()
    for name in names:
        if name != folder.name and len(found) < MAX_RUNS and (match := _NAME.fullmatch(name)):
            result = _read(folder.parent / name / RESULT)
            if result is not None:
                found.append(_past(name, f"{match[1]} {match[2]}:{match[3]} UTC", result))
    return tuple(found)


def _past(name: str, date: str, result: _Result) -> PastRun:
    known = sum(finding.known is not None for finding in result.findings)
    return PastRun(
        name=name,
        date=date,
        torch=result.torch,
        profile=result.profile,
        seed=result.seed,
        examples=result.examples,
        examples_per_second=result.examples_per_second,
        seconds=result.seconds,
        new=len(result.findings) - known,
        known=known,
    )


def _read(path: Path) -> _Result | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return msgspec.json.decode(data, type=_Result) if len(data) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
