"""Backend and device are one choice: ranks that compute on the CPU see no GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fsdpfuzz.forkserver import ForkServer, may_see_gpus, rank_environment
from fsdpfuzz.loop._machine import guess_backend, visible_gpus
from fsdpfuzz.pool import Pool
from fsdpfuzz.wire import DEVICES
from tests.misbehaviour import quick

HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
}


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def none(tmp_path: Path) -> Path:
    folder = tmp_path / "none"
    folder.mkdir()
    (folder / "nvidiactl").touch()
    return folder


def visible(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in HIDDEN}


def test_ranks_without_a_gpu_see_none_and_others_what_the_user_sees(devices: Path) -> None:
    for given in ({}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "GPU-x,GPU-y"}):
        assert visible(rank_environment(given, gpus=False, devices=devices)) == HIDDEN
        assert visible(rank_environment(given, gpus=True, devices=devices)) == given


def test_where_there_is_no_gpu_nothing_is_hidden(none: Path, devices: Path) -> None:
    assert visible(rank_environment({}, gpus=False, devices=none)) == {}
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert visible(rank_environment(hidden, gpus=False, devices=devices)) == hidden
    # Whoever says that there is one may know better than the device files.
    assert may_see_gpus({"CUDA_VISIBLE_DEVICES": "0"}, none)


def test_a_backend_has_one_device() -> None:
    assert DEVICES == {"gloo": "cpu", "nccl": "cuda"}


@pytest.mark.parametrize(("told", "gpus"), [(None, 2), ("1", 1), ("", 0), ("-1", 0), ("0,1,2", 2)])
def test_the_guess_counts_what_is_visible(
    devices: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, gpus: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if told is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    assert visible_gpus(devices) == gpus
    assert guess_backend("gloo") == "gloo"


def test_ranks_on_gloo_are_started_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ranks themselves say of their environment, with GPUs offered."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with Pool(2, "gloo", injection="tests.misbehaviour:install_telling") as pool:
        reports = [report for report in pool.run(quick()).reports if report is not None]
        assert [report.subjects[0].warnings for report in reports] == [("", "cpu")] * 2
        assert pool.gpus == 0
        with_gpus = ForkServer.get()
        assert ForkServer.get(gpus=False) is not with_gpus
        assert ForkServer.get() is with_gpus
    with_gpus.close()
    ForkServer.get(gpus=False).close()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_without_gpus_to_hide_all_share_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    server = ForkServer.get()
    assert ForkServer.get(gpus=False) is server
    server.close()


def test_ranks_are_where_the_controller_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    ForkServer.get(gpus=False)
    monkeypatch.chdir(gone)
    with Pool(2, "gloo") as pool:
        assert pool.run(quick()).clean
        assert {Path(f"/proc/{pid}/cwd").readlink() for pid in pool.pids} == {gone}
    # Somebody has removed it: they run all the same, with no module to be found in it.
    gone.rmdir()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).is_absolute()])
    with Pool(2, "gloo") as pool:
        assert pool.run(quick()).clean


def test_ranks_use_the_cores_of_the_controller_whatever_forks_them() -> None:
    every = os.sched_getaffinity(0)
    ForkServer.get(gpus=False)
    own = {max(every)}
    try:
        os.sched_setaffinity(0, own)
        with Pool(2, "gloo") as pool:
            assert pool.run(quick()).clean
            assert [os.sched_getaffinity(pid) for pid in pool.pids] == [own] * 2
    finally:
        os.sched_setaffinity(0, every)
    with Pool(2, "gloo") as pool:
        assert pool.run(quick()).clean
        assert [os.sched_getaffinity(pid) for pid in pool.pids] == [every] * 2
