"""A real server exports what the catalogue says; boards and rules in deploy/ ask for nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import promql_parser
import pytest
import yaml

from lorad.config import EngineConfig, ServerConfig
from lorad.errors import InvalidRequest
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.observe.catalog import SECTIONS, Metric
from lorad.server.run import Server
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from make_adapter import make_adapter
from scraping import families, samples
from tiny import make_tiny

DEPLOY = Path(__file__).parent.parent / "deploy"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
SCRAPER = {"instance", "job"}
"""Labels that Prometheus adds."""

CATALOGUE = [metric for _, metrics in SECTIONS for metric in metrics]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def _scraped(folder: Path) -> dict[str, str]:
    """What a server with tenants tells after some requests: by its listener, and by /metrics with an operator's key."""
    base = make_tiny(folder)
    adapter = make_adapter(folder / "a", open_model(base).config, rank=8, modules=list(MODULES))
    file = TenantFile(folder / "state.sqlite")
    key, operator = file.add_key(file.put(Tenant("acme", 0)).name)[0], file.add_key(None)[0]
    file.close()
    port = free_port()
    server = Server(
        EngineConfig(model=str(base), kv_cache_memory_bytes=4 << 20),
        ServerConfig(
            port=0,
            served_model_name="base",
            lora_modules=[f"devil={adapter}"],
            tenants=True,
            state_file=str(folder / "state.sqlite"),
            metrics_port=port,
        ),
    )
    address = await server.start()
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
            prompt = list(range(5, 55))
            for model, status in (("devil", 200), ("devil", 200), ("base", 200), ("nobody", 404)):
                body = {"model": model, "prompt": prompt, "max_tokens": 5, "ignore_eos": True}
                async with session.post(address + "/v1/completions", json=body) as response:
                    assert response.status == status, await response.text()
            async with session.get(f"http://127.0.0.1:{port}/v1/models") as response:
                assert response.status == 404, "the listener has nothing but /metrics"
        async with aiohttp.ClientSession() as session:
            async with session.get(address + "/metrics") as response:
                assert response.status == 401, "the listener opens nothing elsewhere"
            assert server.metrics_address == f"http://127.0.0.1:{port}"
            async with session.get(server.metrics_address + "/metrics") as response:
                assert response.status == 200
                own = await response.text()
            async with session.get(address + "/metrics", headers={"Authorization": f"Bearer {operator}"}) as response:
                return {"listener": own, "route": await response.text()}
    finally:
        await server.stop()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return asyncio.run(_scraped(tmp_path_factory.mktemp("deploy")))


@pytest.fixture(scope="module")
def exported(scraped: dict[str, str]) -> dict[str, set[str]]:
    """Labels by series: those of the catalogue, once it was held against the server."""
    found: dict[str, set[str]] = {}
    for family in families(scraped["listener"]).values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_listener_wants_a_port_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match="metrics_port: a port of its own, got 8000, which is --port") as refused:
        Server(EngineConfig(model="/no/such/model"), ServerConfig(metrics_port=8000))
    assert (refused.value.code, refused.value.param) == ("option_conflict", "metrics_port")


def test_the_listener_tells_what_the_route_tells(scraped: dict[str, str]) -> None:
    assert families(scraped["listener"]).keys() == families(scraped["route"]).keys()


def test_a_server_exports_the_catalogue_and_nothing_else(scraped: dict[str, str]) -> None:
    found = families(scraped["listener"])
    assert found.keys() == {metric.name for metric in CATALOGUE}
    for metric in CATALOGUE:
        family = found[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.samples, f"{metric.name}: the test's traffic doesn't reach it"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
        if metric.kind == "histogram":
            bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels}
            assert bounds == {*map(float, metric.buckets), float("inf")}


