"""The plugin's options, with where each value came from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fsdpfuzz.errors import UsageError, path_given

if TYPE_CHECKING:
    import pytest

    from fsdpfuzz.loop import Profile, Session

T = TypeVar("T")

MAX_BYTES = 1 << 20
"""No saved case is larger."""
NAMES = frozenset({"schema", "case", "found", "origin", "world_size", "model", "plan", "program"})
"""At the top of a saved case; two of them make a file look like one, misspelt as it may be."""
BACKENDS = ("auto", "gloo", "nccl")
HELP = {
    "world-size": "ranks (default: from the profile)",
    "backend": "auto, gloo or nccl (default: auto)",
    "deadline": "most seconds that one case may take (default: from the profile)",
    "known": "folder of known defects, or one file (default: corpus/known, else those shipped)",
    "output": "folder in which each run gets one of its own (default: .fsdpfuzz)",
    "report": "write what was checked as an HTML report, as 'fsdpfuzz run' does",
    "json": "write what was checked as JSON, as 'fsdpfuzz run --json' does",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The plugin's options, checked. None where the profile decides."""

    world_size: int | None
    backend: str
    deadline: float | None
    known: Path | None
    output: Path
    report: Path | None
    json: Path | None
    corpus: bool
    given: bool
    """Whether any of them was given."""


def add_options(parser: pytest.Parser) -> None:
    """Adds ``--fsdpfuzz-NAME`` and the ini value ``fsdpfuzz_NAME`` for each option."""
    group = parser.getgroup("fsdpfuzz", "fsdpfuzz")
    for name, text in HELP.items():
        group.addoption(f"--fsdpfuzz-{name}", metavar=name.upper().replace("-", "_"), help=text)
        parser.addini(_ini(name), text, default="")
    group.addoption(
        "--fsdpfuzz-corpus",
        action="store_true",
        help="collect every *.json file as a saved case, not only those in a folder 'corpus'",
    )


def read_options(config: pytest.Config) -> Options:
    """The options: command line, else environment, else ini. :class:`UsageError`."""
    world_size = _value(config, "world-size", _ranks)
    backend = _value(config, "backend", _backend)
    deadline = _value(config, "deadline", _seconds)
    known = _value(config, "known", _path)
    output = _value(config, "output", _folder)
    report, result = _value(config, "report", _file), _value(config, "json", _file)
    corpus = bool(config.getoption("--fsdpfuzz-corpus"))
    return Options(
        world_size=world_size,
        backend=backend or "auto",
        deadline=deadline,
        known=known,
        output=output or Path(".fsdpfuzz"),
        report=report,
        json=result,
        corpus=corpus,
        given=corpus
        or any(
            value is not None
            for value in (world_size, backend, deadline, known, output, report, result)
        ),
    )


def header(options: Options, hypothesis_profile: str) -> str:
    """The header line; guesses the backend from device files, and starts no rank."""
    from fsdpfuzz.loop import guess_backend, installed_torch

    profile = _profile(hypothesis_profile)
    sizes = profile.world_sizes if options.world_size is None else (options.world_size,)
    ranks = " or ".join(str(size) for size in sizes)
    name = profile.hypothesis_name if hypothesis_profile else "of Hypothesis"
    return (
        f"fsdpfuzz: torch {installed_torch() or 'missing'}, {guess_backend(options.backend)}, "
        f"{ranks} ranks, profile {name}"
    )


def register(hypothesis_profile: str) -> None:
    """Registers our profiles with Hypothesis; :class:`UsageError` if there is none of that name."""
    from hypothesis import settings
    from hypothesis.errors import InvalidArgument

    from fsdpfuzz.loop import PROFILES, register_profiles

    register_profiles()
    try:
        # Someone may have registered one of a name like ours.
        settings.get_profile(hypothesis_profile)
    except InvalidArgument:
        names = ", ".join(profile.hypothesis_name for profile in PROFILES.values())
        raise UsageError(
            f"--hypothesis-profile: there is no profile {hypothesis_profile!r}; "
            f"those that exist: {names}"
        ) from None


