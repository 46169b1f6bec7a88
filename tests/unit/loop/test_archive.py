from __future__ import annotations

from pathlib import Path

from fsdpfuzz.corpus import read_entry
from fsdpfuzz.loop import Sighting
from fsdpfuzz.loop._archive import FileArchive
from tests.unit.loop.standins import finding, make_case

CASE, BIG = make_case((7,)), finding("big")


def test_a_finding_is_kept_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    path = FileArchive(tmp_path).keep(
        Sighting(
            case=CASE,
            finding=BIG,
            property_name="parity",
            backend="gloo",
            torch="2.13.0",
            seed=5,
            shrink_steps=9,
            rate="failed 3 of 10",
        )
    )
    entry = read_entry(path)
    assert path.parent == tmp_path / "failures"
    assert entry.case == CASE
    found = entry.found
    assert found is not None
    assert (found.key, found.message, found.property) == (BIG.key, BIG.message, "parity")
    assert found.finding == BIG
    assert (found.torch, found.backend, found.world_size) == ("2.13.0", "gloo", 2)
    assert (found.seed, found.shrink_steps, found.rate) == (5, 9, "failed 3 of 10")


def test_the_case_under_way_is_on_disk(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    archive.begin(CASE)
    (slot,) = tmp_path.glob("*.json")
    assert read_entry(slot).case == CASE
    slot.rename(tmp_path / "inflight-999999999.json")
    later = FileArchive(tmp_path)
    assert later.pending() == [CASE]
    later.begin(CASE)
    later.finish()
    assert not list(tmp_path.glob("*.json"))
