"""A run's result as JSON. The fields are a contract; a test freezes them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from fsdpfuzz.corpus import is_special
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop._events import Found, Summary

RESULT_SCHEMA = 1


def summary_document(summary: Summary) -> dict[str, Any]:
    """The result as builtins. ``world_size`` is the largest number of ranks in the run."""
    started, counts = summary.started, summary.counts
    return {
        "schema": RESULT_SCHEMA,
        "torch": started.torch,
        "backend": started.backend,
        "world_size": max(started.world_sizes),
        "profile": started.profile,
        "seed": started.seed,
        "examples": counts.examples,
        "passed": counts.passed,
        "rejected": counts.rejected,
        "vacuous": counts.vacuous,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "drawn": counts.drawn,
        "seconds": round(summary.seconds, 3),
        "examples_per_second": round(summary.examples_per_second, 3),
        "pool_restarts": summary.pool_restarts,
        "output": str(started.output),
        "harness_errors": summary.harness_errors,
        "python": started.python,
        "against": started.against,
        "findings": [_finding(found) for found in summary.findings],
        "unconfirmed": [_finding(found) for found in summary.unconfirmed],
        "jobs": [msgspec.to_builtins(job) for job in summary.jobs],
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes the document in one go: readers see the old file or the whole new one.

    What is no regular file, a device or a pipe, is written to as it is.
    """
    data = msgspec.json.format(msgspec.json.encode(sayable(document)), indent=2) + b"\n"
    temporary = None
    try:
        if is_special(path):
            path.write_bytes(data)
            return
        with tempfile.NamedTemporaryFile(
            # Beside the file: only within one file system a rename is one step.
            dir=path.parent,
            prefix=f".{path.name}.",
            delete=False,
        ) as file:
            temporary = Path(file.name)
            file.write(data)
        # Temporary files are for their owner alone, and a CI system reads this as somebody else.
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def sayable(value: Any) -> Any:
    """The same with texts that JSON can say: what a rank printed may be no UTF-8."""
    if isinstance(value, dict):
        return {name: sayable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [sayable(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _finding(found: Found) -> dict[str, Any]:
    return {
        "key": found.finding.key,
        "property": found.property_name,
        "invariant": found.finding.invariant,
        "symptom": found.finding.symptom,
        "message": found.message,
        "case": str(found.case),
        "repro": None if found.repro is None else str(found.repro),
        "known": found.known,
        "examples_to_find": found.examples_to_find,
        "also": list(found.also),
        "change": found.finding.change,
        "begins": list(found.begins),
        "plan": found.plan,
        "finding": msgspec.to_builtins(found.finding),
    }
