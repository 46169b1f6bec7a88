"""``report.html``: a run in one file that any browser shows, without network."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpfuzz.case import CaseSpec, pretty
from fsdpfuzz.corpus import write_atomically
from fsdpfuzz.errors import UsageError
from fsdpfuzz.show._charts import charts, duration
from fsdpfuzz.show._diff import difference
from fsdpfuzz.show._draw import facts
from fsdpfuzz.show._heat import heat_maps, legend, short
from fsdpfuzz.show._record import FindingRecord, RunRecord
from fsdpfuzz.show._sketch import sketch

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

BLIND_SPOTS = 24
REFRESH_SECONDS = 10
"""How often the page of a run that goes on loads itself again."""
BREAKS = "/:_,. "
"""Signs after which a name may go on in the next line."""


def write_report(path: Path, record: RunRecord) -> None:
    """Writes the report, whole or not at all; :class:`UsageError` if it cannot be written."""
    data = render(record, folder=path.parent).encode("utf-8", "backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def render(record: RunRecord, *, folder: Path | None = None) -> str:
    """The report as HTML. Paths are given relative to ``folder`` where they lie in it."""
    heats = heat_maps(record.pairs)
    # A style sheet alone cannot say "the map of the same number".
    picked = (f".pick{i}:checked ~ .map{i} {{ display: block; }}\n" for i, _ in enumerate(heats, 1))
    style, script = _part("report.css") + "".join(picked), _part("report.js")
    template = _environment().get_template("report.html.j2")
    text = template.render(
        run=record,
        new=[finding for finding in record.findings if finding.known is None],
        known=[finding for finding in record.findings if finding.known is not None],
        verdict=verdict(record),
        charts=charts(record),
        heats=heats,
        legend=legend(),
        short=short,
        refresh=REFRESH_SECONDS,
        blind_spots=record.pairs.blind_spots(BLIND_SPOTS),
        difference=difference,
        duration=duration,
        facts=_grouped_facts,
        sketch=sketch,
        pretty=pretty,
        command=command,
        shown_path=lambda text: _relative(text, folder),
        style=style,
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}",
    )
    # The macros before the page leave empty lines.
    return text.lstrip()


def verdict(record: RunRecord) -> tuple[str, str]:
    """What came of the run: a tone (``good``, ``bad``, ``odd``) and a sentence."""
    new = sum(finding.known is None for finding in record.findings)
    known = len(record.findings) - new
    told = f"{new} new finding{'' if new == 1 else 's'}" if new else "No new finding"
    if known:
        told += f", {known} known"
    if record.exit_code is None:
        return ("bad" if new else "odd"), f"{told} so far; the run was still going on"
    if record.failure:
        return ("bad" if new else "odd"), f"{told}; the ranks could not go on"
    if record.exit_code >= 128:
        return ("bad" if new else "odd"), f"{told}; ended early by signal {record.exit_code - 128}"
    return ("bad" if new or record.exit_code else "good"), told


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fsdpfuzz.show", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_final,
    )
    environment.filters["breakable"] = breakable
    return environment


@cache
def _part(name: str) -> str:
    """A file of the report that stands in it verbatim."""
    return (resources.files("fsdpfuzz.show") / "templates" / name).read_text(encoding="utf-8")


def visible(text: object) -> str:
    """The text with everything that a page cannot show written out, line ends kept."""
    shown = str(text)
    # As nearly all are, of which a page has a hundred thousand.
    if shown.isprintable():
        return shown
    return "".join(
        c
        if c.isprintable() or c in "\n\t"
        else c.encode("unicode_escape", "backslashreplace").decode()
        for c in shown
    )


def _final(value: object) -> object:
    """What the template puts out for a value; texts of a run may hold anything."""
    from markupsafe import Markup

    return value if isinstance(value, Markup) else visible(value)


def breakable(key: str) -> Markup:
    """A key or a name as HTML that may be broken between its words, and nowhere else."""
    from markupsafe import Markup, escape

    return Markup("").join(
        escape(part) + Markup("<wbr>" if part in BREAKS else "")
        for part in re.split(f"([{BREAKS}])", visible(key))
    )


def _grouped_facts(case: CaseSpec) -> list[tuple[str, list[str]]]:
    """The facts with all values of one label together."""
    rows: dict[str, list[str]] = {}
    for label, value in facts(case):
        rows.setdefault(label, []).append(value)
    return list(rows.items())


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def command(finding: FindingRecord) -> str:
    """How to run a finding again."""
    if finding.repro and finding.case is not None:
        ranks = finding.case.world_size
        return f"torchrun --nproc-per-node {ranks} {shlex.quote(finding.repro_path)}"
    return f"fsdpfuzz replay {shlex.quote(finding.path)}"


def _relative(text: str, folder: Path | None) -> str:
    """The path as seen from ``folder``, if it lies in it."""
    if not text or folder is None:
        return text
    path, base = Path(text).absolute(), folder.absolute()
    return str(path.relative_to(base)) if path.is_relative_to(base) else text
