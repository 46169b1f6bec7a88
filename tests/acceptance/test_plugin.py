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
from fsdpfuzz.loop import PROPERTIES, Property
from tests.unit.loop.standins import Bench, finding, toy_cases, outs_of, verdict_of

BENCH = Bench(Path("kept"))
PROPERTIES["parity"] = Property(
    name="parity", about="", strategy=lambda scope: toy_cases(scope.world_sizes)
)
plugin_options.open_session = lambda options: BENCH.session()
"""

FAULT = """
def judge(case, observation):
    return verdict_of(*[finding("big")] * (max(outs_of(case)) > 100))
BENCH.judge = judge

def pytest_unconfigure(config):
    last = BENCH.archive.kept[-1].case
    print("minimal", outs_of(last), "closed", [pool.closed for pool in BENCH.pools])
"""


@pytest.fixture
def arguments(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What loads the plugin, whether or not it is installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("CI", "FSDPFUZZ_WORLD_SIZE", "FSDPFUZZ_BACKEND"):
        monkeypatch.delenv(variable, raising=False)
    installed = importlib.metadata.entry_points(group="pytest11", name="fsdpfuzz")
    return ["-p", "no:cacheprovider", *([] if installed else ["-p", "fsdpfuzz.plugin"])]


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
        ("--fsdpfuzz-backend=mpi", "--fsdpfuzz-backend: 'mpi' is not one of auto, gloo, nccl"),
        ("--fsdpfuzz-deadline=-1", "--fsdpfuzz-deadline: '-1' is not a number of seconds*"),
        ("--fsdpfuzz-known=no.json", "--fsdpfuzz-known: there is no file 'no.json'"),
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
            "*Finding_big_mismatch_fsdp2: big/mismatch/fsdp2*",
            "case kept: kept/big-*.json",
            "minimal (101,) closed [[]True[]]",
        ]
    )


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
