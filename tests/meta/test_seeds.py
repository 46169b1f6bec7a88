"""Every parametrisation of the documents is a seed: counted, named, on file, and run."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsdpfuzz.case import CaseSpec, check
from fsdpfuzz.corpus import read_entry, seed_entries, write_seeds
from fsdpfuzz.loop import PROPERTIES
from fsdpfuzz.seeds import SEEDS, Seed, by_family
from tests.meta.imports import REPOSITORY

NAMES = Path(__file__).with_name("document_names.txt").read_text().splitlines()
"""Written from the documents, line by line, without a look at the seeds."""
FILES = REPOSITORY / "corpus" / "seeds"
MODULES = {
    "000": "checkpoint",
    "001": "state_dict",
    "002": "fine_tune",
    "003": "exec_order",
    "004": "memory",
}


def test_the_names_are_those_of_the_documents() -> None:
    assert len(NAMES) == 127
    assert sorted(seed.name for seed in SEEDS) == sorted(NAMES)
    counts = Counter(seed.document for seed in SEEDS)
    assert counts == {"000": 17, "001": 7, "002": 86, "003": 8, "004": 9}


def test_no_two_seeds_are_one_case() -> None:
    entries = seed_entries().values()
    assert len({entry.digest for entry in entries}) == len(SEEDS) == len(entries)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_a_seed_is_sound(seed: Seed) -> None:
    check(seed.case)
    if seed.small is not None:
        check(seed.small)


def test_without_a_gpu_a_seed_is_skipped_for_cpu_offload_alone() -> None:
    skipped = [seed for seed in SEEDS if seed.on("gloo") is None]
    assert {seed.needs for seed in skipped} == {("FSDP1's CPU offload: a GPU to compute on",)}
    assert Counter(seed.document for seed in skipped) == {"000": 8, "002": 16}
    assert len(SEEDS) - len(skipped) >= 94
    for seed in skipped:
        assert any(unit.cpu_offload for unit in seed.case.plan.units)
    smaller = [seed for seed in SEEDS if seed.needs and seed.small is not None]
    assert {seed.document for seed in smaller} == {"004"}
    assert len(smaller) == 9


def test_on_gpus_every_seed_runs_as_the_document_has_it() -> None:
    assert all(seed.on("nccl") is seed.case for seed in SEEDS)


@pytest.mark.parametrize(("document", "name"), MODULES.items())
def test_every_seed_is_a_test_of_its_property(document: str, name: str) -> None:
    module = importlib.import_module(f"fsdpfuzz.properties.test_{name}")
    (mark,) = module.test_documents.pytestmark
    assert mark.args[1] == by_family(document)
    assert [mark.kwargs["ids"](seed) for seed in by_family(document)] == [
        seed.name for seed in by_family(document)
    ]


@pytest.mark.parametrize(("document", "name"), MODULES.items())
def test_every_seed_is_an_explicit_example_of_its_property(document: str, name: str) -> None:
    assert name in PROPERTIES
    module = importlib.import_module(f"fsdpfuzz.properties.test_{name}")
    examples = getattr(module, f"test_{name}").hypothesis_explicit_examples
    cases = [example.kwargs["case"] for example in examples]
    assert cases[::-1] == [seed.case for seed in by_family(document)]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(("document", "name"), MODULES.items())
def test_an_explicit_example_runs_where_the_machine_can_run_it(
    document: str, name: str, backend: str
) -> None:
    ran: list[CaseSpec] = []
    session = SimpleNamespace(
        settings=SimpleNamespace(backend=backend), check=lambda case, _: ran.append(case)
    )
    test = getattr(importlib.import_module(f"fsdpfuzz.properties.test_{name}"), f"test_{name}")
    for example in test.hypothesis_explicit_examples[::-1]:
        test.hypothesis.inner_test(fsdpfuzz_session=session, **example.kwargs)
    due = [seed.on(backend) for seed in by_family(document)]
    assert ran == [case for case in due if case is not None]


def test_the_files_are_what_the_source_says(tmp_path: Path) -> None:
    written = {path.name: path.read_bytes() for path in write_seeds(tmp_path)}
    there = {path.name: path.read_bytes() for path in FILES.glob("*.json")}
    assert there == written, "corpus/seeds is out of date: run `fsdpfuzz corpus seeds`"


def test_a_file_names_what_it_restates() -> None:
    assert sorted(read_entry(path).origin for path in FILES.glob("*.json")) == sorted(NAMES)
