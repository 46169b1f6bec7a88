"""Names of what findings are about."""

from __future__ import annotations

import pytest

from fsdpfuzz.case.names import parameter_in, parts_of


@pytest.mark.parametrize(
    ("name", "parts", "parameter"),
    [
        ("0.weight", ("0.weight", "", ""), "0.weight"),
        ("total_norm", ("total_norm", "", ""), "total_norm"),
        ("full_params[0.weight]", ("full_params", "0.weight", ""), "0.weight"),
        ("full_params[weight]", ("full_params", "weight", ""), "weight"),
        ("optim[a.0.bias].exp_avg", ("optim", "a.0.bias", "exp_avg"), "a.0.bias"),
        ("input_grad[0]", ("input_grad[0]", "", ""), "input_grad[0]"),
        ("loss[12]", ("loss[12]", "", ""), "loss[12]"),
    ],
)
def test_a_name_tells_whose_it_is(name: str, parts: tuple[str, ...], parameter: str) -> None:
    assert parts_of(name) == parts
    assert parameter_in(name) == parameter
