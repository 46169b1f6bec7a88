"""The optimizer's state dict: what may be asked for, what it calls, what is plainer."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Embedding,
    Forward,
    Idle,
    Linear,
    RequiresGrad,
    Sequential,
    Step,
    Tokens,
    ZeroGrad,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    lower,
)
from fsdpfuzz.case.operations import ClearGrad, Op, OptimState
from fsdpfuzz.case.recipe import MODEL, Do, Value, Variable, call, walk
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=3), Linear(out=2)))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
OPTIMIZER, SAVED, DEVICE = Variable("optimizer"), Variable("saved"), Variable("device")
EVERYTHING = OptimState(
    offload=True, broadcast=True, flatten=True, strict=False, ignore_frozen=True, fresh=True
)
OWN = OptimState(form="sharded", own=True, offload=True)


def asked(*ops: Op, api: str = "fsdp1", **changes: object) -> CaseSpec:
    plan = fsdp1("", "0") if api == "fsdp1" else fsdp2("", "0")
    made = make(plan, model=LAYERS, program=(*TRAIN, *ops, *TRAIN))
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("op", "api", "told"),
    [
        (OptimState(), "fsdp2", {"optim_state": "full", "optim_fresh": "off"}),
        (
            EVERYTHING,
            "fsdp2",
            {
                "optim_state": "full",
                "optim_offload": "on",
                "optim_broadcast": "on",
                "optim_flatten": "on",
                "optim_fresh": "on",
            },
        ),
        # A full state on the CPU is rank 0's alone, unless fsdp1's own API saves it.
        (OptimState(offload=True), "fsdp2", {"optim_offload": "on", "optim_broadcast": "on"}),
        (OptimState(own=True, offload=True), "fsdp1", {"optim_broadcast": "off"}),
        (OptimState(form="sharded", offload=True), "fsdp2", {"optim_broadcast": "off"}),
        (OWN, "fsdp1", {"optim_state": "sharded", "optim_own": "on", "optim_offload": "on"}),
    ],
)
def test_each_form_is_sound_and_seen(op: OptimState, api: str, told: dict[str, str]) -> None:
    case = asked(ZeroGrad(), op, api=api)
    check(case)
    assert decode(encode(case)) == case
    assert told.items() <= features(case).items()
    assert ("optim_own" in features(case)) is (api == "fsdp1")
    assert features(asked())["optim_state"] == "no"
    assert features(asked(OptimState(), OptimState(form="sharded")))["optim_state"] == "several"


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (asked(OWN, api="fsdp2"), ".own"),
        (asked(OptimState(own=True, flatten=True)), ".flatten"),
        (asked(OptimState(own=True, strict=False)), ".strict"),
        (asked(OptimState(own=True, ignore_frozen=True)), ".ignore_frozen"),
        (asked(OptimState(form="sharded", broadcast=True)), ".broadcast"),
        (asked(OptimState(fresh=True)), ".fresh"),
    ],
)
def test_what_the_api_does_not_have_is_named(wrong: CaseSpec, at: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    assert caught.value.path == f"$.program[3]{at}"


def test_it_stands_between_iterations_of_an_optimizer() -> None:
    pending = (Forward(), OptimState(), Backward(), Step())
    unreduced = (Forward(sync=False), Backward(), OptimState(), Forward(), Backward(), Step())
    for program in (pending, unreduced, (Forward(), Backward(), OptimState())):
        assert not is_sound(asked(program=program))
    assert not is_sound(asked(OptimState(), optimizer=None))
    kept = ZeroGrad(set_to_none=False)
    assert not is_sound(asked(kept, OptimState(fresh=True)))
    assert is_sound(asked(kept, OptimState()))


def test_strict_asks_for_a_state_of_every_parameter() -> None:
    unused = Sequential(children=(Idle(), Linear(out=2)))
    frozen = ("0.idle.weight", "0.idle.bias")
    for op, sound in ((OptimState(), False), (OptimState(strict=False), True)):
        assert is_sound(asked(op, model=unused, plan=fsdp2(""))) is sound
        assert is_sound(asked(op, model=unused, plan=fsdp2(""), frozen=frozen))
        changed = (RequiresGrad(parameters=("0.weight",), value=False), *TRAIN, op, *TRAIN)
        assert is_sound(asked(*changed, api="fsdp2")) is sound
        dropped = (*TRAIN[:2], ClearGrad(parameters=("0.weight",)), Step(), op)
        assert is_sound(asked(*dropped, api="fsdp2")) is sound
    assert is_sound(asked(OptimState(own=True), model=unused, plan=fsdp1("")))


def calls(case: CaseSpec) -> list[tuple[str, Value, tuple[object, ...]]]:
    """Who calls what at the operation, and where it goes."""
    found = [s for s in walk(lower(anatomy(case)).main) if getattr(s, "name", "") == "optim_state"]
    (operation,) = found
    return [
        (do.who, do.call, do.into)
        for do in walk(operation.body)  # type: ignore[union-attr]
        if isinstance(do, Do)
    ]


DCP = "torch.distributed.checkpoint.state_dict"


def given(**options: Value) -> dict[str, Value]:
    return {"options": call(f"{DCP}.StateDictOptions", **options)}


def seen(rank0: bool) -> list[tuple[str, Value, tuple[object, ...]]]:
    """What is saved and what the plain model's optimizer has, as they are compared."""
    room, named = "steps.optim_state", Variable("named")
    into, options = (Variable("optim_state"),), (Variable("optim_options"),)
    return [
        ("fsdp", call(f"{room}.table", SAVED, False, rank0, DEVICE), into),
        ("reference", call(f"{room}.taken", OPTIMIZER, named), into),
        ("fsdp", call(f"{room}.options", SAVED, False, rank0, DEVICE), options),
        ("reference", call(f"{room}.given", OPTIMIZER, named), options),
    ]


