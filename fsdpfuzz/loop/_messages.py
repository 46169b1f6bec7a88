"""What a job and its campaign say to each other: a line of JSON each, over a socket.

The campaign begins with the job's settings. A job tells of its events and asks; the campaign
answers each question, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from fsdpfuzz.loop._causes import Cause
from fsdpfuzz.loop._events import Event
from fsdpfuzz.loop._json import sayable
from fsdpfuzz.loop._portions import Portion
from fsdpfuzz.loop._settings import RunSettings

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


class Told(msgspec.Struct, frozen=True, tag="told"):
    """An event of the job's run."""

    kind: str
    event: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job ends without a result; why, in a line."""

    reason: str


class First(msgspec.Struct, frozen=True, tag="first"):
    """See `Peers.first`."""

    name: str


class News(msgspec.Struct, frozen=True, tag="news"):
    """See `Peers.news`. ``seen`` of the causes are known to the job."""

    seen: int


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """See `Peers.turn`."""

    seen: int
    wait: bool


class Reduced(msgspec.Struct, frozen=True, tag="reduced"):
    """See `Peers.reduced`."""

    seen: int
    cause: Cause | None


class More(msgspec.Struct, frozen=True, tag="more"):
    """See `Peers.more`."""


class Answer(msgspec.Struct, frozen=True):
    """What the campaign says to a question."""

    yes: bool = False
    causes: tuple[Cause, ...] = ()
    portion: Portion | None = None


Message = Told | Failed | First | News | Turn | Reduced | More


def told(event: Event) -> Told:
    """The message that tells of an event."""
    return Told(kind=type(event).__name__, event=msgspec.Raw(_encoded(event)))


def event_of(message: Told) -> Event:
    """The event that a message tells of."""
    event: Event = msgspec.json.decode(message.event, type=_EVENTS[message.kind], dec_hook=_decoded)
    return event


def line_of(message: Message | Answer | RunSettings) -> bytes:
    """A message as a line."""
    return _encoded(message) + b"\n"


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        # What a rank printed may be no UTF-8.
        return msgspec.json.encode(sayable(msgspec.to_builtins(value, enc_hook=str)))


def _decoded(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)


messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message, dec_hook=_decoded)
answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer, dec_hook=_decoded)
settings: msgspec.json.Decoder[RunSettings] = msgspec.json.Decoder(RunSettings, dec_hook=_decoded)


class Lines:
    """Cuts what comes over a socket into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The lines that are whole with this."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        yield from whole
