"""Frames come together from any pieces, and what is no frame is told from what is late."""

from __future__ import annotations

import pytest

from fsdpfuzz.observations import RankReport
from fsdpfuzz.wire import (
    MAX_FRAME,
    Answer,
    Come,
    Failed,
    Frames,
    GarbageError,
    Ready,
    Run,
    frame,
    order,
    reply,
)

MESSAGES: list[Ready | Failed | Answer] = [
    Ready(rank=1, torch="2.13.0"),
    Answer(number=3, report=RankReport(rank=1, digest="ab", reference_losses=(0.5, 1.5))),
]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_come_together_from_pieces(size: int) -> None:
    stream = b"".join(map(frame, MESSAGES * 3))
    frames = Frames()
    bodies = [
        body
        for start in range(0, len(stream), size)
        for body in frames.feed(stream[start : start + size])
    ]
    assert [reply(body) for body in bodies] == MESSAGES * 3


def test_orders_survive_the_way() -> None:
    orders: list[Run | Come] = [Run(number=1, case=b'{"a": 1}', digest="ab"), Come(number=2)]
    bodies = Frames().feed(b"".join(map(frame, orders)))
    assert [order(body) for body in bodies] == orders


def test_an_incomplete_frame_is_not_garbage() -> None:
    assert Frames().feed(frame(MESSAGES[0])[:-1]) == []


@pytest.mark.parametrize(
    "data",
    [
        b"hello, world",
        frame(MESSAGES[0])[:4] + (MAX_FRAME + 1).to_bytes(4, "little"),
        frame(MESSAGES[0]) + b"\xff" * 8,
    ],
    ids=["text", "too long", "after a frame"],
)
def test_garbage_is_noticed_from_its_header(data: bytes) -> None:
    with pytest.raises(GarbageError, match="garbage"):
        Frames().feed(data)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa4type\xa3run", b"\x91" * 5000])
def test_a_frame_that_is_no_reply_is_garbage(body: bytes) -> None:
    with pytest.raises(GarbageError, match="no message"):
        reply(body)


def test_a_message_has_a_largest_size() -> None:
    with pytest.raises(ValueError, match=str(MAX_FRAME)):
        frame(Run(number=1, case=bytes(MAX_FRAME), digest=""))
