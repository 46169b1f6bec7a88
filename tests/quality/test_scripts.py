"""A script does what the ranks did, bit for bit.

40 cases by default; ``FSDPFUZZ_SCRIPTS=500`` takes more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Linear,
    Method,
    Step,
    ZeroGrad,
    as_document,
)
from fsdpfuzz.case.modules import Norm, Sequential, SideOutput
from fsdpfuzz.case.modules.keyed import Keyed
from fsdpfuzz.case.operations import FullParams
from fsdpfuzz.invariants import judge
from fsdpfuzz.known import Known
from fsdpfuzz.loop import PROPERTIES, Scope
from fsdpfuzz.observations import Observation
from fsdpfuzz.pool import Pool
from fsdpfuzz.seeds import SEEDS, Seed
from tests.scripts_in_ranks import STAGE
from tests.unit.repro.examples import single_unit

NUMBER = int(os.environ.get("FSDPFUZZ_SCRIPTS", "40"))
KNOWN = Known.load(Path(__file__).parents[2] / "corpus" / "known")
SAVED_WRONG = "fsdp1-offloaded-optimizer-state"
"""By which a state is saved that is not the optimizer's, without a word."""
DRAWN = st.one_of([item.strategy(Scope()) for item in PROPERTIES.values()])
SMALL = [seed for seed in SEEDS if seed.document != "004" and not seed.needs]
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def pool_with(injection: str) -> Iterator[Pool]:
    with Pool(2, "gloo", injection=f"tests.scripts_in_ranks:{injection}") as pool:
        yield pool


@pytest.fixture(scope="module")
def comparing() -> Iterator[Pool]:
    yield from pool_with("compare_losses")


@pytest.fixture(scope="module")
def checking() -> Iterator[Pool]:
    yield from pool_with("check_parity")


@pytest.fixture(scope="module")
def plain() -> Iterator[Pool]:
    with Pool(2, "gloo") as pool:
        yield pool


def failures(seen: Observation) -> list[str]:
    """What went wrong in the scripts; what goes wrong in the ranks is not at issue."""
    return [error.message for _, error in seen.raised() if error.stage.startswith(STAGE)]


@settings(SETTINGS, max_examples=NUMBER)
@given(case=DRAWN)
def test_a_script_computes_the_losses_of_the_ranks(case: CaseSpec, comparing: Pool) -> None:
    seen = comparing.run(case)
    # A script that computes losses saves a state, but leaves out to load it: it has it already.
    assume(SAVED_WRONG not in KNOWN.covering(case, torch=seen.torch, backend=seen.backend))
    assert failures(seen) == [], as_document(case)


@pytest.mark.parametrize("added", [False, True])
def test_a_script_checkpoints_what_is_called_by_keywords(added: bool, comparing: Pool) -> None:
    case = single_unit(
        "fsdp2",
        model=Keyed(body=Linear(out=3), added=added),
        checkpoints=(Checkpoint(path="inner", kind="function", reentrant=False),),
    )
    assert failures(comparing.run(case)) == []


def test_a_script_calls_the_method_in_some_forwards(comparing: Pool, checking: Pool) -> None:
    iterations = [(Forward(by_method=called), Backward(), Step()) for called in (True, False, True)]
    case = single_unit(
        "fsdp2",
        model=Method(body=Linear(out=3)),
        program=tuple(op for iteration in iterations for op in iteration),
    )
    assert failures(comparing.run(case)) == []
    assert failures(checking.run(case)) == []


def test_a_script_adds_what_modules_keep_in_every_forward(comparing: Pool, checking: Pool) -> None:
    case = single_unit(
        "fsdp2",
        model=SideOutput(body=Linear(out=3)),
        program=(Forward(), Backward(), Step(), ZeroGrad(), Forward(), Backward(), Step()),
    )
    assert failures(comparing.run(case)) == []
    assert failures(checking.run(case)) == []


def test_a_script_normalises_in_float64_as_in_float32(checking: Pool) -> None:
    small = Sequential(children=(*(Linear(out=2, bias=False),) * 12, Norm(variant="rms")))
    assert failures(checking.run(single_unit("fsdp2", model=small))) == []


@pytest.mark.parametrize("seed", SMALL[::7], ids=lambda seed: seed.name)
def test_the_script_of_a_seed_computes_the_losses_of_the_ranks(seed: Seed, comparing: Pool) -> None:
    assert failures(comparing.run(seed.case)) == []


@settings(SETTINGS, max_examples=NUMBER // 2)
@given(case=DRAWN)
def test_a_script_finds_nothing_where_the_ranks_find_nothing(
    case: CaseSpec, plain: Pool, checking: Pool
) -> None:
    # The script runs in ranks of its own: where it fails they are not clean themselves.
    seen = plain.run(case)
    assume(judge(case, seen).status == "passed")
    # Ranks read shards, a script whole parameters: a known defect of FSDP can show in these alone.
    looks = replace(case, program=(*case.program, FullParams()))
    covered, by_looking = (
        KNOWN.covering(one, torch=seen.torch, backend=seen.backend) for one in (case, looks)
    )
    assume(set(by_looking) <= set(covered))
    assert failures(checking.run(case)) == [], as_document(case)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize(
    ("injection", "told"),
    [
        ("compare_losses_of_another_seed", "script: ["),
        ("check_parity_with_a_wrong_reference", "reproduced: "),
    ],
)
def test_a_script_that_does_otherwise_is_noticed(api: str, injection: str, told: str) -> None:
    with Pool(2, "gloo", injection=f"tests.scripts_in_ranks:{injection}") as pool:
        seen = failures(pool.run(single_unit(api)))
    assert seen
    assert told in seen[0]
