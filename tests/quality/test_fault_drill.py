"""Whatever a rank does costs its own case at most; whatever ends the controller leaves nothing."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsdpfuzz.observations import MAX_TRACEBACK, Observation
from fsdpfuzz.pool import Deadlines, Pool
from tests.misbehaviour import FAULTS, quick
from tests.signals import usual_signals

pytestmark = pytest.mark.alone


ROOT = Path(__file__).parents[2]
CEILING = 20.0
SLOW = {"all_slow", "a_gigabyte_of_output", "a_gigabyte_then_exit", "long_message"}
"""Take longer than the floor, honestly."""


def seconds_for_a_gigabyte() -> float:
    """In which a plain process writes as much to this one as the slowest fault does."""
    pour = "import sys\nfor _ in range(1024): sys.stdout.buffer.write(bytes(1 << 20))"
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", pour], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.read(1 << 20):
            pass
    return time.monotonic() - began


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    # Where a gigabyte takes long without any ranks, it may take that much longer from them.
    ceiling = max(CEILING, 20 * seconds_for_a_gigabyte())
    deadlines = Deadlines(floor=0.8, ceiling=ceiling, learning=1, grace_floor=0.3)
    with Pool(2, "gloo", deadlines=deadlines, injection="tests.misbehaviour:install") as made:
        assert made.run(quick()).clean
        yield made


def passes(seen: Observation) -> bool:
    return seen.clean


def dies(*codes: int) -> Callable[[Observation], bool]:
    return lambda seen: [(d.rank, d.exitcode) for d in seen.deaths] in [[(1, c)] for c in codes]


def raises(*names: str) -> Callable[[Observation], bool]:
    return lambda seen: (
        [(rank, error.type) for rank, error in seen.raised()]
        == list(enumerate(names, start=2 - len(names)))
    )


def raises_alone(name: str) -> Callable[[Observation], bool]:
    """Rank 1 raises and rank 0, which waits for it, is given up."""

    def check(seen: Observation) -> bool:
        hang = seen.hang
        return raises(name)(seen) and hang is not None and hang.ranks == (0,) and hang.after_failure

    return check


def hangs(stack: str, *, certain: bool = False) -> Callable[[Observation], bool]:
    def check(seen: Observation) -> bool:
        hang = seen.hang
        return (
            hang is not None
            and not seen.deaths
            and hang.ranks == (0, 1)
            and hang.odd_ranks == (1,)
            and hang.mismatched == certain
            and hang.disagreement.endswith("rank 0 issued all_reduce#1 of 3 float32")
            and "waits in all_reduce#1" in hang.stacks[0]
            and "in misbehave" in hang.stacks[0]
            and stack in hang.stacks[1]
            and not hang.after_failure
        )

    return check


OUTCOMES: dict[str, Callable[[Observation], bool]] = {
    "sys_exit": raises_alone("SystemExit"),
    "os_exit": dies(7),
    "os_exit_zero": dies(0),
    "os_abort": dies(-signal.SIGABRT),
    "segmentation_fault": dies(-signal.SIGSEGV),
    "sigkill": dies(-signal.SIGKILL),
    "sigstop": hangs("stopped by a signal"),
    "endless_python": hangs("in endless_python"),
    "endless_c": hangs("in endless_c"),
    "endless_deaf": hangs("in endless_deaf"),
    "a_gigabyte_of_output": passes,
    "a_gigabyte_then_exit": dies(9),
    "unspeakable": raises_alone("UnspeakableError"),
    "long_message": raises_alone("RuntimeError"),
    "keyboard_interrupt": raises_alone("KeyboardInterrupt"),
    "endless_recursion": raises_alone("RecursionError"),
    # gloo's own thread aborts when its descriptors are gone, if it notices in time.
    "close_everything": dies(-signal.SIGABRT, -signal.SIGKILL),
    "garbage": dies(-signal.SIGKILL),
    "half_a_frame": dies(0),
    "unasked_message": dies(-signal.SIGKILL),
    "enormous_report": raises("ValueError"),
    "report_of_another_case": raises("ContractError"),
    "no_report": raises("ContractError"),
    # The case may be through before the ranks follow their parent.
    "kill_the_parent": lambda seen: seen.clean or len(seen.deaths) == 2,
    "stop_the_parent": dies(5),
    "leave_a_child_behind": dies(6),
    "another_collective": hangs("in another_collective", certain=True),
    "all_refuse": raises("ValueError", "ValueError"),
    "all_raise": raises("RuntimeError", "RuntimeError"),
    "all_slow": passes,
    "all_hang": lambda seen: seen.hang is not None and seen.hang.disagreement == "",
}


def test_every_fault_has_its_outcome() -> None:
    assert set(OUTCOMES) == set(FAULTS)


@pytest.mark.parametrize("fault", OUTCOMES)
def test_a_fault_is_seen_and_the_next_case_is_judged(pool: Pool, fault: str) -> None:
    seen = pool.run(quick(fault), patience=fault in SLOW)
    assert OUTCOMES[fault](seen), seen
    # Every other example of the run gets its verdict.
    assert all(pool.run(quick()).clean for _ in range(2))


def test_the_end_of_what_a_rank_printed_is_kept(pool: Pool) -> None:
    (death,) = pool.run(quick("os_exit")).deaths
    assert death.output == "last words\n"
    assert death.stage == "case:forward[0]"
    (death,) = pool.run(quick("a_gigabyte_then_exit"), patience=True).deaths
    assert death.output.endswith("xxx\nend of the gigabyte\n")
    assert len(death.output) == MAX_TRACEBACK
    # KiB; a controller that keeps the output would be far beyond.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < (1 << 20)


def test_a_case_that_lost_its_ranks_with_their_parent_runs_again(pool: Pool) -> None:
    pool.start()
    before, parent = pool.restarts, _parent(pool.pids[0])

    def kill(*_: object) -> None:
        os.kill(parent, signal.SIGKILL)

    former = signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        assert pool.run(quick("all_slow"), patience=True).clean
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert pool.restarts == before + 1
    assert _parent(pool.pids[0]) != parent


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_crash_says_where(pool: Pool) -> None:
    (death,) = pool.run(quick("segmentation_fault")).deaths
    assert "in segmentation_fault" in death.output
    assert "Extension modules" not in death.output


CONTROLLER = """
import sys, time
from fsdpfuzz.pool import Deadlines, Pool, sigterm_exits
from tests.misbehaviour import quick
with sigterm_exits(), Pool(2, "gloo", injection="tests.misbehaviour:install") as pool:
    assert pool.run(quick()).clean
    with Pool(3, "gloo", injection="tests.misbehaviour:install") as other:
        assert other.run(quick(world_size=3)).clean
        print("ready", flush=True)
        case = quick(sys.argv[1])
        while True:
            pool.run(case)
"""


def marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def gone(mark: str, folder: Path) -> bool:
    return not marked(mark) and not list(folder.iterdir())


@pytest.mark.parametrize("fault", ["", "all_hang", "leave_a_child_behind"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, -signal.SIGINT),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["ctrl-c", "sigterm", "kill -9"],
)
def test_nothing_is_left_of_a_controller_that_was_ended(
    tmp_path: Path, number: int, code: int, fault: str
) -> None:
    mark = f"mark-{uuid.uuid4()}"
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, fault],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "FSDPFUZZ_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=usual_signals,  # noqa: PLW1509
    )
    with controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        assert len(marked(mark)) >= 5
        # As a terminal does it: to the whole group of the foreground.
        os.killpg(controller.pid, number)
        assert controller.wait() == code
    if number != signal.SIGKILL:
        assert gone(mark, tmp_path)
    end = time.monotonic() + 20
    while not gone(mark, tmp_path) and time.monotonic() < end:
        time.sleep(0.02)
    assert gone(mark, tmp_path), (marked(mark), list(tmp_path.iterdir()))
