"""What pytest says of cases: of tests of one's own, of failures, and at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Sequential,
    Step,
    pretty,
)
from fsdpfuzz.corpus import Entry, write_entry
from tests.acceptance.test_plugin import FAULT, STANDINS
from tests.unit.loop.standins import make_case

pytest_plugins = ["pytester"]

OWN = """
from fsdpfuzz.properties import fuzz

@fuzz("parity", max_examples=60)
def test_own(case, fsdpfuzz_session):
    fsdpfuzz_session.check(case)
"""
TWO_FAULTS = """
def judge(case, observation):
    name = "even" if max(outs_of(case)) % 2 == 0 else "odd"
    return verdict_of(*[finding(name)] * (max(outs_of(case)) > 100))
BENCH.judge = judge
"""
OTHER_VERDICTS = """
from fsdpfuzz.verdict import Verdict

def judge(case, observation):
    status = {7: "rejected", 8: "vacuous"}.get(outs_of(case)[0], "passed")
    return Verdict(status=status, reason="because of it")
BENCH.judge = judge
"""
KNOWN = """
def judge(case, observation):
    return verdict_of(*[finding("big")] * (max(outs_of(case)) > 100))
BENCH.judge = judge
BENCH.known = FakeKnown(lambda case, found: "K1")
"""


IN_A_REGION = """
BENCH.known = FakeKnown(region=lambda case: ("K1",) if len(outs_of(case)) > 1 else ())
"""
DRAWN = """
from hypothesis.strategies import sampled_from
from fsdpfuzz.properties import fuzz
from tests.unit.loop.standins import make_case

@fuzz(sampled_from([{}]))
def test_own(case, fsdpfuzz_session):
    fsdpfuzz_session.check(case)
