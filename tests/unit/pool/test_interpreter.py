"""Ranks on the Python of another environment: what is asked of it, carried there, and refused."""

from __future__ import annotations

import json
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import fsdpfuzz
from fsdpfuzz.errors import MachineError, UsageError
from fsdpfuzz.pool import Pool, interpreter_at, own_interpreter, probe_machine
from tests.misbehaviour import quick

SAID: dict[str, Any] = {
    "version": [3, 11, 9],
    "python": "3.11.9",
    "tag": sysconfig.get_config_var("SOABI"),
    "torch": "2.9.1+cpu",
    "path": ["/there"],
    "has": ["msgspec", "numpy"],
}


def stand_in(tmp_path: Path, text: str, folder: str = "bin") -> Path:
    path = tmp_path / folder / "python"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def saying(tmp_path: Path, **changed: Any) -> Path:
    return stand_in(tmp_path, f"echo {shlex.quote(json.dumps({**SAID, **changed}))}")


def test_what_another_python_says(tmp_path: Path) -> None:
    path = saying(tmp_path)
    found = interpreter_at(path)
    assert (found.executable, found.python, found.torch) == (str(path), "3.11.9", "2.9.1+cpu")
    assert found.path == ("/there",)
    carried = dict(found.carried)
    assert carried["fsdpfuzz"] == str(Path(fsdpfuzz.__file__).parent)
    assert (Path(carried["msgspec"]) / "__init__.py").is_file()


def test_another_version_of_python_uses_its_own_msgspec(tmp_path: Path) -> None:
    found = interpreter_at(saying(tmp_path, version=[3, 14, 0], tag="cpython-314"))
    assert set(dict(found.carried)) == {"fsdpfuzz"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": [3, 10, 1]}, "Python 3.10.1, is too old: ranks need 3.11"),
        ({"tag": "cpython-314", "has": ["numpy"]}, "python -m pip install msgspec"),
        ({"has": ["msgspec"]}, "has no numpy; install it: "),
    ],
)
def test_a_python_that_ranks_cannot_run_on(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        interpreter_at(saying(tmp_path, **changed), "--against")
    assert str(raised.value).startswith(f"--against: '{tmp_path}/bin/python'")


def test_what_is_no_python(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    for path, words in (
        (tmp_path / "none", "is not there; name the Python of an environment"),
        (tmp_path, f"is a folder; name the Python in it, as --python {tmp_path}/bin/python"),
        (plain, "cannot be run; name"),
        (stand_in(tmp_path, "echo 'unknown option -P' >&2; exit 2"), "unknown option -P"),
        (stand_in(tmp_path, "echo 3", "other"), "does not answer as Python"),
    ):
        with pytest.raises(UsageError, match=words):
            interpreter_at(path)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python that has torch and what torch needs, but neither msgspec nor fsdpfuzz."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("platlib")).iterdir():
        if "fsdpfuzz" not in path.name and not path.name.startswith(("msgspec", "_")):
            (packages / path.name).symlink_to(path)
    words = f"PYTHONPATH={shlex.quote(str(packages))} exec {shlex.quote(sys.executable)}"
    return stand_in(tmp_path, f'{words} -S "$@"')


def test_ranks_run_where_there_is_torch_alone(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    python = interpreter_at(bare)
    assert python.torch == own_interpreter().torch
    assert not any("fsdpfuzz" in entry for entry in python.path or ())
    assert probe_machine(python).torch == probe_machine().torch
    assert probe_machine(python) is not probe_machine()
    with Pool(2, "gloo", python=python) as pool:
        assert pool.run(quick()).clean


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    numpy = tmp_path / "numpy"
    numpy.mkdir()
    (numpy / "__init__.py").write_text("")
    path = stand_in(tmp_path, f'PYTHONPATH="{tmp_path}" exec "{sys.executable}" -S "$@"')
    python = interpreter_at(path)
    assert python.torch == ""
    with pytest.raises(MachineError, match=f"torch cannot be imported by {path}"):
        probe_machine(python)
