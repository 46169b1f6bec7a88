"""The folder into which a run writes: the case under way, and all that failed."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from fsdpfuzz.corpus._entry import Entry, read_entry, write_entry
from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec import CaseSpec

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MAX_SLUG = 60
_IN_FLIGHT = re.compile(r"inflight-(\d+)\.json")


class Store:
    """Keeps cases under ``folder``; several processes may use one folder at once.

    The case under way lies in a file named after this process. A process that is killed
    leaves it behind, and the next run finds it by `pending`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slot = folder / f"inflight-{os.getpid()}.json"

    def begin(self, case: CaseSpec) -> None:
        """Puts a case on disk before it runs."""
        write_entry(self._slot, Entry(case=case), durable=False)

    def finish(self) -> None:
        """The case of `begin` has been judged, and kept if it failed."""
        self._slot.unlink(missing_ok=True)

    def keep(self, entry: Entry) -> Path:
        """Keeps a failing case for good; its file."""
        key = entry.found.key if entry.found is not None else entry.origin or "case"
        path = self.folder / "failures" / f"{slug(key)}-{entry.digest}.json"
        write_entry(path, entry)
        return path

    def pending(self) -> list[Entry]:
        """The cases at which processes were killed; each is handed out once."""
        found = []
        for path in sorted(self.folder.glob("inflight-*.json")):
            name = _IN_FLIGHT.fullmatch(path.name)
            if name is None or _is_alive(int(name[1])):
                continue
            with contextlib.suppress(CaseError):
                found.append(read_entry(path))
            path.unlink(missing_ok=True)
        for leftover in self.folder.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        return found


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens of ``text``: safe as a part of a file name."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-")[:_MAX_SLUG].strip("-") or "case"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
