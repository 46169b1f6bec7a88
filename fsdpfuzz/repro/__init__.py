"""Standalone scripts that show one finding under ``torchrun`` with nothing but torch."""

from __future__ import annotations

from fsdpfuzz.repro._context import Ablation, Context, environment_of, finding_of
from fsdpfuzz.repro._render import render

__all__ = ["Ablation", "Context", "environment_of", "finding_of", "render"]
