"""A case gets the process groups of an earlier one, each once, and never those of a broken one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

from fsdpfuzz.loop._harness import _outside
from fsdpfuzz.ranks import _groups
from fsdpfuzz.ranks._groups import NAMING, Groups
from tests.unit.steps.alone import as_rank

BOTH = [0, 1]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    """Those of rank 0 of two, while what makes groups is wrapped."""
    for name, modules in _groups.MAKERS.items():
        for module in map(importlib.import_module, modules):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(distributed_c10d, NAMING, getattr(distributed_c10d, NAMING))
    with as_rank(0, 2):
        found = Groups()
        found.keep()
        yield found


def living() -> int:
    """Groups besides the one of all ranks."""
    return len(distributed_c10d._world.pg_map) - 1


def test_a_later_case_gets_the_groups_of_an_earlier_one(groups: Groups) -> None:
    first, second = dist.new_group(BOTH), dist.new_group(BOTH)
    assert first is not second
    assert not groups.next_case()
    assert [dist.new_group(BOTH) for _ in range(2)] == [first, second]
    assert dist.new_group(BOTH) not in (first, second)
    assert living() == 3


def test_a_group_of_other_ranks_or_another_kind_is_another(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the debug level DETAIL it checks each collective."""
    made = [dist.new_group(BOTH), dist.new_group([0]), dist.new_group(BOTH, group_desc="mesh")]
    monkeypatch.setattr(_groups, "get_debug_level", lambda: DebugLevel.DETAIL)
    made.append(dist.new_group(BOTH))
    groups.next_case()
    assert dist.new_group(BOTH) is made[3]
    monkeypatch.setattr(_groups, "get_debug_level", lambda: DebugLevel.OFF)
    again = [dist.new_group(BOTH), dist.new_group([0]), dist.new_group(BOTH, group_desc="mesh")]
    assert again == made[:3]
    assert len(set(made)) == living() == 4


def test_a_rank_outside_of_a_group_keeps_step_with_the_others(groups: Groups) -> None:
    """It is told that it is outside without asking, as the ranks inside do not ask."""
    assert dist.new_group([1]) is dist.GroupMember.NON_GROUP_MEMBER
    count = distributed_c10d._world.group_count
    groups.next_case()
    assert dist.new_group([1]) is dist.GroupMember.NON_GROUP_MEMBER
    assert distributed_c10d._world.group_count == count


def test_meshes_of_two_cases_have_the_same_groups(groups: Groups) -> None:
    made = distributed_c10d._world.pg_map
    init_device_mesh("cpu", (2, 1))
    before = set(made)
    groups.next_case()
    init_device_mesh("cpu", (2, 1))
    assert set(made) == before
    assert len(before) > 1


def test_what_only_its_own_ranks_ask_for_stays(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch names it by its ranks: a second one would find in the store what the first left."""
    monkeypatch.setattr(_groups, "MOST", 0)
    plain, own = dist.new_group(BOTH), dist.new_group(BOTH, use_local_synchronization=True)
    groups.spoil()
    assert groups.next_case()
    assert living() == 1
    assert dist.new_group(BOTH, use_local_synchronization=True) is own
    assert dist.new_group(BOTH) not in (plain, own)


def test_a_name_is_not_given_again_once_others_are_dropped(groups: Groups) -> None:
    """Torch names such a group by how many there are."""
    for ranks in (BOTH, [0]):
        dist.new_group(ranks)
    own = dist.new_group(BOTH, use_local_synchronization=True)
    groups.spoil()
    groups.next_case()
    plain = dist.new_group(BOTH)
    other = dist.new_group(BOTH, use_local_synchronization=True, group_desc="other")
    assert len({own, plain, other}) == living() == 3


def test_each_group_that_is_dropped_is_progress(groups: Groups) -> None:
    """So that nobody takes ranks for stuck that destroy some dozens, one after the other."""
    for _ in range(2):
        dist.new_group(BOTH)
    groups.spoil()
    stages: list[str] = []
    assert groups.next_case(stages.append)
    assert stages == ["group 1 of 2 dropped", "group 2 of 2 dropped"]
    assert all(map(_outside, stages))
    assert not groups.next_case(stages.append)
    assert len(stages) == 2


def test_a_case_that_ended_early_leaves_nothing(groups: Groups) -> None:
    first = dist.new_group(BOTH)
    groups.spoil()
    assert groups.next_case()
    assert living() == 0
    assert dist.new_group(BOTH) is not first
    assert not groups.next_case()


def test_so_many_groups_are_not_kept(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_groups, "MOST", 2)
    for _ in range(3):
        dist.new_group(BOTH)
    assert groups.next_case()
    assert living() == 0
