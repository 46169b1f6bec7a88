"""Models on the meta device: what goes together, and what is done before and after wrapping."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Activation,
    Backward,
    Buffered,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Op,
    Optimizer,
    Plan,
    Rebuild,
    Sequential,
    Step,
    Tie,
    Tokens,
    Transformer,
    anatomy,
    as_document,
    check,
    decode,
    digest,
    encode,
    features,
    foreseen_rejections,
    lower,
    needs_gloo,
    needs_gpu,
)
from fsdpfuzz.case.meta_init import WAYS, By, MetaInit
from fsdpfuzz.case.recipe import Call, Do, Variable
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp1, fsdp2, make

ONCE: tuple[Op, ...] = (Forward(), Backward(), Step())
PLANS: dict[str, Plan] = {"fsdp1": fsdp1("", "2"), "fsdp2": fsdp2("", "2")}
MODEL = Sequential(children=(Linear(out=3), Buffered(persistent=False), Linear(out=3)))
EACH = [(api, way) for api, ways in WAYS.items() for way in ways]
each = pytest.mark.parametrize(("api", "by"), EACH)


def having(api: str, by: By, part: str = "") -> CaseSpec:
    case = make(PLANS[api], model=MODEL, program=ONCE)
    return msgspec.structs.replace(case, meta_init=MetaInit(by=by, part=part))


def done(case: CaseSpec) -> list[str]:
    """What `shard` calls in FSDP's training alone, in order."""
    body = lower(anatomy(case)).procedure("shard").body
    return [
        str(do.call.function).rpartition(".")[2]
        for do in body
        if isinstance(do, Do) and isinstance(do.call, Call) and do.who == "fsdp"
    ]


@each
@pytest.mark.parametrize("part", ["", "2"])
def test_it_goes_into_json_and_into_a_script(api: str, by: By, part: str) -> None:
    case = having(api, by, part)
    plain = msgspec.structs.replace(case, meta_init=None)
    check(case)
    script = render(case, None, Context())
    compile(script, "repro.py", "exec")
    assert 'to("meta")' in script
    assert decode(encode(case)) == case
    assert digest(case) != digest(plain)
    assert "meta_init" not in as_document(plain)
    assert features(case) == features(plain) | {
        "meta_init": by,
        "meta_part": "on" if part else "off",
    }


@pytest.mark.parametrize(
    ("by", "after"),
    [
        ("reset_parameters", ["reset"]),
        ("full_state_dict", ["load", "unsaved"]),
        ("broadcast", ["load", "unsaved"]),
        ("assign", ["assign", "unsaved"]),
        ("never", []),
    ],
)
def test_units_of_fsdp2_are_made_in_between(by: By, after: list[str]) -> None:
    assert done(having("fsdp2", by)) == ["on_meta", "fully_shard", "fully_shard", *after]


@pytest.mark.parametrize(
    ("by", "before"),
    [
        ("reset_parameters", "resettable"),
        ("param_init_fn", "param_init_fn"),
        ("sync_module_states", "to_empty"),
    ],
)
def test_units_of_fsdp1_materialise_while_they_are_made(by: By, before: str) -> None:
    case = having("fsdp1", by)
    wraps = ["FullyShardedDataParallel"] * 2
    assert done(case) == ["on_meta", before, *wraps]
    policy = Fsdp1Plan(units=case.plan.units, wrap="custom_policy")  # type: ignore[arg-type]
    for plan in (case.plan, policy):
        body = lower(anatomy(msgspec.structs.replace(case, plan=plan))).procedure("shard").body
        made = [do.call for do in body if isinstance(do, Do) and isinstance(do.call, Call)]
        told = [Variable("param_init_fn") in dict(one.options).values() for one in made]
        assert told.count(True) == (0 if by == "reset_parameters" else 1 + (plan is case.plan))


def test_only_what_no_state_dict_has_is_set_by_hand() -> None:
    assert "unsaved" in done(having("fsdp2", "assign", part="1"))
    assert "unsaved" not in done(having("fsdp2", "assign", part="2"))
    saved = Sequential(children=(Linear(out=3), Buffered(), Linear(out=3)))
    case = msgspec.structs.replace(having("fsdp2", "assign"), model=saved)
    assert "unsaved" not in done(case)


