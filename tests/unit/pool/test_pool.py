"""A pool runs cases on real ranks and gets over whatever ended the last ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Step,
    digest,
    encode,
)
from fsdpfuzz.errors import ContractError, PoolError
from fsdpfuzz.pool import Deadlines, Pool
from tests.misbehaviour import quick

pytestmark = pytest.mark.alone


INJECTION = "tests.misbehaviour:install"
SHORT = Deadlines(floor=1.0, ceiling=20.0, learning=1)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2, "gloo", deadlines=SHORT, injection=INJECTION) as made:
        yield made


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_clean_case_leaves_the_ranks_as_they_are(pool: Pool) -> None:
    before = pool.restarts
    first = pool.run(quick())
    pids = pool.pids
    second = pool.run(quick())
    for seen in (first, second):
        assert seen.clean
        assert seen.digest == digest(quick())
        assert (seen.backend, seen.world_size) == ("gloo", 2)
        assert seen.torch == pool.torch != ""
        assert [report.rank for report in seen.reports if report is not None] == [0, 1]
        assert seen.seconds > 0
    assert pool.pids == pids
    assert len(set(pids)) == 2
    assert pool.restarts == before


def test_a_case_that_was_begun_runs_while_the_caller_does_something_else(pool: Pool) -> None:
    pool.start()
    before, pids = pool.restarts, pool.pids
    pool.begin(quick())
    time.sleep(0.2)
    seen = pool.run(quick())
    assert seen.clean
    assert seen.seconds >= 0.2
    assert (pool.restarts, pool.pids) == (before, pids)


def test_a_case_that_was_begun_and_not_asked_for_is_given_up(pool: Pool) -> None:
    pool.begin(quick("all_hang"))
    seen = pool.run(quick())
    assert seen.clean
    assert seen.digest == digest(quick())
    pool.begin(quick("all_hang"))
    pool.begin(quick())
    assert pool.run(quick()).clean


def test_a_rank_that_decodes_another_case_says_so() -> None:
    injection = "tests.misbehaviour:install_mishearing"
    with Pool(2, "gloo", deadlines=SHORT, injection=injection) as pool:
        raised = dict(pool.run(quick()).raised())
    assert set(raised) == {1}
    assert raised[1].type == "ContractError"
    assert digest(quick()) in raised[1].message
    assert digest(quick("all_raise")) in raised[1].message


def test_cases_that_are_equal_as_numbers_are_told_apart_on_fresh_ranks_and_on_old_ones() -> None:
    """What controller and ranks remember of one of them must not be taken for the other's."""
    units = [Fsdp2Unit(path="", reshard_after_forward=value) for value in (True, 1)]
    first, second = (
        msgspec.structs.replace(quick(), plan=Fsdp2Plan(units=(unit,))) for unit in units
    )
    with Pool(2, "gloo", deadlines=SHORT, injection="tests.misbehaviour:install_idle") as pool:
        assert pool.run(first).clean
        pool.close()  # fresh ranks remember nothing, the controller does
        seen = [pool.run(case) for case in (second, first, second)]
    assert [(o.clean, o.digest) for o in seen] == [
        (True, digest(case)) for case in (second, first, second)
    ]
    assert digest(first) != digest(second)


def test_reports_say_what_a_rank_holds(pool: Pool) -> None:
    for report in pool.run(quick()).reports:
        assert report is not None
        assert report.rss_bytes > 1 << 25
        assert report.threads >= 1
        assert report.fds > 3


def test_a_failure_costs_the_ranks_and_the_next_case_has_fresh_ones(pool: Pool) -> None:
    assert pool.run(quick()).clean
    before, pids = pool.restarts, pool.pids
    assert not pool.run(quick("all_raise")).clean
    assert pool.pids == ()
    assert not any(map(alive, pids))
    assert pool.run(quick()).clean
    assert pool.restarts == before + 1


def test_a_refusal_by_all_costs_nothing(pool: Pool) -> None:
    assert pool.run(quick()).clean
    before, pids = pool.restarts, pool.pids
    seen = pool.run(quick("all_refuse"))
    assert [error.documented for _, error in seen.raised()] == [True, True]
    assert pool.run(quick()).clean
    assert (pool.restarts, pool.pids) == (before, pids)


def test_a_rank_that_died_between_cases_is_no_ones_finding(pool: Pool) -> None:
    pool.start()
    victim = pool.pids[1]
    os.kill(victim, signal.SIGKILL)
    while alive(victim):
        pass
    before = pool.restarts
    assert pool.run(quick()).clean
    assert pool.restarts == before + 1


def test_a_case_of_any_size_arrives_whole(pool: Pool) -> None:
    large = msgspec.structs.replace(quick(), frozen=tuple(f"layers.{i}" for i in range(30_000)))
    assert len(encode(large)) > 1 << 18
    seen = pool.run(large, patience=True)
    # The strict decoder in the ranks has read it to the end, and refuses it there.
    assert {error.type for _, error in seen.raised()} == {"CaseError"}
    row = Sequential(children=(Linear(out=2),) * 60)
    medium = msgspec.structs.replace(quick(), model=Sequential(children=(row,) * 6))
    assert len(encode(medium)) > 8192
    assert pool.run(medium).clean


def test_patience_waits_for_the_ceiling() -> None:
    bounds = Deadlines(floor=0.2, ceiling=1.5, learning=1, factor=1.0)
    with Pool(2, "gloo", deadlines=bounds, injection=INJECTION) as pool:
        assert pool.run(quick()).clean
        assert pool.run(quick()).clean
        short, long = (pool.run(quick("all_hang"), patience=patience) for patience in (False, True))
    assert short.hang is not None
    assert long.hang is not None
    assert short.hang.deadline < long.hang.deadline == 1.5


