"""Every invariant passes a clean observation and fails on the fault it is there for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.invariants import REGISTRY, judge, tolerance
from fsdpfuzz.observations import (
    Comparison,
    Death,
    Hang,
    Observation,
    Raised,
    RankReport,
    Subject,
    UnitState,
)
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Step,
    digest,
)

CASE = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=3), Linear(out=2))),
    inputs=Dense(width=3),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
    program=(Forward(), Backward(), Step()),
)
EPS = 1.2e-7


def comparison(**changes: Any) -> Comparison:
    values: dict[str, Any] = {
        "quantity": "grad",
        "name": "0.weight",
        "op": 1,
        "error": 1e-8,
        "baseline": 1e-8,
        "scale": 1.0,
        "floor": 1.0,
        "observed": 1.0,
        "expected": 1.0,
        "numel": 9,
        "eps": EPS,
    }
    return Comparison(**values | changes)


def raised(**changes: Any) -> Raised:
    values: dict[str, Any] = {
        "type": "RuntimeError",
        "message": "size 3 does not match 'weight'",
        "stage": "case:forward[0]",
        "frame": "torch/distributed/fsdp/_flat_param.py:unshard",
        "documented": False,
    }
    return Raised(**values | changes)


def observed(
    *subjects: Subject, errors: tuple[Raised | None, ...] = (None, None), **kw: Any
) -> Observation:
    reports = tuple(
        RankReport(
            rank=rank,
            digest=digest(CASE),
            raised=error,
            subjects=() if error else (subjects or (Subject(units=("", "0")),)),
            live=0 if error else 4,
        )
        for rank, error in enumerate(errors)
    )
    values: dict[str, Any] = {"reports": reports, "world_size": 2}
    return Observation(digest=digest(CASE), backend="gloo", torch="2.13.0", **values | kw)


def subject(**changes: Any) -> Subject:
    return Subject(**{"units": ("", "0")} | changes)


def test_a_clean_observation_passes() -> None:
    verdict = judge(CASE, observed(subject(comparisons=(comparison(),))))
    assert verdict.status == "passed"
    assert not verdict.findings


FAULTS: dict[str, tuple[Observation, str]] = {
    "loss_parity": (
        observed(
            subject(comparisons=(comparison(quantity="loss", op=0, error=0.5, observed=1.5),))
        ),
        "loss_parity/mismatch/fsdp2:other",
    ),
    "output_parity": (
        observed(
            subject(comparisons=(comparison(quantity="output", op=0, error=0.1, observed=0.9),))
        ),
        "output_parity/mismatch/fsdp2:other",
    ),
    "grad_parity": (
        observed(subject(comparisons=(comparison(error=1.0, observed=2.0),))),
        "grad_parity/mismatch/fsdp2:times-ranks",
    ),
    "param_parity": (
        observed(subject(comparisons=(comparison(quantity="param", error=1e-3, observed=1.001),))),
        "param_parity/mismatch/fsdp2:other",
    ),
    "buffer_parity": (
        observed(subject(comparisons=(comparison(quantity="buffer", exact=True, error=1e-12),))),
        "buffer_parity/mismatch/fsdp2:other",
    ),
    "frozen_untouched": (
        observed(subject(frozen_changed=("0.bias",))),
        "frozen_untouched/mismatch/fsdp2:changed",
    ),
    "resharded_after_backward": (
        observed(subject(unit_states=(UnitState(op=1, unsharded=("0",)),))),
        "resharded_after_backward/leak/fsdp2",
    ),
    "wrapped_as_planned": (
        observed(subject(units=("",))),
        "wrapped_as_planned/mismatch/fsdp2",
    ),
    "no_hang": (
        observed(hang=Hang(ranks=(0, 1), deadline=3.0, stages=("case:backward[1]", ""))),
        "no_hang/hang/fsdp2:case:backward",
    ),
    "no_rank_death": (
        observed(deaths=(Death(rank=1, exitcode=-6, stage="case:forward[0]"),)),
        "no_rank_death/rank_death/fsdp2:case:forward:-6",
    ),
    "no_crash": (
        observed(errors=(raised(), raised())),
        "no_crash/crash/fsdp2:RuntimeError@torch/distributed/fsdp/_flat_param.py:unshard:"
        "size # does not match _",
    ),
    "equal_rejection": (
        observed(errors=(raised(type="ValueError", documented=True, stage="case:wrap"), None)),
        "equal_rejection/rank_divergence/fsdp2:ValueError@torch/distributed/fsdp/_flat_param.py:"
        "unshard:size # does not match _",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_invariant_fails_on_its_fault(name: str) -> None:
    observation, key = FAULTS[name]
    verdict = judge(CASE, observation)
    assert verdict.status == "finding"
    assert key[:120] in {finding.key[: max(len(key), 120)][:120] for finding in verdict.findings}
    assert name in {finding.invariant for finding in verdict.findings}


def test_a_crash_on_one_rank_is_a_divergence() -> None:
    (finding,) = judge(CASE, observed(errors=(raised(), None))).findings
    assert (finding.invariant, finding.symptom) == ("ranks_agree", "rank_divergence")


def test_a_documented_refusal_on_all_ranks_is_a_rejection() -> None:
    refusal = raised(type="ValueError", documented=True, stage="case:wrap")
    assert judge(CASE, observed(errors=(refusal, refusal))).status == "rejected"


def test_an_assertion_about_its_own_state_is_no_refusal() -> None:
    assertion = raised(type="ValueError", documented=True, message="expected to be in states")
    (finding,) = judge(CASE, observed(errors=(assertion, assertion))).findings
    assert finding.invariant == "no_crash"


def test_a_documented_text_in_the_middle_of_training_is_a_refusal() -> None:
    text = "Expects one homogeneous value for limit_all_gathers but got {True, False}"
    refusal = raised(type="ValueError", documented=True, message=text)
    assert judge(CASE, observed(errors=(refusal, refusal))).status == "rejected"


def test_a_refusal_of_the_reference_is_not_a_rejection() -> None:
    ours = raised(type="ValueError", documented=True, stage="reference-float64:forward[0]")
    assert judge(CASE, observed(errors=(ours, ours))).status == "finding"


def test_a_case_without_gradient_is_vacuous() -> None:
    observation = observed(subject())
    reports = tuple(msgspec.structs.replace(r, live=0) for r in observation.reports if r)
    dead = msgspec.structs.replace(observation, reports=reports)
    assert judge(CASE, dead).status == "vacuous"


def test_the_first_cause_is_reported_alone() -> None:
    wrong = (
        comparison(quantity="loss", op=3, error=9.0),
        comparison(quantity="param", op=2, error=9.0),
        comparison(quantity="grad", op=1, error=1.0, observed=0.0),
    )
    (finding,) = judge(CASE, observed(subject(comparisons=wrong))).findings
    assert finding.key == "grad_parity/mismatch/fsdp2:zero"


def test_the_peer_of_a_dead_rank_is_not_blamed() -> None:
    gone = raised(message="[..] Connection closed by peer [127.0.0.1]:1")
    death = Death(rank=1, exitcode=-6, stage="case:backward[1]")
    (finding,) = judge(CASE, observed(errors=(gone, None), deaths=(death,))).findings
    assert finding.invariant == "no_rank_death"


def test_not_a_number_breaks_any_tolerance() -> None:
    broken = comparison(error=1e300, finite=False)
    (finding,) = judge(CASE, observed(subject(comparisons=(broken,)))).findings
    assert finding.key == "grad_parity/mismatch/fsdp2:not-finite"


def test_nothing_is_said_where_ddp_diverged_too() -> None:
    diverged = comparison(error=1e300, finite=False, baseline=1e300)
    assert judge(CASE, observed(subject(comparisons=(diverged,)))).status == "passed"


@pytest.mark.parametrize("relative", [1e-3, 1e-4])
def test_tolerance_is_tight_where_ddp_is_exact(relative: float) -> None:
    assert tolerance(comparison(baseline=0.0)) < relative


def test_tolerance_follows_ddp() -> None:
    assert tolerance(comparison(baseline=1e-2)) > 1e-2


def test_what_float16_cannot_hold_is_no_deviation() -> None:
    """Found by drawing: an output of 4e-9 that passes through float16 is 0."""
    tiny = {"baseline": 0.0, "scale": 4e-9, "floor": 4e-9, "numel": 1}
    half = comparison(eps=2.0**-10, **tiny)
    assert 2.0**-24 < tolerance(half) < 1e-5
    for eps in (2.0**-23, 2.0**-7):
        assert tolerance(comparison(eps=eps, **tiny)) < 1e-7


def test_a_coarser_dtype_loses_as_much_more_where_terms_cancel() -> None:
    """Found by drawing: a gradient through a bottleneck, of terms that cancel but for 1e-5."""
    cancels = {"scale": 2.5e-13, "floor": 2.5e-13, "baseline": 9.3e-18, "numel": 6}
    assert tolerance(comparison(eps=2.0**-7, **cancels)) > 5.1e-12
    steady = cancels | {"baseline": 2.5e-13 * 2.0**-24}
    assert tolerance(comparison(eps=2.0**-7, **steady)) < 20 * 2.5e-13


def test_every_registered_invariant_has_a_fault_here_or_in_its_own_file() -> None:
    elsewhere = {"twins_agree", "offload_entered", "reshard_count", "order_error", "order_warning"}
    elsewhere |= {"state_dict_keys", "state_dict_values", "state_dict_round_trip"}
    elsewhere |= {"tracker_accuracy", "shard_bytes", "grad_bytes"}
    names = {invariant.name for invariant in REGISTRY} - elsewhere
    assert names == set(FAULTS)
