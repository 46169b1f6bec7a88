"""What the documents assert fails where FSDP breaks, and passes where it does not."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Sequential,
)
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from fsdpfuzz.seeds import SEEDS
from tests.injected.by_hand import judged


def seed(start: str, *parts: str) -> CaseSpec:
    """The first seed for machines without a GPU whose name starts so and holds the parts."""
    for item in SEEDS:
        whole = item.name.startswith(start) and all(part in item.name for part in parts)
        if whole and not item.needs:
            return item.case
    raise AssertionError(f"no seed {start} {parts}")


WRAPPED = "000: test_checkpoint_fsdp_wrapping"
HOOKS = "002: test_backward_reshard_hooks[sharding_strategy=FULL_SHARD"
NOT_FROZEN = "002: test_parity_with_non_frozen_fsdp"
FIRST, LATER = "003: test_invalid_first_iter_order", "003: test_invalid_later_iter_order"

ONCE = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=3), Linear(out=2))),
    inputs=Dense(width=3, requires_grad=True),
    plan=Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="1"), Fsdp1Unit(path=""))),
    frozen=("0.weight", "0.bias"),
    program=(Forward(), Backward()),
)

FAULTS = {
    "offload_not_entered": (
        seed(WRAPPED, "offload_activations=True"),
        "offload_entered/mismatch/fsdp1",
    ),
    "offload_where_none_is_due": (
        seed(WRAPPED, "offload_activations=False"),
        "offload_entered/mismatch/fsdp1",
    ),
    "one_form_has_other_gradients": (
        seed(WRAPPED, "offload_activations=True"),
        "twins_agree/mismatch/fsdp1",
    ),
    "nothing_is_freed": (ONCE, "resharded_after_backward/leak/fsdp1"),
    "frozen_units_have_no_hook": (
        seed(HOOKS, "inp_requires_grad=True", "unfreeze_params=False"),
        "reshard_count/mismatch/fsdp1:less",
    ),
    "frozen_units_reshard_twice": (
        seed(HOOKS, "inp_requires_grad=True", "unfreeze_params=False"),
        "reshard_count/mismatch/fsdp1:more",
    ),
    "gradients_differ_beside_frozen_units": (
        seed(NOT_FROZEN, "MixedPrecision()"),
        "twins_agree/mismatch/fsdp1",
    ),
    "order_is_not_checked": (seed(FIRST), "order_error/mismatch/fsdp1:silent"),
    "one_rank_hears_nothing": (seed(FIRST), "order_error/rank_divergence/fsdp1:some-ranks"),
    "warnings_repeat": (seed(LATER), "order_warning/mismatch/fsdp1:repeated"),
    "every_rank_warns": (seed(LATER), "order_warning/mismatch/fsdp1:false"),
    "iterations_do_not_end": (
        seed("003: test_train_eval"),
        "order_warning/mismatch/fsdp1:false",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found(fault: str) -> None:
    example, key = FAULTS[fault]
    found = judged(example, f"tests.quality.injected_documents:{fault}")
    assert any(finding.key.startswith(key) for finding in found.findings), found


def test_without_a_fault_the_same_cases_are_as_they_should_be() -> None:
    with Pool(2, "gloo") as pool:
        for example, _ in FAULTS.values():
            assert judge(example, pool.run(example)).status == "passed"
