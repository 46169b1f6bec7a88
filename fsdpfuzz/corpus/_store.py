"""The folder into which a run writes: the case under way, and all that failed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.corpus._entry import IN_FLIGHT, Entry, read_entry, write_entry
from fsdpfuzz.corpus._write import is_alive, started, sweep
from fsdpfuzz.errors import CaseError

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MAX_SLUG = 60
_SLOT = re.compile(rf"{IN_FLIGHT}(\d+)(?:-(\d+))?(?:-again(\d+)-[0-9a-f]+)?\.json")
_MAX_KILLS = 3


class Store:
    """Keeps cases under ``folder``; several processes may use one folder at once.

    Those that failed are put under ``kept``, which is ``folder`` where it is not given.

    The case under way lies in a file named after this process. A process that is killed
    leaves it behind, and the next run takes it over by `pending`.
    """

    def __init__(self, folder: Path, kept: Path | None = None) -> None:
        self.folder = folder
        self.kept = folder if kept is None else kept
        self._current: Path | None = None
        self._again: dict[str, Path] = {}
        """Cases taken over from killed runs and not judged yet: digest to file."""

    @property
    def failures(self) -> Path:
        """The folder of the kept cases."""
        return self.kept / "failures"

    def begin(self, case: CaseSpec) -> None:
        """Puts a case on disk before it runs."""
        # A case taken over stays in the file that counts its kills.
        self._current = self._again.pop(digest(case), None)
        if self._current is None:
            self._current = self.folder / f"{_stem()}.json"
            # Not durable: it has to outlive this process, not the
            # machine, and a sync would cost as much as a case.
            write_entry(self._current, Entry(case=case), durable=False)

    def finish(self) -> None:
        """The case of `begin` has been judged, and kept if it failed."""
        if self._current is not None:
            self._current.unlink(missing_ok=True)
            self._current = None

    def keep(self, entry: Entry, name: str = "") -> Path:
        """Keeps a failing case for good; its file.

        With a name it takes the place of what was kept under that name before.
        """
        key = entry.found.key if entry.found is not None else entry.origin or "case"
        path = self.failures / f"{slug(name) if name else f'{slug(key)}-{entry.digest}'}.json"
        write_entry(path, entry)
        return path

    def pending(self) -> list[Entry]:
        """The cases at which processes were killed; only one process gets each.

        Their files stay, under this process's name, until the case was run and `finish`
        called, so that a second kill does not lose them. A case at which runs were killed
        three times is put among the failures instead and not given out any more.
        """
        found = []
        for path in sorted(self.folder.glob(f"{IN_FLIGHT}*.json")):
            name = _SLOT.fullmatch(path.name)
            if name is None or is_alive(int(name[1]), int(name[2] or 0)):
                continue
            kills = int(name[3] or 0) + 1
            with contextlib.suppress(CaseError, FileNotFoundError):
                entry = read_entry(path)
                own = self.folder / f"{_stem()}-again{kills}-{entry.digest}.json"
                # Of several processes that look at the same time, one can rename.
                path.rename(own)
                # Once may be chance, or somebody's Ctrl-C; a case that
                # ends every run must not end the next.
                if kills >= _MAX_KILLS:
                    self._give_up(own, entry)
                elif entry.digest in self._again:
                    own.unlink()
                else:
                    self._again[entry.digest] = own
                    found.append(entry)
        for folder in (self.folder, self.failures):
            sweep(folder)
        return found

    def _give_up(self, path: Path, entry: Entry) -> None:
        kept = self.failures / f"killed-run-{entry.digest}.json"
        origin = f"runs were killed {_MAX_KILLS} times at this case"
        write_entry(kept, Entry(case=entry.case, origin=origin))
        path.unlink()


def _stem() -> str:
    # Not remembered: a fork would go on under its parent's name.
    pid = os.getpid()
    return f"{IN_FLIGHT}{pid}-{started(pid)}"


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens of ``text``: safe as a part of a file name.

    A long text is cut and ends in a digest, so that two that begin alike stay apart.
    """
    short = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    if len(short) > _MAX_SLUG:
        tail = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        short = f"{short[: _MAX_SLUG - 9].strip('-')}-{tail}"
    return short or "case"
