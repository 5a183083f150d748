"""A scrape, read by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from serving import Client

Samples = dict[tuple[str, ...], float]
"""By name, then the values of the labels in the order of the labels' names."""


def families(text: str) -> dict[str, Metric]:
    """By name; each comes once."""
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def samples(text: str) -> Samples:
    """Each series once."""
    found = [sample for family in families(text).values() for sample in family.samples]
    keys = [(sample.name, *(sample.labels[label] for label in sorted(sample.labels))) for sample in found]
    assert len(set(keys)) == len(keys)
    return {key: sample.value for key, sample in zip(keys, found, strict=True)}


async def scrape(client: Client, **headers: str) -> Samples:
    """Of a running server."""
    async with client.session.get(client.address + "/metrics", headers=headers) as response:
        assert response.status == 200
        return samples(await response.text())
