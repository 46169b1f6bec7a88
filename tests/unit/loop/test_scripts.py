"""The script of a finding: what comes of it is said, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_case

import fsdpfuzz.repro
from fsdpfuzz.case import Backward, CaseSpec, Forward, digest
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.corpus import Entry, write_entry
from fsdpfuzz.loop import Found, Rate, Script, Scripting, Session, Stopped, run, write_script
from fsdpfuzz.reduce import Ablation
from fsdpfuzz.repro import Verification
from fsdpfuzz.verdict import Failure, Finding, Verdict
from tests.unit.loop.standins import (
    Bench,
    FakeKnown,
    finding,
    make_case,
    outs_of,
    steps_of,
    verdict_of,
)

GRAD = Finding(
    invariant="grad_parity",
    symptom="mismatch",
    api="fsdp2",
    detail="other",
    op=1,
    operation="backward",
    quantity="grad",
    name="0.weight",
    unit="",
    ranks=(0,),
    world_size=2,
    observed="1.5",
    expected="0.5",
    allowed=1e-5,
    baseline=0.0,
)

RAISED = Finding(
    invariant="no_crash",
    symptom="crash",
    api="fsdp2",
    kind="AttributeError@case:clip",
    op=2,
    operation="clip",
    ranks=(0, 1),
    world_size=2,
    observed="AttributeError",
    failure=Failure(type="AttributeError", text="no full_tensor", stage="case:clip[2]"),
)


NEEDED = Ablation(needed=("use_orig_params=True",), absent=("at world size 1",))

BIG, LONG = finding("big"), finding("long")


def by_length(case: CaseSpec, _seen: object) -> Verdict:
    faults = [(BIG, max(outs_of(case)) > 100), (LONG, steps_of(case) >= 3)]
    return verdict_of(*(fault for fault, holds in faults if holds))


class Runner:
    """Stands in for ``verify`` and answers as it is told."""

    def __init__(self) -> None:
        self.answer = Verification(outcome="reproduced", reason="rank 0: reproduced: grad")
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self, path: Path, ranks: int, backend: str, finding: Finding, **options: Any
    ) -> Verification:
        call = {"path": path, "ranks": ranks, "backend": backend, "finding": finding}
        self.calls.append(call | options)
        return self.answer


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    made = Runner()
    monkeypatch.setattr(fsdpfuzz.repro, "verify", made)
    return made


def found_in(
    case: CaseSpec, folder: Path, rate: Rate | None = None, finding: Finding = GRAD
) -> Found:
    path = folder / "failures" / "grad.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_entry(path, Entry(case=case))
    return Found(
        finding=finding,
        property_name="parity",
        case=path,
        digest="d",
        examples_to_find=1,
        rate=rate,
    )


def written(session: Session, folder: Path, rate: Rate | None = None) -> Script:
    case = make_case((4, 4), steps=2)
    return write_script(session, found_in(case, folder, rate), case, None if rate else NEEDED)


def test_it_is_written_and_run(bench: Bench, runner: Runner, tmp_path: Path) -> None:
    with bench.session() as session:
        script = written(session, tmp_path)
    assert script.path == tmp_path / "repros" / "grad.py"
    assert (script.confirmed, script.note) == (True, "rank 0: reproduced: grad")
    text = script.path.read_text()
    assert "torchrun --nproc-per-node 2 grad.py" in text
    assert script.ablation == NEEDED.lines
    assert NEEDED.words in " ".join(text.split())
    (call,) = runner.calls
    assert (call["path"], call["ranks"], call["backend"]) == (script.path, 2, "gloo")
    assert (call["launcher"], call["attempts"]) == ((), 1)


def test_one_that_shows_nothing_says_so(bench: Bench, runner: Runner, tmp_path: Path) -> None:
    runner.answer = Verification(outcome="failed otherwise", reason="KeyError: 'x'\nmore")
    with bench.session() as session:
        script = written(session, tmp_path)
    assert not script.confirmed
    assert script.note.startswith("failed otherwise: KeyError: 'x'")
    assert "\n" not in script.note
    assert script.path is not None


def test_what_does_not_raise_by_itself_is_read_as_well(
    bench: Bench, runner: Runner, tmp_path: Path
) -> None:
    case = replace_case(make_case((4, 4)), program=(Forward(), Backward(), Clip(max_norm=1.0)))
    found = found_in(case, tmp_path, finding=RAISED)
    texts: list[str] = []

    def answer(path: Path, *_: Any, **__: Any) -> Verification:
        texts.append(path.read_text())
        shown = "total_norm.full_tensor()" in texts[-1] and reads
        return Verification(outcome="reproduced" if shown else "not reproduced", reason="")

    for reads in (True, False):
        texts.clear()
        with bench.session() as session:
            script = write_script(session, found, case, None, verify=answer)
        assert script.confirmed == reads
        assert script.path is not None
        assert len(texts) == 2
        assert script.path.read_text() == texts[1 if reads else 0]


def test_a_flaky_one_is_tried_several_times_and_not_ablated(
    bench: Bench, runner: Runner, tmp_path: Path
) -> None:
    with bench.session() as session:
        script = written(session, tmp_path, Rate(failed=3, runs=10))
    assert runner.calls[0]["attempts"] > 1
    assert script.ablation == ()
    assert bench.log == []
    assert script.path is not None
    assert "failed 3 of 10 runs" in script.path.read_text()


def test_an_injected_fault_is_injected_under_the_script_too(
    bench: Bench, runner: Runner, tmp_path: Path
) -> None:
    with bench.session(injection="tests.injected.units:second_unit_not_averaged") as session:
        written(session, tmp_path)
    assert runner.calls[0]["launcher"][-1] == "tests.injected.units:second_unit_not_averaged"


def test_what_cannot_be_written_costs_the_script_only(
    bench: Bench, runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "repros").write_text("no folder")
    with bench.session() as session:
        script = written(session, tmp_path)
    assert (script.path, script.confirmed, runner.calls) == (None, False, [])
    assert "repros" in script.note


def test_a_fault_of_ours_costs_the_script_only_and_is_booked(
    bench: Bench, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise ModuleNotFoundError("No module named 'black'")

    monkeypatch.setattr("fsdpfuzz.repro.render", fails)
    told: list[str] = []
    with bench.session() as session:
        session.on_harness_error(lambda error: told.append(str(error)))
        script = written(session, tmp_path)
        (booked,) = session.harness_errors
    fault = "ModuleNotFoundError: No module named 'black' [writing the script]"
    assert (script.path, script.confirmed, script.note) == (None, False, fault)
    assert not script.contradicts
    assert (booked.reason, booked.gone) == (fault, None)
    assert told == [f"harness error, in the controller: {fault}; kept: {booked.path}"]


def test_a_finding_of_no_invariant_costs_the_script_only(
    bench: Bench, runner: Runner, tmp_path: Path
) -> None:
    found = replace(found_in(make_case(), tmp_path), finding=BIG)
    with bench.session() as session:
        script = write_script(session, found, make_case(), None)
    assert (script.path, script.confirmed, runner.calls) == (None, False, [])
    assert "'big'" in script.note


def test_a_script_is_asked_for_once_a_new_finding_is_shrunk(bench: Bench) -> None:
    bench.judge = by_length
    bench.known = FakeKnown(lambda _case, found: "K7" if found == BIG else None)
    asked: list[str] = []

    def script(
        _session: Session, found: Found, case: CaseSpec, ablation: Ablation | None
    ) -> Script:
        assert found.shrunk
        assert found.digest == digest(case)
        assert ablation is not None
        asked.append(found.finding.key)
        return Script(path=found.case.with_suffix(".py"), confirmed=True, note="")

    with bench.session() as session:
        settings = bench.settings(60)
        summary = run(settings, bench.events.append, session=session, script=script)
    assert asked == [LONG.key]
    assert [event.key for event in bench.events if isinstance(event, Scripting)] == asked
    repros = {found.known: found.repro for found in summary.findings}
    long = next(found for found in summary.findings if found.known is None)
    assert repros == {"K7": None, None: long.case.with_suffix(".py")}


def test_a_run_that_ends_while_a_script_runs_keeps_the_finding(bench: Bench) -> None:
    bench.judge = by_length

    def script(
        _session: Session, _found: Found, _case: CaseSpec, _ablation: Ablation | None
    ) -> Script:
        raise Stopped(15)

    with bench.session() as session:
        settings = bench.settings(60)
        summary = run(settings, bench.events.append, session=session, script=script)
    assert summary.exit_code == 143
    assert any(found.shrunk and found.script is None for found in summary.findings)
