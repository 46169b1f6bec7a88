"""The pytest plugin: options, header, Hypothesis profiles, the session, corpus files as tests.

It is loaded in every pytest run of an environment that has fsdpfuzz, so importing it, and
``pytest --help``, cost next to nothing: torch, Hypothesis and the loop are imported when a
test needs them.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fsdpfuzz.errors import UsageError

if TYPE_CHECKING:
    from _pytest.reports import TestReport

    from fsdpfuzz._pytest_options import Options
    from fsdpfuzz.case import CaseSpec
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.loop import Checks, Found, Session
    from fsdpfuzz.show import Recorder
    from fsdpfuzz.verdict import Verdict

PROFILE_OPTION = "--hypothesis-profile"
PREFIX = "fsdpfuzz"
"""Of the names of our profiles, and of what is meant for one: ``fsdpfuzz_dev``, say."""
TIMEOUT = 6 * 3600
"""Seconds after which pytest-timeout ends a property, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Running:
    """The session of a pytest run, its books, and what listens to them."""

    session: Session
    checks: Checks
    recorder: Recorder


_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()
_RUNNING: pytest.StashKey[Running] = pytest.StashKey()
_BEGAN: pytest.StashKey[float] = pytest.StashKey()
_PARTS: pytest.StashKey[list[bytes]] = pytest.StashKey()
"""What each process of the run checked."""
_PASSED_OVER: pytest.StashKey[Counter[str]] = pytest.StashKey()
"""What the session had passed over when the test began."""
_SHARED = "fsdpfuzz"
"""Under which name processes of pytest-xdist hand things to each other."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; each can also be an ini value or an environment variable."""
    from fsdpfuzz._pytest_options import add_options

    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Checks the options, and registers our profiles before Hypothesis loads one by name."""
    from fsdpfuzz._pytest_options import read_options, register

    config.stash[_BEGAN] = getattr(config, "workerinput", {}).get(_SHARED, time.time())
    config.stash[_PARTS] = []
    try:
        config.stash[_OPTIONS] = read_options(config)
        if profile := _profile_option(config):
            register(profile)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Torch, backend, ranks and profile, where the run has to do with fsdpfuzz."""
    options = config.stash[_OPTIONS]
    named = any("fsdpfuzz" in str(argument) for argument in config.invocation_params.args)
    if not (named or options.given or _profile_option(config)):
        return None
    from fsdpfuzz._pytest_options import header

    return header(options, _profile_option(config) or "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives properties the long timeout that they need, unless one was asked for."""
    if config.getoption("timeout", None) is not None:
        return
    for item in items:
        ours = isinstance(item, CaseItem) or "fsdpfuzz_session" in getattr(item, "fixturenames", ())
        if ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def fsdpfuzz_session(request: pytest.FixtureRequest) -> Session:
    """The session whose ``check`` runs and judges a case; its ranks start with the first.

    ``fsdpfuzz.properties.fuzz`` makes a test that draws cases for it.
    """
    return session_of(request.config)


@pytest.fixture
def fsdpfuzz_check(
    request: pytest.FixtureRequest, fsdpfuzz_session: Session
) -> Callable[..., None]:
    """Checks a model of your own: ``fsdpfuzz_check("mymodel.py", depth="as_is")``.

    Its options are those of `fsdpfuzz.check`, which makes a whole test of it.
    """
    from fsdpfuzz._pytest_check import checking

    seed = request.config.getoption("--hypothesis-seed", None)
    return checking(fsdpfuzz_session, request.path.parent, seed)


def session_of(config: pytest.Config) -> Session:
    """The session of this pytest run, opened at the first call."""
    running = config.stash.get(_RUNNING, None)
    if running is None:
        from fsdpfuzz._pytest_options import open_session
        from fsdpfuzz.loop import Checks
        from fsdpfuzz.show import Recorder

        session = open_session(config.stash[_OPTIONS], config.stash[_BEGAN])
        recorder = Recorder(session.settings.known)
        running = Running(session, Checks(session, recorder), recorder)
        config.stash[_RUNNING] = running
    return running.session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Has findings kept under the name of the test that is under way."""
    running = item.config.stash.get(_RUNNING, None)
    if running is not None:
        # Without the parameters in brackets, which would make a property of each of them.
        running.session.testing = getattr(item, "originalname", None) or item.name
        item.stash[_PASSED_OVER] = running.session.passed_over.copy()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, TestReport, TestReport]:
    """Tells findings as findings: not by their exception and the text of a case's class."""
    report = yield
    running = item.config.stash.get(_RUNNING, None)
    if running is None or call.when != "call" or call.excinfo is None:
        return report
    # What is saved in a corpus is small already.
    found = running.checks.reduce(smaller=not isinstance(item, CaseItem))
    if found:
        told = Told(found)
        if _all_are_findings(call.excinfo.value):
            cast("Any", report).longrepr = told
        else:
            report.sections.append(("fsdpfuzz", str(told)))
    # By its name: to import Hypothesis for it would slow down every project that has the plugin.
    elif type(call.excinfo.value).__name__ == "Unsatisfiable":
        passed_over = running.session.passed_over - item.stash[_PASSED_OVER]
        if passed_over:
            from fsdpfuzz.show import none_left

            report.longrepr = none_left(passed_over)
    return report


class Told:
    """Findings as a failing test shows them, in place of a traceback."""

    def __init__(self, found: Sequence[tuple[Found, CaseSpec]]) -> None:
        from fsdpfuzz.show import failure_text, in_ascii, wants_ascii

        texts = [failure_text(one, case) for one, case in found]
        self._text = "\n\n".join(in_ascii(text) if wants_ascii() else text for text in texts)
        self.reprcrash = SimpleNamespace(message=", ".join(one.finding.key for one, _ in found))
        """What the short summary and JUnit XML take for the message."""

    def __str__(self) -> str:
        return self._text

    def toterminal(self, tw: Any) -> None:
        """Prints the text, which may hold anything."""
        for line in self._text.splitlines():
            tw.line(line)


def _all_are_findings(error: BaseException) -> bool:
    """Whether nothing but findings was raised; Hypothesis raises several as a group."""
    from fsdpfuzz.verdict import FindingError

    if isinstance(error, BaseExceptionGroup):
        return all(_all_are_findings(inner) for inner in error.exceptions)
    return isinstance(error, FindingError)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Reduces and keeps what is left, ends the ranks, and closes the books.

    Who interrupts, does not wait.
    """
    config = session.config
    running = config.stash.get(_RUNNING, None)
    if running is None:
        return
    from fsdpfuzz.loop import point_at
    from fsdpfuzz.show import as_part

    del config.stash[_RUNNING]
    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    try:
        running.checks.reduce(smaller=not interrupted)
    finally:
        running.session.close()
    summary = running.checks.finish(interrupted=signal.SIGINT if interrupted else None)
    folder = running.session.settings.folder
    if folder.is_dir():
        point_at(folder)
    part = as_part(summary, running.recorder.record())
    output = getattr(config, "workeroutput", None)
    if output is None:
        config.stash[_PARTS].append(part)
    else:
        output[_SHARED] = part


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Has all processes of pytest-xdist keep what they find in one folder."""
    node.workerinput[_SHARED] = node.config.stash[_BEGAN]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a process of pytest-xdist checked."""
    part = getattr(node, "workeroutput", {}).get(_SHARED)
    if isinstance(part, bytes):
        node.config.stash[_PARTS].append(part)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says what was checked, and writes the result where that was asked for."""
    parts = config.stash[_PARTS]
    if not parts:
        return
    from fsdpfuzz.loop import write_json
    from fsdpfuzz.show import closing_lines, in_ascii, joined, wants_ascii, write_report

    options, result = config.stash[_OPTIONS], joined(parts)
    terminalreporter.section("fsdpfuzz")
    written = {}
    for name, path in (("report", options.report), ("json", options.json)):
        if path is not None:
            try:
                if name == "report":
                    write_report(path, result.record)
                else:
                    write_json(path, result.document)
                written[name] = path
            except UsageError as error:
                terminalreporter.line(f"{name}: {error}", red=True)
    for line in closing_lines(result, written):
        terminalreporter.line(in_ascii(line) if wants_ascii() else line)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CaseFile | None:
    """Collects saved cases: ``*.json`` in a folder ``corpus``, or any with the option.

    Not known defects, whose cases are to fail: ``fsdpfuzz corpus known check`` looks at them.
    """
    if file_path.suffix != ".json" or file_path.parent.name == "known":
        return None
    options = parent.config.stash[_OPTIONS]
    if options.corpus or ("corpus" in file_path.parent.parts and _is_ours(file_path, parent)):
        return CaseFile.from_parent(parent, path=file_path)
    return None


class CaseFile(pytest.File):
    """A saved case."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test: the case still passes."""
        yield CaseItem.from_parent(self, name="replay")


class CaseItem(pytest.Item):
    """Replays one saved case; fails on a finding that is not known."""

    def runtest(self) -> None:
        """Reads the file, runs the case and judges it."""
        from fsdpfuzz.corpus import read_entry
        from fsdpfuzz.loop import lacking_in_torch
        from fsdpfuzz.seeds import SEEDS, fitting, lacking

        entry = read_entry(self.path)
        session = session_of(self.config)
        backend = session.settings.backend
        needs = lacking(entry.case, SEEDS, backend)
        if needs := needs or lacking_in_torch(entry.case, session.settings.offers):
            pytest.skip(f"it needs {needs}")
        case = fitting(entry.case, SEEDS, backend)
        session.check(case, "replay")
        verdict = session.examine(case).verdict
        if verdict.status in ("rejected", "vacuous"):
            _refused(entry, case, verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Bad files in words, anything else with its traceback."""
        if isinstance(excinfo.value, UsageError):
            return "\n".join([str(excinfo.value), *getattr(excinfo.value, "__notes__", ())])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """File and headline."""
        return self.path, None, f"replay {self.path.name}"


def _refused(entry: Entry, case: CaseSpec, verdict: Verdict) -> None:
    """Ends the test of a case that did not come to be trained, or of which nothing was checked.

    A refusal that FSDP documents is what the case is kept for. A case that restates a test of
    FSDP's own is kept since it can be trained.
    """
    from fsdpfuzz.case import anatomy, foreseen_rejections

    if verdict.status == "rejected" and foreseen_rejections(anatomy(case)):
        pytest.xfail(f"FSDP refuses it: {verdict.reason}")
    words = "FSDP refuses it" if verdict.status == "rejected" else "nothing was checked"
    if entry.origin:
        pytest.fail(f"{words}, but {entry.origin} is trained: {verdict.reason}", pytrace=False)
    pytest.skip(f"{words}: {verdict.reason}")


def _profile_option(config: pytest.Config) -> str | None:
    name = config.getoption(PROFILE_OPTION, None)
    return name if isinstance(name, str) and name.startswith(PREFIX) else None


def _is_ours(path: Path, parent: pytest.Collector) -> bool:
    """Whether a file is, or was meant to be, a saved case.

    Other projects may have a folder of that name too, even with broken JSON in it, so a file
    that cannot be read is ours only where its corpus was asked for or has cases beside it.
    """
    from fsdpfuzz._pytest_options import looks_like_a_case

    looks = looks_like_a_case(path)
    if looks is not None:
        return looks
    asked = [Path(argument.partition("::")[0]).absolute() for argument in parent.config.args]
    if any("corpus" in there.parts and path.is_relative_to(there) for there in asked):
        return True
    return any(looks_like_a_case(beside) for beside in path.parent.glob("*.json"))
