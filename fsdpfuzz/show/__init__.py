"""What people look at: the drawing of a case, the report of a run, the doctor's findings.

Importing this package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

from fsdpfuzz.show._ascii import in_ascii, spell_out, wants_ascii
from fsdpfuzz.show._doctor import Check, Diagnosis, Skipped, as_diagnosis, diagnose
from fsdpfuzz.show._draw import case_tree, draw, fact_texts, facts
from fsdpfuzz.show._history import PastRun
from fsdpfuzz.show._limits import Memory, memory_limits
from fsdpfuzz.show._pairs import BlindSpot, PairCounts, PairTable, Value
from fsdpfuzz.show._record import (
    FindingRecord,
    KnownRecord,
    Recorder,
    RunRecord,
    Sample,
)
from fsdpfuzz.show._report import render, write_report
from fsdpfuzz.show._sketch import Mark, ModuleSketch, ParameterSketch, sketch
from fsdpfuzz.show._tests import (
    Checked,
    as_part,
    closing_lines,
    failure_text,
    joined,
    none_left,
)
from fsdpfuzz.show._words import program_lines

__all__ = [
    "BlindSpot",
    "Check",
    "Checked",
    "Diagnosis",
    "FindingRecord",
    "KnownRecord",
    "Mark",
    "Memory",
    "ModuleSketch",
    "PairCounts",
    "PairTable",
    "ParameterSketch",
    "PastRun",
    "Recorder",
    "RunRecord",
    "Sample",
    "Skipped",
    "Value",
    "as_diagnosis",
    "as_part",
    "case_tree",
    "closing_lines",
    "diagnose",
    "draw",
    "fact_texts",
    "facts",
    "failure_text",
    "in_ascii",
    "joined",
    "memory_limits",
    "none_left",
    "program_lines",
    "render",
    "sketch",
    "spell_out",
    "wants_ascii",
    "write_report",
]
