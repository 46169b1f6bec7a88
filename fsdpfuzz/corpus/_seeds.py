"""The documents' seeds as files, one a parametrisation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fsdpfuzz.corpus._entry import Entry, write_entry


def seed_entries() -> dict[str, Entry]:
    """File name to entry: ``002-parity-with-ddp-03.json`` is the third case of that test.

    The entry's origin is the seed's name, with the parametrisation in full.
    """
    from fsdpfuzz.seeds import SEEDS

    numbers: Counter[str] = Counter()
    entries = {}
    for seed in SEEDS:
        test = seed.test.removeprefix("test_").replace("_", "-")
        start = f"{seed.document}-{test}"
        numbers[start] += 1
        entries[f"{start}-{numbers[start]:02}.json"] = Entry(case=seed.case, origin=seed.name)
    return entries


def write_seeds(folder: Path) -> tuple[Path, ...]:
    """Writes a file for each seed; files of other names stay as they are."""
    paths = []
    for name, entry in seed_entries().items():
        paths.append(folder / name)
        write_entry(paths[-1], entry)
    return tuple(paths)
