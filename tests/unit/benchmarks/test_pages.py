"""The pages of the benches say of each fault and each survivor what came of it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks.faults import FAULTS
from benchmarks.many_injections import Bench
from benchmarks.mutation import all_mutants
from benchmarks.pages import faults_page, mutants_page
from benchmarks.sensitivity import summed_up
from benchmarks.survivors import Reading, set_aside

OPTIONS = argparse.Namespace(backend="gloo", seed=3, examples=40)
FOUND = {
    "status": "found",
    "invariant": "loss_parity",
    "script": True,
    "found_after": 7,
    "found_seconds": 1.0,
    "findings": 1,
    "modules": 1,
    "steps": 1,
    "operations": 2,
    "tries": 5,
}


def test_a_fault_that_was_found_and_one_that_was_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "none.jsonl", OPTIONS)
    faults = list(FAULTS.values())[:3]
    bench.records[faults[0].id, "hunt"] = {**FOUND, "settings": bench.settings}
    missed = {"status": "missed", "examples": 40, "settings": bench.settings}
    bench.records[faults[1].id, "hunt"] = missed
    page = faults_page(faults, bench, summed_up(faults, bench))
    assert "on gloo, seed 3, up to 40 examples" in page
    assert "Of 2 faults 1 were found, 1 with a script that shows it" in page
    assert f"| {faults[0].says} | fsdp1 | 7 | loss_parity | 1 | confirmed |\n" in page
    assert f"| {faults[1].says} | fsdp1 | none in 40 |  |  |  |\n" in page
    assert faults[2].says not in page
    assert "seeds alone" not in page
    bench.records[faults[0].id, "seeds"] = {"status": "found"}
    bench.records[faults[1].id, "seeds"] = {"status": "missed"}
    page = faults_page(faults, bench, summed_up(faults, bench))
    assert "The seeds alone, of which nothing is drawn, find 1 of 2." in page
    assert f"| {faults[0].says} | fsdp1 | 7 | loss_parity | 1 | confirmed | yes |" in page
    assert f"| {faults[1].says} | fsdp1 | none in 40 |  |  |  | no |" in page


def test_survivors_with_what_was_read_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "none.jsonl", OPTIONS)
    mutants = list(islice(all_mutants(), 5))
    mutants[1] = replace(mutants[1], before="a | b")
    for mutant, status in zip(mutants, ("found", "missed", "missed", "missed"), strict=False):
        bench.records[mutant.id, "kill"] = {"status": status}
    read = {
        mutants[1].id: Reading(kind="same", why="a log"),
        mutants[2].id: Reading(kind="missed", why="too rare"),
        mutants[4].id: Reading(kind="same", why="it was not run"),
    }
    page = mutants_page(mutants, bench, read, set_aside(bench, read))
    assert "Of 3 mutants 1 were killed; of 1 more" in page
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert "a \\| b" in page
    assert "seeds alone" not in page
    assert "no time" not in page
    for i in (1, 3):  # Of the first of them nothing is to be seen, however long it is looked for.
        bench.records[mutants[i].id, "kill"] = {"status": "out of time"}
    hasty = mutants_page(mutants, bench, read, set_aside(bench, read))
    assert "Of what survived and is counted, 1 had no time for as many examples." in hasty
    for mutant, status in zip(mutants, ("found", "missed", "missed"), strict=False):
        bench.records[mutant.id, "seeds"] = {"status": status}
    # The second shows nothing to anybody.
    page_of_seeds = mutants_page(mutants, bench, read, set_aside(bench, read))
    assert "The seeds alone, of which nothing is drawn, kill 1 of 2." in page_of_seeds
    assert {line.replace("\\|", "").count("|") for line in rows} == {4}
    assert [line.split(" | ")[-2:] for line in rows] == [
        ["same", "a log |"],
        ["missed", "too rare |"],
        ["not read", " |"],
    ]