def open_session(options: Options, began: float | None = None) -> Session:
    """A session as the options and Hypothesis's current profile say.

    ``began`` is when the pytest run began, by which its folder is named.
    :class:`MachineError` if this machine cannot run it.
    """
    from dataclasses import replace

    from hypothesis import settings

    from fsdpfuzz.loop import (
        RUNS,
        Scope,
        Session,
        SessionSettings,
        default_known,
        resolve_machine,
        run_name,
        set_scope,
    )

    profile = _profile(settings.get_current_profile_name())
    if options.deadline is not None:
        profile = replace(
            profile,
            deadline_ceiling=options.deadline,
            deadline_floor=min(profile.deadline_floor, options.deadline),
        )
    sizes = profile.world_sizes if options.world_size is None else (options.world_size,)
    machine = resolve_machine(options.backend, sizes)
    set_scope(Scope(world_sizes=machine.world_sizes, offers=machine.offers))
    return Session(
        SessionSettings(
            backend=machine.backend,
            profile=profile,
            output=options.output,
            kept=options.output / RUNS / run_name("pytest", began),
            known=options.known or default_known(),
            torch=machine.torch,
            offers=machine.offers,
        )
    )


def looks_like_a_case(path: Path) -> bool | None:
    """Whether a file is a saved case, by the names in it; None where it cannot be read as JSON."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        document = json.loads(data) if len(data) <= MAX_BYTES else {}
    except OSError:
        return False
    except (ValueError, RecursionError):
        return None
    return isinstance(document, dict) and len(NAMES.intersection(document)) > 1


def _profile(hypothesis_profile: str) -> Profile:
    from fsdpfuzz.loop import PROFILES

    # Hypothesis appends to the name where options change a profile.
    for profile in PROFILES.values():
        if hypothesis_profile.startswith(profile.hypothesis_name):
            return profile
    return PROFILES["dev"]


def _value(config: pytest.Config, name: str, read: Callable[[str, str], T]) -> T | None:
    option, variable, ini = f"--fsdpfuzz-{name}", _variable(name), _ini(name)
    texts: tuple[tuple[Any, str], ...] = (
        (config.getoption(option), option),
        (os.environ.get(variable), f"environment variable {variable}"),
        (config.getini(ini), f"ini value {ini}"),
    )
    for text, origin in texts:
        # No text is a mistake on the command line, and nothing at all in the other places.
        if text or (text == "" and origin == option):
            return read(str(text), origin)
    return None


def _variable(name: str) -> str:
    return "FSDPFUZZ_" + name.upper().replace("-", "_")


def _ini(name: str) -> str:
    return "fsdpfuzz_" + name.replace("-", "_")


def _ranks(text: str, origin: str) -> int:
    from fsdpfuzz.case import MAX_RANKS

    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_RANKS:
        raise UsageError(f"{origin}: {text!r} is not a number of ranks from 1 to {MAX_RANKS}")
    return int(text)


def _backend(text: str, origin: str) -> str:
    if text not in BACKENDS:
        raise UsageError(f"{origin}: {text!r} is not one of {', '.join(BACKENDS)}")
    return text


def _seconds(text: str, origin: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86_400.0:
        raise UsageError(f"{origin}: {text!r} is not a number of seconds between 0 and 86400")
    return seconds


def _path(text: str, origin: str) -> Path:
    path = path_given(text, origin)
    if not path.exists():
        raise UsageError(f"{origin}: there is no file or folder {text!r}")
    return path


def _file(text: str, origin: str) -> Path:
    path = path_given(text, origin)
    if path.is_dir():
        raise UsageError(f"{origin}: {text!r} is not a file")
    if not path.parent.is_dir():
        raise UsageError(f"{origin}: there is no folder {str(path.parent)!r}")
    return path


def _folder(text: str, origin: str) -> Path:
    path = path_given(text, origin)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{origin}: {text!r} is not a folder")
    return path
