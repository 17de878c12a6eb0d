"""Admission: counting, weighing, order, cancellation, drain."""

import asyncio

import pytest

from app.admission import Admission, Work
from app.errors import DrainingError, OverloadedError


def make(requests: int = 2, pixels: int = 100, nbytes: int = 100) -> Admission:
    return Admission(requests, Work(pixels, nbytes))


def test_one_request_too_many_is_overloaded() -> None:
    """The house counts requests and refuses without waiting."""
    admission = make(requests=1)
    with admission.enter(), pytest.raises(OverloadedError), admission.enter():
        pass
    assert admission.num_requests == 0


async def test_work_that_fits_runs_at_once_and_gives_back() -> None:
    """A permit holds its share until it is released, once."""
    admission = make()
    permit = await admission.acquire(Work(60, 10))
    assert admission.running == Work(60, 10)
    permit.release()
    permit.release()
    assert admission.running == Work()


async def test_lower_priority_number_goes_first() -> None:
    """Waiting work is let in by priority, then by arrival."""
    admission = make()
    first = await admission.acquire(Work(100, 0))
    order: list[str] = []

    async def wait(name: str, priority: int) -> None:
        with await admission.acquire(Work(100, 0), priority):
            order.append(name)

    tasks = [
        asyncio.create_task(wait(n, p))
        for n, p in (("late", 5), ("a", 0), ("b", 0), ("urgent", -1))
    ]
    await asyncio.sleep(0)
    assert admission.num_waiting == 4
    first.release()
    await asyncio.gather(*tasks)
    assert order == ["urgent", "a", "b", "late"]
    assert admission.running == Work()


async def test_work_larger_than_the_budget_runs_alone() -> None:
    """Nothing is too large to ever run; it takes the whole budget."""
    admission = make()
    with await admission.acquire(Work(10_000, 1)):
        assert admission.running == Work(100, 1)


async def test_a_cancelled_waiter_holds_nothing_and_lets_others_in() -> None:
    """Leaving the queue in front unblocks who fits behind."""
    admission = make()
    held = await admission.acquire(Work(50, 0))
    big = asyncio.create_task(admission.acquire(Work(100, 0)))
    small = asyncio.create_task(admission.acquire(Work(50, 0)))
    await asyncio.sleep(0)
    assert admission.num_waiting == 2
    big.cancel()
    permit = await small
    with pytest.raises(asyncio.CancelledError):
        await big
    permit.release()
    held.release()
    assert admission.running == Work()


async def test_drain_waits_for_the_house_to_empty() -> None:
    """Draining refuses new requests and ends with the last one in the house."""
    admission = make()
    with admission.enter():
        task = asyncio.create_task(admission.drain())
        await asyncio.sleep(0)
        assert not task.done()
        with pytest.raises(DrainingError), admission.enter():
            pass
    await task
