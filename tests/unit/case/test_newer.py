"""What only newer releases of torch have: which cases need it, and what they do with it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    NEWER,
    Backward,
    CaseSpec,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Norm,
    Optimizer,
    Sequential,
    Step,
    anatomy,
    check,
    decode,
    digest,
    encode,
    features,
    lower,
    needs_of_torch,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.recipe import Call, Do, values, walk
from fsdpfuzz.case.reduce_scatter import ReduceScatter
from fsdpfuzz.case.units.replicas import REPLICATE
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import kept_bytes, shard_bytes, whole_bytes
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.meta.imports import REPOSITORY
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL = Sequential(children=(Linear(out=3), Norm(), Linear(out=2)))
PROGRAM = (Forward(sync=False), Backward(), Forward(), Backward(), Step())
PLAIN = make(fsdp2("", "0"), model=MODEL, program=PROGRAM)
ALL = ReduceScatter(unused=True, buffers=3)
OPTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "reduce_scatter": (
        {"reduce_scatter": ALL},
        {"set_reduce_scatter_unused_params", "set_reduce_scatter_max_input_buffers"},
    ),
    "own_group": (
        {"reduce_scatter": ReduceScatter(own_group=True)},
        {"set_separate_reduce_scatter_group"},
    ),
    "keep_unsharded_storage": ({"keep_unsharded_storage": True}, {"set_keep_unsharded_storage"}),
    "manual": (
        {"finalization": "manual"},
        {"set_manual_backward_finalization", "finalize_backward"},
    ),
    "async": (
        {"finalization": "async"},
        {"set_manual_backward_finalization", "finalize_backward", "wait"},
    ),
}


def having(name: str, case: CaseSpec = PLAIN) -> CaseSpec:
    return msgspec.structs.replace(case, **OPTIONS[name][0])


def calls_of(case: CaseSpec) -> list[str]:
    """The methods that a recipe calls and the plain case's does not."""

    def called(a: CaseSpec) -> list[str]:
        recipe = lower(anatomy(a))
        bodies = [recipe.main, *(procedure.body for procedure in recipe.procedures)]
        return [
            value.function
            for body in bodies
            for statement in walk(body)
            if isinstance(statement, Do)
            for value in values(statement.call)
            if isinstance(value, Call) and isinstance(value.function, str)
        ]

    plain = called(PLAIN)
    return [name.removeprefix(".") for name in called(case) if name not in plain]


@pytest.mark.parametrize("name", OPTIONS)
def test_it_goes_into_json_and_changes_no_other_case(name: str) -> None:
    case = having(name)
    check(case)
    assert decode(encode(case)) == case
    assert digest(case) != digest(PLAIN)
    for word in OPTIONS[name][0]:
        assert word.encode() not in encode(PLAIN)


@pytest.mark.parametrize("name", OPTIONS)
def test_fsdp_is_told_and_the_torch_that_it_needs_is_named(name: str) -> None:
    called = calls_of(having(name))
    assert set(called) == OPTIONS[name][1]
    needed = needs_of_torch(anatomy(having(name)))
    assert {text.split(".")[1].split("(")[0] for text in needed} >= OPTIONS[name][1] - {"wait"}
    assert needs_of_torch(anatomy(PLAIN)) == ()
    script = render(having(name), None, Context())
    compile(script, "repro.py", "exec")
    assert all(f".{method}(" in script for method in OPTIONS[name][1])


@pytest.mark.parametrize("name", OPTIONS)
def test_the_other_api_does_not_have_it(name: str) -> None:
    with pytest.raises(CaseError, match="fsdp2 alone"):
        check(having(name, make(fsdp1(""), model=MODEL, program=PROGRAM)))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_case_without_it_is_simpler(name: str) -> None:
    left = [neighbour.case for neighbour in simpler(having(name))]
    steps = 1
    while PLAIN not in left:
        left = [further.case for case in left for further in simpler(case)]
        steps += 1
    assert steps <= 2
    assert features(having(name)) != features(PLAIN)


def test_a_backward_that_does_not_synchronise_is_not_finished() -> None:
    assert calls_of(having("manual")).count("finalize_backward") == 1


