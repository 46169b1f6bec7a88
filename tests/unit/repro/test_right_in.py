"""In which dtype the plain model says what is right, for ranks and for scripts."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Dropout, Gain, Linear, Node, Sequential, anatomy, right_in
from fsdpfuzz.repro import Context, render
from tests.unit.repro.examples import finding, single_unit


@pytest.mark.parametrize(
    ("layer", "backend", "dtype"),
    [
        (Gain(), "gloo", "float64"),
        (Gain(), "nccl", "float64"),
        (Dropout(), "gloo", "float64"),
        (Dropout(), "nccl", "float32"),
    ],
)
def test_random_numbers_of_a_gpu_hang_on_the_dtype(layer: Node, backend: str, dtype: str) -> None:
    given = single_unit("fsdp2", model=Sequential(children=(Linear(out=3), layer)))
    assert right_in(anatomy(given), backend) == dtype
    script = render(
        given, finding("grad_parity"), Context(torch="", backend=backend, environment=())
    )
    assert ("torch.float64" in script) is (dtype == "float64")
    assert ("in float64 without FSDP" in script) is (dtype == "float64")
