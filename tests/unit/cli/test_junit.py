"""A finding in JUnit XML, which shows the message of a failure on one line."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fsdpfuzz.cli._junit import junit
from fsdpfuzz.loop import Counts, Found, RunStarted, Summary
from fsdpfuzz.verdict import Change, Failure, Finding

TOLD_BY_A_PEER = """CheckpointException ranks:dict_keys([1])
Traceback (most recent call last): (RANK 1)
  File "checkpoint/utils.py", line 193, in reduce_scatter
RuntimeError: Missing key in checkpoint state_dict: optimizer.param_groups.
"""


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (
            TOLD_BY_A_PEER,
            "",
            "CheckpointException: RuntimeError: Missing key in checkpoint state_dict: "
            "optimizer.param_groups.",
        ),
        ("no\nmore", "regression", "regression, not on torch 2.9.1: CheckpointException: no"),
        ("", "", "CheckpointException"),
    ],
)
def test_the_message_is_the_line_that_says_it(text: str, change: Change, message: str) -> None:
    failure = Failure(type="CheckpointException", text=text, place="checkpoint/utils.py:scatter")
    finding = Finding(
        invariant="no_crash",
        symptom="crash",
        api="fsdp1",
        failure=failure,
        change=change,
        versus="2.9.1",
    )
    (told,) = ET.fromstring(junit(run_of(finding))).iter("failure")
    assert told.get("message") == message
    assert told.text is not None
    assert finding.message in told.text


def run_of(finding: Finding) -> Summary:
    started = RunStarted(
        torch="2.13.0",
        backend="gloo",
        world_sizes=(2,),
        profile="dev",
        seed=1,
        properties=("parity",),
        max_examples=1,
        output=Path(),
    )
    found = Found(
        finding=finding,
        property_name="parity",
        case=Path("x.json"),
        digest="0",
        examples_to_find=1,
        rate=None,
        seconds=1.0,
    )
    return Summary(
        started=started,
        counts=Counts(),
        seconds=1.0,
        pool_restarts=0,
        findings=(found,),
        strict=False,
        interrupted=None,
        silent_known=(),
        harness_errors=0,
        harness=(),
    )