"""


def test_a_test_of_ones_own_is_three_lines(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makeconftest(STANDINS)
    pytester.makepyfile(test_own=OWN)
    result = pytester.runpytest_subprocess(*arguments, "-W", "error")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*= fsdpfuzz =*", "60 cases: 60 passed, 0 rejected, 0 vacuous, 0 failed"]
    )


def test_a_finding_is_kept_under_the_name_of_the_test(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(
        STANDINS + FAULT + "    print('found by', BENCH.archive.kept[-1].property_name)\n"
    )
    pytester.makepyfile(test_own=OWN)
    result = pytester.runpytest_subprocess(*arguments, "-s")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["found by test_own"])


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (OWN.replace('"parity"', '"party"'), "*fuzz: there is no property 'party'; those: parity*"),
        (OWN.replace("case, fs", "fs").replace("(case)", "(1)"), "*a test of cases takes case*"),
    ],
)
def test_a_test_that_cannot_work_says_why(
    pytester: pytest.Pytester, arguments: list[str], test: str, message: str
) -> None:
    pytester.makepyfile(test_own=test)
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_several_findings_of_one_test_are_all_told(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS + TWO_FAULTS)
    pytester.makepyfile(test_own=OWN)
    result = pytester.runpytest_subprocess(
        *arguments, "--hypothesis-profile=fsdpfuzz-dev", "--hypothesis-seed=1"
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert text.count("repro  fsdpfuzz repro kept/") == 2
    assert "new findings: 2" in text
    assert "CaseSpec(" not in text


def test_what_was_asked_for_is_written(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makeconftest(STANDINS + FAULT)
    pytester.makepyfile(test_own=OWN)
    result = pytester.runpytest_subprocess(
        *arguments, "--fsdpfuzz-report=report.html", "--fsdpfuzz-json=result.json"
    )
    result.stdout.fnmatch_lines(["report: report.html", "json: result.json"])
    document = json.loads((pytester.path / "result.json").read_text())
    assert [found["key"] for found in document["findings"]] == ["big/mismatch/fsdp2"]
    assert document["failed"] >= 1
    names = ("passed", "rejected", "vacuous", "failed")
    assert sum(document[name] for name in names) == document["examples"]
    report = (pytester.path / "report.html").read_text()
    assert "<h1>1 new finding</h1>" in report
    assert "test_own" in report


def test_processes_of_xdist_tell_it_together(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytest.importorskip("xdist")
    pytester.makeconftest(STANDINS + FAULT.partition("def pytest_unconfigure")[0])
    tests = [OWN.replace("test_own", f"test_{n}").replace("60", "20") for n in range(4)]
    pytester.makepyfile(test_own="\n".join(tests))
    result = pytester.runpytest_subprocess(
        *arguments, "-n", "2", "--fsdpfuzz-json=result.json", "--fsdpfuzz-report=report.html"
    )
    document = json.loads((pytester.path / "result.json").read_text())
    assert document["examples"] >= 20
    assert [found["key"] for found in document["findings"]] == ["big/mismatch/fsdp2"]
    result.stdout.fnmatch_lines(
        [f"{document['examples']} cases: {document['passed']} passed, *", "new findings: 1"]
    )
    assert "1 new finding" in (pytester.path / "report.html").read_text()


def test_known_defects_that_were_met_are_named(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS + KNOWN)
    pytester.makepyfile(test_own=OWN)
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["known defect met: K1, * cases", "new findings: 0"])


def test_a_test_that_draws_nothing_but_known_defects_says_so(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS + IN_A_REGION)
    pytester.makepyfile(
        test_own=DRAWN.format("make_case((3, 4)), make_case((3, 5))"),
        test_half=DRAWN.format("make_case((3,)), make_case((3, 6))"),
    )
    result = pytester.runpytest_subprocess(*arguments, "--fsdpfuzz-json=result.json")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "no case was run: nothing was drawn that is worth one",
            "  2 cases that can show a known defect, K1",
            "1 case: 1 passed, *",
        ]
    )
    assert "Unsatisfiable" not in result.stdout.str()
    assert json.loads((pytester.path / "result.json").read_text())["skipped"] == 3


@pytest.mark.parametrize("name", ["fsdpfuzz-devv", "fsdpfuzz_dev", "fsdpfuzz"])
def test_a_profile_that_is_not_there_is_named(
    pytester: pytest.Pytester, arguments: list[str], name: str
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess(*arguments, f"--hypothesis-profile={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    names = ", ".join(f"fsdpfuzz-{name}" for name in ("smoke", "dev", "ci", "nightly", "soak"))
    result.stderr.fnmatch_lines(
        [f"ERROR: --hypothesis-profile: there is no profile {name!r}; those that exist: {names}"]
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--fsdpfuzz-output=", "--fsdpfuzz-output: '' is no file or folder; '.' is the current*"),
        ("--fsdpfuzz-report=", "--fsdpfuzz-report: '' is no file or folder; '.' is the current*"),
        ("--fsdpfuzz-json=no/x.json", "--fsdpfuzz-json: there is no folder 'no'"),
        ("--fsdpfuzz-report=.", "--fsdpfuzz-report: '.' is not a file"),
    ],
)
def test_files_that_cannot_be_written_are_refused_at_once(
    pytester: pytest.Pytester, arguments: list[str], option: str, message: str
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess(*arguments, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def corpus(pytester: pytest.Pytester, **files: str | Entry) -> Path:
    folder = pytester.path / "corpus"
    folder.mkdir()
    for name, content in files.items():
        path = folder / f"{name}.json"
        if isinstance(content, Entry):
            write_entry(path, content)
        else:
            path.write_text(content)
    return folder


def test_a_file_of_a_corpus_that_is_no_json_fails(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS)
    corpus(pytester, cut=pretty(make_case())[:40], other='{"name": "of another project"}')
    result = pytester.runpytest_subprocess(*arguments, "corpus", "-rf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*corpus/cut.json: $: not valid JSON: *"])


def test_broken_json_of_another_project_is_left_alone(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    corpus(pytester, broken="{", other='{"name": "of another project"}')
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
    write_entry(pytester.path / "corpus" / "good.json", Entry(case=make_case()))
    result = pytester.runpytest_subprocess(*arguments, "--collect-only", "-q")
    assert "corpus/broken.json::replay" in result.stdout.str()


MIXED = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=7), Linear(out=2))),
    inputs=Dense(width=3),
    plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)),
    frozen=("0.weight",),
    program=(Forward(), Backward(), Step()),
)
"""FSDP documents that it refuses this: frozen and trained parameters in one flat parameter."""


def test_a_refused_case_does_not_pass(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makeconftest(STANDINS + OTHER_VERDICTS)
    seed = Entry(case=make_case((7, 1)), origin="000: test_x[a=1]")
    corpus(
        pytester,
        fine=pretty(make_case((1,))),
        refused=pretty(make_case((7,))),
        nothing=pretty(make_case((8,))),
        seed=seed,
        foreseen=pretty(MIXED),
    )
    result = pytester.runpytest_subprocess(*arguments, "corpus", "-rsx")
    result.assert_outcomes(passed=1, skipped=2, failed=1, xfailed=1)
    result.stdout.fnmatch_lines_random(
        [
            "XFAIL corpus/foreseen.json::replay - FSDP refuses it: because of it",
            "SKIPPED *FSDP refuses it: because of it",
            "SKIPPED *nothing was checked: because of it",
            "FSDP refuses it, but 000: test_x[[]a=1[]] is trained: because of it",
        ]
    )
