from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.corpus import (
    Entry,
    Found,
    Store,
    add_cases,
    describe,
    prunable,
    read_entry,
    rows,
    write_entry,
)
from fsdpfuzz.errors import CaseError
from tests.unit.corpus.samples import FINDING, KEY, found, large, small


def put(folder: Path, name: str, case: CaseSpec, provenance: Found | None = None) -> Path:
    write_entry(folder / name, Entry(case=case, found=provenance), durable=False)
    return folder / name


def test_every_file_has_a_row(tmp_path: Path) -> None:
    good = put(tmp_path, "b.json", small())
    bad = tmp_path / "a.json"
    bad.write_text("{}")
    first, second = rows([tmp_path])
    assert (first.path, first.entry) == (bad, None)
    assert first.fault.startswith(f"{bad}: $: ")
    assert (second.path, second.entry, second.fault) == (good, Entry(case=small()), "")


def test_a_description_has_provenance_options_and_case() -> None:
    provenance = found(message="a\nb", shrink_steps=4, finding=FINDING)
    text = describe(Entry(case=large(), found=provenance, origin="x: y"))
    for line in (
        "restates    x: y",
        f"key         {KEY}",
        r"message     a\nb",
        "shrink steps 4",
        "  sharding               mixed",
        '  "world_size": 2,',
    ):
        assert line in text.splitlines(), line
    assert "Finding(" not in text
    assert "finding" not in describe(Entry(case=large(), found=found()))


def test_a_case_is_added_once(tmp_path: Path) -> None:
    source, seeds = tmp_path / "out", tmp_path / "seeds"
    first = put(source, "a.json", small())
    copy = put(source, "b.json", small(), found())
    put(source, "c.json", large(), found())
    added = add_cases([source], seeds, origin="test_x.py: test_y[1]")
    assert [(item.source.name, item.new) for item in added] == [
        ("a.json", True),
        ("b.json", False),
        ("c.json", True),
    ]
    assert added[0].path == added[1].path
    assert read_entry(added[2].path) == Entry(
        case=large(), found=found(), origin="test_x.py: test_y[1]"
    )
    assert [item.new for item in add_cases([first, copy], seeds)] == [False, False]
    assert len(list(seeds.iterdir())) == 2


def test_a_bad_file_adds_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a.json", small())
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(CaseError, match=r"b\.json"):
        add_cases([tmp_path], tmp_path / "seeds")
    assert not (tmp_path / "seeds").exists()


def removed(folder: Path) -> dict[str, tuple[str, str]]:
    return {r.path.name: (r.reason, r.instead.name) for r in prunable(folder)}


def test_what_is_shrunk_replaces_what_was_met(tmp_path: Path) -> None:
    met = Store(tmp_path).keep(Entry(case=large(), found=found()))
    half = Store(tmp_path).keep(Entry(case=small(100), found=found(shrink_steps=3)))
    shrunk = Store(tmp_path).keep(Entry(case=small(1), found=found(shrink_steps=9)))
    assert removed(tmp_path) == {
        met.name: ("shrunk to a smaller case", shrunk.name),
        half.name: ("shrunk to a smaller case", shrunk.name),
    }


def test_copies_go_and_the_one_shrunk_furthest_stays(tmp_path: Path) -> None:
    put(tmp_path, "b.json", small(), found())
    put(tmp_path, "a.json", small(), found())
    put(tmp_path, "c.json", small(), found(shrink_steps=2))
    assert removed(tmp_path) == {
        "a.json": ("the same case", "c.json"),
        "b.json": ("the same case", "c.json"),
    }


def test_a_removal_points_at_a_file_that_stays(tmp_path: Path) -> None:
    put(tmp_path, "a.json", large(), found())
    put(tmp_path, "b.json", large(), found())
    put(tmp_path, "c.json", small(), found(shrink_steps=2))
    assert removed(tmp_path) == {
        "a.json": ("shrunk to a smaller case", "c.json"),
        "b.json": ("the same case", "c.json"),
    }


def test_what_is_needed_stays(tmp_path: Path) -> None:
    """The smaller case stands for no other finding, backend, version, seed or certainty."""
    put(tmp_path, "small.json", small(), found(shrink_steps=9, rate="3 of 10"))
    put(tmp_path, "certain.json", large(), found())
    put(tmp_path, "key.json", large(), found(KEY + "2"))
    put(tmp_path, "backend.json", large(), found(backend="nccl"))
    put(tmp_path, "torch.json", large(), found(torch="2.12.0"))
    put(tmp_path, "bare.json", large())
    write_entry(tmp_path / "seed.json", Entry(case=small(9), found=found(), origin="x: y"))
    (tmp_path / "bad.json").write_text("{")
    assert removed(tmp_path) == {}
    put(tmp_path, "smaller.json", small(), found(shrink_steps=9))
    assert set(removed(tmp_path)) == {"small.json", "certain.json"}


def test_an_unshrunk_case_replaces_no_other(tmp_path: Path) -> None:
    put(tmp_path, "a.json", large(), found())
    put(tmp_path, "b.json", small(), found())
    assert removed(tmp_path) == {}
    assert prunable(tmp_path / "none") == []
