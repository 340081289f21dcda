"""Which rank a hang is due to: real dumps, and jobs made up to be hard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.flight import Recorder, recorders, write
from tailwatch.flight_recorder import Diagnosis, diagnose, read

FIXTURES = Path(__file__).parent / "fixtures"


def verdict(directory: Path) -> Diagnosis:
    """Return the verdict on a directory."""
    return diagnose(read(directory))


@pytest.mark.parametrize(
    ("incident", "roots", "world"),
    [("gpu_error_1st", [12], 16), ("lock_gil_1st", [9, 14], 16), ("gloo", [2], 4)],
)
def test_real_dumps(incident: str, roots: list[int], world: int) -> None:
    """Real dumps name exactly the ranks at fault, everybody else is a victim."""
    found = verdict(FIXTURES / incident)
    assert (found.verdict, found.root_ranks) == ("rank", roots)
    assert found.victims == [rank for rank in range(world) if rank not in roots]
    assert all(set(group.missing_ranks) & set(roots) for group in found.groups)


@pytest.mark.parametrize("gone", ["removed", "zero bytes"])
@pytest.mark.parametrize(
    ("incident", "roots"), [("gpu_error_1st", [12]), ("lock_gil_1st", [9, 14])]
)
def test_a_root_without_evidence_is_still_the_root(
    incident: str, roots: list[int], gone: str, tmp_path: Path
) -> None:
    """A dump of a root that is missing or empty is evidence against it, as all others joined."""
    shutil.copytree(FIXTURES / incident, tmp_path / "d")
    for rank in roots:
        (tmp_path / "d" / f"_dump_{rank}").unlink()
        if gone == "zero bytes":
            (tmp_path / "d" / f"_dump_{rank}").touch()
    found = verdict(tmp_path / "d")
    assert (found.verdict, found.root_ranks) == ("rank", roots)


@pytest.mark.parametrize("victim", [0, 5, 13, 14])
def test_a_victim_without_a_dump_is_not_accused(victim: int, tmp_path: Path) -> None:
    """While a rank is proven to be the root, nobody is named for a dump that is missing."""
    shutil.copytree(FIXTURES / "gpu_error_1st", tmp_path / "d")
    (tmp_path / "d" / f"_dump_{victim}").unlink()
    found = verdict(tmp_path / "d")
    assert found.root_ranks == [12]
    assert any(f"rank {victim} left no dump" in reason for reason in found.reasons)


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("status", [True, False])
def test_the_rank_that_is_behind(form: str, status: bool, tmp_path: Path) -> None:
    """In both forms, and in versions without positions, the rank that is behind is named."""
    ranks = recorders(4)
    for rank in ranks:
        rank.call("0", done=True)
        if rank.rank != 2:
            rank.call("0", "_all_gather_base")
    found = verdict(write(tmp_path / "d", ranks, form=form, status=status))
    assert (found.verdict, found.root_ranks, found.victims) == ("rank", [2], [0, 1, 3])
    (group,) = found.groups
    assert (group.name, group.operation, group.sequence) == ("0:group 0", "_all_gather_base", 2)


def test_the_chain_leads_through_groups(tmp_path: Path) -> None:
    """A rank that keeps others waiting because it waits in another group is a victim."""
    ranks = recorders(6, g1=[0, 1, 2], g2=[2, 3], g3=[3, 4, 5])
    for rank in ranks:
        rank.call("0", done=True)
    for rank in ranks[:2]:
        rank.call("1")
    ranks[2].call("2")
    ranks[3].call("3")
    ranks[4].call("3")
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.root_ranks, found.victims) == ([5], [0, 1, 2, 3, 4])
    assert [group.name for group in found.groups] == ["3:group 3"]


def test_sends_are_matched_by_pair_and_not_by_number(tmp_path: Path) -> None:
    """Sequence numbers of sends differ between healthy ranks; the open receive tells."""
    ranks = recorders(3)
    for _ in range(5):
        ranks[1].call("0", "send 1->2", done=True)
        ranks[2].call("0", "recv 2<-1", done=True)
    ranks[0].call("0", "recv 0<-1")
    ranks[2].call("0", "recv 2<-0")
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.root_ranks, found.victims) == ([1], [0, 2])
    assert found.groups[0].operation == "recv 0<-1"


def test_all_joined_is_the_network(tmp_path: Path) -> None:
    """When everybody joined and nobody finished, no rank is accused."""
    ranks = recorders(4)
    for rank in ranks:
        rank.call("0", done=True)
        rank.call("0", "all_to_all", size=rank.rank + 1)
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.verdict, found.root_ranks) == ("network", [])
    assert found.groups[0].missing_ranks == []
    assert found.victims == [0, 1, 2, 3]


def test_nobody_waits(tmp_path: Path) -> None:
    """A job whose operations have all finished does not hang."""
    ranks = recorders(2)
    for rank in ranks:
        rank.call("0", done=True)
    assert verdict(write(tmp_path / "d", ranks)).verdict == "none"


def test_a_device_that_never_started(tmp_path: Path) -> None:
    """Where starts are recorded, the one rank whose device never started is named."""
    ranks = recorders(4)
    for rank in ranks:
        rank.call("0", done=True, state="completed", time_discovered_started_ns=1)
        rank.call("0", state="scheduled" if rank.rank == 3 else "started")
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.verdict, found.root_ranks) == ("rank", [3])


def test_a_watchdog_that_noted_nothing(tmp_path: Path) -> None:
    """A rank that joined all, but is operations behind in what finished, has a sick device."""
    ranks = recorders(2)
    for rank in ranks:
        for number in range(5):
            rank.call("0", done=number < (1 if rank.rank == 1 else 4))
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.verdict, found.root_ranks) == ("rank", [1])


@pytest.mark.parametrize(("name", "size"), [("all_reduce", 16), ("broadcast", 8)])
def test_one_rank_called_something_else(name: str, size: int, tmp_path: Path) -> None:
    """The few whose operation or size differs from that of most are the root."""
    ranks = recorders(4)
    for rank in ranks:
        rank.call("0", *([name] if rank.rank == 1 else []), size=size if rank.rank == 1 else 8)
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.verdict, found.root_ranks, found.victims) == ("rank", [1], [0, 2, 3])


def test_two_that_differ_cannot_be_told_apart(tmp_path: Path) -> None:
    """One against one has no majority: unknown, with both told."""
    ranks = recorders(2)
    ranks[0].call("0", "all_reduce")
    ranks[1].call("0", "broadcast")
    found = verdict(write(tmp_path / "d", ranks))
    assert (found.verdict, found.root_ranks) == ("unknown", [])
    assert "all_reduce" in found.reasons[0]
    assert "broadcast" in found.reasons[0]


def test_a_circle_is_unknown(tmp_path: Path) -> None:
    """Two ranks that wait for each other in two groups have no guilty one."""
    ranks = recorders(2, g1=[0, 1], g2=[0, 1])
    ranks[0].call("1")
    ranks[1].call("2")
    found = verdict(write(tmp_path / "d", ranks))
    assert found.verdict == "unknown"
    assert "each other" in found.reasons[0]


def test_few_dumps_are_no_evidence_against_the_rest(tmp_path: Path) -> None:
    """With half of a group's dumps missing, nobody is accused for that."""
    ranks = recorders(8)
    for rank in ranks:
        rank.call("0")
    found = verdict(write(tmp_path / "d", ranks[:4]))
    assert (found.verdict, found.root_ranks) == ("unknown", [])
    assert any("no evidence" in reason for reason in found.reasons)


