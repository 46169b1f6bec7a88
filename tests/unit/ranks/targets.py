"""Files with code of somebody's own, and what is found out about them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fsdpfuzz.case import Imported
from fsdpfuzz.ranks._imported_probe import look
from fsdpfuzz.wire import Look, Looked, Target

HEAD = """
import torch
from torch import nn
calls = [0]
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
def batch(step, rank):
    return torch.randn(2, 3)
"""


def looked(folder: Path, text: str, rank: int = 0, part: str = "") -> Looked:
    name = f"own_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(text)
    target = Target(name=f"{name}.py", folder=str(folder), part=part)
    return look(Look(target=target, rank=rank, world_size=2))


def structure(folder: Path, text: str) -> Imported:
    found = looked(folder, text)
    assert not found.trouble, found.trace
    return msgspec.json.decode(found.model, type=Imported)
