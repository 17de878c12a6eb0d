"""Permits, rates and time budgets."""

import asyncio

import pytest

from app.loading.limits import HostPermits, RateGuard, TimeBudget


def test_a_slow_stream_is_told_after_its_grace() -> None:
    """Only the average since the start counts."""
    now = 0.0
    guard = RateGuard(100, 10, clock=lambda: now)
    assert not guard.is_too_slow(1)
    now = 10.0
    assert not guard.is_too_slow(1)
    now = 10.5
    assert guard.is_too_slow(1)
    assert not guard.is_too_slow(2000)
    now = 21.0
    assert guard.is_too_slow(1)


def test_a_rate_of_zero_forgives_everything() -> None:
    """The rule can be turned off."""
    now = 0.0
    guard = RateGuard(0, 0, clock=lambda: now)
    now = 1e9
    assert not guard.is_too_slow(0)


async def test_hosts_are_forgotten_when_nobody_uses_them() -> None:
    """Memory does not grow with the hosts ever seen, cancelled waiters included."""
    permits = HostPermits(8, 1)
    async with permits.hold("a"):
        waiter = asyncio.create_task(permits.hold("a").__aenter__())
        await asyncio.sleep(0)
        assert permits.num_hosts == 1
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        async with permits.hold("b"):
            assert permits.num_hosts == 2
    assert permits.num_hosts == 0


async def test_a_slow_host_does_not_hold_the_others_permits() -> None:
    """Those who queue for one host leave the overall permits to the rest."""
    permits = HostPermits(2, 1)
    async with permits.hold("slow"):
        queue = [asyncio.create_task(permits.hold("slow").__aenter__()) for _ in range(5)]
        await asyncio.sleep(0)
        async with permits.hold("quick"):
            pass
        for waiter in queue:
            waiter.cancel()
        await asyncio.gather(*queue, return_exceptions=True)


async def test_the_overall_number_is_bounded() -> None:
    """Many hosts share one total."""
    permits = HostPermits(2, 2)
    running = most = 0

    async def fetch(host: str) -> None:
        nonlocal running, most
        async with permits.hold(host):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(fetch(str(i)) for i in range(10)))
    assert most == 2
    assert permits.num_hosts == 0


async def test_a_time_budget_is_shared_by_its_stretches() -> None:
    """What one stretch spends is gone for the next."""
    budget = TimeBudget(0.02)
    with pytest.raises(TimeoutError):
        async with budget.spend():
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        async with budget.spend():
            await asyncio.Event().wait()
