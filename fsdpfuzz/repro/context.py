"""What a script's header says beyond the case: where and how the finding was met."""

from __future__ import annotations

import msgspec

from fsdpfuzz.reduce import Ablation
from fsdpfuzz.wire import Machine


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Provenance of a finding, for the header of its script."""

    torch: str = ""
    backend: str = ""
    environment: tuple[str, ...] = ()
    """Further words on the machine: ``Python version: 3.12.3``, ``2 × NVIDIA H200``."""
    here: tuple[str, ...] = ()
    """Words on the machine on which the script is written, where that may be another one."""
    ablation: Ablation | None = None
    rate: str = ""
    """``3 of 10`` for a finding that does not show each time."""
    script: str = "repro.py"
    """File name in the command line that the header gives."""
    folder: str = ""
    """Where the target of an imported model lies."""
    patience: float = 20.0
    """Seconds after which the script calls a run that does not end a hang."""


def torch_version(torch: str) -> str:
    """The version of torch in the words of ``torch.utils.collect_env``."""
    return f"PyTorch version: {torch}"


def environment_of(machine: Machine) -> tuple[str, ...]:
    """The machine in the words of ``torch.utils.collect_env``, and what else matters to ranks."""
    words = [f"CUDA used to build PyTorch: {machine.cuda or None}"]
    words.append(f"Python version: {machine.python}")
    if machine.os:
        words.append(f"OS: {machine.os}")
    if machine.nccl:
        words.append(f"NCCL {machine.nccl}")
    gpus = machine.gpu_names
    return (*words, *(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)))
