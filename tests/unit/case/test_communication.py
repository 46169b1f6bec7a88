"""What units are told of how they communicate, and what the plain model does about it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Precision,
    Rebuild,
    Repeat,
    RequiresGrad,
    Sequential,
    Sharding,
    ZeroGrad,
    anatomy,
    chain,
    check,
    features,
    foreseen_rejections,
    lower,
    unit_features,
)
from fsdpfuzz.case.communication import CommHook, Communication, CommunicationDimension
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.recipe import MODEL, Call, Do, Global, Inside
from fsdpfuzz.errors import CaseError


def case(told: Communication, api: str = "fsdp2") -> CaseSpec:
    plain = chain(api, (3, 4, 2), (0,), 2, ITERATION)
    return msgspec.structs.replace(plain, communication=told)


@pytest.mark.parametrize(
    ("told", "calls", "communication", "hook"),
    [
        (
            Communication(own=True),
            [".set_custom_all_gather", ".set_custom_reduce_scatter"],
            "own",
            "off",
        ),
        (
            Communication(allocated=True),
            [".set_allocate_memory_from_process_group_for_comm"],
            "allocated",
            "off",
        ),
        (Communication(hooked=True), [".set_all_reduce_hook"], "default", "on"),
    ],
)
def test_each_unit_is_told(
    told: Communication, calls: list[str], communication: str, hook: str
) -> None:
    given = case(told)
    check(given)
    found = features(given)
    assert (found["communication"], found["all_reduce_hook"]) == (communication, hook)
    recipe = lower(anatomy(given))
    body = [s.call for s in recipe.procedure("shard").body if isinstance(s, Do)]
    names = [c.function for c in body if isinstance(c, Call)]
    assert names[-2 * len(calls) :] == calls * 2
    main = [s for s in recipe.main if isinstance(s, Do) and isinstance(s.call, Call)]
    scaled = [s.who for s in main if s.call.function == "steps.averaging.scaled"]  # type: ignore[union-attr]
    assert scaled == ["reference"] * told.hooked


@pytest.mark.parametrize(
    ("told", "api", "at"),
    [
        (Communication(own=True), "fsdp1", ""),
        (Communication(comm_hook="own", hooked=True), "fsdp1", ""),
        (Communication(comm_hook="own", again="1"), "fsdp1", ".again"),
        (Communication(comm_hook="own"), "fsdp2", ".comm_hook"),
        (Communication(), "fsdp2", ""),
        (Communication(own=True, allocated=True), "fsdp2", ".allocated"),
    ],
)
def test_what_it_does_not_go_with_is_named(told: Communication, api: str, at: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(case(told, api))
    assert caught.value.path == f"$.communication{at}"


def test_one_thing_less_is_plainer() -> None:
    both = case(Communication(own=True, hooked=True))
    found = [(s.case.communication, s.words) for s in CommunicationDimension().simpler(both)]
    assert found == [
        (Communication(hooked=True), "set_custom_all_gather and set_custom_reduce_scatter"),
        (Communication(own=True), "set_all_reduce_hook"),
    ]
    facts = list(CommunicationDimension().facts(both))
    assert facts == [("communication", "own collectives, gradients halved")]


def hooked(told: Communication, *sharding: Sharding, **changes: Any) -> CaseSpec:
    """With a root, and an inner unit if a second strategy is given."""
    given_to = zip(("", "0"), sharding, strict=False)
    units = tuple(Fsdp1Unit(path=path, sharding=strategy) for path, strategy in given_to)
    given = chain("fsdp1", (3, 4, 2), (0,), 2, ITERATION)
    return msgspec.structs.replace(
        given, plan=Fsdp1Plan(units=units), communication=told, **changes
    )


def registered(given: CaseSpec) -> list[Call]:
    body = lower(anatomy(given)).procedure("shard").body
    made = [s.call for s in body if isinstance(s, Do) and isinstance(s.call, Call)]
    return [c for c in made if str(c.function).endswith((".register", ".register_default"))]


@pytest.mark.parametrize(("kind", "options"), [("own", ()), ("halving", (("halves", True),))])
def test_a_hook_is_registered_on_the_root(kind: CommHook, options: tuple[Any, ...]) -> None:
    given = hooked(Communication(comm_hook=kind), "FULL_SHARD", "NO_SHARD")
    check(given)
    assert features(given)["comm_hook"] == kind
    (made,) = registered(given)
    assert made == Call("steps.fsdp1.communication.register", (MODEL,), options)
    main = [s for s in lower(anatomy(given)).main if isinstance(s, Do)]
    scaled = [s for s in main if getattr(s.call, "function", "") == "steps.averaging.scaled"]
    assert len(scaled) == (kind == "halving")


def test_each_root_has_its_own() -> None:
    given = hooked(Communication(comm_hook="own"), "FULL_SHARD")
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="1")))
    two = msgspec.structs.replace(given, plan=plan)
    assert [made.args for made in registered(two)] == [
        (Inside("model", "0"),),
        (Inside("model", "1"),),
    ]


@pytest.mark.parametrize(
    ("sharding", "hook"),
    [("SHARD_GRAD_OP", "reduce_scatter_hook"), ("NO_SHARD", "allreduce_hook")],
)
def test_the_library_has_one_for_what_is_sharded(sharding: Sharding, hook: str) -> None:
    given = hooked(Communication(comm_hook="library"), sharding, sharding)
    check(given)
    (made,) = registered(given)
    assert made.args[1] == Global(f"torch.distributed.algorithms._comm_hooks.default_hooks.{hook}")
    mixed = hooked(Communication(comm_hook="library"), "FULL_SHARD", "NO_SHARD")
    with pytest.raises(CaseError, match="not for both"):
        check(mixed)


def test_nothing_is_halved_twice() -> None:
    twice = (*ITERATION[:3], *ITERATION[:3])
    cleared = (*ITERATION[:3], ZeroGrad(), *ITERATION[:3])
    told = Communication(comm_hook="halving")
    check(hooked(told, "FULL_SHARD", "FULL_SHARD", program=twice))
    check(hooked(told, "NO_SHARD", "FULL_SHARD", program=cleared))
    with pytest.raises(CaseError, match="what was reduced before"):
        check(hooked(told, "NO_SHARD", "FULL_SHARD", program=twice))
    other = Fsdp1Plan(units=(Fsdp1Unit(path="", sharding="NO_SHARD"),))
    with pytest.raises(CaseError, match="what was reduced before"):
        check(hooked(told, "FULL_SHARD", program=(*twice, Rebuild(plan=other), *ITERATION[:3])))


def test_what_is_frozen_since_lies_beside_what_is_trained() -> None:
    other = (
        RequiresGrad(parameters=("0.weight",), value=False),
        RequiresGrad(parameters=("0.bias",), value=True),
    )
    program = (*ITERATION[:2], *other, *ITERATION[:2])
    told = Communication(comm_hook="halving")

    def shown(sharding: Sharding) -> CaseSpec:
        plan = Fsdp1Plan(units=(Fsdp1Unit(path="", sharding=sharding, use_orig_params=True),))
        given = hooked(told, sharding, program=program, frozen=("0.bias",))
        return msgspec.structs.replace(given, plan=plan)

    check(shown("FULL_SHARD"))
    with pytest.raises(CaseError, match="what was reduced before"):
        check(shown("NO_SHARD"))


def test_a_hook_needs_gradients() -> None:
    with pytest.raises(CaseError, match="no backward"):
        check(hooked(Communication(comm_hook="own"), "FULL_SHARD", program=(Forward(),)))


def test_what_is_refused() -> None:
    def names(given: CaseSpec) -> list[str]:
        check(given)
        return [r.name for r in foreseen_rejections(anatomy(given))]

    sharded: tuple[Sharding, Sharding] = ("FULL_SHARD", "FULL_SHARD")
    own = Communication(comm_hook="own")
    assert names(hooked(own, *sharded)) == []
    assert names(hooked(Communication(comm_hook="own", again=""), *sharded)) == [
        "fsdp1_second_comm_hook"
    ]
    assert names(hooked(Communication(comm_hook="own", again="0"), *sharded)) == [
        "fsdp1_comm_hook_below_the_root"
    ]
    for mesh, refused in (
        (Mesh(replicate=1, shard=2), ["fsdp1_comm_hook_of_hybrid"]),
        (Mesh(replicate=2, shard=1), []),
    ):
        assert names(hooked(own, "FULL_SHARD", "HYBRID_SHARD", mesh=mesh)) == refused
    assert len(registered(hooked(Communication(comm_hook="own", again="0"), *sharded))) == 2


def test_plainer_hooks() -> None:
    given = hooked(Communication(comm_hook="library", again=""), "FULL_SHARD")
    found = [(s.case.communication, s.words) for s in CommunicationDimension().simpler(given)]
    assert found == [
        (None, "register_comm_hook"),
        (Communication(comm_hook="library"), ""),
        (Communication(comm_hook="own", again=""), ""),
    ]
    (fact,) = CommunicationDimension().facts(given)
    assert fact == ("communication", "library comm hook, registered twice")


LOWER = Precision(param="bfloat16")


@pytest.mark.parametrize(
    ("unit", "times", "expected"),
    [
        (Fsdp2Unit(path="0"), 1, "off"),
        (Fsdp2Unit(path="0"), 2, "on"),
        (Fsdp2Unit(path="0", precision=LOWER), 1, "on"),
        (Fsdp2Unit(path="0", precision=Precision(reduce="float32", param="bfloat16")), 1, "off"),
        (Fsdp2Unit(path="0", cpu_offload=True), 1, "on"),
    ],
)
def test_nothing_keeps_the_memory_that_a_hook_is_given(
    unit: Fsdp2Unit, times: int, expected: str
) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), unit))
    given = msgspec.structs.replace(
        case(Communication(hooked=True)), plan=plan, program=(Forward(), Backward()) * times
    )
    assert unit_features(anatomy(given), "0")["hooked_memory"] == expected
    for to_none, there in ((True, "off"), (False, "on")):
        cleared = (Forward(), Backward(), ZeroGrad(set_to_none=to_none), Forward(), Backward())
        other = msgspec.structs.replace(given, program=cleared)
        seen = unit_features(anatomy(other), "0")["hooked_memory"]
        assert seen == ("on" if times == 1 and expected == "on" else there)
    # A root is the last to be reduced on its own streams, not on those that it shares.
    roots = Fsdp2Plan(units=(unit, Fsdp2Unit(path="1")))
    for shared, there in ((False, "off"), (True, expected)):
        other = msgspec.structs.replace(given, plan=roots, share_comm_ctx=shared)
        assert unit_features(anatomy(other), "0")["hooked_memory"] == there
    replicated = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", replicated=True)))
    for kept in (
        {"communication": None},
        {"mesh": Mesh(replicate=2, shard=1)},
        {"mesh": Mesh(replicate=1, shard=2)},
        {"plan": replicated},
    ):
        other = msgspec.structs.replace(given, **kept)
        assert unit_features(anatomy(other), "0")["hooked_memory"] == "off"


@pytest.mark.parametrize(("times", "expected"), [(1, "off"), (2, "on")])
def test_a_unit_that_is_called_twice_adds_to_its_own_gradient(times: int, expected: str) -> None:
    body = Repeat(body=Linear(out=4, bias=False), times=times)
    given = msgspec.structs.replace(
        case(Communication(hooked=True)),
        model=Sequential(children=(Linear(out=4, bias=False), body)),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1.body"))),
        program=(Forward(), Backward()),
    )
    check(given)
    assert unit_features(anatomy(given), "1.body")["hooked_memory"] == expected
