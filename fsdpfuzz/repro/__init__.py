"""Standalone scripts: torch only, one finding, made of the very steps that the ranks call."""

from __future__ import annotations

from fsdpfuzz.repro.context import Context, environment_of, torch_version
from fsdpfuzz.repro.issue import issue_text
from fsdpfuzz.repro.plan import plan_text
from fsdpfuzz.repro.script import render
from fsdpfuzz.repro.verify import Verification, verify

__all__ = [
    "Context",
    "Verification",
    "environment_of",
    "issue_text",
    "plan_text",
    "render",
    "torch_version",
    "verify",
]
