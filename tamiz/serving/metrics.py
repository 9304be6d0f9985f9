"""What a server counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tamiz.serving.catalog import Catalog, ServedDecoder
from tamiz.serving.chat import Delta
from tamiz.serving.requests import End

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts requests and tokens, and times tokens; no label holds what a request says."""

    def __init__(self) -> None:
        """Starts at zero, in a registry of its own."""
        self.registry = CollectorRegistry()
        to = self.registry
        self.requests = Counter(
            "tamiz_requests", "Requests by route and status code.", ("route", "status"), registry=to
        )
        self.prompt_tokens = Counter("tamiz_prompt_tokens", "Tokens of prompts.", registry=to)
        self.cached_tokens = Counter(
            "tamiz_cached_tokens", "Tokens of prompts that were found in the cache.", registry=to
        )
        self.completion_tokens = Counter(
            "tamiz_completion_tokens", "Tokens of answers.", registry=to
        )
        self.first_token = Histogram(
            "tamiz_time_to_first_token_seconds",
            "Seconds from a request to its first token.",
            buckets=_SECONDS,
            registry=to,
        )
        self.next_token = Histogram(
            "tamiz_time_between_tokens_seconds",
            "Seconds between two tokens of an answer.",
            buckets=_SECONDS,
            registry=to,
        )

    def watch(self, catalog: Catalog) -> None:
        """Reads the load of each engine when the metrics are read."""
        self.registry.register(_Engines(catalog))

    async def follow(self, answer: AsyncIterator[Delta | End]) -> AsyncIterator[Delta | End]:
        """Passes an answer on, and counts and times its tokens."""
        last, timer = time.monotonic(), self.first_token
        async for event in answer:
            if isinstance(event, End):
                self.prompt_tokens.inc(event.prompt_tokens)
                self.cached_tokens.inc(event.cached_tokens)
                self.completion_tokens.inc(event.completion_tokens)
            else:
                now = time.monotonic()
                timer.observe(now - last)
                last, timer = now, self.next_token
            yield event

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Engines:
    """Gauges of the engines."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def collect(self) -> Iterable[Metric]:
        """The gauges, as they are now."""
        gauges = {
            "running": "Answers that are being made.",
            "waiting": "Requests that wait.",
            "free_tokens": "Tokens that free pages of the KV cache hold.",
            "preempted": "Answers that had to wait for memory, so far.",
            "drafted": "Tokens that were guessed ahead, so far.",
            "accepted": "Guessed tokens that were right, so far.",
        }
        for name, text in gauges.items():
            family = GaugeMetricFamily(f"tamiz_engine_{name}", text, labels=["model"])
            for served in self._catalog.served.values():
                if isinstance(served, ServedDecoder):
                    family.add_metric([served.name], getattr(served.engine.load, name))
            yield family
