"""Prometheus metrics; only the HTTP process records, label values come from closed sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from app.answer import Answer
    from app.house import House

K = TypeVar("K")
STAGE_BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """All metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.requests = Counter(
            "mmprep_requests", "Requests answered, by problem code or ok",
            ("route", "code"), registry=registry,
        )  # fmt: skip
        self.request_duration = Histogram(
            "mmprep_request_duration_seconds", "From receipt to the last byte handed over",
            ("route",), buckets=STAGE_BUCKETS, registry=registry,
        )  # fmt: skip
        self.stage_duration = Histogram(
            "mmprep_stage_duration_seconds", "Time spent in a stage, summed over a request's items",
            ("stage", "model"), buckets=STAGE_BUCKETS, registry=registry,
        )  # fmt: skip
        self.queue_wait = Histogram(
            "mmprep_queue_wait_seconds", "From the plan to the start of execution",
            buckets=STAGE_BUCKETS, registry=registry,
        )  # fmt: skip
        self.items = Counter(
            "mmprep_items", "Items answered", ("modality", "status"), registry=registry
        )
        self.media_bytes = Counter(
            "mmprep_media_bytes", "Encoded bytes of media answered for",
            ("modality",), registry=registry,
        )  # fmt: skip
        self.feature_bytes = Counter(
            "mmprep_feature_bytes", "Bytes of features answered, by where they lie",
            ("transport",), registry=registry,
        )  # fmt: skip
        self.batch_items = Histogram(
            "mmprep_batch_items", "Items that shared a call of a processor, per item computed",
            buckets=BATCH_BUCKETS, registry=registry,
        )  # fmt: skip
        self.transport_passed_over = Counter(
            "mmprep_transport_passed_over", "Transports asked for that could not be had",
            ("transport",), registry=registry,
        )  # fmt: skip
        self.inflight = Gauge(
            "mmprep_inflight_requests", "Requests of any route under way", registry=registry
        )

        # A look-up of labels takes a lock and a few microseconds; there are few of them.
        self._stages = cache(self.stage_duration.labels)
        self._items = cache(self.items.labels)
        self._media_bytes = cache(self.media_bytes.labels)
        self._feature_bytes = cache(self.feature_bytes.labels)
        self._requests = cache(self.requests.labels)
        self._request_durations = cache(self.request_duration.labels)

    def observe_request(self, route: str, code: str, seconds: float) -> None:
        """Record a request that has ended."""
        self._requests(route, code).inc()
        self._request_durations(route).observe(seconds)

    def watch(self, house: House) -> None:
        """Read the gauges of a house whenever the metrics are scraped."""
        self._registry.register(_HouseCollector(house))

    def observe_answer(self, answer: Answer) -> None:
        """Record what an answer's items and stages were."""
        model = answer.model.info.name
        for stage, ms in answer.timings_ms.items():
            self._stages(stage, model).observe(ms / 1000)
        if "queue" in answer.timings_ms:
            self.queue_wait.observe(answer.timings_ms["queue"] / 1000)
        items: dict[tuple[str, str], int] = {}
        media_bytes: dict[str, int] = {}
        feature_bytes: dict[str, int] = {}
        for item in answer.items:
            modality = item.modality.value
            _add(items, (modality, item.status), 1)
            _add(media_bytes, modality, item.plan.source.nbytes)
            if item.stored is not None:
                kind = "safetensors" if answer.inline else (item.location or {}).get("kind", "none")
                _add(feature_bytes, kind, item.stored.region.nbytes)
        for labels, count in items.items():
            self._items(*labels).inc(count)
        for modality, nbytes in media_bytes.items():
            self._media_bytes(modality).inc(nbytes)
        for kind, nbytes in feature_bytes.items():
            self._feature_bytes(kind).inc(nbytes)
        for size in answer.batches:
            self.batch_items.observe(size)
        for name, _ in answer.passed_over:
            self.transport_passed_over.labels(name).inc()

    def render(self) -> tuple[bytes, str]:
        """Return the exposition text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _HouseCollector:
    """Gauges read off the parts of a house at scrape time."""

    def __init__(self, house: House) -> None:
        self._house = house

    def describe(self) -> Iterable[Metric]:
        """Promise nothing ahead, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every gauge and counter of the house."""
        house = self._house
        store, leases = house.store.arena.statistics(), house.leasing.table.statistics()
        pool = house.pool.statistics()
        yield _gauge(
            "mmprep_requests_admitted", "Requests in the house", house.admission.num_requests
        )
        yield _gauge(
            "mmprep_requests_waiting",
            "Requests waiting for their turn",
            house.admission.num_waiting,
        )
        yield _gauge(
            "mmprep_planned_pixels",
            "Planned source pixels in execution",
            house.admission.running.pixels,
        )
        yield _gauge(
            "mmprep_store_capacity_bytes", "Bytes of the feature store", store.capacity_bytes
        )
        yield _gauge(
            "mmprep_store_held_bytes", "Bytes leased, pinned or being written", store.held_bytes
        )
        yield _gauge(
            "mmprep_store_idle_bytes", "Bytes kept for look-ups, evictable", store.idle_bytes
        )
        yield _gauge("mmprep_store_regions", "Regions in the store", store.regions)
        yield _counter("mmprep_store_evictions", "Regions evicted", store.evictions)
        yield _counter("mmprep_store_refusals", "Reservations refused: store full", store.refusals)
        yield _gauge("mmprep_leases_active", "Leases running", leases.active)
        yield _gauge("mmprep_lease_bytes", "Bytes under lease", leases.leased_bytes)
        yield _counter("mmprep_leases_expired", "Leases that ran out", leases.expired)
        yield _counter(
            "mmprep_leases_revoked", "Leases of answers that never arrived", leases.revoked
        )
        yield _gauge("mmprep_queue_jobs", "Jobs waiting for a worker", pool.queued)
        yield _gauge("mmprep_running_jobs", "Jobs in workers", pool.running)
        restarts = CounterMetricFamily(
            "mmprep_worker_restarts", "Workers replaced", labels=("reason",)
        )
        for reason, count in pool.restarts.items():
            restarts.add_metric((reason,), count)
        yield restarts


def _add(sums: dict[K, int], key: K, value: int) -> None:
    sums[key] = sums.get(key, 0) + value


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)
