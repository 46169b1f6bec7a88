"""The archive of a real session: the corpus in the output folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fsdpfuzz.corpus import Entry, Known, Store
from fsdpfuzz.corpus import Found as Provenance
from fsdpfuzz.loop._ports import KnownLike, Sighting
from fsdpfuzz.spec import CaseSpec


class FileArchive:
    """Keeps cases in ``<output>/failures``, each under its finding and digest."""

    def __init__(self, output: Path) -> None:
        self._store = Store(output)

    def begin(self, case: CaseSpec) -> None:
        """Puts the case on disk before it runs."""
        self._store.begin(case)

    def finish(self) -> None:
        """The case of `begin` was judged."""
        self._store.finish()

    def keep(self, sighting: Sighting) -> Path:
        """Keeps a failing case for good; the file."""
        finding = sighting.finding
        provenance = Provenance(
            torch=sighting.torch,
            backend=sighting.backend,
            world_size=sighting.case.world_size,
            date=datetime.now(UTC).date().isoformat(),
            seed=sighting.seed,
            key=finding.key,
            message=finding.message,
            property=sighting.property_name,
            shrink_steps=sighting.shrink_steps,
        )
        return self._store.keep(Entry(case=sighting.case, found=provenance))

    def pending(self) -> list[CaseSpec]:
        """The cases that killed runs were at."""
        return [entry.case for entry in self._store.pending()]


def load_known(path: Path | None) -> KnownLike:
    """The known findings of a file, or none."""
    return Known.load(path) if path is not None else Known()
