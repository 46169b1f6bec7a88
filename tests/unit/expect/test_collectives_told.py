"""Which collectives are asked for where units of fsdp2 are several modules, or told by hand."""

from __future__ import annotations

from fsdpfuzz.case import (
    Backward,
    Checkpoint,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
)
from fsdpfuzz.case.operations import Reshard, Unshard
from tests.unit.expect.test_collectives import (
    FIVE,
    SIX,
    TEN,
    TWELVE,
    numbers,
    once,
    promised,
    second,
)


def test_a_unit_is_found_as_it_was_left_by_hand() -> None:
    by_hand = (Unshard(unit="0"), Forward(), Reshard(unit=""), Backward())
    forward, backward = promised(second("0", ""), by_hand).values()
    assert numbers({0: forward, 1: backward}) == [once(FIVE), once(SIX, FIVE, TWELVE, TEN)]
    fewer = second("0", "", reshard_after_forward=2)
    wide = (Forward(), Reshard(unit="0"), Backward())
    four = promised(fewer, wide, world_size=4)
    assert "all_gather float32 3" in four[2].numbers
    assert "all_gather float32 6" not in four[2].numbers


def test_several_modules_of_a_unit_are_gathered_and_reduced_as_one() -> None:
    three = Sequential(children=(Linear(out=4), Linear(out=2), Linear(out=2)))
    grouped = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", grouped=("2",))))
    nine, eighteen = "all_gather float32 9", "reduce_scatter float32 18"
    found = promised(grouped, model=three)
    assert numbers(found) == [once(nine, FIVE), once(nine, eighteen, TEN)]
    assert found[0].order == (FIVE, nine)
    again = Checkpoint(path="2")
    assert promised(grouped, model=three, checkpoints=(again,)) == {}


def test_a_unit_of_several_modules_ends_with_the_last_of_them() -> None:
    three = Sequential(children=(Linear(out=4), Linear(out=2), Linear(out=2)))
    inner = Fsdp2Unit(path="0", grouped=("2",))
    grouped = Fsdp2Plan(units=(Fsdp2Unit(path=""), inner, Fsdp2Unit(path="1")))
    nine, eighteen = "all_gather float32 9", "reduce_scatter float32 18"
    found = promised(grouped, model=three)
    assert found[0].order == (nine, FIVE)
    assert found[1].early == ((FIVE, eighteen),)
