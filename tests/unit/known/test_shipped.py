"""The known defects of the project: each says what it is, and nothing beyond."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from fsdpfuzz.case import (
    FEATURES,
    PARAMETER_FEATURES,
    UNIT_FEATURES,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
)
from fsdpfuzz.case.units import Placement
from fsdpfuzz.invariants import REGISTRY
from fsdpfuzz.known import Known, read_defect, write_defect
from fsdpfuzz.known.defect import ways
from fsdpfuzz.reduce import simpler
from fsdpfuzz.seeds import SEEDS
from tests.unit.known.invented import invented
from tests.unit.known.samples import FOLDER, NAMES, TORCH, shipped

MOST_SEEDS = 0.3
"""Of the documents' cases that any one of them may cover."""
WHOLE = ("fsdp2-gloo-average-not-divided",)
"""What made all of an API wrong on a backend: no plainer case is out of such a region, and half of
the documents' cases are in it. Only torch that is older than the ones tested on had that."""


def test_there_are_some() -> None:
    assert len(NAMES) >= 22
    assert tuple(shipped().defects) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_there_where_it_was_seen(name: str) -> None:
    known, defect = shipped(), shipped().defects[name]
    case = known.minimal(name)
    assert defect.covers(case)
    for backend, releases in defect.seen.items():
        for release in releases:
            assert defect.applies(torch=f"{release}+cu130", backend=backend), release
            assert known.match(case, defect.finding, torch=release, backend=backend) == name
            assert name in known.covering(case, torch=release, backend=backend)
    assert not defect.applies(torch="2.6.0", backend=next(iter(defect.seen)))


@pytest.mark.parametrize("name", NAMES)
def test_it_refuses_what_it_must(name: str) -> None:
    defect = shipped().defects[name]
    refused = list(shipped().refused(name))
    assert len(refused) >= 2
    assert len({other.why for other in defect.refuses}) == len(refused)
    for case, finding in refused:
        assert (case, finding) != (shipped().minimal(name), defect.finding)
        assert finding.api == case.api
        assert finding.invariant in REGISTRY
        assert not defect.explains(case, finding)


@pytest.mark.parametrize("name", NAMES)
def test_it_refuses_what_is_invented(name: str) -> None:
    defect, case = shipped().defects[name], shipped().minimal(name)
    others = list(invented(defect, case))
    assert len(others) > len(REGISTRY) // 2
    assert [words for words, finding in others if defect.explains(case, finding)] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_names_a_unit_or_parameter_where_its_finding_does(name: str) -> None:
    """A wrong gradient, and a unit that is not resharded, are of what the predicate means."""
    defect = shipped().defects[name]
    for shown in defect.shows:
        if {"grad_parity", "param_parity"} & set(shown.invariant):
            assert shown.names == "parameter"
        if {"resharded_after_backward", "reshard_count"} & set(shown.invariant):
            assert shown.names == "unit"
        if {"no_crash", "ranks_agree"} & set(shown.invariant):
            # An assertion without words has none to look for; its whole kind says as much.
            wordless = shown.kind and all(kind.endswith(":") for kind in shown.kind)
            assert shown.text or wordless
    if defect.when.unit and not defect.when.parameter:
        # The program may wrap the model anew.
        plans = ways(shipped().minimal(name))
        assert any(defect.when.has_unit(a, path) for a in plans for path in a.units)


@pytest.mark.parametrize("name", WHOLE)
def test_what_made_all_wrong_is_gone(name: str) -> None:
    gone = shipped().defects[name].gone
    assert gone is not None
    assert Version(gone) <= Version(TORCH)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLE])
def test_a_plainer_case_is_out_of_its_region(name: str) -> None:
    case, defect = shipped().minimal(name), shipped().defects[name]
    nearest = list(shipped().exits(case, name))
    assert nearest
    assert not any(defect.covers(plainer) for plainer in nearest)
    plainer = [neighbour.case for neighbour in simpler(case)]
    assert all(found in plainer for found in nearest)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLE])
def test_it_covers_few_of_the_documents_cases(name: str) -> None:
    defect = shipped().defects[name]
    covered = [seed.name for seed in SEEDS if defect.covers(seed.case)]
    assert len(covered) <= MOST_SEEDS * len(SEEDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_person_has_said_what_it_is(name: str) -> None:
    defect = shipped().defects[name]
    assert "reason" not in defect.unwritten
    assert defect.way_around.endswith(".")
    assert not defect.title.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_its_file_is_written_as_it_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    write_defect(path, read_defect(FOLDER / path.name))
    assert path.read_bytes() == (FOLDER / path.name).read_bytes()


@pytest.mark.parametrize(
    ("dims", "covered"),
    [((1,), True), ((-1,), True), ((0,), False), ((-2,), False), ((0, 1), True), ((0, -2), False)],
)
def test_a_dimension_is_the_same_however_it_is_counted(
    dims: tuple[int, ...], covered: bool
) -> None:
    defect = shipped().defects["fsdp2-placement-smaller-mesh"]
    layers = tuple(Linear(out=4, bias=False) for _ in dims)
    placed = tuple(Placement(parameter=f"{i}.weight", dim=dim) for i, dim in enumerate(dims))
    unit = Fsdp2Unit(path="", reshard_after_forward=2, shard_placement=placed)
    case = msgspec.structs.replace(
        shipped().minimal("fsdp2-placement-smaller-mesh"),
        model=Sequential(children=layers),
        plan=Fsdp2Plan(units=(unit,)),
    )
    assert defect.covers(case) == covered


def test_features_without_listed_values_are_open() -> None:
    for known in (FEATURES, UNIT_FEATURES, PARAMETER_FEATURES):
        for name, feature in known.items():
            assert feature.values or feature.open, name


def test_a_folder_is_read_whole() -> None:
    assert Known.load(FOLDER).defects == shipped().defects


UNREPORTED = [name for name, d in shipped().defects.items() if not (d.link or d.gone)]


@pytest.mark.parametrize("name", UNREPORTED)
def test_what_nobody_reported_has_an_issue_text(name: str) -> None:
    """Made by ``fsdpfuzz repro --issue --ablate``, kept beside the entry, and of that entry."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert f"known to fsdpfuzz as {name}: {shipped().defects[name].title}" in text
    assert "Describe the bug" in text
    assert "```python" in text
