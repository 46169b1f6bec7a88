"""Units that `replicate` makes: what is said of them, refused, told to torch and promised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    anatomy,
    check,
    decode,
    digest,
    encode,
    features,
    needs_of_torch,
    unit_features,
)
from fsdpfuzz.case.communication import Communication
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.operations.recover import Recover
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.case.units import Placement
from fsdpfuzz.case.units.replicas import REPLICATE, belongs_to
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import shard_bytes, traffic
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render

MODEL = Sequential(children=(Linear(out=4), Sequential(children=(Linear(out=2),)), Linear(out=2)))
"""Layers of 12, 10 and 6 elements."""


def case(*units: Fsdp2Unit, **changes: Any) -> CaseSpec:
    told = {"program": (Forward(), Backward()), **changes}
    plan = Fsdp2Plan(units=units)
    return CaseSpec(world_size=2, model=MODEL, inputs=Dense(width=2), plan=plan, **told)


def sharded(path: str, **options: Any) -> Fsdp2Unit:
    return Fsdp2Unit(path=path, **options)


def replica(path: str, **options: Any) -> Fsdp2Unit:
    return Fsdp2Unit(path=path, replicated=True, **options)


BESIDE = case(sharded(""), replica("0"), sharded("1.0"))
ABOVE = case(replica(""), sharded("0"), sharded("1"), sharded("1.0"))


def test_it_goes_into_json_and_names_the_torch_that_it_needs() -> None:
    check(BESIDE)
    assert decode(encode(BESIDE)) == BESIDE
    plain = case(sharded(""), sharded("0"), sharded("1.0"))
    assert digest(plain) != digest(BESIDE)
    assert all("replicated" not in unit for unit in json.loads(encode(plain))["plan"]["units"])
    assert needs_of_torch(anatomy(BESIDE)) == (
        f"{REPLICATE.rpartition('.')[0]}._validate_mesh(mesh)",
    )
    assert needs_of_torch(anatomy(plain)) == ()


@pytest.mark.parametrize(
    ("given", "said", "roots"),
    [
        (case(sharded(""), sharded("1")), "off", ("",)),
        (BESIDE, "some", ("",)),
        (case(replica("")), "on", ("",)),
        (case(replica(""), replica("1")), "on", ("",)),
        # What is sharded is no part of what is replicated around it.
        (ABOVE, "some", ("", "0", "1")),
        (case(replica("1"), sharded("1.0")), "some", ("1", "1.0")),
        (case(sharded(""), replica("1"), sharded("1.0")), "some", ("",)),
        (case(replica(""), sharded("0"), replica("1")), "some", ("", "0")),
        (case(replica(""), sharded("1"), replica("1.0")), "across", ("", "1")),
    ],
)
def test_how_they_lie_to_each_other(given: CaseSpec, said: str, roots: tuple[str, ...]) -> None:
    check(given)
    assert features(given)["replicated"] == said
    assert anatomy(given).roots == roots


def test_what_belongs_to_a_root() -> None:
    a = anatomy(ABOVE)
    assert [belongs_to(a, path) for path in a.units] == ["", "0", "1", "1"]
    assert a.common_root("1", "1.0")
    assert not a.common_root("0", "1.0")
    assert unit_features(a, "")["replicated"] == "on"
    assert unit_features(a, "0")["replicated"] == "off"
    assert unit_features(a, "")["after_forward"] == "whole"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (case(replica("", reshard_after_forward=True)), "alone takes reshard_after_forward"),
        (
            case(replica("", shard_placement=(Placement(parameter="0.weight", dim=1),))),
            "alone takes shard_placement",
        ),
        (case(sharded(""), replica("0", grouped=("2",))), "alone takes a list of modules"),
        (case(replica(""), sharded("0", grouped=("2",))), "have to lie in another"),
        (case(replica(""), mesh=Mesh(replicate=2, shard=1)), "a mesh of one dimension"),
        (
            case(
                replica(""),
                tensor_parallel=TensorParallel(modules=(Parallel(module="0"),)),
            ),
            "a mesh of one dimension",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(given: CaseSpec, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        check(given)


def test_another_function_is_called() -> None:
    script = render(BESIDE, None, Context())
    compile(script, "repro.py", "exec")
    assert "from torch.distributed._composable.replicate_with_fsdp import replicate\n" in script
    calls = [line.strip() for line in script.splitlines() if ", mesh=mesh)" in line]
    assert calls == [
        "fully_shard(model[1][0], mesh=mesh)",
        "replicate(model[0], mesh=mesh)",
        "fully_shard(model, mesh=mesh)",
    ]


def test_roots_within_each_other_are_told_of_their_own_units_alone() -> None:
    lists = (sharded("1", prefetched_in_forward=("1.0",)), sharded("1.0"))
    given = case(replica(""), *lists, communication=Communication(hooked=True))
    check(given)
    script = render(given, None, Context())
    assert script.count("set_all_reduce_hook(") == 3
    assert script.count("set_modules_to_forward_prefetch(") == 1


def test_each_root_starts_over() -> None:
    given = case(replica(""), sharded("0"), program=(Recover(), Forward(), Backward()))
    check(given)
    script = render(given, None, Context())
    assert "model.reset_iter_state()" in script
    assert "model[0].reset_iter_state()" in script


def test_what_comes_before_in_backward_is_of_one_root() -> None:
    """The root manages nothing that is reduced, and so parts nothing of what lies in it."""
    early = ("all_gather float32 6", "reduce_scatter float32 10")
    (_, back) = traffic(anatomy(case(sharded(""), sharded("0"), sharded("1"))), 0).values()
    assert early in back.early
    (_, back) = traffic(anatomy(case(replica(""), sharded("0"), sharded("1"))), 0).values()
    assert back.early == ()


def numbers(given: CaseSpec) -> list[dict[str, str]]:
    told = traffic(anatomy(given), 0).values()
    return [{t: str(n) for t, n in each.numbers.items() if n.most} for each in told]


def test_its_gradients_take_one_all_reduce_and_nothing_is_gathered() -> None:
    once = dict.fromkeys
    assert numbers(BESIDE) == [
        once(("all_gather float32 5", "all_gather float32 3"), "1"),
        once(
            (
                "all_gather float32 5",
                "all_reduce float32 12",
                "reduce_scatter float32 10",
                "reduce_scatter float32 6",
            ),
            "1",
        ),
    ]
    # A root stays whole, so neither of those is gathered again.
    outer = case(replica(""), sharded("0"), sharded("1"))
    assert numbers(outer) == [
        once(("all_gather float32 6", "all_gather float32 5"), "1"),
        once(
            ("all_reduce float32 6", "reduce_scatter float32 12", "reduce_scatter float32 10"), "1"
        ),
    ]


def test_only_what_is_trained_is_reduced() -> None:
    assert "all_reduce float32 8" in numbers(case(sharded(""), replica("0"), frozen=("0.bias",)))[1]


def test_each_rank_holds_all_of_it() -> None:
    assert shard_bytes(anatomy(BESIDE)) == 4 * (12 + 5 + 3)


def test_what_is_sharded_is_plainer() -> None:
    found = {
        s.words: [unit.replicated for unit in s.case.plan.units]
        for s in simpler(case(sharded(""), replica("0")))
        if isinstance(s.case.plan, Fsdp2Plan)
    }
    assert found["replicate"] == [False, False]