def test_its_numbers(scraped: dict[str, str]) -> None:
    seen = samples(scraped["listener"])
    assert seen["lorad:adapter_requests_total", "devil"] == 2
    assert seen["lorad:adapter_generation_tokens_total", "devil"] == 10
    assert seen["lorad:tenant_requests_total", "acme"] == 3
    assert seen["lorad:tenant_prompt_tokens_total", "acme"] == 150
    assert seen["lorad:tenant_service_seconds", "acme"] > 0
    assert seen["lorad:adapters", "hot"] == 1 and seen["lorad:page_ins_total",] == 1
    assert seen["lorad:page_in_duration_seconds_count",] == 1
    # The first one met its adapter cold.
    assert seen["lorad:request_load_wait_seconds_count",] == 1
    load, queue = seen["lorad:request_load_wait_seconds_sum",], seen["vllm:request_queue_time_seconds_sum", "0", "base"]
    assert 0 < load <= queue
    assert seen["vllm:request_queue_time_seconds_count", "0", "base"] == 3
    cached = seen["vllm:prefix_cache_hits_total", "0", "base"]
    assert cached == seen["lorad:tenant_cached_tokens_total", "acme"] > 0
    assert seen["lorad:process_resident_memory_bytes", "engine"] > 1 << 20
    assert seen["lorad:refusals_total", "model_not_found", "404"] == 1


# boards and rules


def selectors(query: str) -> list[tuple[str, set[str]]]:
    """Each series that a query asks for, and the labels that it asks of it."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(
                (node.vector_selector.name, {matcher.name for matcher in node.vector_selector.matchers.matchers})
            )
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    assert found, query
    return found


def grouped(query: str) -> set[str]:
    """Labels that a query sums by or matches on."""
    found: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.update(node.modifier.labels)
        if isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None and node.modifier.matching:
            found.update(node.modifier.matching.labels)
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def check(query: str, exported: dict[str, set[str]]) -> None:
    labels: set[str] = set(SCRAPER)
    for name, asked in selectors(query):
        assert name in exported, f"{name}: nobody exports it: {query}"
        assert asked <= exported[name] | SCRAPER, f"{name} has no such label: {query}"
        labels |= exported[name]
    assert grouped(query) <= labels, query


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            # Grafana's own variables, by values that they may have.
            yield target["expr"].replace("$__rate_interval", "1m"), target["legendFormat"]


def test_the_check_finds_what_isnt_there(exported: dict[str, set[str]]) -> None:
    for query in (
        "lorad:no_such_metric",
        'lorad:pages{pool="a"}',
        "sum by (pool) (lorad:pages)",
        "lorad:pages - on (pool) lorad:pages",
        "rate(vllm:prompt_tokens[1m])",
    ):
        with pytest.raises(AssertionError):
            check(query, exported)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_asks_for_what_there_is(path: Path, exported: dict[str, set[str]]) -> None:
    board = json.loads(path.read_text())
    assert len(list(queries(board))) > 10
    for query, legend in queries(board):
        check(query, exported)
        kept = grouped(query) | {label for name, _ in selectors(query) for label in exported[name]} | SCRAPER
        assert {part.split("}}")[0] for part in legend.split("{{")[1:]} <= kept, legend
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            name, label = variable["definition"].removeprefix("label_values(").removesuffix(")").split(", ")
            assert label in exported[name] | SCRAPER
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_a_board_has_a_page_of_adapters(exported: dict[str, set[str]]) -> None:
    board = json.loads((DEPLOY / "grafana" / "lorad-adapters.json").read_text())
    asked = {name for query, _ in queries(board) for name, _ in selectors(query)}
    of_adapters: list[Metric] = next(list(metrics) for title, metrics in SECTIONS if title == "Each adapter")
    assert {metric.series for metric in of_adapters} <= asked


def test_alert_rules_ask_for_what_there_is(exported: dict[str, set[str]]) -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 5
    for rule in group["rules"]:
        check(rule["expr"], exported)
        assert rule["annotations"]["summary"]


def test_the_scrape_configuration(exported: dict[str, set[str]]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert all((DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"])
    dropped = [rule["regex"] for rule in config["scrape_configs"][0]["metric_relabel_configs"]]
    assert "vllm:lora_requests_info" in dropped
    for regex in dropped:
        assert any(name.startswith(regex.removesuffix(".*")) for name in exported), regex
