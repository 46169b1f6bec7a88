"""What was read of surviving mutants, and the score that goes by it."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from io import StringIO
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version
from rich.console import Console

from benchmarks import mutants as bench_mutants
from benchmarks.many_injections import Bench
from benchmarks.mutants import sample, show
from benchmarks.mutation import all_mutants
from benchmarks.survivors import Reading, readings

SAME = Reading(kind="same", why="a log")
MISSED = Reading(kind="missed", why="too rare")


def test_what_was_read_are_mutants_of_that_release() -> None:
    read = readings("2.13.0+cpu")
    assert len(read) > 50
    assert all(said.why for said in read.values())
    assert {said.kind for said in read.values()} == {"same", "gpu", "invalid", "missed"}
    assert readings("2.7.1") == {}
    if Version(version("torch")).base_version == "2.13.0":
        assert set(read) <= {mutant.id for mutant in all_mutants()}


@pytest.mark.parametrize(
    ("read", "score", "said"),
    [
        ({}, 2 / 4, "of 0 more nothing"),
        ({2: SAME}, 2 / 3, "of 1 more nothing"),
        ({2: SAME, 3: MISSED}, 2 / 3, "of 1 more nothing"),
        ({0: SAME}, 2 / 4, "of 0 more nothing"),  # It was killed all the same.
        ({2: SAME, 4: SAME}, 2 / 3, "of 1 more nothing"),  # The last was not run.
    ],
)
def test_the_score_leaves_out_what_nothing_can_show(
    read: dict[int, Reading], score: float, said: str, tmp_path: Path
) -> None:
    mutants = list(islice(all_mutants(), 5))
    bench = Bench(tmp_path / "none.jsonl", argparse.Namespace())
    for mutant, status in zip(mutants, ("found", "found", "missed", "out of time"), strict=False):
        bench.records[mutant.id, "kill"] = {"status": status}
    shown = StringIO()
    by_id = {mutants[i].id: reading for i, reading in read.items()}
    assert show(mutants, bench, by_id, Console(file=shown, width=170)) == pytest.approx(score)
    assert said in shown.getvalue()


def test_the_sample_of_a_release_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [mutant.id for mutant in islice(all_mutants(), 40)]
    release = Version(version("torch")).base_version
    file = tmp_path / "mutants.json"
    monkeypatch.setattr(bench_mutants, "SAMPLES", file)
    file.write_bytes(msgspec.json.encode({release: ids[::4]}))
    options = argparse.Namespace(number=300, sample_seed=12)
    assert {mutant.id for mutant in sample(options, tmp_path)} == set(ids[::4])
    few = argparse.Namespace(number=4, sample_seed=12)
    assert len(chosen := sample(few, tmp_path)) == 4
    assert chosen == sample(few, tmp_path)
    file.write_bytes(msgspec.json.encode({release: ["m99_0_0"]}))
    with pytest.raises(SystemExit, match="m99_0_0"):
        sample(options, tmp_path)


@pytest.mark.skipif(
    Version(version("torch")).base_version != "2.13.0", reason="the ids are those of torch 2.13.0"
)
def test_the_kept_sample_is_of_mutants_that_there_are(tmp_path: Path) -> None:
    assert len(sample(argparse.Namespace(number=300, sample_seed=12), tmp_path)) == 300


def test_what_was_cut_short_is_asked_again_with_more_time(tmp_path: Path) -> None:
    def bench(seconds: float) -> Bench:
        words = {"backend": "gloo", "seed": 1, "examples": 300, "seconds": seconds}
        return Bench(tmp_path / "some.jsonl", argparse.Namespace(**words))

    ran = {"out of time": 50.6, "missed": 40.0, "found": 3.0}
    lines = [
        {"id": status, "kind": "kill", "settings": bench(50).settings, "status": status}
        | {"seconds": seconds}
        for status, seconds in ran.items()
    ]
    (tmp_path / "some.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    assert {i for i, _ in bench(50).records} == {"out of time", "missed", "found"}
    assert {i for i, _ in bench(120).records} == {"missed", "found"}
