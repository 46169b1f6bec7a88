"""Two cases are equal where their JSON is, so nothing that is remembered of one is another's."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Fsdp1Unit,
    Linear,
    Optimizer,
    anatomy,
    decode,
    digest,
    encode,
)


def with_number(value: Any, momentum: float | None = None) -> CaseSpec:
    """A case with ``reshard_after_forward``, and the momentum written out where it is given."""
    document: dict[str, Any] = {
        "world_size": 2,
        "model": {"kind": "linear", "out": 2},
        "inputs": {"kind": "dense", "width": 2},
        "plan": {"api": "fsdp2", "units": [{"path": "", "reshard_after_forward": value}]},
        "program": [{"op": "forward"}],
    }
    if momentum is not None:
        document["optimizer"] = {"momentum": momentum}
    return decode(json.dumps(document).encode())


@pytest.mark.parametrize("flipped", [False, True])
def test_what_is_remembered_of_a_case_is_never_anothers(*, flipped: bool) -> None:
    """``True == 1`` in Python, but one keeps the parameters sharded and the other does not."""
    cases = [with_number(True), with_number(1), with_number(False), with_number(2)]
    cases += [with_number(True, 0.8), with_number(1, 0.8)]
    for case in reversed(cases) if flipped else cases:
        assert digest(case) == hashlib.sha256(encode(case)).hexdigest()[:16]
        assert encode(anatomy(case).case) == encode(case)
    assert len({digest(case) for case in cases}) == len(set(cases)) == len(cases)


def test_a_default_that_is_written_out_is_one_that_is_left_out() -> None:
    plain, spelled = with_number(True), with_number(True, 0.9)
    assert encode(plain) == encode(spelled)
    assert (plain, digest(plain)) == (spelled, digest(spelled))
    replaced = msgspec.structs.replace(Optimizer(momentum=0.5), momentum=float("0.9"))
    assert replaced == Optimizer(momentum=float("0.9")) == Optimizer()
    assert encode(msgspec.structs.replace(plain, optimizer=replaced)) == encode(plain)
    sharding = "".join(("FULL", "_SHARD"))
    assert Fsdp1Unit(path="", sharding=sharding) == Fsdp1Unit(path="")  # type: ignore[arg-type]


def test_equal_cases_have_one_hash_and_others_are_told_apart() -> None:
    assert with_number(2) == with_number(2)
    assert hash(with_number(2)) == hash(with_number(2))
    assert with_number(True).plan != with_number(1).plan
    assert (Linear(out=2) == "linear") is False