def test_parts_of_a_coalesced_group_finish_with_it(tmp_path: Path) -> None:
    """The parts have no state of their own and are not open once the group has finished."""
    ranks = recorders(2)
    for rank in ranks:
        rank.call("0", "all_reduce")
        rank.call("0", "all_reduce", same=True)
        rank.call("0", "coalesced", same=True, done=True)
    assert verdict(write(tmp_path / "d", ranks)).verdict == "none"
    for rank in ranks[:1]:
        rank.call("0", "all_reduce")
    assert verdict(write(tmp_path / "d", ranks)).root_ranks == [1]


def test_a_ring_that_has_lost_its_beginning(tmp_path: Path) -> None:
    """What the ring lost is not taken for never joined, nor for joined."""
    ranks = recorders(3, g1=[0, 1, 2])
    for rank in ranks:
        rank.call("1", done=True)
    ranks[0].call("1")
    for rank in ranks[1:]:
        rank.call("0", done=True)
        rank.entries = [rank.entries[-1] | {"record_id": 5000, "time_created_ns": 10**18 * 2}]
    found = verdict(write(tmp_path / "d", ranks, status=False))
    assert (found.verdict, found.root_ranks) == ("unknown", [])


def test_several_ranks_in_one_json_file(tmp_path: Path) -> None:
    """One JSON file may hold all ranks, by name or as a list."""
    ranks = recorders(3)
    for rank in ranks[1:]:
        rank.call("0")
    by_rank = {f"rank {rank.rank}": rank.content() for rank in ranks}
    for number, content in enumerate((by_rank, list(by_rank.values()))):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "all-ranks.json").write_text(json.dumps(content))
        assert verdict(tmp_path / f"{number}").root_ranks == [0]


def test_many_ranks_in_time(tmp_path: Path) -> None:
    """A thousand ranks in nested groups are no reason to wait; the chain is followed to its end."""
    world = 1024
    groups = {"0": list(range(world))} | {
        str(1 + n): list(range(n * 8, n * 8 + 8)) for n in range(world // 8)
    }
    ranks = [Recorder(rank, groups) for rank in range(world)]
    for rank in ranks:
        rank.call("0", done=True)
        if rank.rank != 77:
            rank.call(str(1 + rank.rank // 8), done=rank.rank // 8 != 77 // 8)
        if rank.rank // 8 != 77 // 8:
            rank.call("0")
    assert verdict(write(tmp_path / "d", ranks)).root_ranks == [77]
