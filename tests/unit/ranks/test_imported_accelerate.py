"""How accelerate's own code is asked, where it is installed; here a stand-in of its plugin."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from fsdpfuzz.ranks import _imported_accelerate
from fsdpfuzz.ranks._imported_accelerate import accelerated
from fsdpfuzz.wire import Accelerated

SIZED = {
    "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
    "fsdp_min_num_params": "16",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
    "fsdp_offload_params": "true",
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))


class Plugin:
    """What is asked of ``FullyShardedDataParallelPlugin``."""

    seen: dict[str, str]

    def __init__(self) -> None:
        Plugin.seen = {name: v for name, v in os.environ.items() if name.startswith("FSDP_")}
        self.fsdp_version = int(Plugin.seen.get("FSDP_VERSION", "1"))
        self.auto_wrap_policy: Any = None

    def set_auto_wrap_policy(self, model: nn.Module) -> None:
        if Plugin.seen.get("FSDP_AUTO_WRAP_POLICY") == "WRONG":
            raise ValueError("Invalid auto wrap policy")
        least = int(Plugin.seen["FSDP_MIN_NUM_PARAMS"])
        self.auto_wrap_policy = functools.partial(size_based_auto_wrap_policy, min_num_params=least)


def linear_layers(_plugin: Plugin, _model: nn.Module) -> Callable[[nn.Module], bool]:
    return lambda module: isinstance(module, nn.Linear)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    package, utils = ModuleType("accelerate"), ModuleType("accelerate.utils.fsdp_utils")
    package.FullyShardedDataParallelPlugin = Plugin  # type: ignore[attr-defined]
    utils.fsdp2_prepare_auto_wrap_policy = linear_layers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate", package)
    monkeypatch.setitem(sys.modules, "accelerate.utils.fsdp_utils", utils)
    monkeypatch.setattr(_imported_accelerate, "version", lambda _: "9.9")
    monkeypatch.setenv("FSDP_VERSION", "7")


@pytest.mark.usefixtures("installed")
def test_the_policy_is_applied_as_fsdp1_applies_it() -> None:
    assert accelerated(model(), SIZED) == Accelerated(version="9.9", units=("0",))


@pytest.mark.usefixtures("installed")
def test_it_sees_the_environment_that_its_launcher_sets() -> None:
    accelerated(model(), SIZED)
    assert Plugin.seen == {
        "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "FSDP_MIN_NUM_PARAMS": "16",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    }
    assert os.environ["FSDP_VERSION"] == "7", "as it was before"


@pytest.mark.usefixtures("installed")
def test_every_module_that_its_policy_names_is_a_unit_of_fsdp2() -> None:
    found = accelerated(model(), {**SIZED, "fsdp_version": "2"})
    assert found == Accelerated(version="9.9", units=("0", "2"))


@pytest.mark.usefixtures("installed")
def test_what_it_refuses_is_told() -> None:
    found = accelerated(model(), {"fsdp_auto_wrap_policy": "WRONG"})
    assert found == Accelerated(version="9.9", refused="ValueError: Invalid auto wrap policy")


def test_nothing_is_asked_without_a_configuration() -> None:
    assert accelerated(model(), {}) is None


def test_without_accelerate_it_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert accelerated(model(), SIZED) is None
