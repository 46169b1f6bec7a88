"""Checks of option values that several commands share; each error names value and origin."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from fsdpfuzz.errors import UsageError, path_given
from fsdpfuzz.loop import APIS, Api, default_known

if TYPE_CHECKING:
    from fsdpfuzz.case import CaseSpec
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.wire import Target

KNOWN_VARIABLE = "FSDPFUZZ_KNOWN"


def path_from(origin: str) -> Callable[[str | Path], Path]:
    """A parser of paths; some versions of typer hand it the default, a path, as well."""
    return functools.partial(path_given, origin=origin)


PythonPath = Annotated[
    Path | None,
    typer.Option(
        "--python",
        parser=path_from("--python"),
        metavar="PATH",
        help="Python whose torch the ranks use; default this one.",
    ),
]
JsonPath = Annotated[
    Path | None,
    typer.Option(
        "--json", parser=path_from("--json"), metavar="FILE", help="Write the result as JSON."
    ),
]
JunitPath = Annotated[
    Path | None,
    typer.Option(
        "--junit", parser=path_from("--junit"), metavar="FILE", help="Write it as JUnit XML."
    ),
]
KnownPath = Annotated[
    Path | None,
    typer.Option(
        "--known",
        parser=path_from("--known"),
        metavar="PATH",
        help="Known defects; else corpus/known.",
    ),
]
CasePath = Annotated[
    Path, typer.Argument(parser=path_from("CASE"), metavar="CASE", help="A saved case.")
]
CasePaths = Annotated[
    list[Path],
    typer.Argument(
        parser=path_from("PATH"), metavar="PATH", help="Saved cases, or folders of them."
    ),
]
InjectionName = Annotated[
    str | None, typer.Option("--inject", "--plant", metavar="MODULE:FUNCTION", hidden=True)
]
"""A fault that is put into torch in the ranks; for tests."""

OwnTarget = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="TARGET", help="Your file or module, for a case of `fsdpfuzz check`."
    ),
]


def permitted(
    option: str | None, cases: Iterable[CaseSpec], python: Interpreter | None
) -> Target | None:
    """The code that an option lets cases run; None for none.

    :class:`UsageError` for a case of other code, or of what that code no longer is.
    """
    from fsdpfuzz.case import Imported
    from fsdpfuzz.own import permit, target_named, unchanged

    target = None if option is None else target_named(option, "--target")
    own = [case for case in cases if isinstance(case.model, Imported)]
    for case in own:
        permit(case, target)
    if target is not None and own:
        from fsdpfuzz.pool import look_at

        size = max(case.world_size for case in own)
        parts = {case.model.part for case in own if isinstance(case.model, Imported)}
        found = {
            part: look_at(msgspec.structs.replace(target, part=part), size, python)
            for part in sorted(parts)
        }
        for case in own:
            if isinstance(case.model, Imported):
                unchanged(case, found[case.model.part].model)
    return target


def interpreter(option: Path | None, origin: str = "--python") -> Interpreter | None:
    """The Python that an option means; None for this one."""
    from fsdpfuzz.pool import interpreter_at

    return None if option is None else interpreter_at(option, origin)


def chosen(value: str, choices: tuple[str, ...], origin: str) -> str:
    """The value, if it is one of the choices."""
    if value not in choices:
        raise UsageError(f"{origin}: {value!r} is not one of {', '.join(choices)}")
    return value


def whole(origin: str, low: int, high: int) -> Callable[[str | int], int]:
    """A parser of whole numbers within the bounds, both included.

    Some versions of typer hand it the default, a number, as well.
    """

    def parse(value: str | int) -> int:
        text = str(value)
        # ``isdigit`` holds for ² as well, of which ``int`` makes nothing.
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise UsageError(f"{origin}: {text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def apis_of(value: str) -> tuple[Api, ...]:
    """The APIs that ``--api`` means."""
    chosen(value, (*APIS, "both"), "--api")
    return tuple(api for api in APIS if value in (api, "both"))


def known_file(option: Path | None) -> Path | None:
    """The known defects to use: a folder of them, or the file of one.

    The option, else the environment variable, else ``corpus/known`` of the current folder, else
    the folder that fsdpfuzz comes with.
    """
    for named, origin in (
        (option, "--known"),
        (os.environ.get(KNOWN_VARIABLE), f"environment variable {KNOWN_VARIABLE}"),
    ):
        # Without a text a variable says nothing, as if it were not there.
        if named:
            path = path_given(named, origin)
            if not path.exists():
                raise UsageError(f"{origin}: there is no file or folder {str(path)!r}")
            return path
    return default_known()


def writable_parent(path: Path, origin: str) -> Path:
    """The path, if a file can be made there."""
    parent = path.parent
    if path.is_dir():
        raise UsageError(f"{origin}: {str(path)!r} is a folder, not a file")
    if not parent.is_dir():
        raise UsageError(f"{origin}: there is no folder {str(parent)!r}")
    if not os.access(parent, os.W_OK):
        raise UsageError(f"{origin}: the folder {str(parent)!r} cannot be written to")
    return path


def usable_folder(path: Path, origin: str) -> Path:
    """The folder, made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{origin}: the folder {str(path)!r} cannot be made: {error.strerror}"
        ) from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"{origin}: the folder {str(path)!r} cannot be written to")
    return path


def seconds_from(origin: str, most: float) -> Callable[[str | float], float]:
    """A parser of a time in seconds; some versions of typer hand it the default, too."""

    def parse(value: str | float) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds <= most:
            raise UsageError(f"{origin}: {value!r} is not a number of seconds up to {most:.0f}")
        return seconds

    return parse
