"""What may be frozen and unfrozen on the way."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import ITERATION, RequiresGrad, check
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import fsdp1, fsdp2, make


@pytest.mark.parametrize("value", [True, False])
def test_a_flat_parameter_is_frozen_as_a_whole(value: bool) -> None:
    one = RequiresGrad(parameters=("0.weight",), value=value)
    both = RequiresGrad(parameters=("0.weight", "0.bias"), value=value)
    with pytest.raises(CaseError, match="lies in a flat parameter: name all of it") as caught:
        check(make(fsdp1("", "0"), program=(one, *ITERATION)))
    assert caught.value.path == "$.program[0].parameters"
    check(make(fsdp1("", "0"), program=(both, *ITERATION)))
    for plan in (fsdp1("", "0", use_orig_params=True), fsdp2("", "0")):
        check(make(plan, program=(one, *ITERATION)))
