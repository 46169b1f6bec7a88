"""``share_comm_ctx``: what it goes with, what FSDP is told, and where roots lose their order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Rebuild,
    Sequential,
    Step,
    anatomy,
    check,
    decode,
    encode,
    features,
    needs_of_torch,
)
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.operations import Apply, Interrupt
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYER = Linear(out=2, bias=False)
TWO = Sequential(children=(LAYER, LAYER))
ONE_OF_TWO = Sequential(children=(TWO, LAYER))
ONCE: tuple[Op, ...] = (Forward(), Backward(), Step())
LOOK: tuple[Op, ...] = (Forward(grad=False),)
NAMES = ("shared_order", "shared_recomputed", "shared_silent")


def sharing(*paths: str, shared: bool = True, **changes: Any) -> CaseSpec:
    given: dict[str, Any] = {"model": TWO, "program": ONCE, **changes}
    return make(fsdp2(*paths), share_comm_ctx=shared, **given)


def three(first: Op) -> CaseSpec:
    model = Sequential(children=(LAYER, LAYER, LAYER))
    return sharing("0", "1", "2", model=model, program=(first, *ONCE))


# What `replicate` copies is a root, and so is what lies in it: it has noted its call behind that.
REPLICATED_AROUND = msgspec.structs.replace(
    sharing("0", "0.1", "1", model=ONE_OF_TWO),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path="0", replicated=True), *fsdp2("0.1", "1").units)),
)


def test_it_goes_into_json_and_is_told() -> None:
    case = sharing("0", "1")
    check(case)
    assert decode(encode(case)) == case
    assert b"share_comm_ctx" not in encode(sharing("0", "1", shared=False))
    assert needs_of_torch(anatomy(case)) == ("share_comm_ctx()",)
    (dimension,) = [d for d in DIMENSIONS if d.name == "share_comm_ctx"]
    assert list(dimension.facts(case)) == [("streams", "shared by all roots")]


def test_all_roots_are_told_in_one_call() -> None:
    script = render(sharing("0", "0.1", "1", model=ONE_OF_TWO), None, Context())
    assert script.count("share_comm_ctx([model[0], model[1]])") == 1


def test_a_root_in_a_wrapper_is_told_itself() -> None:
    case = sharing("0", "1", checkpoints=(Checkpoint(path="1", side="around"),))
    script = render(case, None, Context())
    assert "share_comm_ctx([model[0], model[1]._checkpoint_wrapped_module])" in script


def test_nobody_is_told_where_there_is_one_root_later_on() -> None:
    whole = Rebuild(plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)))
    case = sharing("0", "1", program=(*ONCE, whole, *ONCE))
    check(case)
    assert render(case, None, Context()).count("share_comm_ctx([") == 1


def test_it_takes_several_roots_of_fsdp2() -> None:
    with pytest.raises(CaseError, match=r"two units at least .*\$\.plan|\$\.plan.*two units"):
        check(sharing("", "0"))
    with pytest.raises(CaseError, match="fsdp2 alone"):
        check(make(fsdp1("0", "1"), model=TWO, program=ONCE, share_comm_ctx=True))


def test_the_case_without_it_is_simpler() -> None:
    plain = msgspec.structs.replace(sharing("0", "1"), share_comm_ctx=False)
    assert plain in [neighbour.case for neighbour in simpler(sharing("0", "1"))]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # Who notes one call is the first in any order, and looks for nothing before it.
        (sharing("0", "1"), set()),
        (sharing("0", "0.1", "1", model=ONE_OF_TWO), {"shared_order"}),
        (sharing("0", "0.1", "1", model=ONE_OF_TWO, shared=False), set()),
        # The last root called has nobody to forget its calls.
        (sharing("0", "1", "1.0", model=Sequential(children=(LAYER, TWO))), set()),
        # Nothing is noted without grad, and all have begun by then.
        (sharing("0", "0.1", "1", model=ONE_OF_TWO, program=(*LOOK, *ONCE)), set()),
        (sharing("0", "0.1", "1", model=ONE_OF_TWO, program=(Apply(), *ONCE)), {"shared_order"}),
        # A part that is called before: its two calls are forgotten, unless a backward ends first.
        (sharing("0", "1", program=(Forward(target="0"), *ONCE)), {"shared_order"}),
        (sharing("0", "1", program=(Forward(target="0"), Backward(), *ONCE)), set()),
        # What an exception cuts short notes the units that had ended by then.
        (REPLICATED_AROUND, {"shared_order"}),
        (three(Interrupt(module="1")), {"shared_order"}),
        (three(Interrupt(module="1", done=True)), {"shared_order"}),
        (three(Interrupt(module="2")), set()),
        (three(Interrupt(module="2", done=True)), set()),
        (three(Interrupt(module="0")), set()),
        (
            sharing("0", "1", checkpoints=(Checkpoint(path="1", side="around", reentrant=True),)),
            {"shared_recomputed"},
        ),
        (sharing("0", "1", checkpoints=(Checkpoint(path="1", reentrant=True),)), set()),
        (sharing("0", "1", checkpoints=(Checkpoint(path="1", side="around"),)), set()),
        (sharing("0", "1", frozen=("0.weight",)), {"shared_silent"}),
        (sharing("0", "1", frozen=("0.weight",), shared=False), set()),
        # The other way round a gradient goes through it.
        (sharing("0", "1", frozen=("1.weight",)), set()),
    ],
)
def test_what_becomes_of_the_order_that_roots_share(case: CaseSpec, expected: set[str]) -> None:
    check(case)
    found = features(case)
    assert {name for name in NAMES if found[name] == "on"} == expected