def test_a_part_that_is_called_alone_would_be_a_root_of_its_own() -> None:
    case = make(fsdp2("", "0"), model=MODEL, program=(Forward(target="0"), Backward()))
    with pytest.raises(CaseError, match="part of the model"):
        check(having("manual", case))


@pytest.mark.parametrize(
    ("optimizer", "frozen", "fits"),
    [
        (Optimizer(), (), True),
        (Optimizer(), ("0.weight",), False),
        (Optimizer(momentum=0.0), ("0.weight",), True),
        (Optimizer(name="adam"), ("0.weight",), False),
        (None, ("0.weight",), True),
    ],
)
def test_zero_gradients_go_with_an_optimizer_that_takes_them_as_none(
    optimizer: Optimizer | None, frozen: tuple[str, ...], fits: bool
) -> None:
    program = PROGRAM if optimizer is not None else PROGRAM[:-1]
    case = msgspec.structs.replace(
        having("reduce_scatter"), optimizer=optimizer, frozen=frozen, program=program
    )
    if fits:
        check(case)
    else:
        with pytest.raises(CaseError, match="zero"):
            check(case)


def test_kept_memory_is_counted() -> None:
    a = anatomy(having("keep_unsharded_storage"))
    numel = sum(p.numel for p in a.parameters)
    assert kept_bytes(a) == 4 * numel
    assert kept_bytes(a) <= whole_bytes(a, a.units)
    assert shard_bytes(a) == shard_bytes(anatomy(PLAIN))
    uncalled = make(fsdp2("", "0"), model=MODEL, program=())
    assert kept_bytes(anatomy(having("keep_unsharded_storage", uncalled))) == 0


STANDS_FOR = {
    f"{REPLICATE.rpartition('.')[0]}._validate_mesh(mesh)": f"{REPLICATE}(mesh)",
}
"""What is looked for in place of what torch 2.10 offers by the same name, and is another thing."""


def test_all_of_it_is_on_the_list_of_what_torch_offers() -> None:
    listed = json.loads((REPOSITORY / "tests" / "meta" / "public_api.json").read_text())
    for name, dimension in NEWER.items():
        offered = STANDS_FOR.get(name, name)
        assert listed["since"][offered] not in ("2.7", "2.7.1"), f"{name} is everywhere"
        assert listed["dimensions"][offered].rpartition("/")[2] == dimension


def test_manual_finalization_goes_with_no_deferred_all_reduce() -> None:
    """As the docstring of ``FSDPModule.finalize_backward`` says of HSDP."""
    program = (Forward(sync=False), Backward(), Forward(), Backward())
    mesh = Mesh(replicate=2, shard=1)
    told = MicroBatches(all_reduce_only=True)
    case = msgspec.structs.replace(PLAIN, program=program, mesh=mesh, micro_batches=told)
    check(case)
    with pytest.raises(CaseError, match="no deferred all-reduce"):
        check(msgspec.structs.replace(case, finalization="manual"))
    case = msgspec.structs.replace(case, mesh=None, micro_batches=MicroBatches(units=("",)))
    with pytest.raises(CaseError, match="no units that alone"):
        check(msgspec.structs.replace(case, finalization="manual"))


def test_a_handle_goes_with_no_roots_that_share_their_streams() -> None:
    """As ``FSDPModule.finalize_backward`` raises on torch 2.15.0."""
    plan = fsdp2("0", "1", "2")
    case = msgspec.structs.replace(PLAIN, plan=plan, share_comm_ctx=True)
    for how in ("automatic", "manual"):
        check(msgspec.structs.replace(case, finalization=how))
    with pytest.raises(CaseError, match="no share_comm_ctx"):
        check(msgspec.structs.replace(case, finalization="async"))


def test_replicated_units_have_no_reduce_scatter_that_could_have_a_group() -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", replicated=True),))
    case = msgspec.structs.replace(PLAIN, plan=plan)
    check(msgspec.structs.replace(case, reduce_scatter=ReduceScatter(buffers=2)))
    with pytest.raises(CaseError, match="replicated units"):
        check(msgspec.structs.replace(case, reduce_scatter=ReduceScatter(own_group=True)))
