"""The plugin in real pytest runs. The ranks are stand-ins; `test_whole_path` has real ones."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

STANDINS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
import fsdpfuzz._pytest_options as plugin_options
from fsdpfuzz.loop import PROPERTIES
from tests.unit.loop.standins import Bench, FakeKnown, Toy, finding, outs_of, verdict_of

BENCH = Bench(Path("kept"))
PROPERTIES["parity"] = Toy(name="parity", about="")
plugin_options.open_session = lambda options, began: BENCH.session()
"""

FAULT = """
def judge(case, observation):
    return verdict_of(*[finding("big")] * (max(outs_of(case)) > 100))
BENCH.judge = judge

def pytest_unconfigure(config):
    last = BENCH.archive.kept[-1].case
    print("minimal", outs_of(last), "bias", last.model.bias)
    print("closed", [pool.closed for pool in BENCH.pools])
"""

LONG = "x" * 300
"""No file can be called so."""

SKIPPED = """
BENCH.known = FakeKnown(region=lambda case: ("K1",) if len(outs_of(case)) > 1 else ())

def pytest_unconfigure(config):
    print("ran", len(BENCH.runs), "of which known", sum(n > 1 for n in WIDTHS) < 60)

WIDTHS = []
BENCH.before = lambda case: WIDTHS.append(len(outs_of(case)))
"""


