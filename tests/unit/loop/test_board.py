"""What the jobs of a campaign claim, and whose turn it is to reduce."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.loop import Found
from fsdpfuzz.loop._board import Board
from fsdpfuzz.loop._causes import Cause
from fsdpfuzz.reduce import Ablation
from tests.unit.loop.standins import finding, make_case


def a_cause(name: str, *also: str) -> Cause:
    found = Found(
        finding=finding(name),
        property_name="toy",
        case=Path(f"{name}.json"),
        digest="0",
        examples_to_find=1,
        also=also,
    )
    return Cause(found, make_case(), (finding(name),), Ablation(needed=("a loss",)))


def test_the_first_job_that_meets_something_has_it() -> None:
    board = Board(2)
    assert board.first(0, "a")
    assert not board.first(1, "a")
    assert board.first(0, "a")
    assert board.first(1, "b")


def test_few_jobs_reduce_one_after_the_other() -> None:
    board = Board(3)
    assert board.turn(0, 0, wait=False)
    assert board.turn(1, 0, wait=False) is False
    assert board.reduced(0, 0, None)
    assert board.turn(1, 0, wait=False)


def test_many_jobs_reduce_a_few_at_a_time() -> None:
    board = Board(8)
    assert [board.turn(job, 0, wait=False) for job in range(3)] == [True, True, False]


def test_a_cause_is_heard_of_before_the_next_turn() -> None:
    board, cause = Board(2), a_cause("big", "after/mismatch/fsdp2")
    assert board.turn(0, 0, wait=False)
    assert board.turn(1, 0, wait=True) is None
    assert board.due() == {}
    assert board.reduced(0, 0, cause)
    assert board.due() == {1: False}
    assert board.news(0) == (cause,)
    assert board.turn(1, 1, wait=True)
    assert board.news(1) == ()
    assert [board.first(1, key) for key in (cause.found.finding.key, *cause.found.also)] == [
        False,
        False,
    ]


def test_who_reduced_beside_another_looks_at_its_cause_first() -> None:
    board = Board(8)
    assert all(board.turn(job, 0, wait=False) for job in (0, 1))
    assert board.reduced(0, 0, a_cause("big"))
    assert not board.reduced(1, 0, a_cause("long"))
    assert board.reduced(1, 1, a_cause("long"))
    assert len(board.news(0)) == 2


def test_the_turn_of_a_job_that_dies_is_the_next_ones() -> None:
    board = Board(2)
    assert board.first(0, "a")
    assert board.turn(0, 0, wait=False)
    assert board.turn(1, 0, wait=True) is None
    board.gone(0)
    assert board.due() == {1: True}
    assert board.first(1, "a"), "what it met is free again"


def test_a_job_that_dies_while_it_waits_is_not_answered() -> None:
    board = Board(2)
    assert board.turn(0, 0, wait=False)
    assert board.turn(1, 0, wait=True) is None
    board.gone(1)
    assert board.reduced(0, 0, None)
    assert board.due() == {}
