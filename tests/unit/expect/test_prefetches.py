"""What lists of units to prefetch change in the order of collectives, on three layers."""

from __future__ import annotations

from fsdpfuzz.case import Fsdp2Plan, Fsdp2Unit, Linear, Sequential
from tests.unit.expect.test_collectives import numbers, promised

CHAIN = Sequential(children=(Linear(out=4), Linear(out=2), Linear(out=6)))
FIRST, SECOND, THIRD = (f"all_gather float32 {n}" for n in (6, 5, 9))


def plan(forward: tuple[str, ...] = (), backward: tuple[str, ...] = ()) -> Fsdp2Plan:
    """A unit a layer; the first is told what to prefetch in forward, the last in backward."""
    return Fsdp2Plan(
        units=(
            Fsdp2Unit(path=""),
            Fsdp2Unit(path="0", prefetched_in_forward=forward),
            Fsdp2Unit(path="1"),
            Fsdp2Unit(path="2", prefetched_in_backward=backward),
        )
    )


def test_a_forward_list_is_gathered_behind_the_unit_that_has_it() -> None:
    found = promised(plan(("2", "1")), model=CHAIN)
    assert found[0].order == (FIRST, THIRD, SECOND)
    assert numbers(found) == numbers(promised(plan(), model=CHAIN))


def test_a_backward_list_replaces_the_unit_before() -> None:
    reduced = "reduce_scatter float32"
    third = f"{reduced} 18"
    usual = ((FIRST, f"{reduced} 10"), (SECOND, third))
    assert promised(plan(), model=CHAIN)[1].early == usual
    early = promised(plan(backward=("0",)), model=CHAIN)[1].early
    assert early == ((FIRST, f"{reduced} 10"), (FIRST, third))


def test_nothing_is_promised_where_the_list_comes_too_late() -> None:
    late = Fsdp2Plan(
        units=(
            Fsdp2Unit(path=""),
            Fsdp2Unit(path="0", prefetched_in_backward=("1",)),
            Fsdp2Unit(path="1", prefetched_in_forward=("0",)),
        )
    )
    assert promised(late, model=CHAIN) == {}
    root = Fsdp2Unit(path="", prefetched_in_forward=("1",))
    bare = Fsdp2Plan(units=(root, *(Fsdp2Unit(path=path) for path in ("0", "1", "2"))))
    assert promised(bare, model=CHAIN) == {}
    backward = Fsdp2Plan(units=(*late.units[:2], Fsdp2Unit(path="1")))
    assert [*promised(backward, model=CHAIN)] == [0]
