"""Standalone scripts that show one finding under ``torchrun`` with nothing but torch."""

from __future__ import annotations

from fsdpfuzz.repro._ablate import ablate, variations
from fsdpfuzz.repro._context import Ablation, Context, environment_of, finding_of
from fsdpfuzz.repro._issue import issue_text
from fsdpfuzz.repro._render import render
from fsdpfuzz.repro._verify import Verification, verify

__all__ = [
    "Ablation",
    "Context",
    "Verification",
    "ablate",
    "environment_of",
    "finding_of",
    "issue_text",
    "render",
    "variations",
    "verify",
]
