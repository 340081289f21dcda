"""Orders as rank 0 sees them: a bad one is refused with a reason and never stops the job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tailwatch import control
from tailwatch.control import Order, RankFault
from tailwatch.trainer.orders import RankOrders

SOON = 60_000_000_000


@pytest.fixture(autouse=True)
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Answers(list[tuple[str, str, str]]):
    """What was answered: kind, order, reason."""

    def __call__(self, kind: str, order: Order, reason: str = "") -> None:
        self.append((kind, order.id, reason))


def _orders(directory: Path, answers: Answers, answered: tuple[str, ...] = ()) -> RankOrders:
    return RankOrders(directory, 0, nodes={"node-0"}, answered=answered, answer=answers)


def _order(**fields: Any) -> Order:
    complete: dict[str, Any] = {
        "id": control.new_order_id(),
        "kind": "checkpoint",
        "by": "test",
        "reason": "",
        "deadline_ns": time.time_ns() + SOON,
    }
    return Order(**(complete | fields))


def _fault(delay: float = 0.25, **fields: Any) -> Order:
    until = fields.pop("fault_until_ns", time.time_ns() + SOON)
    return _order(
        kind="fault", rank=0, fault=RankFault(delay_seconds=delay), fault_until_ns=until, **fields
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty orders directory."""
    path = tmp_path / "orders"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"\xff\x00",
        json.dumps({"id": "x", "kind": "dance"}).encode(),
        json.dumps({"id": "x" * 999, "kind": "leave"}).encode(),
        json.dumps(
            {"id": "bad", "kind": "leave", "by": "b" * 3000, "reason": "", "deadline_ns": 2**62}
        ).encode(),
    ],
    ids=range(7),
)
def test_an_unreadable_order_is_refused_once_and_stops_nothing(
    content: bytes, directory: Path
) -> None:
    """Whatever lies in the directory, ranks go on, now and after a restart."""
    (directory / "bad.json").write_bytes(content)
    answers = Answers()
    orders = _orders(directory, answers)
    assert not orders.look()
    assert not orders.look()
    assert [(kind, order) for kind, order, _ in answers] == [("order_refused", "bad")]
    assert orders.spread() == []
    assert _orders(directory, Answers()).spread() == []


def test_an_order_whose_id_is_not_its_file_is_refused(directory: Path) -> None:
    """An order cannot speak for another one."""
    control.submit(directory, _order(id="one")).rename(directory / "two.json")
    answers = Answers()
    _orders(directory, answers).look()
    assert [(kind, order) for kind, order, _ in answers] == [("order_refused", "two")]


def test_an_order_is_spread_once(directory: Path) -> None:
    """A new order raises the flag, is handed out, and is not new again."""
    order = _order()
    control.submit(directory, order)
    answers = Answers()
    orders = _orders(directory, answers)
    assert orders.look()
    assert orders.spread() == [order]
    assert not orders.look()
    assert answers == [("order_accepted", order.id, "")]
    assert not _orders(directory, Answers(), answered=(order.id,)).look()


def test_an_order_after_its_deadline_is_answered_expired_and_not_done(directory: Path) -> None:
    """Too late is said, by rank 0 alone, and nobody acts; a fault does not act either."""
    control.submit(directory, _order(deadline_ns=1))
    control.submit(directory, _fault(deadline_ns=1))
    answers = Answers()
    orders = _orders(directory, answers)
    assert not orders.look()
    assert orders.spread() == []
    assert [kind for kind, _, _ in answers] == ["order_expired", "order_expired"]
    assert orders.delay_seconds() == 0.0


def test_a_leave_of_a_node_that_is_not_here_is_refused(directory: Path) -> None:
    """A misspelt or already gone node does not make anybody re-form."""
    for node in ("node-7", None):
        control.submit(directory, _order(kind="leave", node=node))
    answers = Answers()
    assert not _orders(directory, answers).look()
    assert [kind for kind, _, _ in answers] == ["order_refused", "order_refused"]


def test_a_fault_is_in_force_until_it_is_cleared(directory: Path) -> None:
    """Clearing raises the flag again and ends the delay."""
    order = _fault(0.25)
    control.submit(directory, order)
    orders = _orders(directory, Answers())
    assert orders.look()
    orders.spread()
    assert orders.delay_seconds() == 0.25
    assert not orders.look()
    control.clear_fault(directory, order.id)
    assert orders.look()
    orders.spread()
    assert orders.delay_seconds() == 0.0


def test_a_fault_ends_by_itself(directory: Path) -> None:
    """After its expiry a fault delays nobody, also when nobody clears it."""
    order = _fault(fault_until_ns=time.time_ns() + 300_000_000)
    control.submit(directory, order)
    orders = _orders(directory, Answers())
    orders.look()
    orders.spread()
    deadline = time.monotonic() + 30
    while orders.delay_seconds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_fault_in_force_goes_on_in_the_next_attempt(directory: Path) -> None:
    """A restart does not cure: the answered fault stands from the first spread on."""
    order = _fault(0.5)
    control.submit(directory, order)
    orders = _orders(directory, Answers(), answered=(order.id,))
    orders.spread()
    assert orders.delay_seconds() == 0.5


@pytest.mark.parametrize("delay", [-1.0, 61.0])
def test_a_fault_that_cannot_be_is_refused(delay: float, directory: Path) -> None:
    """A negative or endless delay is refused, not slept."""
    control.submit(directory, _fault(delay))
    answers = Answers()
    orders = _orders(directory, answers)
    assert not orders.look()
    assert [kind for kind, _, _ in answers] == ["order_refused"]
    assert orders.delay_seconds() == 0.0
