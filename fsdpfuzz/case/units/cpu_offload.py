"""``CPUOffload`` of fsdp1 and ``CPUOffloadPolicy`` of fsdp2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.case.units.base import Option, anywhere

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit


def lies_on_cpu(unit: Unit) -> bool:
    """Whether the shards of a unit, and the gradients of these, lie on the CPU."""
    return unit.cpu_offload


class CpuOffload(Option):
    """Whether a unit's shards live on the CPU."""

    name = "cpu_offload"
    configured_by: ClassVar[tuple[str, ...]] = ("fsdp_offload_params",)
    free: ClassVar[bool] = False
    feature: ClassVar[Feature] = Feature(
        about="on when any unit offloads parameters", group="Sharding", values=ON
    )

    def read(self, told: Mapping[str, Any]) -> Any:
        """Where they lie."""
        return told["on_cpu"]

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """Off, unless it says otherwise."""
        return config.flag(self.configured_by[0], default=False)

    def text(self, value: Any) -> str:
        """``on`` or ``off``."""
        return on(value)

    def merged(self, texts: Iterable[str]) -> str:
        """``on`` where any unit does."""
        return anywhere(texts)

    def needs_gpu(self, a: Anatomy) -> str:
        """FSDP1 copies to "the accelerator" before each forward, whatever ``device_id`` says."""
        if a.fsdp1 and any(getattr(unit, self.name) for unit in a.options.values()):
            return "FSDP1's CPU offload needs a GPU to compute on"
        return ""

    def needs_gloo(self, a: Anatomy) -> str:
        """FSDP2 reduces the norm where the gradients are; a group of NCCL alone raises there.

        PyTorch asks for a group of ``cpu:gloo,cuda:nccl`` then (pytorch issue 148532). And what
        was on the meta device is materialised where it computes, which FSDP2 refuses.
        """
        offloaded = not a.fsdp1 and any(getattr(unit, self.name) for unit in a.options.values())
        if offloaded and any(op.joins_gradients for op in a.case.program):
            return "FSDP2 clips offloaded gradients by collectives on the CPU"
        if offloaded and a.case.grad_scaler is not None:
            return "FSDP2 looks for overflows of offloaded gradients by collectives on the CPU"
        # ``_validate_cpu_offload_params`` in fsdp/_fully_shard/_fsdp_param_group.py.
        if offloaded and a.case.meta_init is not None:
            return "FSDP2 wants offloaded parameters materialised on the CPU"
        return ""

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``cpu_offload`` or ``offload_policy``; pinning memory needs a GPU."""
        if "sharding" in unit.__struct_fields__:
            policy = call("torch.distributed.fsdp.CPUOffload", offload_params=value)
            yield "cpu_offload", policy
        else:
            # Asked for by the script itself, which may run on another machine than this one.
            pin = call("torch.cuda.is_available")
            policy = call("torch.distributed.fsdp.CPUOffloadPolicy", pin_memory=pin)
            yield "offload_policy", policy if value else None

    def needed(self, value: Any) -> str:
        """In two words."""
        return "CPU offload"
