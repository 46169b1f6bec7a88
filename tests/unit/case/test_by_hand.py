"""`unshard` and `reshard`: what they say, refuse and lower to, and what is plainer."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Plan,
    Sequential,
    Step,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    lower,
)
from fsdpfuzz.case.operations import Reshard, Unshard
from fsdpfuzz.case.recipe import MODEL, Call, Do, Inside, Operation
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler

SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0")))
FIRST = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
WAITED = Unshard(unit="0", async_op=True, wait=True)


def case(*program: Op, plan: Plan = SECOND, around: str | None = None) -> CaseSpec:
    placed = () if around is None else (Checkpoint(path=around, kind="offload", side="around"),)
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=2), Linear(out=2))),
        inputs=Dense(width=2),
        plan=plan,
        program=program,
        checkpoints=placed,
    )


def calls(given: CaseSpec, op: int) -> list[tuple[object, tuple[object, ...]]]:
    """The methods that FSDP's part of an operation calls."""
    operation = lower(anatomy(given)).main[-len(given.program) + op]
    assert isinstance(operation, Operation)
    dos = [do for do in operation.body if isinstance(do, Do)]
    assert {do.who for do in dos} == {"fsdp"}
    return [(do.call.function, do.call.args) for do in dos if isinstance(do.call, Call)]


def test_a_unit_is_gathered_and_sharded_by_its_own_methods() -> None:
    given = case(WAITED, Forward(), Reshard(unit=""), Backward(), Step())
    check(given)
    assert decode(encode(given)) == given
    assert [name for name, _ in calls(given, 0)] == [".unshard", ".wait"]
    assert calls(given, 2) == [(".reshard", (MODEL,))]
    seen = features(given)
    assert (seen["unsharded"], seen["resharded"]) == ("waited", "before backward")
    wrapped = case(Unshard(unit="0"), Forward(), Backward(), around="0")
    inner = Inside("model", "0._checkpoint_wrapped_module")
    assert calls(wrapped, 0) == [(".unshard", (inner,))]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (case(Unshard(unit="0"), Step(), Forward(), Backward()), "comes next"),
        (case(Unshard(unit="0"), Forward(grad=False)), "comes next"),
        (case(Unshard(unit="0"), Forward(target="0"), Backward()), "comes next"),
        (case(Forward(), Backward(), Unshard(unit="0")), "comes next"),
        (case(Unshard(unit="1"), Forward(), Backward()), "has no unit '1'"),
        (case(Unshard(unit="0", wait=True), Forward(), Backward()), "nothing to wait for"),
        (case(Unshard(unit=""), Forward(), Backward(), plan=FIRST), "fsdp2 alone"),
        (case(Reshard(unit=""), plan=FIRST), "fsdp2 alone"),
        (case(Reshard(unit="1")), "has no unit '1'"),
    ],
)
def test_what_contradicts_itself_is_refused(given: CaseSpec, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        check(given)


def test_programs_without_them_are_plainer() -> None:
    given = case(WAITED, Forward(), Reshard(unit="0"), Backward())
    sound = [s for s in simpler(given) if is_sound(s.case)]
    assert "waiting for an unshard" in {s.words for s in sound}
    programs = [s.case.program for s in sound]
    begun = (Unshard(unit="0", async_op=True), *given.program[1:])
    assert begun in programs
    assert (Unshard(unit="0"), *given.program[1:]) in [
        s.case.program for s in simpler(case(*begun)) if s.words == "async_op"
    ]
    assert given.program[1:] in programs
    assert (WAITED, Forward(), Backward()) in programs
