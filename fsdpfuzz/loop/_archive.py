"""The archive of a real session: the corpus in the output folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fsdpfuzz.corpus import Entry, Known, KnownFinding, Ledger, Store
from fsdpfuzz.corpus import Found as Provenance
from fsdpfuzz.loop._ports import Sighting
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding


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
            rate=sighting.rate,
        )
        return self._store.keep(Entry(case=sighting.case, found=provenance))

    def pending(self) -> list[CaseSpec]:
        """The cases that killed runs were at."""
        return [entry.case for entry in self._store.pending()]


class FileKnown:
    """The known findings of a file, and which of them this session met."""

    def __init__(self, path: Path | None) -> None:
        self._known = Known.load(path) if path is not None else Known()
        self._met = Ledger(self._known)

    def match(
        self, case: CaseSpec, finding: Finding, *, torch: str, backend: str
    ) -> KnownFinding | None:
        """The entry that explains the finding in this case."""
        entry = self._known.match(case, finding, torch=torch, backend=backend)
        if entry is not None:
            self._met.count(entry.id)
        return entry

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        """The entries that should show here and were not met."""
        return self._met.silent(torch=torch, backend=backend)
