"""A run's result as JUnit XML, which CI systems show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from fsdpfuzz.errors import UsageError

if TYPE_CHECKING:
    from fsdpfuzz.loop import Found, Summary


def write_junit(path: Path, summary: Summary) -> None:
    """Writes the file, whole or not at all; :class:`UsageError` if it cannot be written."""
    from fsdpfuzz.corpus import write_atomically

    try:
        write_atomically(path, junit(summary))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def junit(summary: Summary) -> bytes:
    """A test for each finding, and one that passes for each property that found nothing new."""
    failing = {found.property_name for found in summary.failing}
    cases = [
        ET.Element("testcase", classname=f"fsdpfuzz.{name}", name=name, time="0")
        for name in summary.started.properties
        if name not in failing
    ]
    cases += [_of_finding(found, found in summary.failing) for found in summary.findings]
    if summary.failure is not None:
        case = ET.Element("testcase", classname="fsdpfuzz", name="ranks", time="0")
        _put(case, "error", "the ranks could not go on", summary.failure)
        cases.append(case)
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    attributes = {name: str(count) for name, count in counts.items()}
    attributes["time"] = f"{summary.seconds:.3f}"
    suite = ET.Element("testsuite", name="fsdpfuzz", attrib=attributes)
    suite.extend(cases)
    root = ET.Element("testsuites", attrib=attributes)
    root.append(suite)
    ET.indent(root)
    made: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return made + b"\n"


def _of_finding(found: Found, fails: bool) -> ET.Element:
    name = _xml(found.finding.key)
    case = ET.Element("testcase", classname=f"fsdpfuzz.{found.property_name}", name=name)
    case.set("time", f"{found.seconds:.3f}")
    if fails:
        lines = [found.message, f"case: {found.case}"]
        lines += [f"script: {found.repro}"] if found.repro is not None else []
        _put(case, "failure", found.finding.headline, "\n".join(lines))
    else:
        known = f"known as {found.known}" if found.known else found.message
        _put(case, "skipped", known, "")
    return case


def _put(case: ET.Element, tag: str, message: str, text: str) -> None:
    ET.SubElement(case, tag, message=_xml(message)).text = _xml(text)


def _xml(text: str) -> str:
    """The text without what XML has no way to write."""
    # A control character would make the file no XML, which no reader forgives.
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
