"""The archive of a real session: the corpus in the output folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.corpus import Entry, Store, slug, write_atomically, write_entry
from fsdpfuzz.corpus import Found as Provenance
from fsdpfuzz.loop._ports import Sighting

HARNESS = "harness"
UNCONFIRMED = "unconfirmed"


class FileArchive:
    """Keeps cases in ``<kept>/failures``, a file a finding; those under way in ``output``.

    What showed once only is in ``<kept>/unconfirmed``, harness errors are in ``<kept>/harness``.
    """

    def __init__(self, output: Path, kept: Path | None = None) -> None:
        self._store = Store(output, kept)

    def begin(self, case: CaseSpec) -> None:
        """Puts the case on disk before it runs."""
        self._store.begin(case)

    def finish(self) -> None:
        """The case of `begin` was judged."""
        self._store.finish()

    def keep(self, sighting: Sighting) -> Path:
        """Keeps a failing case for good; the file.

        A smaller case of the same finding takes the place of a larger one.
        """
        finding = sighting.finding
        provenance = Provenance(
            torch=sighting.torch,
            backend=sighting.backend,
            world_size=sighting.case.world_size,
            date=datetime.now(UTC).date().isoformat(),
            seed=sighting.seed,
            key=finding.plain.key,
            message=finding.message,
            # A saved case is run on one torch.
            finding=finding.plain,
            property=sighting.property_name,
            shrink_steps=sighting.shrink_steps,
            rate=sighting.rate,
        )
        name = f"{finding.key}-known-{sighting.known}" if sighting.known else finding.key
        entry = Entry(case=sighting.case, found=provenance)
        if sighting.unconfirmed:
            path = self._store.kept / UNCONFIRMED / f"{slug(name)}.json"
            write_entry(path, entry)
            return path
        return self._store.keep(entry, name)

    def keep_harness_error(self, case: CaseSpec, reason: str, words: str) -> Path:
        """Keeps the case of a harness error, and in a ``.txt`` beside it all that is known."""
        entry = Entry(case=case, origin=f"harness error: {reason}")
        path = self._store.kept / HARNESS / f"{entry.digest}.json"
        write_entry(path, entry)
        write_atomically(path.with_suffix(".txt"), words.encode("utf-8", "backslashreplace"))
        return path

    def drop(self, path: Path) -> None:
        """Removes a kept case that another one stands for."""
        path.unlink(missing_ok=True)

    def pending(self) -> list[CaseSpec]:
        """The cases that killed runs were at."""
        return [entry.case for entry in self._store.pending()]
