"""The Python that ranks run on: that of the controller, or of another environment.

The other one needs torch and numpy. What else ranks import is carried there: this very package,
and msgspec, whose compiled part fits one version of Python only.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fsdpfuzz.errors import UsageError, one_line

OLDEST = (3, 11)
_SECONDS = 60.0
_ASK = """
import importlib.metadata, importlib.util, json, platform, sys, sysconfig
try:
    # By the metadata: to import torch takes seconds, and the controller never does.
    torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    torch = ""
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "python": platform.python_version(),
    "tag": str(sysconfig.get_config_var("SOABI")),
    "torch": torch,
    "path": sys.path,
    # Looked for, not imported: a package that fails at its import is found out by the ranks.
    "has": [name for name in ("msgspec", "numpy") if importlib.util.find_spec(name)],
}))
"""


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What another Python answers to `_ASK`."""

    version: tuple[int, int, int]
    python: str
    tag: str
    """Of the compiled modules that fit it."""
    torch: str
    path: tuple[str, ...]
    has: tuple[str, ...]


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python that ranks can be started with."""

    executable: str
    python: str
    """Its version."""
    torch: str = ""
    """The version that is installed there, as its metadata says; empty if none is."""
    path: tuple[str, ...] | None = None
    """Its ``sys.path``; None for that of the controller, whatever it is by then."""
    carried: tuple[tuple[str, str], ...] = ()
    """Packages that it is given, each with its folder."""


def own_interpreter() -> Interpreter:
    """The controller's own."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return Interpreter(executable=sys.executable, python=platform.python_version(), torch=torch)


def interpreter_at(path: Path, origin: str = "--python") -> Interpreter:
    """The Python of another environment, asked what it has; torch is not imported.

    :class:`UsageError` for what is no Python, or one that ranks cannot run on.
    """
    # Not resolved: an environment is known by the link to its Python.
    executable = str(path.absolute())
    said = _asked(executable, f"{origin}: {one_line(str(path))!r}")
    version = ".".join(map(str, said.version))
    who = f"{origin}: {one_line(str(path))!r}, Python {version},"
    if said.version < OLDEST:
        raise UsageError(f"{who} is too old: ranks need {'.'.join(map(str, OLDEST))} or newer")
    carried = {"fsdpfuzz": str(Path(__file__).absolute().parents[1])}
    if said.tag == str(sysconfig.get_config_var("SOABI")):
        # SOABI names version and build that a compiled module
        # fits; where it differs, theirs has to do.
        carried["msgspec"] = _folder(msgspec.__file__)
    elif "msgspec" not in said.has:
        raise UsageError(
            f"{who} has no msgspec, and that of Python {platform.python_version()} does not "
            f"fit it; install it there: {executable} -m pip install msgspec"
        )
    if "numpy" not in said.has:
        raise UsageError(f"{who} has no numpy; install it: {executable} -m pip install numpy")
    return Interpreter(
        executable=executable,
        python=said.python,
        torch=said.torch,
        path=said.path,
        carried=tuple(carried.items()),
    )


def elsewhere(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables without the one that means the controller's Python alone."""
    return {name: value for name, value in environment.items() if name != "PYTHONHOME"}


def _asked(executable: str, who: str) -> _Said:
    if Path(executable).is_dir():
        raise UsageError(
            f"{who} is a folder; name the Python in it, as {who.partition(':')[0]} "
            f"{executable}/bin/python"
        )
    if not os.access(executable, os.X_OK):
        missing = "cannot be run" if Path(executable).exists() else "is not there"
        raise UsageError(f"{who} {missing}; name the Python of an environment that has torch")
    try:
        done = subprocess.run(
            # -P: a json.py in the current folder is not json.
            [executable, "-P", "-c", _ASK],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            env=elsewhere(os.environ),
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=_Said)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(one_line(f"{who} cannot be run: {error}", 400)) from None
    except msgspec.MsgspecError:
        last = (done.stderr.strip() or done.stdout.strip() or "(nothing)").splitlines()[-1]
        raise UsageError(
            one_line(f"{who} does not answer as Python 3.11 and newer do: {last}", 400)
        ) from None


def _folder(file: str | None) -> str:
    return str(Path(file or "").absolute().parent)
