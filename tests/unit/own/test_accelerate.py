"""An FSDP configuration of accelerate, read as a plan."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import Fsdp1Plan, Fsdp2Plan, Imported, ImportedModule, ImportedParameter
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.errors import UsageError
from fsdpfuzz.own._accelerate import Configured, configured, read_configuration
from fsdpfuzz.wire import Accelerated

WEIGHT = (ImportedParameter(name="weight", shape=(4, 4)),)
MODEL = Imported(
    target="mine.py",
    computes_in=("bfloat16",),
    modules=(
        ImportedModule(path="", cls="Net", alone=True),
        ImportedModule(path="layers", cls="ModuleList"),
        ImportedModule(path="layers.0", cls="Block", alone=True, parameters=WEIGHT),
        ImportedModule(path="layers.1", cls="Block", alone=True, parameters=WEIGHT),
        ImportedModule(path="head", cls="Linear", alone=True, parameters=WEIGHT),
    ),
)
FIRST = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP  # as accelerate writes it
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_POST
  fsdp_forward_prefetch: true
  fsdp_offload_params: false
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block, Linear
  fsdp_use_orig_params: 'false'
mixed_precision: bf16
"""
SIZED = "fsdp_config:\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
SECOND_API = "fsdp_config:\n  fsdp_version: 2"
SECOND = """\
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
mixed_precision: 'no'
"""


def made(
    folder: Path,
    text: str,
    model: Imported = MODEL,
    world_size: int = 2,
    accelerated: Accelerated | None = None,
) -> Configured:
    path = folder / "fsdp.yaml"
    path.write_text(text)
    return configured(read_configuration(path), model, world_size, accelerated)


def told(folder: Path, text: str) -> tuple[Fsdp1Plan | Fsdp2Plan, tuple[str, ...]]:
    found = made(folder, text)
    return found.plan, found.notes


def test_of_the_first_api(tmp_path: Path) -> None:
    plan, notes = told(tmp_path, FIRST)
    assert isinstance(plan, Fsdp1Plan)
    assert [unit.path for unit in plan.units] == ["", "layers.0", "layers.1", "head"]
    assert notes == ()
    for unit in plan.units:
        assert (unit.sharding, unit.backward_prefetch) == ("SHARD_GRAD_OP", "BACKWARD_POST")
        assert (unit.use_orig_params, unit.forward_prefetch, unit.cpu_offload) == (
            False,
            True,
            False,
        )
        assert unit.precision is not None
        assert (unit.precision.param, unit.precision.reduce) == ("bfloat16", "bfloat16")


def test_of_the_second(tmp_path: Path) -> None:
    plan, notes = told(tmp_path, SECOND)
    assert isinstance(plan, Fsdp2Plan)
    assert [unit.path for unit in plan.units] == [""]
    assert plan.units[0].reshard_after_forward is False
    assert plan.units[0].precision is None
    assert notes == ()


def test_values_as_yaml_reads_them(tmp_path: Path) -> None:
    """A list of classes, and `no`, which is not quoted, as a truth value."""
    text = FIRST.replace("Block, Linear", "[Block, Linear]").replace("bf16", "no")
    plan, _ = told(tmp_path, text)
    assert [unit.path for unit in plan.units] == ["", "layers.0", "layers.1", "head"]
    assert plan.units[0].precision is None


@pytest.mark.parametrize(
    ("least", "units"),
    [
        (0, [""]),
        (16, ["", "layers.0", "layers.1", "head"]),
        (17, [""]),
        (100, [""]),
    ],
)
def test_units_by_their_size(least: int, units: list[str], tmp_path: Path) -> None:
    """As torch's policy has it: never a ``ModuleList``, though it is large enough."""
    plan, _ = told(tmp_path, f"{SIZED}  fsdp_min_num_params: {least}\n")
    assert [unit.path for unit in plan.units] == units


