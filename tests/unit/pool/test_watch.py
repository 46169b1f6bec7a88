"""Answers, deaths and the end of patience, on ranks that only the test moves."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from fsdpfuzz.observations import Hang, Raised, RankReport
from fsdpfuzz.pool._crew import Crew
from fsdpfuzz.pool._rank import Rank
from fsdpfuzz.pool._usage import Usage
from fsdpfuzz.pool._watch import Watch
from fsdpfuzz.wire import Answer, Collective, Ready, Recording

RAISED = Raised(type="RuntimeError", message="x", stage="s", frame="", documented=False)


class Clock:
    """Goes on while the watch waits, and at no other time: no busy machine moves it."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


now = Clock()


class StillCrew:
    """Ranks to which happens what ``happen`` does, each time that the watch waits."""

    def __init__(self, ranks: list[Rank], happen: Callable[[list[Rank]], None]) -> None:
        self.ranks = ranks
        self.waits: list[float] = []
        self._happen = happen
        self.readings: tuple[Recording, ...] = ()
        self.used: Callable[[int], Usage] = lambda _: Usage()

    def poll(self, seconds: float) -> None:
        self.waits.append(seconds)
        now.seconds += max(seconds, 0.01)
        self._happen(self.ranks)

    def settle(self) -> None:
        pass

    def recordings(self) -> tuple[Recording, ...]:
        return self.readings or tuple(Recording(f"stage {rank.rank}") for rank in self.ranks)

    def usage(self) -> tuple[Usage, ...]:
        return tuple(self.used(rank.rank) for rank in self.ranks)

    def stacks(self) -> tuple[str, ...]:
        return tuple(f"stack {rank.rank}" for rank in self.ranks)


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    made, ends = [], []
    for number in range(2):
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        os.close(writing)
        made.append(Rank(number, ours, reading))
        ends.append(theirs)
    yield made
    for rank in made:
        rank.close()
    for end in ends:
        end.close()


def watch(
    ranks: list[Rank],
    happen: Callable[[list[Rank]], None] = lambda _: None,
    *,
    deadline: float = 60.0,
    grace: float = 60.0,
    stall: float = 60.0,
    ceiling: float = 0.0,
) -> tuple[Watch, StillCrew]:
    crew = StillCrew(ranks, happen)
    made = Watch(
        cast(Crew, crew),
        deadline=deadline,
        grace=grace,
        number=7,
        digest="d",
        stall=stall,
        ceiling=ceiling,
        clock=now,
    )
    return made, crew


def answer(rank: int, *, number: int = 7, raised: Raised | None = None) -> Answer:
    return Answer(number=number, report=RankReport(rank=rank, digest="d", raised=raised))


