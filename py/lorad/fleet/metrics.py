"""`RouteMetrics`: what a router counts. Labels are bounded by the options: no adapter, no tenant, no address is among
them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lorad.fleet.router import Decision


class RouteMetrics:
    """Counters of one router, in a registry of its own."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.registry = CollectorRegistry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"lorad_router_{name}", help_text, labels, registry=self.registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(f"lorad_router_{name}", help_text, labels, registry=self.registry)

        self._decisions = counter(
            "decisions", "Requests sent, by the term by which the chosen replica was cheaper.", "policy", "by"
        )
        self._terms = counter("cost_seconds", "Costs of the chosen replicas, by term.", "term")
        self.decision_seconds = Histogram(
            "lorad_router_decision_seconds",
            "Reading a request and deciding where it goes.",
            buckets=(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2),
            registry=self.registry,
        )
        self.sent = counter("sent", "Requests sent, by replica.", "replica")
        self.retries = counter("retries", "Requests sent to another replica, by what the first one did.", "cause")
        self.lost = counter("lost", "Answers that ended before they were complete, as their replica failed.")
        self.answers = counter("answers", "Answers to clients, by status.", "status")
        self.gaps = counter("inventory_gaps", "Inventories that had changes on one that isn't known.")
        self.moves = counter("moves", "Homes of adapters given, moved and taken away, by why.", "reason")
        self.prewarms = counter("prewarms", "Adapters that replicas were told to have warm, by how that went.", "end")
        self.replicas = gauge("replicas", "Replicas by state.", "state")
        self.in_flight = gauge("in_flight", "Requests under way, by replica.", "replica")

    def decided(self, decision: Decision) -> None:
        """One was sent."""
        self._decisions.labels(self._policy, decision.by).inc()
        for term, us in decision.cost.items():
            self._terms.labels(term).inc(us / 1e6)

    def exposition(self) -> bytes:
        """The text of a scrape."""
        return generate_latest(self.registry)
