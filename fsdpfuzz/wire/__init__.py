"""What the controller and its ranks share: messages, and the ranks' flight recorders.

Both sides import it, so it stands at the bottom: it imports neither torch nor any other room
but ``observations``.
"""

from __future__ import annotations

from fsdpfuzz.wire._flight import (
    MAX_STAGE,
    RING,
    Collective,
    FlightRecorder,
    Recording,
    read_recording,
)
from fsdpfuzz.wire._imported import Accelerated, Look, Looked, Target
from fsdpfuzz.wire._machine import DEVICES, Backend, DeviceName, Machine
from fsdpfuzz.wire._protocol import (
    MAX_FRAME,
    Answer,
    Come,
    Failed,
    Frames,
    GarbageError,
    Order,
    Ready,
    Reply,
    Run,
    Setup,
    frame,
    order,
    reply,
)
from fsdpfuzz.wire._text import bounded

__all__ = [
    "DEVICES",
    "MAX_FRAME",
    "MAX_STAGE",
    "RING",
    "Accelerated",
    "Answer",
    "Backend",
    "Collective",
    "Come",
    "DeviceName",
    "Failed",
    "FlightRecorder",
    "Frames",
    "GarbageError",
    "Look",
    "Looked",
    "Machine",
    "Order",
    "Ready",
    "Recording",
    "Reply",
    "Run",
    "Setup",
    "Target",
    "bounded",
    "frame",
    "order",
    "read_recording",
    "reply",
]
