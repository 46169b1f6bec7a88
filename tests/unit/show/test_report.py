"""The report as text. What a browser makes of it, the acceptance tests see."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.errors import UsageError
from fsdpfuzz.show import KnownRecord, RunRecord, render, write_report
from fsdpfuzz.show._pairs import GROUPS
from fsdpfuzz.show._report import visible
from tests.unit.show.samples import SILENT, a_record

NASTY = "</script><img src=x onerror=alert(1)>\"'><b>\x1b[31m\udc80{{ 7777*7777 }}"
VOID = {"meta", "link", "input", "path", "wbr"}


class Page(HTMLParser):
    """Tags with their attributes, and whether they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "td" and self.open[-1] == "td":
            self.open.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self.open[-1] == "td":
            self.open.pop()
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return a_record(tmp_path)


def test_the_markup_is_closed_and_has_one_of_each(record: RunRecord) -> None:
    page = Page(render(record))
    assert page.open == []
    assert [len(page.of(tag)) for tag in ("h1", "main", "header", "nav", "style", "script")] == [
        1
    ] * 6
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = {str(a["href"])[1:] for a in page.of("a") if str(a["href"]).startswith("#")}
    assert anchors <= set(ids)
    labelled = {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert labelled <= set(ids)


def test_headings_do_not_skip_a_level(record: RunRecord) -> None:
    levels = [int(tag[1]) for tag, _ in Page(render(record)).tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_nothing_is_fetched(record: RunRecord) -> None:
    page = Page(render(record))
    assert not [a for _, a in page.tags if {"src", "srcset", "data", "poster"} & set(a)]
    assert [a["href"] for a in page.of("link")] == ["data:,"]
    assert "url(" not in render(record)
    assert "@import" not in render(record)


def test_the_policy_lets_run_what_is_there_and_nothing_else(record: RunRecord) -> None:
    text = render(record)
    policy = next(a["content"] for a in Page(text).of("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert body is not None
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not [a for _, a in Page(text).tags if "style" in a or any(n.startswith("on") for n in a)]


def test_no_text_of_a_run_becomes_markup(record: RunRecord) -> None:
    clean = Page(render(record))
    finding = msgspec.structs.replace(
        record.findings[1],
        key=NASTY,
        property=NASTY,
        invariant=NASTY,
        symptom=NASTY,
        message=NASTY,
        observed=NASTY,
        expected=NASTY[:9],
        rate=NASTY,
        path=NASTY,
        repro_path=NASTY,
        repro=NASTY,
        confirmation="not confirmed",
        confirmation_note=NASTY,
        ablation=(NASTY,),
    )
    entry = KnownRecord(id=NASTY, cases=1, reason=NASTY)
    nasty = msgspec.structs.replace(
        record,
        torch=NASTY,
        backend=NASTY,
        profile=NASTY,
        properties=(NASTY,),
        failure=NASTY,
        findings=(finding, msgspec.structs.replace(finding, known=NASTY)),
        known_met=(entry,),
        known_silent=(entry,),
        notices=(NASTY,),
    )
    text = render(nasty)
    page = Page(text)
    assert not page.of("img")
    assert len(page.of("script")) == len(clean.of("script"))
    assert "\x1b" not in text
    assert str(7777 * 7777) not in text


def test_the_repro_is_there_to_copy_and_the_rest_to_read(record: RunRecord) -> None:
    page = Page(render(record))
    told = "".join(page.text)
    _, steady, flaky = record.findings
    assert steady.repro in told
    assert len([a for a in page.of("button") if a.get("class") == "copy"]) >= 3
    for part in (steady.key, flaky.message.splitlines()[1], "failed 3 of 10", "known as", "1.25"):
        assert part in told
    assert steady.ablation[0] in told
    assert "Restarts of the ranks" in told
    assert SILENT in told


def test_paths_in_the_folder_of_the_report_are_short(record: RunRecord, tmp_path: Path) -> None:
    assert ">repros/grad_parity.py<" in render(record, folder=tmp_path)
    assert f">{tmp_path}/repros/grad_parity.py<" in render(record)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "2 new findings, 1 known"),
        ({"findings": (), "exit_code": 0}, "No new finding"),
        ({"exit_code": None}, "2 new findings, 1 known so far; the run was still going on"),
        ({"exit_code": 143}, "2 new findings, 1 known; ended early by signal 15"),
        ({"exit_code": 3, "failure": "gone"}, "2 new findings, 1 known; the ranks could not go on"),
    ],
)
def test_the_sentence_on_top(record: RunRecord, changes: dict[str, object], sentence: str) -> None:
    text = render(msgspec.structs.replace(record, **changes))
    assert f"<h1>{sentence}</h1>" in text


def test_every_group_of_options_can_be_looked_at(record: RunRecord) -> None:
    page = Page(render(record))
    picks = [a["id"] for a in page.of("input")]
    assert picks == [f"heat-{i}" for i in range(1, len(GROUPS) + 1)]
    for i in range(1, len(GROUPS) + 1):
        assert f".pick{i}:checked ~ .map{i} {{ display: block; }}" in "".join(page.text)


def test_an_empty_run_is_reported() -> None:
    page = Page(render(RunRecord()))
    assert page.open == []
    assert "No case was generated." in "".join(page.text)


def test_the_same_record_gives_the_same_bytes(record: RunRecord) -> None:
    assert render(record) == render(record)


def test_writing(record: RunRecord, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_report(path, record)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file.report\.html: cannot be written"):
        write_report(tmp_path / "file" / "report.html", record)


def test_visible() -> None:
    assert visible("a\nb\tc\x1b\udc80é") == "a\nb\tc\\x1b\\udc80é"


PAIRS = [
    *((ink, ground) for ink in ("ink", "soft", "link") for ground in ("ground", "card", "sunk")),
    *((tone, ground) for tone in ("bad", "good", "odd") for ground in ("card", f"{tone}-ground")),
    *((mark, f"{mark}-ground") for mark in ("unit", "checkpoint", "frozen")),
    *(("on-low", f"h{i}") for i in (1, 2, 3)),
    ("on-mid", "h4"),
    *(("on-high", f"h{i}") for i in (5, 6)),
    ("on-zero", "zero"),
    ("ink", "minus"),
    ("ink", "plus"),
]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), PAIRS)
def test_contrast(theme: str, ink: str, ground: str) -> None:
    style = Path(__file__).parents[3] / "fsdpfuzz" / "show" / "templates" / "report.css"
    blocks = re.findall(r":root \{(.*?)\}", style.read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[theme == "dark"]))
    first, second = sorted((_luminance(colours[ink]), _luminance(colours[ground])))
    assert (second + 0.05) / (first + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
