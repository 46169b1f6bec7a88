"""The pytest plugin: options, header, Hypothesis profiles, the session, corpus files as tests.

It is loaded in every pytest run of an environment that has fsdpfuzz, so importing it, and
``pytest --help``, cost next to nothing: torch, Hypothesis and the loop are imported when a
test needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fsdpfuzz.errors import UsageError

if TYPE_CHECKING:
    from fsdpfuzz._pytest_options import Options
    from fsdpfuzz.loop import Session

PROFILE_OPTION = "--hypothesis-profile"
PREFIX = "fsdpfuzz-"
TIMEOUT = 6 * 3600
"""Seconds after which pytest-timeout ends a property, unless told otherwise."""

_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_KEPT: pytest.StashKey[list[Path]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; each can also be an ini value or an environment variable."""
    from fsdpfuzz._pytest_options import add_options

    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Checks the options, and registers our profiles before Hypothesis loads one by name."""
    from fsdpfuzz._pytest_options import read_options

    try:
        config.stash[_OPTIONS] = read_options(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    if _profile_option(config):
        from fsdpfuzz.loop import register_profiles

        register_profiles()


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
    """The session that runs and judges cases; its ranks start with the first case."""
    return session_of(request.config)


def session_of(config: pytest.Config) -> Session:
    """The session of this pytest run, opened at the first call."""
    session = config.stash.get(_SESSION, None)
    if session is None:
        from fsdpfuzz._pytest_options import open_session

        session = config.stash[_SESSION] = open_session(config.stash[_OPTIONS])
    return session


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps the minimal failing cases and ends the ranks."""
    ours = session.config.stash.get(_SESSION, None)
    if ours is not None:
        del session.config.stash[_SESSION]
        try:
            session.config.stash[_KEPT] = ours.keep_shrunk()
        finally:
            ours.close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says where the failing cases were kept."""
    kept = config.stash.get(_KEPT, [])
    if kept:
        terminalreporter.section("fsdpfuzz")
        for path in kept:
            terminalreporter.line(f"case kept: {path}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CaseFile | None:
    """Collects saved cases: ``*.json`` in a folder ``corpus``, or any with the option."""
    if file_path.suffix != ".json" or file_path.name == "known.json":
        return None
    options = parent.config.stash[_OPTIONS]
    if options.corpus or ("corpus" in file_path.parent.parts and _looks_like_a_case(file_path)):
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
        from fsdpfuzz.seeds import SEEDS, fitting, lacking

        case = read_entry(self.path).case
        session = session_of(self.config)
        backend = session.settings.backend
        if needs := lacking(case, SEEDS, backend):
            pytest.skip(f"it needs {needs}")
        session.check(fitting(case, SEEDS, backend), "replay")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Findings and bad files in words, anything else with its traceback."""
        from fsdpfuzz.verdict import FindingError

        if isinstance(excinfo.value, FindingError | UsageError):
            return "\n".join([str(excinfo.value), *getattr(excinfo.value, "__notes__", ())])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """File and headline."""
        return self.path, None, f"replay {self.path.name}"


def _profile_option(config: pytest.Config) -> str | None:
    name = config.getoption(PROFILE_OPTION, None)
    return name if isinstance(name, str) and name.startswith(PREFIX) else None


def _looks_like_a_case(path: Path) -> bool:
    # Other projects may have a folder of that name, too.
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError:
        return False
    return b'"schema"' in head and (b'"case"' in head or b'"world_size"' in head)
