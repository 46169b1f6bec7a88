"""The docstring at the top of a script."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator

from fsdpfuzz.case import CaseSpec, anatomy, right_in
from fsdpfuzz.case.base import ranks_in_words
from fsdpfuzz.errors import one_line
from fsdpfuzz.invariants import Evidence, invariant_of
from fsdpfuzz.repro.context import Context, torch_version
from fsdpfuzz.repro.layout import WIDTH
from fsdpfuzz.verdict import Finding, gist

RTOL, ATOL = 1.3e-6, 1e-5
"""Of ``torch.testing.assert_close`` for float32."""
MAX_MESSAGE = 240
_LABEL = 12


def title(case: CaseSpec, finding: Finding | None) -> str:
    """The finding in a few words."""
    api = case.api.upper()
    if finding is None:
        return f"{api}: does it train as the plain model does?"
    failure = finding.failure
    if failure is not None and failure.type and finding.invariant != "equal_rejection":
        some = " on some ranks" if finding.symptom == "rank_divergence" else ""
        return f"{api} raises {failure.type}{some}"
    return f"{api} {invariant_of(finding).wrong}"


def header(
    case: CaseSpec, finding: Finding | None, evidence: Evidence, context: Context
) -> list[str]:
    """The docstring's lines, quotes included."""
    script = shlex.quote(context.script)
    run = f"torchrun --nproc-per-node {case.world_size} {script}"
    key = f" ({_short_key(finding)})" if finding else ""
    first = f'"""{_safe(title(case, finding) + key)}'
    lines = textwrap.wrap(first, WIDTH, break_long_words=False)
    # What is copied and run stays on one line, however long the file's name is.
    lines.append(_safe(f"{'Run:':<{_LABEL}}{run}  # or with plain python"))
    lines.append(f"{'Exit code:':<{_LABEL}}{_codes(evidence)}")
    for label, text in (
        *_facts(case, finding, evidence, context),
        *_provenance(case, finding, context),
    ):
        lines += textwrap.wrap(
            _safe(f"{label + ':':<{_LABEL}}{text}"),
            WIDTH,
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            drop_whitespace=True,
        )
    return [*lines, '"""', ""]


def _short_key(finding: Finding) -> str:
    """The key without the exception's text, which is told below."""
    kind, _, place = finding.key.partition("@")
    return "@".join([kind, ":".join(place.split(":")[:2])]) if place else kind


def _codes(evidence: Evidence) -> str:
    """What the exit code says."""
    if evidence.manner == "death":
        return "0: not reproduced, else a rank died"
    return "1: reproduced, 0: not reproduced"


def _facts(
    case: CaseSpec, finding: Finding | None, evidence: Evidence, context: Context
) -> Iterator[tuple[str, str]]:
    if finding is None:
        return
    failure = finding.failure
    if failure is not None and failure.type:
        yield "Observed", " ".join(f"{failure.type}: {gist(failure.text)}"[:MAX_MESSAGE].split())
        yield "Expected", finding.expected
        return
    place = f" [{finding.place}]" if finding.place else ""
    yield "Observed", f"{finding.observed}{place}"[:MAX_MESSAGE]
    by = ""
    if finding.allowed is not None:
        by = f" within {finding.allowed:.3g}{_usual(finding)}"
    if evidence.against == "reference":
        narrow = right_in(anatomy(case), context.backend) == "float32"
        by += ", without FSDP" if narrow else ", in float64 without FSDP"
    yield "Expected", f"{finding.expected}{by}"


def _usual(finding: Finding) -> str:
    """What ``torch.testing.assert_close`` would allow, for a sense of proportion."""
    try:
        usual = ATOL + RTOL * abs(float(finding.expected))
    except ValueError:
        return ""
    return f" (assert_close by default: {usual:.2g})"


def _provenance(
    case: CaseSpec, finding: Finding | None, context: Context
) -> Iterator[tuple[str, str]]:
    met = [context.backend] if context.backend else []
    met.append(ranks_in_words(case.world_size))
    met += [torch_version(context.torch)] if context.torch else []
    met += context.environment
    yield ("Found with" if finding else "Made for"), f"{', '.join(met)}; equal seeds on all ranks"
    if context.here:
        yield "Written on", ", ".join(context.here)
    if context.rate:
        yield "Flaky", f"failed {context.rate} runs"
    if context.ablation is not None:
        yield "Ablation", context.ablation.words


def _safe(text: str) -> str:
    """Text that stays inside a docstring, whatever it holds."""
    return one_line(text).replace("\\", "\\\\").replace('"""', "'''").rstrip('"')