def test_layers_that_the_model_names_itself(tmp_path: Path) -> None:
    model = msgspec.structs.replace(MODEL, layers=("Block", "Gone"))
    text = FIRST.replace("Block, Linear", "")
    found = made(tmp_path, text, model)
    assert [unit.path for unit in found.plan.units] == ["", "layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [("HYBRID_SHARD", "HYBRID_SHARD"), ("5", "_HYBRID_SHARD_ZERO2")],
)
def test_a_hybrid_strategy_replicates_over_machines(
    asked: str, strategy: str, tmp_path: Path
) -> None:
    text = FIRST.replace("SHARD_GRAD_OP", asked)
    found = made(tmp_path, text)
    assert found.mesh == Mesh(replicate=1, shard=2)
    assert isinstance(found.plan, Fsdp1Plan)
    assert {unit.sharding for unit in found.plan.units} == {strategy}
    assert made(tmp_path, f"num_machines: 2\n{text}", world_size=4).mesh == Mesh(
        replicate=2, shard=2
    )
    with pytest.raises(UsageError, match="num_machines: '3': give a number that divides 4 ranks"):
        made(tmp_path, f"num_machines: 3\n{text}", world_size=4)
    assert made(tmp_path, FIRST).mesh is None


def test_what_is_not_followed_is_said(tmp_path: Path) -> None:
    text = FIRST.replace("bf16", "fp16").replace("  fsdp_use", "  fsdp_sideways: 3\n  fsdp_use")
    plan, notes = told(tmp_path, text)
    assert plan.units[0].precision is None
    assert any("fsdp_sideways is not followed" in note for note in notes)
    assert any("your model does not run in float16" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixed_precision: bf16\n", "has no section fsdp_config"),
        (SECOND.replace("2", "3"), "fsdp_version: '3': give 1 or 2"),
        (FIRST.replace("Block, Linear", "Blok"), "'Blok': give classes that your model has: Block"),
        (FIRST.replace("Block, Linear", ""), "fsdp_transformer_layer_cls_to_wrap: '': give"),
        (FIRST.replace("SHARD_GRAD_OP", "SHARDED"), "fsdp_sharding_strategy: 'SHARDED': give FULL"),
        (FIRST.replace("TRANSFORMER", "SIDE"), "'SIDE_BASED_WRAP': give TRANSFORMER_BASED_WRAP"),
        (f"{SIZED}  fsdp_min_num_params: few\n", "fsdp_min_num_params: 'few': give a number"),
        (
            f"{SIZED}  fsdp_min_num_params: 20\n".replace("fsdp_config:", SECOND_API),
            "accelerate would make a unit of 'layers', which is not called by itself",
        ),
        (FIRST.replace("_params: false", "_params: maybe"), "'maybe': give true or false"),
        (FIRST.replace("bf16", "fp8"), "mixed_precision: 'fp8': give no, bf16 or fp16"),
        ("fsdp_config:\n  what is this\n", "has no section fsdp_config"),
        ("- fsdp_config\n", "it is no YAML of names"),
        ("fsdp_config: [\n", "it is no YAML of names"),
    ],
)
def test_what_is_wrong_is_said_with_its_value(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        told(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_configuration(tmp_path / "gone.yaml")


def test_accelerate_itself_decides_where_it_is_installed(tmp_path: Path) -> None:
    said = Accelerated(version="9.9", units=("layers.0",))
    found = made(tmp_path, FIRST, accelerated=said)
    assert [unit.path for unit in found.plan.units] == ["", "layers.0"]
    assert found.notes == ("--config: units as accelerate 9.9 makes them",)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (
            Accelerated(version="9.9", refused="ValueError: Could not find the layer"),
            "accelerate 9.9 raised ValueError: Could not find the layer",
        ),
        (
            Accelerated(version="9.9", units=("layers",)),
            "accelerate would make a unit of 'layers', which is not called by itself",
        ),
    ],
)
def test_what_accelerate_makes_may_not_be_followed(
    said: Accelerated, wrong: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=re.escape(wrong)):
        made(tmp_path, FIRST, accelerated=said)
