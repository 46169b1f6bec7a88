"""The docstring at the top of a script."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from fsdpfuzz.errors import one_line
from fsdpfuzz.repro._aim import Aim
from fsdpfuzz.repro._context import Context
from fsdpfuzz.repro._layout import WIDTH
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding

RTOL, ATOL = 1.3e-6, 1e-5
"""Of ``torch.testing.assert_close`` for float32."""
MAX_MESSAGE = 240
_MAX_PLACE = 160
_LABEL = 12

_WHAT = {
    "loss_parity": "computes a wrong loss",
    "output_parity": "computes a wrong output",
    "grad_parity": "computes a wrong gradient",
    "param_parity": "trains to wrong parameters",
    "buffer_parity": "leaves wrong buffers",
    "frozen_untouched": "touches a frozen parameter",
    "resharded_after_backward": "leaves a unit unsharded after backward",
    "wrapped_as_planned": "makes other units than asked for",
    "shard_bytes": "holds another amount of parameters than its shards",
    "grad_bytes": "holds another amount of gradients than its shards",
    "tracker_accuracy": "has its memory tracked wrongly",
    "state_dict_keys": "saves a state dict with wrong entries",
    "state_dict_values": "saves a state dict with wrong values",
    "state_dict_round_trip": "does not restore the state dict that it saved",
    "twins_agree": "trains to another result where it must not",
    "offload_entered": "offloads activations more or less often than asked",
    "reshard_count": "reshards its units more or less often than it should",
    "order_warning": "warns wrongly of another order",
    "order_error": "lets ranks differ in their first order",
    "no_hang": "hangs",
    "no_rank_death": "ends a rank's process",
    "equal_rejection": "refuses on some ranks what others accept",
}


def title(case: CaseSpec, finding: Finding | None) -> str:
    """The finding in a few words."""
    api = case.api.upper()
    if finding is None:
        return f"{api}: does it train as the plain model does?"
    if finding.symptom in ("crash", "unclear_error", "rank_divergence"):
        kind = finding.where.removeprefix(f"{case.api}:").partition("@")[0]
        ranks = " on some ranks" if finding.symptom == "rank_divergence" else ""
        if finding.invariant != "equal_rejection" and kind.isidentifier():
            return f"{api} raises {kind}{ranks}"
    what = _WHAT.get(finding.invariant, f"breaks {finding.invariant}")
    return f"{api} {what}"


def header(aim: Aim, finding: Finding | None, context: Context) -> list[str]:
    """The docstring's lines, quotes included."""
    ranks = aim.case.world_size
    run = f"torchrun --nproc-per-node {ranks} {context.script}"
    key = f" ({_short_key(finding)})" if finding else ""
    first = f'"""{_safe(title(aim.case, finding) + key)}'
    lines = textwrap.wrap(first, WIDTH, break_long_words=False)
    for label, text in (
        ("Run", f"{run}   (exit code {_exit_codes(aim)})"),
        *_facts(aim, finding),
        *_provenance(aim.case, finding, context),
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


def _exit_codes(aim: Aim) -> str:
    if aim.kind == "death":
        return "0: not reproduced, else a rank died"
    return "1: reproduced, 0: not reproduced"


def _facts(aim: Aim, finding: Finding | None) -> Iterator[tuple[str, str]]:
    if finding is None:
        return
    if finding.symptom == "mismatch" and finding.observed and finding.expected:
        place = re.search(r"\[(.*)\]$", finding.message.partition("\n")[0])
        where = f" [{place[1]}]" if place and len(place[1]) < _MAX_PLACE else ""
        yield "Observed", f"{_number(finding.observed)}{where}"
        by = f" {_tolerance(finding)}, in float64 without FSDP" if aim.reference else ""
        yield "Expected", f"{_number(finding.expected)}{by}"
    else:
        yield "Observed", " ".join(finding.message.partition("\n")[0][:MAX_MESSAGE].split())
        yield "Expected", finding.expected or "none of it"


def _tolerance(finding: Finding) -> str:
    bound = re.search(r"within (\S+)", finding.message)
    own = f"within {bound[1]}" if bound else "as below"
    try:
        allowed = ATOL + RTOL * abs(float(finding.expected))
    except ValueError:
        return own
    return f"{own} (assert_close by default: {allowed:.2g})"


def _provenance(
    case: CaseSpec, finding: Finding | None, context: Context
) -> Iterator[tuple[str, str]]:
    met = [f"torch {context.torch}"] if context.torch else []
    met += [context.backend] if context.backend else []
    met += [f"{case.world_size} ranks", *context.environment]
    yield ("Found with" if finding else "Made for"), f"{', '.join(met)}; equal seeds on all ranks"
    if context.here:
        yield "Written on", ", ".join(context.here)
    if context.rate:
        yield "Flaky", f"failed {context.rate} runs"
    if context.ablation is not None:
        yield "Ablation", context.ablation.words


def _number(text: str) -> str:
    try:
        return f"{float(text):.9g}"
    except ValueError:
        return text


def _safe(text: str) -> str:
    """Text that stays inside a docstring, whatever it holds."""
    return one_line(text).replace("\\", "\\\\").replace('"""', "'''").rstrip('"')
