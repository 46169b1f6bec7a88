"""``fsdpfuzz explain``."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpfuzz.case import pretty
from fsdpfuzz.corpus import Entry, Found, write_entry
from fsdpfuzz.show import draw
from tests.acceptance.commands import PROGRAM, ROOT, fsdpfuzz
from tests.unit.show.samples import REFUSED, RICH, SMALL


def test_a_bare_case(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(pretty(RICH))
    done = fsdpfuzz("explain", "case.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == draw(RICH)


def test_a_saved_finding(tmp_path: Path) -> None:
    found = Found(
        key="grad_parity/mismatch/fsdp2",
        message="grad=1, but should be 2\nsecond line \x1b[31m",
        property="parity",
        torch="2.13.0",
        backend="gloo",
        world_size=2,
        date="2026-11-20",
        seed=3,
    )
    write_entry(tmp_path / "case.json", Entry(case=SMALL, found=found, origin="test_x.py: test_y"))
    done = fsdpfuzz("explain", "case.json", cwd=tmp_path)
    head, _, drawing = done.stdout.partition("\n\n")
    assert head.splitlines() == [
        "restates   test_x.py: test_y",
        "finding    grad_parity/mismatch/fsdp2",
        "message    grad=1, but should be 2\\nsecond line \\x1b[31m",
        "met with   torch 2.13.0, gloo, 2026-11-20, property parity",
    ]
    assert drawing == draw(SMALL)


def test_foreseen_refusals_are_said(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(pretty(REFUSED))
    done = fsdpfuzz("explain", "case.json", cwd=tmp_path)
    assert "refused    use_orig_params=False needs" in done.stdout


def test_an_output_that_is_only_ascii(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(pretty(SMALL))
    done = fsdpfuzz("explain", "case.json", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "linear 3->2" in done.stdout


def test_a_terminal_gets_colour(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(pretty(SMALL))
    ours, theirs = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    variables.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "explain", "case.json"],
        cwd=tmp_path,
        env=variables,
        stdout=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:
                break
            if not part:
                break
            seen += part
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b[" in seen


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (None, "case.json: $: no such file"),
        ("{", "not valid JSON"),
        ('{"world_size": 2}', "missing required field"),
    ],
)
def test_what_is_no_case(text: str | None, part: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "case.json").write_text(text)
    done = fsdpfuzz("explain", "case.json", cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
