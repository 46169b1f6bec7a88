"""What fsdp2 leaves for later: what it goes with, what units are told, what is plainer."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
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
    lower,
    unit_features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.micro_batches import MicroBatches, MicroBatchesDimension
from fsdpfuzz.case.recipe import MODEL, Do, Items, Unsynchronised, Value, call, walk
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import may_stay_whole, waiting_bytes
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=3), Linear(out=2)))
LATER: tuple[Op, ...] = (Forward(sync=False), Backward(), Forward(), Backward(), Step())
ALL = MicroBatches(all_reduce_only=True, keep_whole=True, not_last=True)


def accumulated(told: MicroBatches | None, plan: Plan | None = None, **changes: object) -> CaseSpec:
    made = make(plan or fsdp2("", "0"), model=LAYERS, program=LATER)
    mesh = Mesh(replicate=2, shard=1)
    return msgspec.structs.replace(made, **{"mesh": mesh, "micro_batches": told, **changes})


@pytest.mark.parametrize(
    ("told", "deferred", "kept", "more"),
    [
        (None, "reduction", "off", "off"),
        (MicroBatches(all_reduce_only=True), "all_reduce", "off", "off"),
        (MicroBatches(keep_whole=True), "reduction", "on", "off"),
        (MicroBatches(not_last=True), "reduction", "off", "on"),
        (ALL, "all_reduce", "on", "on"),
    ],
)
def test_each_of_them_is_sound_and_seen(
    told: MicroBatches | None, deferred: str, kept: str, more: str
) -> None:
    case = accumulated(told)
    check(case)
    assert decode(encode(case)) == case
    found = features(case)
    assert (found["deferred"], found["kept_after_backward"]) == (deferred, kept)
    assert found["not_last_backward"] == more
    assert "deferred" not in features(accumulated(None, fsdp1("", "0"), mesh=None))


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (accumulated(ALL, fsdp1("", "0"), mesh=None), ""),
        (accumulated(ALL, program=(Forward(), Backward())), ""),
        (accumulated(MicroBatches()), ""),
        (accumulated(MicroBatches(all_reduce_only=True), mesh=None), ".all_reduce_only"),
        (accumulated(MicroBatches(units=("1",))), ".units[0]"),
        (accumulated(MicroBatches(units=("0",), not_last=True)), ".not_last"),
    ],
    ids=[
        "fsdp1",
        "nothing is left for later",
        "nothing is told",
        "no replicas",
        "no unit",
        "the last of some units",
    ],
)
def test_what_it_does_not_go_with_is_named(wrong: CaseSpec, at: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    assert caught.value.path == f"$.micro_batches{at}"


def told_in(case: CaseSpec) -> list[Value]:
    """What FSDP is told before, and after."""
    (block,) = [s for s in walk(lower(anatomy(case)).main) if isinstance(s, Unsynchronised)]
    calls = []
    for do in (block.before, block.after):
        assert isinstance(do, Do)
        assert do.who == "fsdp"
        calls.append(do.call)
    return calls


@pytest.mark.parametrize(
    ("told", "options"),
    [
        (MicroBatches(keep_whole=True), {"keep_whole": True}),
        (ALL, {"all_reduce_only": True, "keep_whole": True, "not_last": True}),
    ],
)
def test_units_are_told_before_and_the_contrary_afterwards(
    told: MicroBatches, options: dict[str, Value]
) -> None:
    tell = "steps.fsdp2.micro_batches.tell"
    assert told_in(accumulated(told)) == [
        call(tell, MODEL, value, **options) for value in (False, True)
    ]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (None, ".set_requires_gradient_sync"),
        (MicroBatches(all_reduce_only=True), ".set_requires_all_reduce"),
    ],
)
def test_a_root_hands_one_thing_on_by_itself(told: MicroBatches | None, name: str) -> None:
    calls = [call(name, MODEL, value) for value in (False, True)]
    assert told_in(accumulated(told)) == calls


def test_units_stay_whole_after_the_backward_that_says_so_and_no_other() -> None:
    kept = anatomy(accumulated(MicroBatches(keep_whole=True)))
    assert [set(may_stay_whole(kept, op)) for op in (1, 3)] == [{"", "0"}, set()]
    assert not may_stay_whole(anatomy(accumulated(MicroBatches(not_last=True))), 1)


def test_one_thing_less_is_plainer() -> None:
    found = list(MicroBatchesDimension().simpler(accumulated(ALL)))
    assert [(s.case.micro_batches, s.words) for s in found] == [
        (MicroBatches(keep_whole=True, not_last=True), "a deferred all-reduce"),
        (MicroBatches(all_reduce_only=True, not_last=True), "set_reshard_after_backward"),
        (MicroBatches(all_reduce_only=True, keep_whole=True), "set_is_last_backward"),
    ]
    (last,) = MicroBatchesDimension().simpler(accumulated(MicroBatches(not_last=True)))
    assert last.case == accumulated(None)
    assert not list(MicroBatchesDimension().simpler(accumulated(None)))


def test_its_words_and_a_case_without_it() -> None:
    facts = list(MicroBatchesDimension().facts(accumulated(ALL)))
    assert facts == [("no_sync", "all-reduce deferred, kept whole, not the last")]
    assert b"micro_batches" not in encode(accumulated(None))


def test_units_beside_each_other_are_told_each() -> None:
    told = MicroBatches(all_reduce_only=True)
    found = told_in(accumulated(told, fsdp2("0", "1")))
    tell = "steps.fsdp2.micro_batches.tell"
    assert found == [call(tell, MODEL, v, all_reduce_only=True) for v in (False, True)]


def test_some_units_are_told_without_those_inside_them() -> None:
    root = MicroBatches(units=("",), keep_whole=True)
    case = accumulated(root, mesh=None)
    check(case)
    assert features(case)["deferring_units"] == "some"
    assert features(accumulated(ALL))["deferring_units"] == "all"
    tell, units = "steps.fsdp2.micro_batches.tell_some", Items("tuple", (MODEL,))
    assert told_in(case) == [call(tell, units, v, keep_whole=True) for v in (False, True)]
    assert root.words() == "kept whole, only the root"
    found = list(MicroBatchesDimension().simpler(case))
    assert [(s.case.micro_batches, s.words) for s in found] == [
        (MicroBatches(units=("",)), "set_reshard_after_backward"),
        (MicroBatches(keep_whole=True), "recurse=False"),
    ]
    # Two inputs, a layer 3 wide, two outputs, float32: of the root's the whole gradient waits.
    inner = msgspec.structs.replace(case, micro_batches=MicroBatches(units=("0",)))
    owned = anatomy(case).owned
    sizes = {path: sum(p.numel for p in owned[path]) for path in ("", "0")}
    for deferring, other in (("", "0"), ("0", "")):
        given = case if deferring == "" else inner
        shards = sum(waiting_bytes(anatomy(given), 1, rank) or 0 for rank in range(2))
        # Each rank holds all of what waits, and between them they hold the rest once.
        assert shards == 4 * (2 * sizes[deferring] + sizes[other])


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, []),
        (MicroBatches(keep_whole=True), []),
        # The others reduce in each micro-batch, the second time beside what they have.
        (MicroBatches(units=("0",)), [""]),
        (MicroBatches(units=("", "0")), []),
    ],
)
def test_units_that_put_nothing_off_are_reduced_again(
    told: MicroBatches | None, expected: list[str]
) -> None:
    a = anatomy(accumulated(told, mesh=None))
    units = [path for path in a.units if unit_features(a, path)["reduced_again"] == "on"]
    assert units == expected
