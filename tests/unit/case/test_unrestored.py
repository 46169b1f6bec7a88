"""Which checkpoints recompute with random numbers that nobody has kept."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Checkpoint, Dropout, Linear, Node, Sequential, features
from fsdpfuzz.case.modules import Keyed
from tests.unit.case.test_units import fsdp2, make

KEYED = Keyed(body=Dropout(p=0.1))


@pytest.mark.parametrize(
    ("node", "checkpoint", "expected"),
    [
        (KEYED, Checkpoint(path="1.inner"), "on"),
        (KEYED, Checkpoint(path="1.inner", kind="function"), "on"),
        # Whose input comes by position.
        (KEYED, Checkpoint(path="1"), "off"),
        (Keyed(body=Dropout(p=0.1), added=True), Checkpoint(path="1.inner"), "off"),
        # Which packs keywords into positions.
        (KEYED, Checkpoint(path="1.inner", reentrant=True), "off"),
        # Nothing is recomputed, and nothing random.
        (KEYED, Checkpoint(path="1.inner", kind="offload"), "off"),
        (Keyed(body=Linear(out=4)), Checkpoint(path="1.inner"), "off"),
    ],
)
def test_it_is_told_of_random_numbers_behind_keywords(
    node: Node, checkpoint: Checkpoint, expected: str
) -> None:
    model = Sequential(children=(Linear(out=4), node))
    case = make(fsdp2(""), model=model, checkpoints=(checkpoint,))
    assert features(case)["unrestored"] == expected
