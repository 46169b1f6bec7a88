"""How FSDP wraps a model, as a person would write it."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Fsdp1Plan, Fsdp1Unit, Fsdp2Plan, Fsdp2Unit, Precision
from fsdpfuzz.repro import plan_text
from tests.unit.case.test_imported import CASE, MODEL

replace = msgspec.structs.replace
POLICY = "MixedPrecisionPolicy(param_dtype=torch.bfloat16)"


def test_units_from_the_inside_with_what_differs_from_the_defaults() -> None:
    half = Precision(param="bfloat16")
    units = (
        Fsdp2Unit(path="", precision=half),
        Fsdp2Unit(path="blocks.0", precision=half, reshard_after_forward=False),
    )
    text = plan_text(replace(CASE, plan=Fsdp2Plan(units=units)), "gloo")
    assert text.splitlines() == [
        "import torch",
        "import torch.distributed as dist",
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        "",
        'mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))',
        "fully_shard(",
        "    model.blocks[0],",
        "    mesh=mesh,",
        "    reshard_after_forward=False,",
        f"    mp_policy={POLICY},",
        ")",
        f"fully_shard(model, mesh=mesh, mp_policy={POLICY})",
    ]


def test_the_first_api_puts_modules_in_place_of_others_on_the_device_of_the_backend() -> None:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="head", use_orig_params=True)))
    text = plan_text(replace(CASE, plan=plan), "nccl")
    assert "model.head = FSDP(" in text
    assert "use_orig_params=True" in text
    assert 'device_id=torch.device("cuda")' in text
    assert text.index("model.head = ") < text.index("\nmodel = ")


def test_nothing_where_the_models_own_code_wraps_it() -> None:
    assert plan_text(replace(CASE, model=replace(MODEL, wrapped=True)), "gloo") == ""
