"""What a convolution with batch norm says and refuses, and which units fsdp1 gives batch norms."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Plan,
    Precision,
    Rebuild,
    Sequential,
    Variant,
    anatomy,
    check,
    dtypes_fit,
    features,
    is_sound,
)
from fsdpfuzz.case.modules import ConvNorm
from fsdpfuzz.errors import CaseError

SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
LOW = Precision(param="bfloat16", buffer="bfloat16")
TRAINED = (Forward(), Backward())
EVALUATED = (*TRAINED, Mode(train=False), Forward(grad=False))


def case(plan: Plan = SECOND, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=4), ConvNorm(channels=2))),
        "inputs": Dense(width=3),
        "plan": plan,
        "program": TRAINED,
    }
    return CaseSpec(**values | changes)


def policy(*units: Fsdp1Unit, precision: Precision | None = LOW, **changes: Any) -> Fsdp1Plan:
    root = Fsdp1Unit(path="", precision=precision)
    return Fsdp1Plan(units=(root, *units), **{"wrap": "custom_policy"} | changes)


def test_one_value_for_each_channel_is_no_batch() -> None:
    with pytest.raises(CaseError, match="two values"):
        check(case(model=ConvNorm(), inputs=Dense(width=1)))


def test_its_features() -> None:
    found = features(case())
    assert (found["norm"], found["buffers"]) == ("batch", "running")


def test_its_statistics_are_not_recomputed_where_eval_mode_reads_them() -> None:
    placed = (Checkpoint(path="1"),)
    assert is_sound(case(program=EVALUATED))
    assert is_sound(case(checkpoints=placed))
    assert is_sound(case(checkpoints=(Checkpoint(path="0"),), program=EVALUATED))
    with pytest.raises(CaseError, match=r"eval mode reads '1\.bn\.running_mean'"):
        check(case(checkpoints=placed, program=EVALUATED))
    with pytest.raises(CaseError, match="eval mode reads"):
        check(case(twins=(Variant(name="other", checkpoints=placed),), program=EVALUATED))


def test_a_checkpoint_on_disk_has_the_statistics_of_one_rank() -> None:
    with pytest.raises(CaseError, match="not saved"):
        check(case(program=(*TRAINED, Rebuild(plan=SECOND))))


def test_a_policy_gives_batch_norms_units_without_mixed_precision() -> None:
    for plan in (
        policy(Fsdp1Unit(path="0", precision=LOW)),
        policy(wrap="module_classes", classes=("linear",)),
    ):
        a = anatomy(case(plan))
        assert a.units == ("", "0", "1.bn")
        assert [a.options[path].precision for path in a.units] == [LOW, LOW, None]
        assert a.owned["1.bn"] == list(a.by_path["1.bn"].parameters)
        assert dtypes_fit(a)
    named = anatomy(case(policy(Fsdp1Unit(path="1.bn", sharding="NO_SHARD", precision=LOW))))
    assert named.fsdp1_options["1.bn"] == Fsdp1Unit(path="1.bn", sharding="NO_SHARD")


def test_batch_norms_are_nothing_special_elsewhere() -> None:
    by_hand = Fsdp1Plan(units=(Fsdp1Unit(path="", precision=LOW),))
    for plan in (by_hand, policy(Fsdp1Unit(path="0"), precision=None), SECOND):
        assert "1.bn" not in anatomy(case(plan)).units
    root = Fsdp1Unit(path="", ignored=("1",))
    ignoring = Fsdp1Plan(units=(root, Fsdp1Unit(path="0")), wrap="custom_policy")
    assert "1.bn" not in anatomy(case(ignoring)).units


def test_its_unit_lies_inside_of_a_wrapper() -> None:
    plan = policy(Fsdp1Unit(path="0", precision=LOW))
    with pytest.raises(CaseError, match="inside of its wrapper"):
        check(case(plan, checkpoints=(Checkpoint(path="1.bn"),)))
    check(case(plan, checkpoints=(Checkpoint(path="1.bn", side="around"),)))
