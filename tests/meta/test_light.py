"""Who imports fsdpfuzz without running ranks does not wait for torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.imports import REPOSITORY, sources

PARTS = sorted(
    name for name, path in sources().items() if path.name == "__init__.py" and name.count(".") == 1
)


def python(code: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )


def loaded(statement: str, *heavy: str) -> str:
    code = f"import sys; {statement}; print(sorted(sys.modules.keys() & set({heavy!r})))"
    done = python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_package_and_plugin_load_neither_torch_nor_hypothesis() -> None:
    heavy = ("torch", "hypothesis", "numpy", "msgspec", "typer", "rich", "jinja2")
    assert loaded("import fsdpfuzz, fsdpfuzz.plugin", *heavy) == "[]"


def test_the_check_sees_what_is_loaded() -> None:
    assert loaded("import hypothesis, json", "hypothesis", "json") == "['hypothesis', 'json']"


def test_no_part_loads_torch() -> None:
    assert len(PARTS) > 8
    assert loaded(f"import {', '.join(PARTS)}", "torch") == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["--collect-only", "tests/unit/test_errors.py"]])
def test_pytest_with_the_plugin_does_not_load_torch(arguments: list[str]) -> None:
    assert loaded(f"import pytest; pytest.main({arguments!r})", "torch") == "[]"


def test_the_command_line_does_not_load_torch_for_its_help() -> None:
    code = (
        "import sys\nfrom fsdpfuzz.cli import main\n"
        "for a in ['--help'], ['run', '--help'], ['no-such-command'], ['replay', 'nowhere.json']:\n"
        "    main(a)\n"
        "print('torch' in sys.modules)"
    )
    done = python(code)
    assert done.stdout.splitlines()[-1] == "False", done.stdout + done.stderr


def test_a_stray_import_of_the_strategies_says_what_to_do() -> None:
    done = python("import strategies")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "fsdpfuzz.strategies" in last


def test_the_strategies_work_in_a_plain_checkout() -> None:
    done = python("import fsdpfuzz.strategies as s; print(s.__name__, s.cases.__module__)")
    assert done.stdout.split() == ["fsdpfuzz.strategies", "fsdpfuzz.strategies.space"]
