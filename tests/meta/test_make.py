"""What make would do, with a stand-in for Python: no set-up twice, spaces in the path, order."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.meta.imports import REPOSITORY

# Logs its arguments; ``-m venv`` makes a .venv whose python is this same script.
PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
  "-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  --version) echo "Python 3.12.0" ;;
  "$FAIL") exit 7 ;;
esac
"""
BROKEN = "#!/bin/sh\necho no such version >&2\nexit 127\n"
VERSIONS = ("python3", *(f"python3.{minor}" for minor in range(11, 15)))


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "a path" / "with  spaces"
        self.tools = folder / "tools"
        self.log = folder / "log"
        self.root.mkdir(parents=True)
        self.tools.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(REPOSITORY / name, self.root)
        for name in VERSIONS:
            self.script(name, BROKEN)

    def script(self, name: str, text: str) -> Path:
        path = self.tools / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def make(self, *arguments: str, fail: str = "-") -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        environment = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
        return subprocess.run(
            ["make", *arguments],
            cwd=self.root,
            env={
                **environment,
                "PATH": f"{self.tools}:/usr/bin:/bin",
                "LOG": str(self.log),
                "FAIL": fail,
            },
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )

    def calls(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if not line.startswith("-c ")]


TOGETHER = "-m pytest -rN -n 2 --dist loadfile -m not alone and not models"
ALONE = "-m pytest -rN -m alone"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    checkout = Checkout(tmp_path)
    checkout.script("python3.12", PYTHON)
    return checkout


def test_fuzz_sets_up_once(checkout: Checkout) -> None:
    done = checkout.make("fuzz")
    assert done.returncode == 0, done.stderr
    calls = checkout.calls()
    assert calls[:2] == ["--version", "-m venv .venv"]
    assert [call.startswith("-m pip install") for call in calls] == [False] * 2 + [True] * 2 + [
        False
    ]
    assert all("-c constraints.txt" in call for call in calls[2:4])
    assert calls[-1] == "-m fsdpfuzz run --profile dev"

    assert checkout.make("fuzz").returncode == 0
    assert checkout.calls() == ["-m fsdpfuzz run --profile dev"]


def test_fuzz_on_another_torch_has_an_environment_of_its_own(checkout: Checkout) -> None:
    run = "-m fsdpfuzz run --profile dev --python .venv-2.15.0/bin/python"
    assert checkout.make("fuzz", "TORCH=2.15.0").returncode == 0
    assert checkout.calls()[-3:] == [
        "-m venv --clear .venv-2.15.0",
        "-m pip install --quiet --disable-pip-version-check torch==2.15.0 numpy",
        run,
    ]
    assert checkout.make("fuzz", "TORCH=2.15.0").returncode == 0
    assert checkout.calls() == [run]
    assert checkout.make("fuzz").returncode == 0
    assert checkout.calls() == ["-m fsdpfuzz run --profile dev"]
    checkout.make("distclean")
    assert not list(checkout.root.glob(".venv*"))


def test_test_ends_with_pytest(checkout: Checkout) -> None:
    assert checkout.make("lint").returncode == 0
    assert checkout.make("-j8", "test").returncode == 0
    assert checkout.calls() == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy",
        TOGETHER,
        ALONE,
    ]


@pytest.mark.parametrize("step", ["-m ruff check .", "-m mypy", TOGETHER, ALONE])
def test_a_failing_step_fails_test(checkout: Checkout, step: str) -> None:
    assert checkout.make("test", fail=step).returncode == 2
    assert checkout.calls()[-1] == step


def test_findings_fail_fuzz(checkout: Checkout) -> None:
    assert checkout.make("fuzz", fail="-m fsdpfuzz run --profile dev").returncode == 2


def test_an_interrupted_set_up_is_taken_up_again(checkout: Checkout) -> None:
    checkout.make("lint")
    editable = next(call for call in checkout.calls() if call.endswith("-e .[dev]"))
    checkout.make("distclean")
    assert checkout.make("lint", fail=editable).returncode == 2
    assert checkout.make("lint").returncode == 0
    assert editable in checkout.calls()
    assert "-m venv .venv" not in checkout.calls()


def test_new_versions_are_installed(checkout: Checkout) -> None:
    checkout.make("lint")
    stamp = (checkout.root / ".venv" / ".installed").stat().st_mtime
    os.utime(checkout.root / "constraints.txt", (stamp + 5, stamp + 5))
    checkout.make("lint")
    assert [call for call in checkout.calls() if call.endswith("-e .[dev]")]
    assert "-m venv .venv" not in checkout.calls()


def test_clean_keeps_the_environment_and_findings(checkout: Checkout) -> None:
    checkout.make("lint")
    for name in ("build", "dist", ".mypy_cache", "fsdpfuzz/__pycache__", ".fsdpfuzz/failures"):
        (checkout.root / name).mkdir(parents=True)
    assert checkout.make("clean").returncode == 0
    left = {path.name for path in checkout.root.iterdir()}
    assert left == {
        "Makefile", "constraints.txt", "pyproject.toml", ".venv", ".fsdpfuzz", "fsdpfuzz"
    }  # fmt: skip
    assert not list((checkout.root / "fsdpfuzz").iterdir())
    assert checkout.make("distclean").returncode == 0
    assert not (checkout.root / ".venv").exists()


def test_a_chosen_python_is_used(checkout: Checkout, tmp_path: Path) -> None:
    checkout.script("python3.12", BROKEN)
    (tmp_path / "my tools").mkdir()
    mine = tmp_path / "my tools" / "python"
    mine.write_text(PYTHON)
    mine.chmod(0o755)
    assert checkout.make("lint", f"PYTHON={mine}").returncode == 0
    assert "-m venv .venv" in checkout.calls()


@pytest.mark.parametrize("chosen", ["", "PYTHON=/no/such/python"])
def test_without_a_python_it_says_what_is_missing(checkout: Checkout, chosen: str) -> None:
    checkout.script("python3.12", BROKEN)
    done = checkout.make("fuzz", *([chosen] if chosen else []))
    assert done.returncode == 2
    assert "needs Python 3.11 or newer with the venv module" in done.stderr
    assert (chosen.removeprefix("PYTHON=") or "none of python3") in done.stderr
    assert not (checkout.root / ".venv").exists()


def test_ci_runs_the_same() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")
