"""A finding as text for PyTorch's tracker."""

from __future__ import annotations

from fsdpfuzz.errors import one_line
from fsdpfuzz.repro._context import Context
from fsdpfuzz.repro._header import title
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding

MAX_MESSAGE = 4_000


def issue_text(case: CaseSpec, finding: Finding, context: Context, script: str) -> str:
    """Title and body in Markdown, laid out as PyTorch's bug report asks.

    ``script`` is what `render` gave for the same finding.
    """
    lines = [f"# {issue_title(case, finding, context)}", "", "### 🐛 Describe the bug", ""]
    lines += [_sentence(case, finding), "", *_fenced(_message(finding), "")]
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
    if finding.symptom == "mismatch":
        return (
            f"Trained on {case.world_size} ranks, the model below differs from the same training "
            f"without FSDP by more than rounding (`{one_line(finding.invariant)}`):"
        )
    return f"Training the model below on {case.world_size} ranks ends like this:"


def _message(finding: Finding) -> str:
    text = finding.message[:MAX_MESSAGE]
    return "\n".join(one_line(line) for line in text.splitlines())


def _versions(case: CaseSpec, context: Context) -> list[str]:
    facts = [f"torch {context.torch}"] if context.torch else []
    facts += [f"{context.backend}, {case.world_size} ranks"] if context.backend else []
    facts += context.environment
    facts += [f"script written on {', '.join(context.here)}"] if context.here else []
    return [f"- {one_line(fact)}" for fact in facts] or ["- unknown"]


def _fenced(text: str, language: str) -> list[str]:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", *text.rstrip("\n").split("\n"), fence]
