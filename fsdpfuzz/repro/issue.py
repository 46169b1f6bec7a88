"""A finding as text for PyTorch's tracker."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.case.base import ranks_in_words
from fsdpfuzz.errors import one_line
from fsdpfuzz.invariants import invariant_of
from fsdpfuzz.repro.context import Context, torch_version
from fsdpfuzz.repro.header import title
from fsdpfuzz.verdict import Finding

MAX_TEXT = 4_000


def issue_text(case: CaseSpec, finding: Finding, context: Context, script: str) -> str:
    """Title and body in Markdown, laid out as PyTorch's bug report asks.

    ``script`` is what `render` gave for the same finding.
    """
    lines = [f"# {issue_title(case, finding, context)}", "", "### 🐛 Describe the bug", ""]
    lines += [_sentence(case, finding), "", *_fenced("\n".join(_seen(finding)), "")]
    if context.rate:
        lines += ["", f"It does not happen each time: it failed in {context.rate} runs."]
    if context.ablation is not None:
        lines += ["", f"One option at a time set back to its default: {context.ablation.words}."]
    run = f"torchrun --nproc-per-node {case.world_size} {context.script}"
    lines += ["", f"Reproducer, to be run with `{run}`:", "", *_fenced(script, "python")]
    lines += ["", "### Versions", "", *_versions(case, context)]
    return "\n".join(lines) + "\n"


def issue_title(case: CaseSpec, finding: Finding, context: Context) -> str:
    """One line: the finding, and the first options that it needs."""
    text = one_line(title(case, finding))
    needed = context.ablation.needed[:2] if context.ablation is not None else ()
    return f"{text} with {' and '.join(needed)}" if needed else text


def _sentence(case: CaseSpec, finding: Finding) -> str:
    where = f"Training the model below on {ranks_in_words(case.world_size)}"
    if finding.failure is not None:
        return f"{where} ends like this:"
    rule = one_line(invariant_of(finding).summary).rstrip(".")
    return f"{where} breaks what should hold (`{finding.invariant}`: {rule}):"


def _seen(finding: Finding) -> list[str]:
    """What was seen and what should have been, a line each; an exception with its place."""
    failure = finding.failure
    if failure is not None and failure.type:
        rows = [f"{failure.type}: {failure.text}"[:MAX_TEXT], finding.place, failure.place]
    else:
        within = "" if finding.allowed is None else f" within {finding.allowed:.3g}"
        baseline = "" if finding.baseline is None else f"{finding.baseline:.3g}"
        facts = {
            "looked at": ", ".join(filter(None, (finding.quantity, finding.place))),
            "observed": finding.observed,
            "expected": f"{finding.expected}{within}",
            "DDP is off by": baseline,
            "note": finding.note,
        }
        rows = [f"{label}: {text}"[:MAX_TEXT] for label, text in facts.items() if text]
        rows += failure.output[-MAX_TEXT:].splitlines() if failure is not None else []
    return [one_line(line, MAX_TEXT) for row in rows if row for line in row.splitlines()]


def _versions(case: CaseSpec, context: Context) -> list[str]:
    facts = [torch_version(context.torch)] if context.torch else []
    facts += [f"{context.backend}, {ranks_in_words(case.world_size)}"] if context.backend else []
    facts += context.environment
    facts += [f"script written on {', '.join(context.here)}"] if context.here else []
    return [f"- {one_line(fact)}" for fact in facts] or ["- unknown"]


def _fenced(text: str, language: str) -> list[str]:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", *text.rstrip("\n").split("\n"), fence]
