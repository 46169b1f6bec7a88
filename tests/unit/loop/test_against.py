"""Every case on two torches: what differs is a finding of its own kind."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.cli._annotations import notes_of
from fsdpfuzz.cli._table import print_summary
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.loop import Session, SessionSettings, Sighting, Summary, run
from fsdpfuzz.loop._against import compared, differences
from fsdpfuzz.loop._archive import FileArchive
from fsdpfuzz.loop._ports import Ports
from fsdpfuzz.observations import Observation, Raised, RankReport
from fsdpfuzz.reduce import alike
from fsdpfuzz.verdict import Finding, Status, Verdict
from tests.unit.known.samples import shipped
from tests.unit.loop.standins import (
    Bench,
    FakeKnown,
    FakePool,
    finding,
    make_case,
    outs_of,
    verdict_of,
)

HERE, THERE = "9.9.9", "1.1.1"
GRAD, LEAK = finding("grad_parity"), finding("shard_bytes", "leak")
PASSED = verdict_of()


def status(name: Status) -> Verdict:
    return Verdict(status=name, reason="some reason")


def told(verdict: Verdict) -> list[tuple[str, str]]:
    return [(f.change, f.invariant) for f in verdict.findings]


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        (PASSED, PASSED, []),
        (verdict_of(GRAD), PASSED, [("regression", "grad_parity")]),
        (PASSED, verdict_of(GRAD), [("fixed", "grad_parity")]),
        (status("rejected"), verdict_of(GRAD), [("fixed", "grad_parity")]),
        (verdict_of(GRAD), verdict_of(GRAD), [("", "grad_parity")]),
        (
            verdict_of(GRAD, LEAK),
            verdict_of(GRAD),
            [("", "grad_parity"), ("regression", "shard_bytes")],
        ),
        (verdict_of(GRAD), verdict_of(GRAD, LEAK), [("", "grad_parity"), ("fixed", "shard_bytes")]),
        (verdict_of(GRAD), verdict_of(LEAK), [("changed", "grad_parity")]),
        (verdict_of(GRAD), status("rejected"), [("", "grad_parity")]),
        (verdict_of(GRAD), status("vacuous"), [("", "grad_parity")]),
        (status("vacuous"), verdict_of(GRAD), []),
    ],
)
def test_what_differs(here: Verdict, there: Verdict, expected: list[tuple[str, str]]) -> None:
    found = differences(here, there, torch=THERE)
    assert told(found) == expected
    assert (found.status == "finding") == bool(expected)
    assert {f.versus for f in found.findings if f.change} <= {THERE}


def test_what_differs_is_a_finding_of_its_own_kind() -> None:
    marked = msgspec.structs.replace(GRAD, change="regression", versus=THERE)
    assert marked.key == f"regression/{GRAD.key}"
    assert marked.message == f"regression, not on torch {THERE}: {GRAD.message}"
    assert marked.plain == GRAD
    assert not alike(marked, GRAD)
    assert alike(marked, msgspec.structs.replace(marked, observed="3"))


@dataclasses.dataclass
class Two:
    """A session on two torches: stand-ins whose verdicts depend on the torch alone."""

    bench: Bench
    here: Verdict = PASSED
    there: Verdict = PASSED
    ill: bool = False
    first: tuple[CaseSpec, ...] = ()
    others: list[FakePool] = dataclasses.field(default_factory=list)

    def other_pool(self, world_size: int) -> FakePool:
        self.others.append(FakePool(world_size, [], change=self._there))
        return self.others[-1]

    def _there(self, seen: Observation) -> Observation:
        reports: tuple[RankReport, ...] = ()
        if self.ill:
            raised = Raised(
                type="ContractError", message="", stage="report", frame="", documented=False
            )
            reports = (RankReport(rank=0, digest=seen.digest, raised=raised),)
        return msgspec.structs.replace(seen, torch=THERE, reports=reports)

    def judge(self, case: CaseSpec, seen: Observation) -> Verdict:
        return self.there if seen.torch == THERE else self.here

    @property
    def ports(self) -> Ports:
        ports = Ports(
            make_pool=self.bench.pool,
            judge=self.judge,
            archive=self.bench.archive,
            known=self.bench.known,
        )
        return compared(ports, self.other_pool, torch=THERE, first=self.first)

    def session(self, **settings: Any) -> Session:
        return Session(
            SessionSettings(output=self.bench.folder, torch=HERE, **settings), self.ports
        )


def test_each_case_runs_on_both(bench: Bench) -> None:
    two = Two(bench, here=verdict_of(GRAD))
    with two.session() as session:
        examined = session.examine(make_case())
        assert session.torch == HERE
    assert told(examined.verdict) == [("regression", "grad_parity")]
    (other,) = two.others
    # A new finding is run again, on both.
    assert bench.runs[digest(make_case())] == 3
    assert len([entry for entry in other.log if entry[0] != "closed"]) == 3
    assert other.closed


def test_what_ails_the_other_ranks_is_no_finding(bench: Bench) -> None:
    two = Two(bench, here=verdict_of(GRAD), ill=True)
    with two.session() as session:
        assert session.examine(make_case()).verdict.status == "harness error"
        assert session.torch == HERE


def test_a_known_defect_is_looked_up_where_the_finding_shows(bench: Bench) -> None:
    class Known(FakeKnown):
        def match(
            self, case: CaseSpec, finding: Finding, *, torch: str, backend: str
        ) -> str | None:
            return f"{finding.invariant} of {torch}"

    bench.known = Known()
    two = Two(bench, here=verdict_of(GRAD), there=verdict_of(GRAD, LEAK))
    with two.session() as session:
        known = session.examine(make_case()).known
    assert sorted(known.values()) == [f"grad_parity of {HERE}", f"shard_bytes of {THERE}"]


def test_what_one_of_both_is_known_to_have_is_run(bench: Bench) -> None:
    class Known(FakeKnown):
        def covering(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
            both = ("K-both",) if case.seed % 2 else ()
            return (*both, "K-there") if torch == THERE and case.seed % 3 == 0 else both

    bench.known = Known()
    skipped = {}
    with Two(bench).session() as session:
        for seed in range(60):
            skipped[seed] = session.skips(make_case(seed=seed))
            assert ("K-there" in session.covering(make_case(seed=seed))) == (seed % 3 == 0)
    assert {skipped[seed] for seed in skipped if seed % 3 == 0} == {None}
    assert "K-both" in {skipped[seed] for seed in skipped if seed % 3 and seed % 2}


def a_run(two: Two, **settings: Any) -> Summary:
    """A run of twenty cases."""
    with two.session() as session:
        made = two.bench.settings(20, **settings)
        return run(made, two.bench.events.append, session=session)


def test_a_run_begins_with_what_is_known_to_differ(bench: Bench) -> None:
    own, wide = make_case(outs=(7,)), make_case(outs=(8,), world_size=4)
    two = Two(bench, first=(own, wide))
    two.judge = (  # type: ignore[method-assign]
        lambda case, seen: verdict_of(GRAD) if case == own and seen.torch == THERE else PASSED
    )
    summary = a_run(two)
    assert bench.log[0] == (digest(own), False)
    assert digest(wide) not in bench.runs
    assert [(f.finding.change, f.examples_to_find) for f in summary.findings] == [("fixed", 0)]


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_runs_side_by_side_share_what_they_begin_with(bench: Bench, jobs: int) -> None:
    kept = tuple(make_case(outs=(width,), seed=101) for width in (5, 6, 7))
    begun = []
    for number in range(jobs):
        two = Two(bench, first=kept)
        before = len(bench.log)
        a_run(two, place=(number, jobs))
        begun += [name for name, _ in bench.log[before:] if name in {digest(c) for c in kept}]
    assert sorted(begun) == sorted(digest(case) for case in kept)


def test_the_smallest_cases_of_what_only_one_torch_has() -> None:
    known = shipped()
    tie = known.minimal("fsdp2-tie-across-groups")
    assert tie in list(known.on_one_of("2.13.0", "2.10.0+cu128", backend="gloo"))
    assert tie not in list(known.on_one_of("2.13.0", "2.12.1", backend="gloo"))
    assert list(known.on_one_of("2.13.0", "2.13.0+cpu", backend="gloo")) == []


def test_a_regression_fails_a_run_and_what_is_fixed_does_not(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    regressed = a_run(Two(bench, here=verdict_of(GRAD)))
    assert [f.finding.change for f in regressed.findings] == ["regression"]
    assert regressed.exit_code == 1
    fixed = a_run(Two(bench, there=verdict_of(GRAD)), strict=True)
    assert [f.finding.change for f in fixed.findings] == ["fixed"]
    assert fixed.exit_code == 0
    assert notes_of(fixed) == []
    for summary, line in (
        (regressed, f"  regression  {GRAD.key}, 1 finding"),
        (fixed, f"  fixed       {GRAD.key}, 1 finding"),
        (a_run(Two(bench)), f"torch {HERE} against {THERE}: no difference"),
    ):
        started = dataclasses.replace(summary.started, torch=HERE, against=THERE)
        print_summary(dataclasses.replace(summary, started=started), {}, Path("report.html"))
        assert line in capsys.readouterr().out.splitlines()


def test_a_difference_is_reduced_to_the_smallest_case_that_differs(bench: Bench) -> None:
    """Wide layers fail on both; only those that are very wide fail here alone."""
    two = Two(bench)

    def judge(case: CaseSpec, seen: Observation) -> Verdict:
        widest = max(outs_of(case))
        bound = 400 if seen.torch == THERE else 10
        return verdict_of(GRAD) if widest > bound else PASSED

    two.judge = judge  # type: ignore[method-assign]
    summary = a_run(two)
    changes = {f.finding.change: f for f in summary.findings}
    assert "regression" in changes
    kept = [s for s in bench.archive.kept if s.finding.change == "regression"][-1]
    assert 10 < max(outs_of(kept.case)) <= 400


def test_a_kept_difference_is_a_case_for_one_torch(tmp_path: Path) -> None:
    """It can be replayed, bisected and written as a script as any other."""
    marked = msgspec.structs.replace(GRAD, change="fixed", versus=THERE)
    sighting = Sighting(
        case=make_case(),
        finding=marked,
        property_name="toy",
        backend="gloo",
        torch=THERE,
        seed=0,
    )
    path = FileArchive(tmp_path).keep(sighting)
    assert "fixed" in path.name
    found = read_entry(path).found
    assert found is not None
    assert (found.key, found.finding) == (GRAD.key, GRAD)
