"""What an observation amounts to, and which of several findings is the cause."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Given,
    Imported,
    ImportedModule,
    Variant,
)
from fsdpfuzz.case.operations import OptimState
from fsdpfuzz.errors import ContractError
from fsdpfuzz.expect.rounding import FLOAT16_EPS
from fsdpfuzz.invariants import broken, invariant_of, judge, tolerance
from fsdpfuzz.observations import Death, Hang
from fsdpfuzz.verdict import Finding
from tests.unit.invariants.observed import (
    CASE,
    REFUSAL,
    REFUSED,
    comparison,
    observed,
    raised,
    subject,
)

MIXED = msgspec.structs.replace(
    CASE,
    plan=Fsdp1Plan(units=(Fsdp1Unit(path="0", use_orig_params=True), Fsdp1Unit(path=""))),
    program=(*CASE.program, OptimState()),
)


def test_a_clean_observation_passes() -> None:
    verdict = judge(CASE, observed(subject(comparisons=(comparison(),))))
    assert verdict.status == "passed"
    assert not verdict.findings


def test_a_crash_on_one_rank_is_a_divergence() -> None:
    (finding,) = judge(CASE, observed(errors=(raised(), None))).findings
    assert (finding.invariant, finding.symptom) == ("ranks_agree", "rank_divergence")
    assert finding.ranks == (0,)


def test_a_hang_is_where_the_rank_without_an_answer_is() -> None:
    hang = Hang(ranks=(1,), deadline=3.0, stages=("idle", "case:backward[1]"))
    (finding,) = judge(CASE, observed(hang=hang)).findings
    assert (finding.kind, finding.operation, finding.op) == ("backward", "backward", 1)


def test_a_documented_refusal_on_all_ranks_is_a_rejection() -> None:
    refusal = raised(type="ValueError", documented=True, stage="case:wrap", message=REFUSAL)
    assert judge(REFUSED, observed(errors=(refusal, refusal), case=REFUSED)).status == "rejected"


def test_a_refusal_of_something_else_is_a_crash() -> None:
    other = raised(type="ValueError", documented=True, stage="case:wrap", message="another thing")
    (finding,) = judge(REFUSED, observed(errors=(other, other), case=REFUSED)).findings
    assert finding.invariant == "no_crash"


def test_a_refusal_of_what_has_to_run_is_a_crash() -> None:
    refusal = raised(type="ValueError", documented=True, stage="case:wrap", message=REFUSAL)
    (finding,) = judge(CASE, observed(errors=(refusal, refusal))).findings
    assert (finding.invariant, finding.symptom) == ("no_crash", "crash")
    (finding,) = judge(CASE, observed(errors=(refusal, None))).findings
    assert finding.invariant == "ranks_agree"


def test_somebody_s_own_model_may_ask_for_any() -> None:
    given = Imported(target="mine.py", modules=(ImportedModule(path="", cls="Net", alone=True),))
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    target = msgspec.structs.replace(CASE, model=given, inputs=Given(), plan=plan)
    refusal = raised(type="ValueError", documented=True, stage="case:wrap")
    assert judge(target, observed(errors=(refusal, refusal), case=target)).status == "rejected"


def test_an_assertion_about_its_own_state_is_no_refusal() -> None:
    assertion = raised(type="ValueError", documented=True, message="expected to be in states")
    (finding,) = judge(CASE, observed(errors=(assertion, assertion))).findings
    assert finding.invariant == "no_crash"


def test_a_documented_text_in_the_middle_of_training_is_a_refusal() -> None:
    text = "Expects one homogeneous value for limit_all_gathers but got {True, False}"
    refusal = raised(type="ValueError", documented=True, message=text)
    assert judge(MIXED, observed(errors=(refusal, refusal), case=MIXED)).status == "rejected"
    assert judge(CASE, observed(errors=(refusal, refusal))).status == "finding"


@pytest.mark.parametrize(
    ("told", "type_", "status"),
    [
        ("Not all FSDP modules have the same _use_orig_params value", "AssertionError", "rejected"),
        ("Not all FSDP modules have the same _use_orig_params value", "RuntimeError", "finding"),
        ("Not all FSDP modules are sharded", "AssertionError", "finding"),
        ("Expects one homogeneous value for limit_all_gathers", "AssertionError", "finding"),
    ],
)
def test_an_assertion_is_a_refusal_where_that_is_how_it_comes(
    told: str, type_: str, status: str
) -> None:
    refusal = raised(type=type_, message=told)
    assert judge(MIXED, observed(errors=(refusal, refusal), case=MIXED)).status == status
    assert judge(CASE, observed(errors=(refusal, refusal))).status == "finding"


def test_a_refusal_of_the_reference_is_not_a_rejection() -> None:
    ours = raised(type="ValueError", documented=True, stage="reference-float64:forward[0]")
    (finding,) = judge(CASE, observed(errors=(ours, ours))).findings
    assert (finding.invariant, finding.op) == ("no_crash", -1)


def test_a_case_without_gradient_is_vacuous() -> None:
    observation = observed(subject())
    reports = tuple(msgspec.structs.replace(r, live=0) for r in observation.reports if r)
    dead = msgspec.structs.replace(observation, reports=reports)
    assert judge(CASE, dead).status == "vacuous"


def test_the_first_cause_is_reported_alone() -> None:
    wrong = (
        comparison(quantity="loss", name="loss[1]", op=3, error=9.0),
        comparison(quantity="param", op=2, error=9.0),
        comparison(quantity="grad", op=1, error=1.0, observed=0.0),
    )
    again = msgspec.structs.replace(CASE, program=(*CASE.program, Forward()))
    (finding,) = judge(again, observed(subject(comparisons=wrong))).findings
    assert (finding.key, finding.detail) == ("grad_parity/mismatch/fsdp2", "zero")
    assert (finding.op, finding.operation, finding.ranks) == (1, "backward", (0, 1))


def test_what_is_seen_after_the_program_hides_nothing_before_it() -> None:
    late = comparison(quantity="param", op=len(CASE.program), error=9.0)
    early = comparison(quantity="grad", op=1, error=1.0)
    (finding,) = judge(CASE, observed(subject(comparisons=(late, early)))).findings
    assert (finding.invariant, finding.op) == ("grad_parity", 1)
    (finding,) = judge(CASE, observed(subject(comparisons=(late,)))).findings
    assert (finding.invariant, finding.op) == ("param_parity", -1)


@pytest.mark.parametrize("names", [("case", "reshard"), ("reshard", "case")])
def test_a_mismatch_hides_none_of_another_training(names: tuple[str, str]) -> None:
    case = msgspec.structs.replace(CASE, twins=(Variant(name="reshard", plan=CASE.plan),))
    early = comparison(quantity="output", name="output[0]", op=0, error=9.0)
    later = comparison(quantity="param", op=2, error=9.0)
    last = comparison(quantity="param", op=2, error=9.0)
    subjects = (
        subject(name=names[0], comparisons=(early, last)),
        subject(name=names[1], comparisons=(later,)),
    )
    found = judge(case, observed(*subjects, case=case)).findings
    seen = {(f.variant or "case", f.invariant) for f in found}
    assert seen == {(names[0], "output_parity"), (names[1], "param_parity")}


def test_a_cause_does_not_hide_what_does_not_follow_from_it() -> None:
    wrong = comparison(error=1.0, observed=0.0)
    seen = observed(subject(comparisons=(wrong,), frozen_changed=("0.bias",)))
    found = [finding.invariant for finding in judge(CASE, seen).findings]
    assert found == ["grad_parity", "frozen_untouched"]


def test_the_peer_of_a_dead_rank_is_not_blamed() -> None:
    gone = raised(message="[..] Connection closed by peer [127.0.0.1]:1")
    death = Death(rank=1, exitcode=-6, stage="case:backward[1]")
    (finding,) = judge(CASE, observed(errors=(gone, None), deaths=(death,))).findings
    assert finding.invariant == "no_rank_death"


def test_what_a_rank_said_before_it_died_is_not_lost_for_its_stack() -> None:
    said = "x" * 2_000 + "free(): invalid pointer\n"
    stack = "Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n"
    frames = "".join(f'  File "/a/b/c.py", line {i} in called\n' for i in range(200))
    death = Death(rank=1, exitcode=-6, stage="case:backward[1]", output=said + stack + frames)
    (finding,) = judge(CASE, observed(deaths=(death,))).findings
    assert finding.failure is not None
    kept = finding.failure.output
    assert "free(): invalid pointer\nFatal Python error: Aborted" in kept
    assert "line 0 in called" in kept
    assert len(kept) == 1_500
    short = msgspec.structs.replace(death, output=frames)
    (finding,) = judge(CASE, observed(deaths=(short,))).findings
    assert finding.failure is not None
    assert finding.failure.output == frames[-1_500:]


def test_a_rank_that_dies_after_another_raised_is_not_blamed() -> None:
    death = Death(rank=1, exitcode=-6, stage="case:backward[1]")
    (finding,) = judge(CASE, observed(errors=(raised(), None), deaths=(death,))).findings
    assert finding.invariant == "ranks_agree"


def test_ranks_that_waited_for_one_that_failed_hang_for_no_reason_of_their_own() -> None:
    waiting = Hang(ranks=(1,), deadline=3.0, after_failure=True)
    (finding,) = judge(CASE, observed(errors=(raised(), None), hang=waiting)).findings
    assert finding.invariant == "ranks_agree"


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"observed": 2.0}, "times-ranks"),
        ({"observed": 0.5}, "over-ranks"),
        ({"observed": 0.0}, "zero"),
        ({"observed": 0.7}, "other"),
        ({"observed": 2.05}, "other"),
        # Rounded a few times in bfloat16.
        ({"observed": 2.05, "eps": 2.0**-7, "error": 1e3}, "times-ranks"),
        ({"observed": 2.2, "eps": 2.0**-7, "error": 1e3}, "other"),
        ({"error": 1e300, "finite": False}, "not-finite"),
        ({"missing": "observed", "observed": 0.0}, "observed-missing"),
        ({"missing": "shape", "finite": False}, "shape"),
    ],
)
def test_the_sort_of_deviation_is_told_beside_the_key(
    changes: dict[str, object], detail: str
) -> None:
    broken = comparison(**{"error": 1.0} | changes)
    (finding,) = judge(CASE, observed(subject(comparisons=(broken,)))).findings
    assert finding.key == "grad_parity/mismatch/fsdp2"
    assert finding.detail == detail


def test_nothing_is_said_where_ddp_diverged_too() -> None:
    diverged = comparison(error=1e300, finite=False, baseline=1e300)
    assert judge(CASE, observed(subject(comparisons=(diverged,)))).status == "passed"


def test_the_message_says_what_was_seen_and_what_should_be() -> None:
    wrong = comparison(error=1.0, observed=1.5, expected=0.5)
    (finding,) = judge(CASE, observed(subject(comparisons=(wrong,)))).findings
    assert finding.message.startswith("grad=1.5, but should be 0.5 within ")
    assert "[0.weight, all ranks, backward program[1]]" in finding.message
    assert "DDP is off by 1e-08" in finding.message


@pytest.mark.parametrize("relative", [1e-3, 1e-4])
def test_tolerance_is_tight_where_ddp_is_exact(relative: float) -> None:
    assert tolerance(comparison(baseline=0.0)) < relative


def test_what_ddp_lost_in_bfloat16_is_no_loss_of_float32() -> None:
    lost = {"baseline": 3e-3, "eps": 2.0**-7}
    assert tolerance(comparison(**lost, coarse=1e-2, baseline_eps=2.0**-7)) < 0.5
    assert tolerance(comparison(**lost, coarse=1e-2)) > 100.0
    assert tolerance(comparison(**lost, baseline_eps=2.0**-7)) < 10.0
    assert tolerance(comparison(**lost)) > 5000.0


def test_tolerance_follows_ddp() -> None:
    assert tolerance(comparison(baseline=1e-2)) > 1e-2


def test_nothing_is_tolerated_where_bits_must_be_equal() -> None:
    assert tolerance(comparison(exact=True, baseline=1e-2)) == 0.0


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


def test_a_finding_of_no_invariant_is_refused() -> None:
    odd = Finding(invariant="novel", symptom="mismatch", api="fsdp1")
    with pytest.raises(ContractError, match="'novel'"):
        invariant_of(odd)


HALF = {"eps": FLOAT16_EPS, "scale": 1.0, "floor": 1.0, "baseline": 1e-7}


def test_in_low_precision_what_was_measured_counts_and_nothing_is_guessed() -> None:
    guessed, close, far = (
        tolerance(comparison(**HALF, coarse=coarse)) for coarse in (None, 1e-3, 10.0)
    )
    assert 1e-3 < close < guessed
    assert 10.0 < far < 100.0
    # A gradient that is halved is found, in bfloat16, too.
    assert broken(comparison(**HALF | {"eps": 2.0**-7}, coarse=2.0**-7, error=0.5))
    assert not broken(comparison(**HALF | {"eps": 2.0**-7}, coarse=None, error=0.5))


def test_a_plain_model_that_is_right_by_chance_allows_no_less_than_float32_lost() -> None:
    """Found by drawing: one output of 1e-3, of terms of float16 a hundred times as large."""
    output = {"scale": 1.14e-3, "floor": 1.14e-3, "eps": FLOAT16_EPS, "numel": 1}
    lucky = output | {"coarse": 2e-5, "baseline": 4.37e-9}
    assert not broken(comparison(**lucky, error=1.2e-4))
    assert broken(comparison(**lucky, error=2.5e-4))
    assert broken(comparison(**lucky | {"baseline": 1e-10}, error=1.2e-4))


def test_nothing_is_said_where_a_lower_dtype_diverged_too() -> None:
    lost = comparison(**HALF, error=1e300, finite=False, coarse=1e300)
    assert judge(CASE, observed(subject(comparisons=(lost,)))).status == "passed"
    alone = comparison(**HALF, error=1e300, finite=False, coarse=1e-3)
    assert judge(CASE, observed(subject(comparisons=(alone,)))).status == "finding"


def test_training_that_leaves_its_range_before_any_gradient_is_vacuous() -> None:
    seen = observed()
    reports = tuple(
        msgspec.structs.replace(report, beyond="the range of float16", live=0)
        for report in seen.reports
        if report is not None
    )
    verdict = judge(CASE, msgspec.structs.replace(seen, reports=reports))
    assert verdict.status == "vacuous"
    assert verdict.reason == "training leaves the range of float16"
    later = tuple(msgspec.structs.replace(report, live=2) for report in reports)
    assert judge(CASE, msgspec.structs.replace(seen, reports=later)).status == "passed"
