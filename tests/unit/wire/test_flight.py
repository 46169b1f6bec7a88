"""What a rank records is what the controller reads, and where ranks part is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.pool._disagreement import find_disagreement
from fsdpfuzz.wire import MAX_STAGE, RING, Collective, FlightRecorder, Recording, read_recording

NOBODY = frozenset[int]()


def reading(*calls: str) -> Recording:
    """A recorder with these collectives, ``name:numel`` each."""
    made = [call.partition(":") for call in calls]
    collectives = tuple(
        Collective(i, name, int(numel), "float32") for i, (name, _, numel) in enumerate(made, 1)
    )
    return Recording("case:backward[1]", len(calls), len(calls), collectives)


def test_a_recorder_is_read_as_it_was_written(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path / "flight")
    flight.begin("broadcast")
    flight.stage("case:forward[3]")
    flight.collective("all_reduce", 25, "float32")()
    flight.collective("broadcast", 5, "bfloat16")
    found = read_recording(tmp_path / "flight")
    assert found.stage == flight.now == "case:forward[3]"
    assert (found.issued, found.returned) == (2, 1)
    assert list(map(str, found.collectives)) == [
        "all_reduce#1 of 25 float32",
        "broadcast#2 of 5 bfloat16",
    ]
    assert found.last == "waits in broadcast#2 of 5 bfloat16"


def test_a_new_case_starts_at_one_again(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path / "flight")
    flight.collective("all_reduce", 1, "float32")()
    flight.begin("broadcast")
    assert read_recording(tmp_path / "flight") == Recording("broadcast", 0, 0, ())
    flight.collective("all_reduce", 7, "float32")()
    assert read_recording(tmp_path / "flight").last == "is past all_reduce#1 of 7 float32"


def test_the_last_collectives_are_kept(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path / "flight")
    for number in range(1, RING + 11):
        flight.collective("all_reduce", number, "float32")()
    found = read_recording(tmp_path / "flight")
    assert [call.numel for call in found.collectives] == list(range(11, RING + 11))
    assert found.at(10) is None
    assert found.at(RING + 10) == Collective(RING + 10, "all_reduce", RING + 10, "float32")


def test_a_stage_is_cut_and_replaced_as_a_whole(tmp_path: Path) -> None:
    flight = FlightRecorder(tmp_path / "flight")
    flight.stage("x" * 1000)
    assert read_recording(tmp_path / "flight").stage == "x" * MAX_STAGE
    flight.stage("\ud800é")
    assert read_recording(tmp_path / "flight").stage == "?é"


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_a_recorder_that_was_never_made_reads_as_empty(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "flight"
    if content is not None:
        path.write_bytes(content)
    assert read_recording(path) == Recording()


def test_equal_recordings_do_not_disagree() -> None:
    assert find_disagreement([reading("a:1", "b:2")] * 3, NOBODY).text == ""


@pytest.mark.parametrize(
    ("recordings", "odd", "text"),
    [
        pytest.param(
            [reading("a:1", "b:2"), reading("a:1", "c:3"), reading("a:1", "b:2")],
            (1,),
            "rank 1 issued c#2 of 3 float32, ranks 0, 2 issued b#2 of 2 float32",
            id="another call",
        ),
        pytest.param(
            [reading("a:1", "b:2"), reading("a:1", "b:4")],
            (1,),
            "rank 1 issued b#2 of 4 float32, rank 0 issued b#2 of 2 float32",
            id="another size",
        ),
        pytest.param(
            [reading("a:1", "b:2"), reading("a:1", "c:9"), reading("a:1", "d:9", "e:1")],
            (1, 2),
            "rank 1 issued c#2 of 9 float32, rank 2 issued d#2 of 9 float32, "
            "rank 0 issued b#2 of 2 float32",
            id="all different",
        ),
    ],
)
def test_another_collective_is_certain(
    recordings: list[Recording], odd: tuple[int, ...], text: str
) -> None:
    found = find_disagreement(recordings, NOBODY)
    assert (found.odd_ranks, found.text, found.certain) == (odd, text, True)


def test_a_rank_that_issued_less_may_be_slow() -> None:
    found = find_disagreement([reading("a:1"), reading("a:1", "b:2")], NOBODY)
    assert found.odd_ranks == (0,)
    assert found.text == "rank 0 issued no collective #2, rank 1 issued b#2 of 2 float32"
    assert not found.certain


def test_a_rank_that_is_through_with_less_is_certain() -> None:
    found = find_disagreement([reading("a:1"), reading("a:1", "b:2")], frozenset({0}))
    assert found.odd_ranks == (0,)
    assert found.text.startswith("rank 0 ended without a collective #2")
    assert found.certain


def test_more_collectives_than_a_recorder_keeps_are_compared_where_both_are_kept(
    tmp_path: Path,
) -> None:
    for rank, calls in enumerate((RING + 5, RING + 9)):
        flight = FlightRecorder(tmp_path / str(rank))
        for _ in range(calls):
            flight.collective("all_reduce", 1, "float32")()
    found = find_disagreement(
        [read_recording(tmp_path / "0"), read_recording(tmp_path / "1")], NOBODY
    )
    assert found.text.startswith(f"rank 0 issued no collective #{RING + 6}")
