"""A checkpoint that another model loads: what it says, refuses and lowers to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Buffered,
    CaseSpec,
    Embedding,
    Forward,
    Linear,
    Optimizer,
    RequiresGrad,
    Sequential,
    Step,
    Tie,
    Tokens,
    ZeroGrad,
    anatomy,
    chain,
    check,
    features,
    lower,
)
from fsdpfuzz.case.operations.transfer import Transfer
from fsdpfuzz.case.recipe import Call, Do, Operation, literal
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from tests.unit.reduce.test_neighbours import assert_in_one_thing, things

LAYERS = ("0.weight", "0.bias", "1.weight", "1.bias")
TRAINED = (Forward(), Backward(), Step(), ZeroGrad(set_to_none=True))


def case(asked: Transfer, api: str = "fsdp2", **changes: Any) -> CaseSpec:
    plain = chain(api, (3, 4, 2), (0,), 4, (*TRAINED, asked))
    return msgspec.structs.replace(plain, **changes)


def calls(given: CaseSpec, who: str) -> dict[str, Call]:
    (operation,) = (
        s for s in lower(anatomy(given)).main if isinstance(s, Operation) and s.name == "transfer"
    )
    found = [
        (d.who, d.call) for d in operation.body if isinstance(d, Do) and isinstance(d.call, Call)
    ]
    return {str(made.function): made for whose, made in found if whose == who}


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize(
    ("asked", "made"),
    [
        (Transfer(), set()),
        (Transfer(ranks=2), {"steps.mesh.neighbours", ".get_group"}),
        (Transfer(into="fsdp2"), {"steps.transfer.fsdp2"}),
        (
            Transfer(into="fsdp1", ranks=1, state=True),
            {
                "steps.mesh.neighbours",
                ".get_group",
                "steps.transfer.fsdp1",
                "torch.optim.SGD",
                "steps.optim_state.forget",
            },
        ),
        (Transfer(into="ddp"), {"steps.transfer.ddp"}),
        (Transfer(compiled=True), {"steps.transfer.compiled"}),
    ],
    ids=["plain", "plain, two ranks", "fsdp2", "fsdp1, one rank, optimizer", "ddp", "compiled"],
)
def test_another_model_is_made_and_looked_at(asked: Transfer, made: set[str], api: str) -> None:
    given = case(asked, api)
    check(given)
    always = {
        "steps.rebuild.save",
        "steps.state_dict.blank",
        "steps.rebuild.load",
        "steps.transfer.parameters",
        "steps.transfer.state",
        "steps.optim_state.groups",
    }
    found = calls(given, "fsdp")
    assert found.keys() == always | made
    options = dict(found["steps.rebuild.load"].options)
    assert ("group" in options) is (asked.ranks is not None)
    plain = {"steps.full_params.taken", "steps.optim_state.groups"}
    plain |= {"steps.optim_state.taken"} if asked.state else set()
    assert calls(given, "reference").keys() == plain
    told = features(given)
    assert told["transferred"] == asked.into
    assert told["transferred_ranks"] == ("all" if asked.ranks is None else "fewer")
    assert told["transferred_state"] == ("on" if asked.state else "off")
    assert told["transferred_compiled"] == ("on" if asked.compiled else "off")
    assert told["transferred_together"] == "off"
    assert (told["stored"], told["rebuilt"]) == ("on", "no")


def test_a_tied_parameter_is_looked_at_once() -> None:
    layers = Sequential(children=(Embedding(rows=4, out=4), Linear(out=4, bias=False)))
    given = case(
        Transfer(),
        model=layers,
        inputs=Tokens(),
        ties=(Tie(source="0.weight", target="1.weight"),),
        plan=chain("fsdp2", (3, 4, 2), (), 2, ()).plan,
    )
    check(given)
    options = dict(calls(given, "fsdp")["steps.transfer.parameters"].options)
    assert options == {"second": literal(("1.weight",))}


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"program": (Forward(), Transfer())}, "$.program[1]"),
        ({"program": (Forward(sync=False), Backward(), Transfer())}, "$.program[2]"),
        ({"program": (Transfer(ranks=3),)}, "$.program[0].ranks"),
        ({"program": (Transfer(state=True),)}, "$.program[0].state"),
        ({"program": (Transfer(together=True),)}, "$.program[0].together"),
        (
            {"program": (Transfer(into="ddp", ranks=1),), "debug_level": "DETAIL"},
            "$.program[0].ranks",
        ),
        (
            {"program": (*TRAINED, Transfer(state=True)), "optimizer": None},
            "$.program[4].state",
        ),
        (
            {"program": (Transfer(into="ddp"),), "frozen": LAYERS},
            "$.program[0].into",
        ),
        (
            {
                "program": (
                    *TRAINED,
                    RequiresGrad(parameters=("0.weight",), value=False),
                    Transfer(state=True),
                )
            },
            "$.program[5].state",
        ),
        (
            {
                "model": Sequential(
                    children=(Linear(out=4), Buffered(persistent=False, updates=True))
                ),
                "plan": chain("fsdp2", (3, 4, 2), (), 2, ()).plan,
            },
            "$.program[4]",
        ),
    ],
    ids=[
        "pending",
        "unreduced",
        "groups",
        "no steps",
        "no state",
        "DDP",
        "no optimizer",
        "all frozen",
        "frozen",
        "buffer",
    ],
)
def test_what_it_does_not_go_with_is_named(changes: dict[str, Any], at: str) -> None:
    if "optimizer" in changes:
        changes["program"] = (Forward(), Backward(), *[ZeroGrad()] * 2, changes["program"][-1])
    with pytest.raises(CaseError) as caught:
        check(case(Transfer(), **changes))
    assert caught.value.path == at


def test_its_plainer_neighbours_lack_one_thing() -> None:
    asked = Transfer(into="fsdp1", ranks=2, state=True, together=True, compiled=True)
    given = case(asked, optimizer=Optimizer(name="adam", lr=0.01))
    found = [(s.case.program[-1], s.words) for s in Transfer.simpler(given)]
    assert found == [
        (msgspec.structs.replace(asked, ranks=None), "fewer ranks that load"),
        (
            msgspec.structs.replace(asked, state=False, together=False),
            "the optimizer's state in the checkpoint",
        ),
        (msgspec.structs.replace(asked, into="plain"), "a wrapper around what loads"),
        (msgspec.structs.replace(asked, compiled=False), "torch.compile of what loads"),
        (msgspec.structs.replace(asked, together=False), "one call for model and optimizer"),
    ]
    assert asked.words() == (
        "save, load as fsdp1 on 2 ranks and torch.compile by one call, with optimizer"
    )


def test_one_call_for_model_and_optimizer_goes_with_the_optimizers_state() -> None:
    given = case(Transfer(into="plain", state=True, together=True))
    check(given)
    assert_in_one_thing(given)
    told = {found.words: things(given, found.case) for found in simpler(given) if found.words}
    assert told["the optimizer's state in the checkpoint"] == {"program.state"}
    assert told["one call for model and optimizer"] == {"program.together"}