FORGET = ("fsdp", call("steps.optim_state.forget", OPTIMIZER), ())
LOADED = (
    "both",
    call("steps.optim_state.numbers", OPTIMIZER, Variable("named")),
    (Variable("optim_loaded"),),
)


def test_state_is_taken_compared_lost_and_loaded() -> None:
    options = given(full_state_dict=True)
    assert calls(asked(OptimState(), api="fsdp2")) == [
        ("fsdp", call(f"{DCP}.get_optimizer_state_dict", MODEL, OPTIMIZER, **options), (SAVED,)),
        *seen(False),
        FORGET,
        ("fsdp", call(f"{DCP}.set_optimizer_state_dict", MODEL, OPTIMIZER, SAVED, **options), ()),
        LOADED,
        ("both", call("steps.optim_state.gradients", None), (Variable("gradients_left"),)),
    ]


def test_what_rank_0_alone_has_is_broadcast_into_a_new_optimizer() -> None:
    case = asked(ZeroGrad(), OptimState(offload=True, fresh=True), api="fsdp2")
    options = given(full_state_dict=True, cpu_offload=True)
    assert case.optimizer is not None
    made = case.optimizer.made(call(".parameters", MODEL))
    told = given(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
    assert calls(case) == [
        ("fsdp", call(f"{DCP}.get_optimizer_state_dict", MODEL, OPTIMIZER, **options), (SAVED,)),
        *seen(True),
        ("fsdp", made, (OPTIMIZER,)),
        FORGET,
        ("fsdp", call(f"{DCP}.set_optimizer_state_dict", MODEL, OPTIMIZER, SAVED, **told), ()),
        LOADED,
        ("both", call("steps.optim_state.gradients", OPTIMIZER), (Variable("gradients_left"),)),
    ]


def test_fsdp1_has_an_api_of_its_own() -> None:
    room = "steps.optim_state"
    first, *_, last, _, _ = calls(asked(OWN))
    assert first == (
        "fsdp",
        call(f"{room}.save_own", MODEL, OPTIMIZER, False, offload=True),
        (SAVED,),
    )
    assert last == ("fsdp", call(f"{room}.load_own", MODEL, OPTIMIZER, SAVED, False), ())
    first, second, *_, last, _, _ = calls(asked(OptimState(own=True, broadcast=True)))
    assert first[1] == call(f"{room}.save_own", MODEL, OPTIMIZER, True, rank0=True)
    assert second[1] == call(f"{room}.table", SAVED, False, True, DEVICE)
    assert last[1] == call(f"{room}.load_own", MODEL, OPTIMIZER, SAVED, True, rank0=True)


def test_plainer_neighbours() -> None:
    def ops(case: CaseSpec) -> list[tuple[Op, str]]:
        return [
            (next(op for op in s.case.program if isinstance(op, OptimState)), s.words)
            for s in OptimState.simpler(case)
        ]

    replace = msgspec.structs.replace
    assert ops(asked(ZeroGrad(), EVERYTHING, api="fsdp2")) == [
        (replace(EVERYTHING, offload=False), "optimizer state to CPU"),
        (replace(EVERYTHING, broadcast=False), "optimizer state broadcast"),
        (replace(EVERYTHING, flatten=False), "optimizer state flattened"),
        (replace(EVERYTHING, ignore_frozen=False), "optimizer state ignore frozen"),
        (replace(EVERYTHING, fresh=False), "optimizer state into a new optimizer"),
        (replace(EVERYTHING, strict=True), "optimizer state strict=False"),
    ]
    assert [op for op, _ in ops(asked(OWN))] == [
        replace(OWN, own=False),
        replace(OWN, offload=False),
        replace(OWN, form="full"),
    ]
    assert ops(asked(OptimState())) == []


def test_words() -> None:
    assert OptimState().words() == "optimizer state, full"
    assert OWN.words() == "optimizer state, sharded, fsdp1's own, to CPU"
    assert EVERYTHING.words() == (
        "optimizer state, full, to CPU, broadcast, flattened, ignore frozen, "
        "into a new optimizer, not strict"
    )


def test_strict_where_a_reentrant_checkpoint_leaves_out_gradients() -> None:
    """Only where no input requires grad: not behind an embedding that is trained."""
    model = Sequential(children=(Embedding(rows=2, out=1), Linear(out=1)))
    checkpoints = (Checkpoint(path="1", reentrant=True),)
    case = msgspec.structs.replace(
        asked(OptimState(), api="fsdp2"),
        model=model,
        inputs=Tokens(batch=1, length=2),
        plan=fsdp2(""),
        checkpoints=checkpoints,
    )
    check(case)
    with pytest.raises(CaseError, match="a parameter may have no state, which strict asks for"):
        check(msgspec.structs.replace(case, frozen=("0.weight",)))