@pytest.mark.parametrize("world_size", [1, 3])
def test_other_world_sizes_run_beside_it(pool: Pool, world_size: int) -> None:
    pool.start()
    pids = pool.pids
    with Pool(world_size, "gloo", deadlines=SHORT, injection=INJECTION) as other:
        seen = other.run(quick(world_size=world_size))
        assert seen.clean
        assert len(seen.reports) == len(other.pids) == world_size
    assert pool.pids == pids
    assert pool.run(quick()).clean


def test_a_case_for_another_world_size_is_not_run(pool: Pool) -> None:
    with pytest.raises(ContractError, match="3 ranks was given to a pool of 2"):
        pool.run(quick(world_size=3))


def test_ranks_that_cannot_start_are_tried_twice() -> None:
    with (
        Pool(2, "gloo", deadlines=SHORT, injection="tests.misbehaviour:refuse") as pool,
        pytest.raises(PoolError, match=r"2 times.*injected: not ready"),
    ):
        pool.run(quick())
    assert pool.pids == ()


def test_ranks_that_start_at_the_second_try_are_good() -> None:
    with Pool(2, "gloo", deadlines=SHORT, injection="tests.misbehaviour:refuse_once") as pool:
        assert pool.run(quick()).clean
        assert pool.restarts == 1


@pytest.mark.parametrize(
    "injection", ["nonsense", "no.such.module:f", "tests.misbehaviour:nothing"]
)
def test_an_injection_that_is_not_there_is_said(injection: str) -> None:
    with (
        Pool(2, "gloo", injection=injection) as pool,
        pytest.raises(PoolError, match="did not start"),
    ):
        pool.start()


def test_an_interrupted_case_leaves_a_usable_pool(pool: Pool) -> None:
    assert pool.run(quick()).clean

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run(quick("all_hang"), patience=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pool.pids == ()
    assert pool.run(quick()).clean


def test_closing_is_final_for_ranks_and_folder_and_may_be_repeated(tmp_path: Path) -> None:
    workdir = tmp_path / "with a space" / "ranks"
    pool = Pool(2, "gloo", deadlines=SHORT, injection=INJECTION, workdir=workdir)
    assert pool.run(quick()).clean
    pids = pool.pids
    (folder,) = workdir.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    pool.close()
    pool.close()
    assert not any(map(alive, pids))
    assert not workdir.exists()


def test_a_restart_leaves_no_file_and_no_descriptor(tmp_path: Path) -> None:
    with Pool(2, "gloo", deadlines=SHORT, injection=INJECTION, workdir=tmp_path) as pool:
        pool.run(quick("all_raise"))
        (folder,) = tmp_path.iterdir()
        files, descriptors = sorted(folder.iterdir()), len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            pool.run(quick("all_raise"))
        assert sorted(folder.iterdir()) == files == []
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


@pytest.mark.parametrize(
    "plan",
    [
        Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0"))),
        Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"))),
    ],
    ids=["fsdp1", "fsdp2"],
)
def test_every_collective_of_fsdp_is_counted_once(plan: Fsdp1Plan | Fsdp2Plan) -> None:
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=5), Linear(out=3))),
        inputs=Dense(width=4),
        plan=plan,
        program=(Forward(), Backward(), Step()),
    )
    with Pool(2, "gloo") as pool:
        seen = pool.run(case)
    assert seen.clean
    for report in seen.reports:
        assert report is not None
        counted = report.subjects[0].collectives
        # Two units: gathered in forward, the inner one again in backward, reduced once.
        gathered = sum(n for name, n in counted.items() if name.startswith("all_gather"))
        assert (gathered, counted["reduce_scatter_tensor"]) == (3, 2), counted
        assert not any(name.endswith(("_single", "_base")) for name in counted)


def test_a_collective_that_calls_another_is_counted_once() -> None:
    with Pool(2, "gloo", injection="tests.misbehaviour:install_aliases") as pool:
        seen = pool.run(quick())
    for report in seen.reports:
        assert report is not None
        (subject,) = report.subjects
        assert subject.collectives == {
            "all_gather_into_tensor": 2,
            "reduce_scatter_tensor": 1,
            "all_gather": 1,
            "barrier": 1,
        }
        # The size is that of what this rank puts in.
        assert subject.warnings == (
            "all_gather_into_tensor 3 float32",
            "all_gather_into_tensor 3 float32",
            "reduce_scatter_tensor 6 float32",
            "all_gather 3 float32",
            "barrier 0 -",
        )


def test_the_controller_does_not_import_torch() -> None:
    code = """
import sys
from fsdpfuzz.pool import Pool, probe_machine
from tests.misbehaviour import quick
probe_machine()
with Pool(2, "gloo", injection="tests.misbehaviour:install") as pool:
    assert pool.run(quick()).clean
    assert not pool.run(quick("all_raise")).clean
print([name for name in ("torch", "numpy", "hypothesis") if name in sys.modules])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("fault", ["all_hang", "endless_python", "another_collective"])
def test_a_hang_says_what_the_ranks_had_of_the_processors(pool: Pool, fault: str) -> None:
    pool.run(quick())
    hang = pool.run(quick(fault)).hang
    assert hang is not None
    assert hang.evident
    assert (len(hang.ran), len(hang.waited)) == (2, 2)
    assert (hang.ran[1] > 0.5) is (fault == "endless_python")
