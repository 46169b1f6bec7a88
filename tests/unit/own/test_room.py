"""A model that will not fit into memory is refused with the figures."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Imported, ImportedModule, ImportedParameter
from fsdpfuzz.errors import MachineError
from fsdpfuzz.own._room import available_memory, room_for


def model(width: int) -> Imported:
    weight = ImportedParameter(name="weight", shape=(width, width))
    tied = ImportedParameter(name="again", shape=(width, width), tied="weight")
    root = ImportedModule(path="", cls="Net", alone=True, parameters=(weight, tied))
    return Imported(target="mine.py", modules=(root,))


def test_of_a_small_one_nothing_is_said() -> None:
    assert room_for(model(100), 2, available=1) == ""


def test_what_it_takes_is_said() -> None:
    said = room_for(model(3000), 2, available=24 << 30)
    assert said == (
        "your model has 9.0 million parameters, which take about 5.0 GiB on 2 ranks, of 24.0 GiB "
        "that are free"
    )


def test_what_will_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(MachineError, match=r"100\.0 million .* 55\.9 GiB on 2 .* 24\.0 GiB are"):
        room_for(model(10_000), 2, available=24 << 30)
    assert "1 rank," in room_for(model(6_000), 1, available=24 << 30)


def test_this_machine_says_what_is_free() -> None:
    assert available_memory() > 1 << 20