def test_all_answers_end_the_watch(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.inbox.append(answer(rank.rank))
    watching, crew = watch(ranks)
    assert watching.wait(now()) is None
    assert [report.rank for report in watching.reports if report is not None] == [0, 1]
    assert crew.waits == []


def test_what_came_while_the_controller_slept_counts(ranks: list[Rank]) -> None:
    def happen(ranks: list[Rank]) -> None:
        for rank in ranks:
            rank.inbox.append(answer(rank.rank))

    watching, crew = watch(ranks, happen)
    assert watching.wait(now() - 1000) is None
    assert crew.waits == [0.0]


def test_a_deadline_that_passed_is_a_hang(ranks: list[Rank]) -> None:
    ranks[0].inbox.append(answer(0))
    watching, _ = watch(ranks)
    hang = watching.wait(now() - 1000)
    assert hang is not None
    assert (hang.ranks, hang.deadline, hang.after_failure) == ((1,), 60.0, False)
    assert hang.stages == ("stage 0", "stage 1")
    assert hang.stacks == ("stack 0", "stack 1")


def test_after_a_failure_only_the_grace_is_waited(ranks: list[Rank]) -> None:
    ranks[1].inbox.append(answer(1, raised=RAISED))
    watching, crew = watch(ranks, grace=0.05)
    hang = watching.wait(now())
    assert hang is not None
    assert (hang.ranks, hang.deadline, hang.after_failure) == ((0,), 0.05, True)
    assert max(crew.waits) <= 0.05


def at(number: int, name: str, numel: int = 4) -> Recording:
    return Recording("case:backward[1]", number, 0, (Collective(number, name, numel, "float32"),))


@pytest.mark.parametrize(
    ("readings", "stuck"),
    [
        ((at(1, "all_gather"), at(1, "reduce_scatter")), True),
        ((at(1, "all_gather"), at(1, "all_gather", 6)), True),
        ((at(1, "all_gather"), at(1, "all_gather")), False),
        ((at(1, "all_gather"), Recording("case:forward[0]")), False),
    ],
    ids=["another collective", "another size", "the same", "one is slow"],
)
def test_ranks_that_disagree_for_certain_and_stand_still_need_no_deadline(
    ranks: list[Rank], readings: tuple[Recording, ...], *, stuck: bool
) -> None:
    def happen(ranks: list[Rank]) -> None:
        if len(crew.waits) == 8:
            for rank in ranks:
                rank.inbox.append(answer(rank.rank))

    watching, crew = watch(ranks, happen, stall=0.0)
    crew.readings = readings
    hang = watching.wait(now())
    assert (hang is not None) is stuck
    assert len(crew.waits) == (2 if stuck else 8)
    if hang is not None:
        assert (hang.ranks, hang.mismatched) == ((0, 1), True)


def test_ranks_that_move_are_not_stuck_whatever_they_disagree_on(ranks: list[Rank]) -> None:
    def happen(ranks: list[Rank]) -> None:
        number = len(crew.waits)
        crew.readings = (at(number, "all_gather"), at(number, "broadcast"))
        if number == 5:
            for rank in ranks:
                rank.inbox.append(answer(rank.rank))

    watching, crew = watch(ranks, happen, stall=0.0)
    assert watching.wait(now()) is None


def test_a_rank_that_ended_without_a_collective_is_not_waited_for(ranks: list[Rank]) -> None:
    ranks[1].inbox.append(answer(1))
    watching, crew = watch(ranks, stall=0.0)
    crew.readings = (at(1, "all_gather"), Recording("idle"))
    hang = watching.wait(now())
    assert hang is not None
    assert (hang.ranks, hang.odd_ranks, hang.after_failure) == ((0,), (1,), False)
    assert "ended without a collective #1" in hang.disagreement


@pytest.mark.parametrize(
    "message", [Ready(rank=1, torch=""), answer(1, number=6)], ids=["ready", "of another case"]
)
def test_a_rank_that_sent_what_nobody_asked_for_is_dead_whatever_else_it_sent(
    ranks: list[Rank], message: Ready | Answer
) -> None:
    def happen(ranks: list[Rank]) -> None:
        assert ranks[1].garbage
        ranks[1].killed, ranks[1].code = True, -9

    ranks[0].inbox.append(answer(0))
    ranks[1].inbox += [message, answer(1)]
    watching, _ = watch(ranks, happen)
    assert watching.wait(now()) is None
    (death,) = watching.deaths
    assert (death.rank, death.exitcode, death.stage) == (1, -9, "stage 1")
    assert death.output.startswith("(killed because it sent a")
    assert watching.reports[1] is None


def test_a_report_of_another_case_is_no_pass(ranks: list[Rank]) -> None:
    ranks[0].inbox.append(answer(0))
    ranks[1].inbox.append(Answer(number=7, report=RankReport(rank=1, digest="e")))
    watching, _ = watch(ranks)
    assert watching.wait(now()) is None
    report = watching.reports[1]
    assert report is not None
    assert report.raised is not None
    assert (report.digest, report.raised.type) == ("d", "ContractError")


LATE = (at(687, "all_gather"), Recording("case:forward[0]"))
"""What a late rank looks like: it has issued nothing where the other one waits."""


def late(
    ranks: list[Rank], used: Callable[[int], Usage], **times: float
) -> tuple[Hang | None, int]:
    """What comes of ranks over their deadline that answer at the tenth look, and how many looks."""

    def happen(ranks: list[Rank]) -> None:
        if len(crew.waits) == 10:
            for rank in ranks:
                rank.inbox.append(answer(rank.rank))

    watching, crew = watch(ranks, happen, stall=0.0, **{"ceiling": 1000.0} | times)
    crew.readings, crew.used = LATE, used
    return watching.wait(now() - 61), len(crew.waits)


def in_line(rank: int) -> Usage:
    """One rank that stands in line for a processor all the time."""
    return Usage(waited=now() if rank == 1 else 0.0)


def mostly_in_line(rank: int) -> Usage:
    """More than the helpers of one rank do, and less than all ranks do that take turns."""
    return Usage(waited=0.6 * now() if rank == 1 else 0.0)


def waits_for_a_disk(rank: int) -> Usage:
    return Usage(blocked=rank == 1)


def computes_slowly(rank: int) -> Usage:
    return Usage(ran=now())


def take_turns(rank: int) -> Usage:
    """Ranks that wake each other up, and stand in line each time."""
    return Usage(waited=0.45 * now())


def helpers_stand_in_line(rank: int) -> Usage:
    """On a busy machine; seen at nine processes a core."""
    return Usage(ran=0.002 * now(), waited=0.17 * now())


@pytest.mark.parametrize(
    "used", [in_line, mostly_in_line, take_turns, waits_for_a_disk, computes_slowly]
)
def test_a_late_rank_that_wants_a_processor_is_waited_for(
    ranks: list[Rank], used: Callable[[int], Usage]
) -> None:
    assert late(ranks, used) == (None, 10)


def test_a_pause_of_the_controller_is_no_rest_of_the_ranks(ranks: list[Rank]) -> None:
    """It falls between its clock and what the kernel says of the ranks."""
    pauses = iter((30.0,))

    def used(rank: int) -> Usage:
        now.seconds += next(pauses, 0.0)
        return in_line(rank)

    assert late(ranks, used) == (None, 10)


@pytest.mark.parametrize("used", [lambda _: Usage(ran=3.0, waited=9.0), helpers_stand_in_line])
def test_ranks_that_all_sleep_are_stuck(ranks: list[Rank], used: Callable[[int], Usage]) -> None:
    hang, looks = late(ranks, used)
    assert hang is not None
    assert looks < 10
    assert (hang.mismatched, hang.starved, hang.evident) == (False, False, True)


def test_a_rank_that_had_a_processor_for_a_whole_deadline_is_stuck(ranks: list[Rank]) -> None:
    looks = iter(range(1000))
    hang, _ = late(ranks, lambda _: Usage(ran=61.0 * next(looks), waited=now()))
    assert hang is not None
    assert hang.evident


def test_a_hang_at_the_ceiling_is_no_evidence_where_a_rank_was_starved(ranks: list[Rank]) -> None:
    hang, _ = late(ranks, in_line, ceiling=61.0)
    assert hang is not None
    assert (hang.starved, hang.evident) == (True, False)
    assert hang.waited[1] > hang.waited[0] == 0.0


def test_ranks_that_move_at_their_deadline_go_on(ranks: list[Rank]) -> None:
    def happen(ranks: list[Rank]) -> None:
        number = len(crew.waits)
        crew.readings = (at(number, "all_gather"), at(number - 1, "all_gather"))
        if number == 10:
            for rank in ranks:
                rank.inbox.append(answer(rank.rank))

    watching, crew = watch(ranks, happen, stall=0.0, ceiling=1000.0)
    assert watching.wait(now() - 61) is None


def test_ranks_that_disagree_had_no_want_of_a_processor(ranks: list[Rank]) -> None:
    watching, crew = watch(ranks, stall=0.0)
    crew.readings, crew.used = (at(1, "all_gather"), at(1, "broadcast")), in_line
    hang = watching.wait(now())
    assert hang is not None
    assert hang.evident
