"""Which collectives are asked for where units of fsdp2 are several modules, or told by hand."""

from __future__ import annotations

from fsdpfuzz.case import (
    Activation,
    Backward,
    Branches,
    Checkpoint,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Linear,
    Sequential,
)
from fsdpfuzz.case.modules import LayerDrop, SideOutput
from fsdpfuzz.case.operations import Reshard, SetReshard, Unshard
from fsdpfuzz.expect.traffic import Bounds
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


def test_a_unit_is_left_as_the_program_sets_it() -> None:
    told = SetReshard(unit="0", reshard=False)
    program = (Forward(), Backward(), told, Forward(), Backward())
    found = promised(second("0", ""), program)
    backwards = numbers({0: found[1], 1: found[4]})
    assert backwards == [once(SIX, TWELVE, TEN), once(TWELVE, TEN)]


def test_nothing_is_promised_of_an_older_root_whose_number_of_ranks_was_taken_back() -> None:
    plan = second("", reshard_after_forward=1)
    program = (Forward(), SetReshard(unit="", reshard=False), Backward(), Forward(), Backward())
    assert promised(plan, program, settled=False) == {}
    assert promised(second(""), program, settled=False)
    assert promised(plan, program)


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
    # Backward comes to the first of them last.
    assert found[1].early == ((FIVE, eighteen), ("reduce_scatter float32 10", eighteen))


def test_nothing_is_promised_once_forwards_of_one_backward_read_other_parameters() -> None:
    """fsdp2 reduces each time that a call of the unit is through what has a gradient by then."""
    two = LayerDrop(children=(Linear(out=2), Linear(out=2)), start=1)
    program = (Forward(), Forward(), Backward(), Forward())
    whole, inner = Fsdp2Plan(units=(Fsdp2Unit(path=""),)), Fsdp2Unit(path="layers.0")
    assert set(promised(whole, model=two, program=program)) == {0, 1}
    assert set(promised(whole, model=Sequential(children=two.children), program=program)) == {
        *range(4)
    }
    # Of two units each is read by one forward alone.
    apart = Fsdp2Plan(units=(Fsdp2Unit(path=""), inner, Fsdp2Unit(path="layers.1")))
    assert set(promised(apart, model=two, program=program)) == {*range(4)}


def test_a_root_that_manages_nothing_has_units_reduced() -> None:
    """Also where the last of a unit's modules puts out nothing that requires grad."""
    model = Branches(children=(Linear(out=3, bias=False), Gain()))
    units = Fsdp2Unit(path=""), Fsdp2Unit(path="branches.0", grouped=("branches.1",))
    found = promised(Fsdp2Plan(units=units), model=model, frozen=("branches.1.gain",))
    reduced = [text for text in found[1].numbers if text.startswith("reduce_scatter")]
    assert len(reduced) == 1
    assert found[1].numbers[reduced[0]] == Bounds(1, 1)


def test_what_nobody_has_finalized_is_found_by_the_next_forward() -> None:
    unreduced = (Forward(sync=False), Backward())
    frozen = ("0.weight", "0.bias")
    program = (*unreduced, Reshard(unit="0"), *unreduced, Forward(), Backward(), Forward())
    plan = second("0", "")
    usual = numbers(promised(plan, program, frozen=frozen))
    assert usual[2] == usual[4] == usual[6] == once(SIX, FIVE)
    for how in ("manual", "async"):
        found = numbers(promised(plan, program, frozen=frozen, finalization=how))
        assert found[:2] == usual[:2]
        # Backward gathers the frozen unit for nothing, and the next forward has it at once.
        assert found[2] == {SIX: "0 to 1", FIVE: "1"}
        # From then on the order holds the calls of several.
        assert found[3] == {SIX: "at least 0", FIVE: "at least 0"}
        assert found[4] == {SIX: "0 to 1", FIVE: "0 to 1"}
        # A backward that reduces is finalized.
        assert found[6] == usual[6]


def test_nothing_is_left_to_finalize_where_backward_comes_to_all_it_gathers() -> None:
    plan, program = second("0", "1", ""), (Forward(sync=False), Backward(), Forward(), Backward())
    found = numbers(promised(plan, program, finalization="manual"))
    assert found[:3] == numbers(promised(plan, program))[:3]
    assert found[3] == {SIX: "at least 1", FIVE: "at least 1", **once(TWELVE, TEN)}


def test_a_root_that_manages_nothing_ends_what_lies_beside_its_output() -> None:
    """Its output requires grad by a unit that belongs to no root."""
    side = SideOutput(body=Activation(), on="input")
    model = Sequential(children=(side, Linear(out=2, bias=False)))
    units = (Fsdp2Unit(path="1"), *(Fsdp2Unit(path=p, replicated=True) for p in ("", "0")))
    forward, backward = promised(Fsdp2Plan(units=units), model=model).values()
    assert str(backward.numbers["all_reduce float32 2"]) == "1"
    frozen = promised(Fsdp2Plan(units=units), model=model, frozen=("1.weight",))
    assert "all_reduce float32 2" not in frozen[1].numbers
    assert forward.numbers.keys() == {"all_gather float32 2"}
