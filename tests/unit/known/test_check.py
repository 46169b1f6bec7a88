"""Whether known defects are still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.known import Defect, Known, check_known
from fsdpfuzz.loop import Session, SessionSettings, installed_torch
from fsdpfuzz.verdict import Finding
from tests.unit.known.samples import FOLDER, TORCH, crash, defect, two_layers, wrong_gradient

OTHER = wrong_gradient(name="1.weight", unit="")


@pytest.mark.parametrize(
    ("entry", "findings", "state", "stale"),
    [
        (defect(), (wrong_gradient(),), "shows", False),
        (defect(), (OTHER, crash()), "shows", False),
        (defect(), (OTHER,), "differs", True),
        (defect(), (), "gone", True),
        (defect(gone="2.13"), (), "skipped", False),
        (defect(gone="2.13"), (wrong_gradient(),), "also", True),
        (defect(gone="2.13"), (OTHER,), "differs", True),
        (defect(seen={"gloo": ("2.14.0",)}), (), "skipped", False),
    ],
)
def test_the_smallest_case_is_run_and_compared(
    entry: Defect, findings: tuple[Finding, ...], state: str, stale: bool
) -> None:
    ran: list[CaseSpec] = []

    def findings_of(case: CaseSpec) -> tuple[Finding, ...]:
        ran.append(case)
        return findings

    (checked,) = check_known(Known({"x": entry}), findings_of, torch=TORCH, backend="gloo")
    assert (checked.name, checked.defect, checked.state) == ("x", entry, state)
    assert checked.stale is stale
    assert ran == [two_layers()]


def never(case: CaseSpec) -> tuple[Finding, ...]:
    raise AssertionError("must not run")


def test_what_only_another_backend_has_is_not_run() -> None:
    entry = defect(seen={"nccl": ("2.11.0",)})
    (checked,) = check_known(Known({"x": entry}), never, torch=TORCH, backend="gloo")
    assert (checked.state, checked.detail) == ("skipped", "seen on nccl alone")


def test_a_case_with_more_ranks_than_there_are_is_not_run() -> None:
    (checked,) = check_known(
        Known({"x": defect()}), never, torch=TORCH, backend="gloo", most_ranks=1
    )
    assert (checked.state, checked.detail) == ("skipped", "it needs 2 ranks")


def test_it_says_what_to_write_and_what_it_saw() -> None:
    known = Known({"x": defect()})
    (gone,) = check_known(known, lambda _: (), torch=TORCH, backend="gloo")
    assert '"gone": "2.13.0"' in gone.detail
    (differs,) = check_known(known, lambda _: (OTHER,), torch=TORCH, backend="gloo")
    assert OTHER.key in differs.detail
    assert "1.weight" in differs.detail


@pytest.mark.timeout(600)
def test_every_one_shows_on_ranks(tmp_path: Path) -> None:
    known = Known.load(FOLDER)
    torch = installed_torch()
    with Session(SessionSettings(output=tmp_path, torch=torch, reruns=0)) as session:
        checked = {
            found.name: found
            for found in check_known(
                known,
                lambda case: session.examine(case).verdict.findings,
                torch=torch,
                backend="gloo",
            )
        }
    assert checked.keys() == known.defects.keys()
    for name, entry in known.defects.items():
        here = entry.applies(torch=torch, backend="gloo")
        expected = "shows" if here else "skipped"
        assert checked[name].state == expected, (name, checked[name].detail)
    assert sum(found.state == "shows" for found in checked.values()) > len(checked) // 2
