"""How a campaign deals out its examples."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fsdpfuzz.loop import PROPERTIES, Notice, RunSettings, SessionSettings, run
from fsdpfuzz.loop._campaign import cores_of, jobs_of
from fsdpfuzz.loop._portions import Portion, Portions
from fsdpfuzz.loop._processes import JobProcess
from fsdpfuzz.wire import Backend
from tests.unit.loop.standins import Bench, Toy, make_case
from tests.unit.loop.test_peers import Others


def a_run(examples: int, backend: Backend = "gloo") -> RunSettings:
    session = SessionSettings(backend=backend, output=Path("out"), seed=3)
    return RunSettings(session=session, properties=("toy",), max_examples=examples)


def dealt(portions: Portions, backend: str) -> Iterator[Portion]:
    while (portion := portions.next(backend)) is not None:
        yield portion


def test_no_example_is_lost_and_none_is_dealt_twice() -> None:
    for examples, jobs in ((20_000, 16), (4_001, 4), (301, 2), (83, 2), (9, 3)):
        settings = jobs_of([(a_run(examples), jobs)])
        portions = Portions(settings, 3)
        later = list(dealt(portions, "gloo"))
        first = sum(job.max_examples for job in portions.first)
        assert first + sum(portion.examples for portion in later) == examples
        seeds = [job.session.seed for job in portions.first] + [one.seed for one in later]
        assert len(set(seeds)) == len(seeds)
        assert list(dealt(portions, "gloo")) == []


def test_what_the_last_job_is_at_is_a_small_part_of_a_run() -> None:
    portions = Portions(jobs_of([(a_run(20_000), 16)]), 3)
    assert {job.max_examples for job in portions.first} == {938}
    assert max(one.examples for one in dealt(portions, "gloo")) <= 20_000 / 16 / 30


def test_few_examples_are_dealt_out_at_once_and_so_is_a_run_alone() -> None:
    for examples, jobs in ((78, 2), (20_000, 1)):
        portions = Portions(jobs_of([(a_run(examples), jobs)]), 3)
        assert sum(job.max_examples for job in portions.first) == examples
        assert portions.next("gloo") is None


def test_each_backend_keeps_its_examples() -> None:
    portions = Portions(jobs_of([(a_run(1_000), 2), (a_run(1_000, "nccl"), 2)]), 3)
    for backend in ("gloo", "nccl"):
        first = [j.max_examples for j in portions.first if j.session.backend == backend]
        assert sum(first) + sum(one.examples for one in dealt(portions, backend)) == 500


def test_the_seed_decides_on_the_portions() -> None:
    def seeds(seed: int) -> list[int]:
        return [p.seed for p in dealt(Portions(jobs_of([(a_run(400), 2)]), seed), "gloo")]

    assert seeds(3) == seeds(3)
    assert not set(seeds(3)) & set(seeds(4))


def drawn(bench: Bench, *left: Portion, examples: int = 10) -> list[str]:
    with bench.session() as session:
        run(
            bench.settings(examples),
            bench.events.append,
            session=session,
            peers=Others(left=list(left)),
        )
    return (bench.folder / "digests.txt").read_text().split()


def test_a_job_goes_on_with_what_is_left_and_draws_it_by_its_seed(bench: Bench) -> None:
    first = drawn(bench)
    longer = drawn(bench, Portion(7, 12), Portion(8, 5))
    assert longer[:10] == first
    assert len(longer) == 27
    assert drawn(bench, Portion(8, 5))[10:] == longer[22:]
    # Also where another job has run it before.
    assert drawn(bench, Portion(7, 12), Portion(7, 12))[22:] == longer[10:22]


def test_a_property_without_different_cases_is_not_gone_on_with(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = st.sampled_from([make_case((n,)) for n in (1, 2)])
    monkeypatch.setitem(PROPERTIES, "toy", Toy(name="toy", about="", draws=lambda _scope: few))
    assert len(drawn(bench, Portion(7, 12), Portion(8, 5))) == 2
    said = [event.text for event in bench.events if isinstance(event, Notice)]
    assert len([text for text in said if "no more different cases" in text]) == 1


@pytest.mark.parametrize(
    ("jobs", "each"),
    [
        (1, [set()]),
        (2, [set(), set()]),
        (3, [{4}, {5}, {7}]),
        (4, [set()] * 4),
        (6, [{4}, {5}, {7}] * 2),
    ],
)
def test_a_job_has_a_core_of_its_own_where_each_core_has_as_many(
    monkeypatch: pytest.MonkeyPatch, jobs: int, each: list[set[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {7, 4, 5})
    dealt_out = jobs_of([(a_run(1_000), jobs), (a_run(1_000, "nccl"), 3)])
    assert [cores_of(job) for job in dealt_out] == [*each, *[set[int]()] * 3]


def test_a_job_starts_on_its_core(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    said = "import os, socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1 << 16)"
    command = [sys.executable, "-c", f"{said}; print(os.sched_getaffinity(0))"]
    (settings,) = jobs_of([(a_run(10), 1)])
    settings = replace(settings, notes=tmp_path)
    job = JobProcess(0, settings, command, {}, cores={core})
    assert job.wait(60) == 0
    assert job.output.read_text() == f"{{{core}}}\n"
