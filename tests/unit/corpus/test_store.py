from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpfuzz.corpus import Entry, Store, read_entry, slug
from fsdpfuzz.corpus._write import started
from tests.unit.corpus.samples import KEY, found, large, small

KILLED = """
import os, signal, sys
from pathlib import Path
from fsdpfuzz.corpus import Store, read_entry
store = Store(Path(sys.argv[1]))
for entry in store.pending() if sys.argv[2] == "again" else [read_entry(Path(sys.argv[2]))]:
    store.begin(entry.case)
    os.kill(os.getpid(), signal.SIGKILL)
print("nothing was pending")
"""


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run_killed(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), what],
        check=False,
        text=True,
        capture_output=True,
        timeout=60,
    )


def test_the_case_under_way_is_on_disk_until_it_is_judged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for case in (small(), large()):
        store.begin(case)
        (name,) = files(tmp_path)
        assert read_entry(tmp_path / name).case == case
        assert name == f"inflight-{os.getpid()}-{started(os.getpid())}.json"
    store.finish()
    store.finish()
    assert files(tmp_path) == []


def test_a_kept_case_is_named_by_finding_and_digest(tmp_path: Path) -> None:
    entry = Entry(case=small(), found=found("grad_parity/mismatch/fsdp1:../../etc/passwd"))
    path = Store(tmp_path).keep(entry)
    assert path == (
        tmp_path / "failures" / f"grad-parity-mismatch-fsdp1-etc-passwd-{entry.digest}.json"
    )
    assert read_entry(path) == entry


def test_two_long_findings_in_one_case_are_both_kept(tmp_path: Path) -> None:
    store, long = Store(tmp_path), "no_crash/crash/fsdp1:" + "frame" * 30
    first = store.keep(Entry(case=small(), found=found(long + "a")))
    second = store.keep(Entry(case=small(), found=found(long + "b")))
    assert first != second
    assert len(first.name) < 100


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (KEY, "grad-parity-mismatch-fsdp1-grad"),
        ("../../a b\x00\n\x1b[1m", "a-b-1m"),
        ("日本", "case"),
        ("", "case"),
        ("\udcff", "case"),
    ],
)
def test_names_are_made_of_safe_characters(text: str, name: str) -> None:
    assert slug(text) == name


def test_a_killed_run_hands_its_case_on(tmp_path: Path) -> None:
    case_file = Store(tmp_path / "other").keep(Entry(case=large()))
    out = tmp_path / "out"
    killed = run_killed(out, str(case_file))
    assert killed.returncode == -9, killed.stderr
    assert len(files(out)) == 1

    later, meanwhile = Store(out), Store(out)
    assert [entry.case for entry in later.pending()] == [large()]
    assert meanwhile.pending() == [], "one process takes it"
    assert len(files(out)) == 1, "and holds it on disk until it is judged"
    later.begin(small())
    later.finish()
    assert len(files(out)) == 1
    later.begin(large())
    later.finish()
    assert files(out) == []


def test_a_case_that_ends_every_run_is_put_aside(tmp_path: Path) -> None:
    case_file = Store(tmp_path / "other").keep(Entry(case=large()))
    out = tmp_path / "out"
    for what in (str(case_file), "again", "again"):
        assert run_killed(out, what).returncode == -9
    assert "nothing was pending" in run_killed(out, "again").stdout
    (name,) = files(out)
    assert name.startswith("failures/killed-run-")
    entry = read_entry(out / name)
    assert entry.case == large()
    assert "killed 3 times" in entry.origin


def test_living_runs_and_strange_files_are_left_alone(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        names = [
            f"inflight-{sleeper.pid}-{started(sleeper.pid)}.json",
            "inflight-999999999-5.json",
            "inflight-x.json",
            "inflight-../x.json",
        ]
        for name in names[:3]:
            (tmp_path / name).write_text("{")
        assert Store(tmp_path).pending() == []
        assert files(tmp_path) == sorted(names[:3]), "what cannot be read is not thrown away"
    finally:
        sleeper.kill()
        sleeper.wait()


def test_the_same_process_number_in_a_new_container_is_another_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin(large())
    (name,) = files(tmp_path)
    earlier = tmp_path / f"inflight-{os.getpid()}-{started(os.getpid()) - 1}.json"
    (tmp_path / name).rename(earlier)
    assert [entry.case for entry in Store(tmp_path).pending()] == [large()]


def test_nothing_is_pending_where_nothing_ran(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").pending() == []