@each
def test_the_model_given_is_what_values_are_taken_from(api: str, by: By) -> None:
    first, second = lower(anatomy(having(api, by))).procedure("shard").body[:2]
    assert isinstance(first, Do)
    assert isinstance(second, Do)
    assert (first.call, first.into) == (Variable("model"), (Variable("plain"),))
    assert second.into == (Variable("model"),)


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({"meta_init": MetaInit(part="7")}, "part", "no module '7'"),
        ({"meta_init": MetaInit(part="3")}, "part", "nothing to be materialised"),
        ({"ties": (Tie(source="0.bias", target="2.bias"),)}, "$.meta_init", "tied"),
        (
            {"model": Transformer(rows=3, width=2, heads=1, hidden=2), "inputs": Tokens()},
            "$.meta_init",
            "tied",
        ),
        ({"meta_init": MetaInit(by="never"), "program": (Mode(train=False), *ONCE)}, "by", "error"),
        ({"meta_init": MetaInit(by="never"), "plan": fsdp2("2")}, "by", "error"),
        ({"meta_init": MetaInit(by="never", part="1")}, "by", "error"),
    ],
)
def test_what_contradicts_itself(changes: dict[str, object], path: str, text: str) -> None:
    model = Sequential(children=(Linear(out=3), Buffered(), Linear(out=3), Activation()))
    plain = make(fsdp2(""), model=model, program=ONCE, optimizer=Optimizer(foreach=False))
    sound = msgspec.structs.replace(plain, meta_init=MetaInit(by="assign"))
    check(sound)
    with pytest.raises(CaseError, match=text) as caught:
        check(msgspec.structs.replace(sound, **changes))
    assert path in caught.value.path


ALONE = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored=("2",)), Fsdp1Unit(path="0")))
SINGLE = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored_parameters=("2.bias",)), Fsdp1Unit(path="0")))
BUFFER = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored=("1",)), Fsdp1Unit(path="0")))
AGAIN = (*ONCE, Rebuild(plan=fsdp1("0")))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"plan": ALONE}, "2.bias"),
        ({"plan": SINGLE}, "2.bias"),
        ({"plan": BUFFER}, "1.scale"),
        ({"plan": fsdp1("0")}, "1.scale"),
        ({"program": AGAIN}, "1.scale"),
    ],
)
def test_fsdp1_materialises_only_what_it_manages(changes: dict[str, object], left: str) -> None:
    """Under every plan that the program comes to; a part of it may be on the meta device."""
    case = msgspec.structs.replace(having("fsdp1", "param_init_fn"), **changes)
    with pytest.raises(CaseError, match=f"does not materialise '{left}'"):
        check(case)
    check(msgspec.structs.replace(case, meta_init=MetaInit(part="0")))


@pytest.mark.parametrize(
    "changes", [{"plan": fsdp1("")}, {"program": (*ONCE, Rebuild(plan=fsdp1("")))}]
)
def test_a_unit_of_fsdp1_is_on_one_device(changes: dict[str, object]) -> None:
    """On GPUs it refuses one that is partly on the meta device."""
    whole, part = having("fsdp1", "reset_parameters"), having("fsdp1", "reset_parameters", "2")
    check(part)
    check(msgspec.structs.replace(whole, **changes))
    with pytest.raises(CaseError, match="no unit that is partly on the meta device, as '' is"):
        check(msgspec.structs.replace(part, **changes))
    check(msgspec.structs.replace(having("fsdp2", "assign", "2"), plan=fsdp2("")))


def test_each_api_has_its_own_ways() -> None:
    for api, ways in WAYS.items():
        for by in {way for _, way in EACH} - set(ways):
            with pytest.raises(CaseError, match=f"{api} has no by='{by}'"):
                check(having(api, by))


def test_rank_0_keeps_what_it_sends() -> None:
    case = having("fsdp1", "sync_module_states")
    body = lower(anatomy(case)).procedure("shard").body
    (made,) = [do for do in body if isinstance(do, Do) and do.ranks is not None]
    assert made.ranks == (1,)
    assert made.into == (Variable("model"),)
    assert "GPU" in needs_gpu(anatomy(case))
    assert needs_gpu(anatomy(having("fsdp1", "param_init_fn"))) == ""


@each
def test_the_refusal_is_asked_for_where_nothing_is_materialised(api: str, by: By) -> None:
    names = [rejection.name for rejection in foreseen_rejections(anatomy(having(api, by)))]
    assert names == (["fsdp2_left_on_meta"] if by == "never" else [])


@each
def test_on_a_gpu_what_is_offloaded_would_be_materialised_elsewhere(api: str, by: By) -> None:
    """As ``_validate_cpu_offload_params`` of torch has it for fsdp2."""
    case = having(api, by)
    assert needs_gloo(anatomy(case)) == ""
    offloaded: Plan = Fsdp2Plan(units=(Fsdp2Unit(path="", cpu_offload=True),))
    if api == "fsdp1":
        offloaded = Fsdp1Plan(units=(Fsdp1Unit(path="", cpu_offload=True),))
    needs = needs_gloo(anatomy(msgspec.structs.replace(case, plan=offloaded)))
    assert ("on the CPU" in needs) is (api == "fsdp2")


@each
def test_it_gets_plainer_and_goes_away(api: str, by: By) -> None:
    case = having(api, by, "2")
    left = [neighbour.case.meta_init for neighbour in simpler(case)]
    earlier = WAYS[case.api][: WAYS[case.api].index(by)]
    assert None in left
    assert MetaInit(by=by) in left
    assert {asked.by for asked in left if asked and asked.part == "2"} == {by, *earlier}