def test_help_costs_no_import(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makepyfile(
        check=f"""
        import sys, pytest
        pytest.main([*{arguments!r}, "--help"])
        bad = {{"torch", "hypothesis", "fsdpfuzz.loop", "msgspec"}} & set(sys.modules)
        sys.exit(f"imported {{bad}}" if bad else 0)
        """
    )
    result = pytester.run(sys.executable, "check.py")
    assert result.ret == 0, result.stderr.str()
    result.stdout.fnmatch_lines(["*--fsdpfuzz-world-size=*", "*fsdpfuzz_backend*"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("smoke", "20 False"), ("ci", "150 True"), ("nightly", "2000 False")],
)
def test_profiles_load_by_name(
    pytester: pytest.Pytester, arguments: list[str], name: str, expected: str
) -> None:
    pytester.makepyfile(
        """
        from hypothesis import settings
        def test_it():
            print("got", settings.default.max_examples, settings.default.derandomize)
            assert settings.default.deadline is None
        """
    )
    result = pytester.runpytest_subprocess(
        *arguments, "-s", f"--hypothesis-profile=fsdpfuzz-{name}"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["fsdpfuzz: torch *profile fsdpfuzz-" + name, f"*got {expected}"])


def test_the_header_says_what_will_run(pytester: pytest.Pytester, arguments: list[str]) -> None:
    result = pytester.runpytest_subprocess(
        *arguments, "--fsdpfuzz-world-size=3", "--fsdpfuzz-backend=gloo"
    )
    torch = importlib.metadata.version("torch")
    result.stdout.fnmatch_lines([f"fsdpfuzz: torch {torch}, gloo, 3 ranks, profile *"])


def test_other_projects_see_no_header(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makepyfile("def test_it(): pass")
    # Loaded by an option, its own name would be among the arguments.
    pytester.makeconftest(
        "" if arguments[-1] != "fsdpfuzz.plugin" else "from fsdpfuzz.plugin import *"
    )
    result = pytester.runpytest_subprocess(*arguments[:2])
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("fsdpfuzz:*")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--fsdpfuzz-world-size=abc", "--fsdpfuzz-world-size: 'abc' is not a number of ranks*"),
        ("--fsdpfuzz-world-size=9", "--fsdpfuzz-world-size: '9' is not a number of ranks*"),
        ("--fsdpfuzz-world-size=\u00b2", "--fsdpfuzz-world-size: '\u00b2' is not a number of*"),
        ("--fsdpfuzz-known=", "--fsdpfuzz-known: '' is no file or folder; '.' is the current*"),
        (f"--fsdpfuzz-known={LONG}", f"--fsdpfuzz-known: '{LONG}' cannot be looked up: *"),
        ("--fsdpfuzz-backend=mpi", "--fsdpfuzz-backend: 'mpi' is not one of auto, gloo, nccl"),
        ("--fsdpfuzz-deadline=-1", "--fsdpfuzz-deadline: '-1' is not a number of seconds*"),
        ("--fsdpfuzz-known=none", "--fsdpfuzz-known: there is no file or folder 'none'"),
        ("--fsdpfuzz-output=test_x.py", "--fsdpfuzz-output: 'test_x.py' is not a folder"),
    ],
)
def test_a_bad_option_is_named(
    pytester: pytest.Pytester, arguments: list[str], option: str, message: str
) -> None:
    pytester.makepyfile(test_x="def test_it(): pass")
    result = pytester.runpytest_subprocess(*arguments, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_the_origin_of_a_bad_value_is_named(
    pytester: pytest.Pytester, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\nfsdpfuzz_backend = smoke-signals")
    result = pytester.runpytest_subprocess(*arguments)
    result.stderr.fnmatch_lines(["ERROR: ini value fsdpfuzz_backend: 'smoke-signals' is not*"])
    monkeypatch.setenv("FSDPFUZZ_BACKEND", "pigeon")
    result = pytester.runpytest_subprocess(*arguments)
    result.stderr.fnmatch_lines(
        ["ERROR: environment variable FSDPFUZZ_BACKEND: 'pigeon' is not one of*"]
    )
    result = pytester.runpytest_subprocess(*arguments, "--fsdpfuzz-backend=gloo")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_properties_run_from_an_empty_folder(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS)
    result = pytester.runpytest_subprocess(
        *arguments,
        "--pyargs",
        "fsdpfuzz.properties",
        "-k",
        "test_parity and not documents",
        "-p",
        "conftest",
        "--hypothesis-profile=fsdpfuzz-smoke",
        "-v",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_parity.py::test_parity PASSED*"])


def test_a_finding_fails_the_property_and_its_minimal_case_is_kept(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS + FAULT)
    result = pytester.runpytest_subprocess(
        *arguments,
        "-s",
        "--pyargs",
        "fsdpfuzz.properties",
        "-k",
        "test_parity and not documents",
        "-p",
        "conftest",
        "--hypothesis-profile=fsdpfuzz-dev",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "big/mismatch/fsdp2",
            "  2, but should be 1",
            "model *",
            "case   kept/big-*.json",
            "repro  fsdpfuzz repro kept/big-*.json -o repro.py --verify",
            "new findings: 1",
            "FAILED *test_parity - big/mismatch/fsdp2",
            # Hypothesis leaves the bias, which nothing that it draws is without.
            "minimal (101,) bias False",
            "closed [[]True[]]",
        ]
    )
    assert "CaseSpec(" not in result.stdout.str()
    assert "Finding_big" not in result.stdout.str()


def test_what_can_show_a_known_defect_makes_room_for_other_cases(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makeconftest(STANDINS + SKIPPED)
    result = pytester.runpytest_subprocess(
        *arguments,
        "-s",
        *("--pyargs", "fsdpfuzz.properties", "-k", "test_parity and not documents"),
        *("-p", "conftest", "--hypothesis-profile=fsdpfuzz-dev"),
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["ran 1[0-9][0-9] of which known True"])


def test_a_corpus_is_collected_but_not_what_is_known(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    for name in ("corpus/seeds/a.json", "corpus/failures/b.json", "corpus/known/c.json"):
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"schema": 1, "case": {}}')
    result = pytester.runpytest_subprocess(*arguments, "--collect-only", "-q", "corpus")
    assert {line.strip() for line in result.outlines if "::" in line} == {
        "corpus/seeds/a.json::replay",
        "corpus/failures/b.json::replay",
    }
    result = pytester.runpytest_subprocess(*arguments, "--fsdpfuzz-corpus", "--collect-only", "-q")
    assert "known/c.json" not in result.stdout.str()
    assert "seeds/a.json" in result.stdout.str()


def test_a_property_gets_a_long_timeout_unless_one_is_given(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyfile(
        """
        import pytest
        def seconds(request):
            marker = request.node.get_closest_marker("timeout")
            return marker.args[0] if marker else None
        @pytest.fixture(scope="session")
        def fsdpfuzz_session():
            return None
        def test_property(fsdpfuzz_session, request):
            print("property", seconds(request))
        @pytest.mark.timeout(77)
        def test_own(fsdpfuzz_session, request):
            print("own", seconds(request))
        def test_other(request):
            print("other", seconds(request))
        """
    )
    result = pytester.runpytest_subprocess(*arguments, "-s")
    result.stdout.fnmatch_lines(["*property 21600", "*own 77", "*other None"])
    result = pytester.runpytest_subprocess(*arguments, "-s", "--timeout=99")
    result.stdout.fnmatch_lines(["*property None", "*own 77", "*other None"])
