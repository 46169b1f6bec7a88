"""Forwards without a backward between another one and its backward, and what they must not undo."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Api,
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Linear,
    Op,
    anatomy,
    chain,
    features,
    lower,
)
from fsdpfuzz.known import Known
from fsdpfuzz.loop import default_known
from fsdpfuzz.pool import Pool
from tests.injected.by_hand import assert_scripted, judged
from tests.injected.hunting import case_of, found_by, hunt

FAULT = "benchmarks.faults.injections:fsdp1_evaluation_takes_the_gather_back"
LONE = {
    "no_grad": Forward(grad=False),
    "inference_mode": Forward(grad=False, inference=True),
    "dropped": Forward(drop=True),
}


def case(api: Api, *meanwhile: Op) -> CaseSpec:
    program = (Forward(), *meanwhile, Backward(), Forward(), Backward())
    return chain(api, (4, 3, 2), (1,), 2, program)


# fsdp1 leaves hooks of a dropped forward behind (fsdp1-hooks-of-a-dropped-forward).
@pytest.mark.parametrize(
    ("api", "how"),
    [
        ("fsdp1", "no_grad"),
        ("fsdp1", "inference_mode"),
        ("fsdp2", "no_grad"),
        ("fsdp2", "inference_mode"),
        ("fsdp2", "dropped"),
    ],
)
def test_backward_takes_the_loss_that_waits(api: Api, how: str) -> None:
    """Not that of the forward which came last."""
    given = case(api, LONE[how])
    assert features(given)["meanwhile"] == how
    with Pool(2, "gloo") as pool:
        seen = pool.run(given)
    for report in seen.reports:
        assert report is not None
        (own,) = report.subjects
        assert len(own.losses) == 3
        grads = [c for c in own.comparisons if c.quantity == "grad"]
        assert len(grads) == 2
        assert all(c.error < 1e-5 < c.floor for c in grads)
    assert judged(given).status == "passed"


def test_losses_are_kept_only_where_another_is_computed_meanwhile() -> None:
    assert "pending" in repr(lower(anatomy(case("fsdp2", LONE["no_grad"]))))
    assert "pending" not in repr(lower(anatomy(case("fsdp2"))))


@pytest.mark.parametrize("how", ["no_grad", "inference_mode"])
def test_an_evaluation_that_takes_the_gather_back(how: str, tmp_path: Path) -> None:
    given = case("fsdp1", LONE[how])
    assert judged(given).status == "passed"
    assert judged(case("fsdp1"), FAULT).status == "passed"
    # Of memory that is freed comes an error of torch, or the end of the process.
    (finding, *_) = judged(given, FAULT).findings
    assert finding.symptom in ("crash", "rank_death")
    assert_scripted(given, finding, FAULT, tmp_path)


def test_it_is_found(tmp_path: Path) -> None:
    key = "no_crash/crash/fsdp1:RuntimeError"
    found = found_by(hunt(FAULT, tmp_path, number=300, apis=("fsdp1",), until=(key,)), key)
    assert features(case_of(found))["meanwhile"] != "no"


def test_what_is_recomputed_after_inference_is_known() -> None:
    """Its gradient is missing, without a word; under no_grad it is there."""
    path = default_known()
    assert path is not None
    known = Known.load(path)
    for how, status in (("no_grad", "passed"), ("inference_mode", "finding")):
        given = CaseSpec(
            world_size=2,
            model=Linear(out=2),
            inputs=Dense(width=3, requires_grad=True),
            plan=chain("fsdp1", (2,), (), 2, ()).plan,
            checkpoints=(Checkpoint(path="", kind="wrapper", reentrant=True),),
            program=(Forward(), LONE[how], Backward()),
        )
        verdict = judged(given)
        assert verdict.status == status
        for finding in verdict.findings:
            name = known.match(given, finding, torch="2.13.0", backend="gloo")
            assert name == "fsdp1-recomputed-after-inference"
