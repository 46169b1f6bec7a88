"""What another model loads, or fails to load, is found and reduced to it; what is right passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Forward,
    Optimizer,
    Step,
    ZeroGrad,
    chain,
    features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.operations.transfer import Transfer
from tests.injected.by_hand import judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)


def test_ranks_that_load_by_themselves(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:dcp_led_by_rank_0"
    summary = hunt(
        injection, tmp_path, property_name="state_dict", number=200, until=("ranks_agree",)
    )
    found = found_by(summary, "ranks_agree")
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["transferred_ranks"] == "fewer"
    assert_shown_by_its_script(found, lines=LONGER)


def test_one_call_that_forgets_the_optimizer(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:loaded_together_but_the_optimizer"
    summary = hunt(
        injection, tmp_path, property_name="state_dict", number=300, until=("optim_state",)
    )
    found = found_by(summary, "optim_state")
    case = case_of(found)
    assert linears(case) <= 1
    told = features(case)
    assert "on" in (told["transferred_together"], told["rebuilt_together"])
    assert found.script is not None
    assert found.script.confirmed


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("names_of_ddp_kept", {"into": "ddp"}),
        ("names_of_a_compiled_model_kept", {"compiled": True}),
    ],
)
def test_a_prefix_that_stays(fault: str, changes: dict[str, Any]) -> None:
    iteration = (Forward(), Backward(), Step(), ZeroGrad(set_to_none=True))
    injection = f"benchmarks.faults.injections:{fault}"
    for asked in (Transfer(), Transfer(**changes)):
        case = chain("fsdp2", (3, 7, 2), (0,), 2, (*iteration, asked))
        assert judged(case).status == "passed"
        assert bool(judged(case, injection).findings) is (asked != Transfer())


def test_ddp_over_all_ranks_loads_at_the_level_detail() -> None:
    """Over a group of some it would end them, which `check` refuses."""
    case = chain("fsdp2", (3, 7, 2), (0,), 2, (Forward(), Backward(), Step(), Transfer(into="ddp")))
    detailed = msgspec.structs.replace(case, debug_level="DETAIL")
    assert judged(detailed).status == "passed"


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("into", ["plain", "fsdp1", "fsdp2", "ddp"])
@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_two_ranks_load_what_four_have_saved(api: str, into: str, ranks: int | None) -> None:
    asked = Transfer(into=into, ranks=ranks, state=True)  # type: ignore[arg-type]
    iteration = (Forward(), Backward(), Step(), ZeroGrad(set_to_none=True))
    case = chain(api, (3, 7, 2), (0,), 4, (*iteration, asked, *iteration))
    case = msgspec.structs.replace(case, optimizer=Optimizer(name="adam", lr=0.01, eps=1e-4))
    if api == "fsdp2":
        case = msgspec.structs.replace(case, mesh=Mesh(replicate=2, shard=2))
    assert judged(case).status == "passed"
