"""Whether known defects are still there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.known import Defect, Known, check_known
from fsdpfuzz.known.check import QUIET_RUNS
from fsdpfuzz.loop import Session, SessionSettings, resolve_machine
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
    # What shows now and then may be quiet once.
    assert ran == [two_layers()] * (QUIET_RUNS if state == "gone" else 1)


@pytest.mark.parametrize("quiet", [2, QUIET_RUNS - 1, QUIET_RUNS])
def test_a_race_may_show_at_a_later_run(quiet: int) -> None:
    left = [()] * quiet + [(wrong_gradient(),)] * 2

    def findings_of(_: CaseSpec) -> tuple[Finding, ...]:
        return left.pop(0)

    (checked,) = check_known(Known({"x": defect()}), findings_of, torch=TORCH, backend="gloo")
    assert checked.state == ("shows" if quiet < QUIET_RUNS else "gone")
    assert len(left) == (1 if quiet < QUIET_RUNS else 2)


def never(case: CaseSpec) -> tuple[Finding, ...]:
    raise AssertionError("must not run")


@pytest.mark.parametrize(
    ("findings", "state", "detail"),
    [
        ((), "skipped", "seen on nccl alone"),
        ((OTHER,), "skipped", "seen on nccl alone, and fails in another way here: "),
        ((wrong_gradient(),), "also", 'also shows on 2.13.0: add it to "seen.gloo"'),
    ],
)
def test_what_was_seen_on_another_backend_alone(
    findings: tuple[Finding, ...], state: str, detail: str
) -> None:
    entry = defect(seen={"nccl": ("2.11.0",)})
    known = Known({"x": entry})
    (checked,) = check_known(known, lambda _: findings, torch=TORCH, backend="gloo")
    assert checked.state == state
    assert checked.detail.startswith(detail)


def test_a_case_with_more_ranks_than_there_are_is_not_run() -> None:
    (checked,) = check_known(
        Known({"x": defect()}), never, torch=TORCH, backend="gloo", most_ranks=1
    )
    assert (checked.state, checked.detail) == ("skipped", "it needs 2 ranks")


def test_a_case_that_this_torch_cannot_run_is_not_run() -> None:
    known = Known({"x": defect()})
    (checked,) = check_known(
        known, never, torch=TORCH, backend="gloo", lacks=lambda _: "FSDPModule.f() of torch"
    )
    assert (checked.state, checked.detail) == ("skipped", "it needs FSDPModule.f() of torch")


def test_it_says_what_to_write_and_what_it_saw() -> None:
    known = Known({"x": defect()})
    (gone,) = check_known(known, lambda _: (), torch=TORCH, backend="gloo")
    assert '"gone": "2.13.0"' in gone.detail
    (differs,) = check_known(known, lambda _: (OTHER,), torch=TORCH, backend="gloo")
    assert OTHER.key in differs.detail
    assert "1.weight" in differs.detail


@pytest.mark.parametrize(
    ("entry", "torch", "shows", "detail"),
    [
        (
            defect(seen={"gloo": ("2.12.1", "2.13.0")}),
            "2.10.0+cu128",
            True,
            'also shows on 2.10.0: add it to "seen.gloo"',
        ),
        (
            defect(seen={"gloo": ("2.12.1",)}, gone="2.13"),
            "2.14.1",
            True,
            'also shows on 2.14.1: add it to "seen.gloo", and "gone": "2.13" is too early',
        ),
        (
            defect(seen={"gloo": ("2.8.0", "2.13.0")}),
            "2.15.0+cu132",
            False,
            'narrow the range to before 2.15.0 ("gone": "2.15.0") or remove the entry',
        ),
        (
            defect(seen={"gloo": ("2.8.0", "2.10.0", "2.12.1", "2.13.0")}),
            "2.10.0",
            False,
            'narrow the range to before 2.10.0 ("gone": "2.10.0") or to 2.12.1 and later',
        ),
        (
            defect(seen={"gloo": ("2.13.0",), "nccl": ("2.11.0",)}),
            "2.12.1",
            False,
            "narrow the range to 2.13.0 and later",
        ),
    ],
)
def test_it_says_how_to_change_the_range(
    entry: Defect, torch: str, shows: bool, detail: str
) -> None:
    findings = (wrong_gradient(),) if shows else ()
    (checked,) = check_known(Known({"x": entry}), lambda _: findings, torch=torch, backend="gloo")
    assert checked.stale
    assert checked.detail == detail
    assert checked.case == ("shows" if shows else "passes")


def test_another_defect_may_stand_in_front_where_the_entry_does_not_apply() -> None:
    """On an older torch what the case shows is what that torch is known for."""
    shipped = Known.load(FOLDER)
    name, other = "fsdp2-recomputed-quiet-unit", "fsdp2-gloo-average-not-divided"
    known = Known({key: shipped.defects[key] for key in (name, other)})
    doubled = shipped.defects[other].finding
    a_weight = msgspec.structs.replace(doubled, name="2.weight", unit="")
    found = {
        checked.name: checked
        for checked in check_known(known, lambda _: (a_weight,), torch="2.8.0", backend="gloo")
    }
    assert (found[name].state, found[name].case) == ("skipped", "otherwise")
    assert other in found[name].detail
    (applying,) = check_known(
        Known({name: shipped.defects[name]}), lambda _: (a_weight,), torch="2.13.0", backend="gloo"
    )
    assert applying.state == "differs"


@pytest.mark.timeout(600)
def test_every_one_shows_on_ranks(tmp_path: Path) -> None:
    known = Known.load(FOLDER)
    here = resolve_machine("gloo", (2,))
    torch = here.torch
    settings = SessionSettings(output=tmp_path, torch=torch, offers=here.offers, reruns=0)
    with Session(settings) as session:
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
        expected = "shows" if entry.applies(torch=torch, backend="gloo") else "skipped"
        assert checked[name].state == expected, (name, checked[name].detail)
    assert sum(found.state == "shows" for found in checked.values()) > len(checked) // 2
