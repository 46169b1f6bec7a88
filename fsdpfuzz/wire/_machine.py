"""What a machine offers, as the process that looked says it."""

from __future__ import annotations

from typing import Literal

import msgspec

Backend = Literal["gloo", "nccl"]
DeviceName = Literal["cpu", "cuda"]

DEVICES: dict[Backend, DeviceName] = {"gloo": "cpu", "nccl": "cuda"}
"""Where ranks on a backend compute: there is no other choice of a device."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Python, torch and hardware as the ranks will find them."""

    python: str
    torch: str
    os: str = ""
    """As ``torch.utils.collect_env`` says it; empty where it does not know."""
    cuda: str = ""
    """CUDA version that torch was built for; empty without."""
    cuda_available: bool = False
    nccl: str = ""
    """Version; empty if torch was built without NCCL."""
    gloo: bool = False
    mpi: bool = False
    gpus: int = 0
    gpu_names: tuple[str, ...] = ()
    cores: int = 1
    """That this process may use."""
    memory_bytes: int = 0
    """Bytes that this process may use, by machine and control group."""
    features: dict[str, bool] = {}
    """What this torch offers of what fsdpfuzz uses."""

    @property
    def offers(self) -> tuple[str, ...]:
        """The features that are there."""
        return tuple(name for name, there in self.features.items() if there)

    @property
    def default_backend(self) -> Backend:
        """NCCL where there are two GPUs or more, else gloo."""
        return "nccl" if self.nccl and self.gpus >= 2 else "gloo"
