"""What units are told of how they communicate, and what the plain model does about it."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import ITERATION, CaseSpec, anatomy, chain, check, features, lower
from fsdpfuzz.case.communication import Communication, CommunicationDimension
from fsdpfuzz.case.recipe import Call, Do
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
