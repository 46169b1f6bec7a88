"""What ranks are forked with, so that none of them does it again."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

from fsdpfuzz import steps
from fsdpfuzz.case import base, encode
from fsdpfuzz.case.codec import decode
from fsdpfuzz.ranks._prepare import prepare
from fsdpfuzz.seeds import SEEDS


def test_a_rank_imports_no_step_and_looks_at_no_class_of_a_case() -> None:
    prepare()
    modules = {m.name for m in pkgutil.walk_packages(steps.__path__, f"{steps.__name__}.")}
    assert modules <= sys.modules.keys()
    before = base._defaults.cache_info().misses
    assert before > len(base.Part.__subclasses__()) > 10
    for seed in SEEDS:
        decode(encode(seed.case))
    assert base._defaults.cache_info().misses == before


THREADS = """
import fsdpfuzz.ranks._train, fsdpfuzz.ranks._worker as worker
from pathlib import Path
before = len(list(Path("/proc/self/task").iterdir()))
worker.prepare()
print(len(list(Path("/proc/self/task").iterdir())) - before)
"""


@pytest.mark.timeout(120)
def test_it_starts_no_thread_which_a_fork_would_lose() -> None:
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.stdout.strip() == "0", done.stderr
