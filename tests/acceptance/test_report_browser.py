"""The report in a real browser: on a phone, on a wide screen, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.show import PastRun, RunRecord, write_report
from tests.acceptance.browser import NAMES, Page, browse, browser_path
from tests.unit.show.samples import REPRO, a_record

BROWSER = browser_path()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed (apt install chromium)"
)
SIZES = [(375, False), (375, True), (768, False), (1440, False), (1440, True)]

# Everything that sticks out to the right and lies in nothing that scrolls by itself.
OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.right > innerWidth + 1 && box.width && !e.closest('.map, pre, .hidden, .pick');
}).map(e => e.outerHTML.slice(0, 120))
"""
SCROLLING = """
[...document.querySelectorAll('*')].filter(e =>
  e.scrollWidth > e.clientWidth + 1 && e.clientWidth &&
  ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
).map(e => `${e.tagName} ${e.className}`)
"""
# Texts that are too faint, measured as WCAG does it, on the colour that is really behind them.
FAINT = """
(() => {
  const parse = c => [...c.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
    const v = c[i] / 255;
    return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) return c;
    }
    return [255, 255, 255, 1];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const faint = new Set();
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || e.closest('script, style, .z')) continue;
    if (!e.checkVisibility()) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5)
      faint.add(e.outerHTML.slice(0, 80));
  }
  return [...faint];
})()
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return a_record(tmp_path_factory.mktemp("run"), 300)


@pytest.fixture(scope="module")
def url(record: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("with a space") / "report.html"
    write_report(path, record)
    return path.as_uri()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert BROWSER is not None
    with browse(BROWSER, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_it_fits_and_nothing_is_wrong(page: Page, url: str, width: int, dark: bool) -> None:
    page.open(url, width=width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert page.evaluate(OVERFLOWING) == []
    scrolling = page.evaluate(SCROLLING)
    assert any(name.startswith("DIV map") for name in scrolling) or width >= 900
    assert all(name.startswith("DIV map") for name in scrolling) or width >= 900
    assert page.evaluate(FAINT) == []
    assert page.problems == []
    assert page.requests == [url]


def test_dark_is_dark(page: Page, url: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.open(url, width=1440)
    assert page.evaluate(colour) == "rgb(246, 246, 244)"
    page.open(url, width=1440, dark=True)
    assert page.evaluate(colour) == "rgb(18, 20, 24)"


def test_the_copy_button_copies_the_repro(page: Page, url: str) -> None:
    page.open(url, width=375)
    page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.evaluate("document.querySelector('[aria-label=\"Copy the repro script\"]').click()")
    assert page.evaluate("copied") == REPRO
    button = "document.querySelector('[aria-label=\"Copy the repro script\"]').textContent"
    assert page.evaluate(f"new Promise(done => setTimeout(() => done({button}), 50))") == "Copied"
    assert page.evaluate("document.getElementById('status').textContent") == "Copied"


def test_without_a_clipboard_the_script_is_selected(page: Page, url: str) -> None:
    page.open(url, width=1440)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.evaluate("document.execCommand = () => false")
    page.evaluate("document.querySelector('[aria-label=\"Copy the repro script\"]').click()")
    selected = "new Promise(done => setTimeout(() => done(getSelection().toString()), 50))"
    assert page.evaluate(selected).strip() == REPRO.strip()


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Page, url: str) -> None:
    page.open(url, width=1440)
    seen = []
    for _ in range(40):
        page.press("Tab", 9)
        seen.append(
            page.evaluate(
                "(e => [e.tagName, e.className, (e.classList.contains('pick') ?"
                " getComputedStyle(e.nextElementSibling) : getComputedStyle(e)).outlineStyle])"
                "(document.activeElement)"
            )
        )
        if "map" in seen[-1][1]:
            break
    assert {style for _, _, style in seen} == {"solid"}
    assert seen[0][1] == "skip"
    tags = {tag for tag, _, _ in seen}
    assert tags >= {"A", "BUTTON", "PRE", "SUMMARY", "INPUT", "DIV"}


def test_the_heat_map_changes_its_columns_and_reads_its_cells(page: Page, url: str) -> None:
    page.open(url, width=1440)
    shown = "[...document.querySelectorAll('.map')].map(m => m.checkVisibility())"
    first = page.evaluate(shown)
    assert first == [True, *[False] * (len(first) - 1)]
    page.evaluate("document.querySelector('label[for=heat-2]').click()")
    assert page.evaluate(shown) == [False, True, *[False] * (len(first) - 2)]
    page.evaluate("document.querySelector('.map2 td.z').click()")
    told = page.evaluate("document.querySelector('.readout').textContent")
    assert "never together" in told
    page.evaluate("document.querySelector('.map2 td.n').click()")
    assert "cannot occur together" in page.evaluate(
        "document.querySelector('.readout').textContent"
    )


def test_headers_of_the_heat_map_stay_in_sight(page: Page, url: str) -> None:
    page.open(url, width=375)
    page.evaluate(
        "(m => { m.scrollTop = 300; m.scrollLeft = 200; })(document.querySelector('.map1'))"
    )
    offsets = page.evaluate(
        "(m => [m.querySelector('thead th').getBoundingClientRect().top"
        " - m.getBoundingClientRect().top, m.querySelector('tbody tr:nth-child(20) th')"
        ".getBoundingClientRect().left - m.getBoundingClientRect().left])"
        "(document.querySelector('.map1'))"
    )
    assert offsets == [1, 1]


# Pieces of row labels that a line end goes through.
BROKEN = """
[...document.querySelectorAll('.map1 tbody tr:not(.group) th')].flatMap(th => {
  const texts = document.createTreeWalker(th, NodeFilter.SHOW_TEXT), broken = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    for (const word of node.data.matchAll(/[^\\/:_,. =-]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (tops.size > 1) broken.push(th.textContent + ': ' + word[0]);
    }
  }
  return broken;
})
"""


@pytest.mark.parametrize("width", [320, 400, 1440])
def test_row_labels_break_between_words_only(page: Page, url: str, width: int) -> None:
    page.open(url, width=width)
    assert page.evaluate(BROKEN) == []
    label = "document.querySelector('.map1 tbody tr:not(.group) th').getBoundingClientRect().width"
    assert page.evaluate(label) < width / 2


def test_the_report_of_a_run_that_goes_on_loads_itself_again(
    page: Page, record: RunRecord, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    going_on = msgspec.structs.replace(record, exit_code=None)
    write_report(path, going_on)
    refreshes = "document.querySelector('meta[name=fsdpfuzz-refresh]')"
    path.write_text(re.sub(r'(refresh" content=")\d+', r"\g<1>2", path.read_text()))
    page.open(path.as_uri(), width=1440)
    # At once: the page may be loaded again between two commands.
    page.evaluate(
        "document.querySelector('details').open = document.querySelector('#heat-2').checked = true"
    )
    write_report(path, record)
    page.until(f"document.readyState === 'complete' && {refreshes} === null")
    assert page.evaluate("document.querySelector('details').open") is True
    assert page.evaluate("document.querySelector('#heat-2').checked") is True


def test_earlier_runs_are_listed(page: Page, record: RunRecord, tmp_path: Path) -> None:
    past = PastRun(
        name="2026-11-20-101112-7",
        date="2026-11-20 10:11 UTC",
        torch="2.13.0",
        profile="dev",
        seed=7,
        examples=1500,
        examples_per_second=8.25,
        seconds=181.0,
        new=2,
        known=3,
    )
    path = tmp_path / "report.html"
    write_report(path, msgspec.structs.replace(record, earlier=(past,)))
    page.open(path.as_uri(), width=375)
    row = "[...document.querySelectorAll('.earlier tbody td')].map(cell => cell.textContent)"
    assert page.evaluate(row)[:5] == ["2026-11-20 10:11 UTC", "1,500", "8.2", "2", "3"]
    assert page.evaluate("document.documentElement.scrollWidth") == 375
