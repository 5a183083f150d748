"""Metrics: what is counted, by which names, and that labels stay bounded however many adapters there are."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from lorad.engine.messages import PAGE_IN_SECONDS, AdapterStats, TenantStats, Waits
from lorad.errors import EngineFailure
from lorad.observe import catalog
from lorad.observe.busiest import HALF_LIFE_SECONDS, OTHER, Busiest, BusiestCounters
from lorad.observe.document import renewed
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from scraping import Samples, families, samples, scrape
from scripted_engine import adapter_info, empty_stats
from serving import serving

COMPLETIONS = "/v1/completions"
DOCUMENT = Path(__file__).parent.parent / "docs" / "metrics.md"

USES = catalog.Metric("test:uses", "counter", "Uses.", ("name",))


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text()
    assert renewed(text) == text, "make metrics-doc"
    for _, metrics in catalog.SECTIONS:
        assert all(f"| `{metric.series}` |" in text for metric in metrics)


def test_every_metric_of_the_catalogue_is_listed_once() -> None:
    listed = [metric for _, metrics in catalog.SECTIONS for metric in metrics]
    assert Counter(metric.name for metric in listed).most_common(1)[0][1] == 1
    made = [value for value in vars(catalog).values() if isinstance(value, catalog.Metric)]
    assert set(made) == set(listed)


# labels


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(counters: BusiestCounters) -> dict[str, float]:
    (family,) = counters.families()
    return {sample.labels["name"]: sample.value for sample in family.samples}


def test_the_busiest_have_series_and_all_others_are_one() -> None:
    busiest = Busiest(2, now=Clock())
    counters = BusiestCounters([USES], busiest)
    for name, uses in (("a", 5), ("b", 4), ("c", 3), ("d", 50)):
        for _ in range(uses):
            counters.add(name, 1)
    assert shown(counters) == {"a": 5, "b": 4, OTHER: 53}, "nobody comes or goes between scrapes"
    busiest.review()
    counters.add("d", 1)
    counters.add("b", 1)
    assert shown(counters) == {"a": 5, "d": 1, OTHER: 54}, "what was counted under other stays there"


def test_who_has_a_series_keeps_it_until_another_is_twice_as_busy() -> None:
    busiest = Busiest(1, now=Clock())
    for name, uses in (("a", 10), ("b", 19)):
        for _ in range(uses):
            busiest.use(name)
    busiest.review()
    assert busiest.label("a") == "a"
    for _ in range(2):
        busiest.use("b")
    busiest.review()
    assert (busiest.label("a"), busiest.label("b")) == (OTHER, "b")


def test_use_is_forgotten() -> None:
    clock = Clock()
    busiest = Busiest(1, now=clock)
    for _ in range(100):
        busiest.use("was")
    for _ in range(3):
        clock.now += 400 * HALF_LIFE_SECONDS  # past what a float can hold, were it not brought down in between
        for _ in range(3):
            busiest.use("is")
    busiest.review()
    assert busiest.label("is") == "is"


def test_what_is_really_called_other_is_counted_there() -> None:
    busiest = Busiest(5, now=Clock())
    counters = BusiestCounters([USES], busiest)
    counters.add(OTHER, 1)
    busiest.review([OTHER, "idle"])
    counters.add(OTHER, 1)
    assert shown(counters) == {OTHER: 2} and busiest.label("idle") == "idle"
    counters.forget(OTHER)
    assert shown(counters) == {OTHER: 2}, "others are counted there too"


@pytest.mark.parametrize("seed", range(20))
def test_counters_never_go_down_and_nothing_is_lost(seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    busiest = Busiest(rng.randint(1, 4), now=clock)
    counters = BusiestCounters([USES], busiest)
    last: dict[str, float] = {}
    added = 0.0
    for _ in range(400):
        clock.now += rng.expovariate(1 / 60)
        for _ in range(rng.randrange(4)):
            amount = rng.randrange(9)
            counters.add(rng.choice("abcdefgh"), amount)
            added += amount
        if rng.random() < 0.3:
            busiest.review("abcdefgh")
        now = shown(counters)
        assert len(now) <= busiest._most + 1
        for name, value in now.items():
            assert value >= last.get(name, 0.0), name
        last |= now
    assert sum(counts[0] for counts in counters._counts.values()) == added


async def test_five_thousand_adapters_have_as_many_series_as_the_option_says() -> None:
    names = tuple(f"tenant-{number}" for number in range(5000))
    async with serving(adapters=names, metrics_labels_max=10) as client:
        states = {f"gen-{name}": AdapterStats("cold", 0, 1, 2) for name in names}
        client.engine.stats_now = empty_stats(adapters=states)
        for name in (*names[100:120], *names[115:120] * 3):
            assert (await client.post(COMPLETIONS, model=name, prompt="hi"))[0] == 200
        await scrape(client)
        for name in names[115:120]:
            assert (await client.post(COMPLETIONS, model=name, prompt="hi"))[0] == 200
        seen = await scrape(client)
        of_each = [key for key in seen if key[0].startswith("lorad:adapter_")]
        # running, waiting, pages, info, requests, two kinds of tokens; five states.
        assert len(of_each) <= 11 * (7 + 5)
        own = {key[1] for key in seen if key[0] == "lorad:adapter_requests_total"} - {OTHER}
        assert set(names[115:120]) <= own and len(own) == 10
        assert seen["lorad:adapter_requests_waiting", OTHER] == 4990 and seen["lorad:adapter_pages", OTHER] == 9980
        assert seen["lorad:adapter_state", OTHER, "cold"] == 4990
        assert seen["lorad:adapters", "cold"] == 5000
        total = sum(value for key, value in seen.items() if key[0] == "lorad:adapter_requests_total")
        assert total == 40 - 5, "five lost their series, with one request each"
        assert ("lorad:adapter_info", OTHER) not in {key[:2] for key in seen}


# what vLLM's readers see


async def test_vllms_names() -> None:
    async with serving(adapters=("devil", "a,b", "idle")) as client:
        client.engine.cached_tokens = 1
        client.engine.waits = Waits("cold", 0.4, 0.3)
        client.engine.stats_now = empty_stats(
            running=3,
            waiting=2,
            adapters={
                "gen-devil": AdapterStats("hot", 3, 1, 3),
                "gen-a,b": AdapterStats("loading", 0, 1, 3),
                "gen-idle": AdapterStats("hot", 0, 0, 3),
            },
        )
        await client.post(COMPLETIONS, model="devil", prompt="hello", max_tokens=9)
        before = time.time()
        async with client.session.get(client.address + "/metrics") as response:
            text = await response.text()
        seen, base = samples(text), ("0", "base")
        (info,) = families(text)["vllm:lora_requests_info"].samples
        assert info.labels == {
            "max_lora": "64",
            "running_lora_adapters": "devil",
            "waiting_lora_adapters": "devil,a,b",
        }
        assert before <= info.value <= time.time()
        assert seen["vllm:num_requests_running", *base] == 3 and seen["vllm:num_requests_waiting", *base] == 2
        assert seen["vllm:kv_cache_usage_perc", *base] == 4 / 64
        assert seen["vllm:cache_config_info", "16", "float32", "0", "64"] == 1
        prompt, made = seen["vllm:prompt_tokens_total", *base], seen["vllm:generation_tokens_total", *base]
        assert prompt == made >= 2
        assert seen["vllm:request_success_total", "0", "stop", "base"] == 1
        assert seen["vllm:prefix_cache_queries_total", *base] == prompt
        assert seen["vllm:prefix_cache_hits_total", *base] == 1
        assert seen["vllm:num_preemptions_total", *base] == 0
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
            assert seen[f"vllm:{name}_count", *base] == 1, name
        assert seen["vllm:request_queue_time_seconds_sum", *base] == 0.4
        assert seen["lorad:request_load_wait_seconds_sum",] == 0.3
        for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
            assert seen[f"vllm:{name}_count", *base] == made - 1, name
        assert seen["vllm:request_time_per_output_token_seconds_count", *base] == 1
        kinds = {family.name: family.type for family in families(text).values()}
        assert kinds["vllm:time_per_output_token_seconds"] == kinds["vllm:inter_token_latency_seconds"] == "histogram"
        assert kinds["vllm:prompt_tokens"] == kinds["vllm:num_preemptions"] == "counter"


async def test_page_ins_by_what_they_took() -> None:
    counts = [0] * (len(PAGE_IN_SECONDS) + 1)
    counts[2], counts[-1] = 3, 1
    async with serving() as client:
        client.engine.stats_now = empty_stats(page_in_counts=tuple(counts), page_in_seconds=40.0)
        seen = await scrape(client)
        name = "lorad:page_in_duration_seconds"
        assert seen[f"{name}_bucket", "0.0025"] == 0 and seen[f"{name}_bucket", "0.005"] == 3
        assert seen[f"{name}_bucket", "30.0"] == 3 and seen[f"{name}_bucket", "+Inf"] == 4
        assert (seen[f"{name}_count",], seen[f"{name}_sum",]) == (4, 40.0)


# the server's own


async def test_answers_and_refusals() -> None:
    async with serving(api_key="sk-right") as client:
        right = {"Authorization": "Bearer sk-right", "Content-Type": "application/json"}
        assert (await client.raw(COMPLETIONS, b'{"model": "secret-name", "prompt": "x"}', right))[0] == 404
        assert (await client.raw(COMPLETIONS, b"{", right))[0] == 400
        assert (await client.raw("/secret-path", b"", right))[0] == 404
        assert (await client.get("/v1/models/devil"))[0] == 401
        client.engine.refuse = EngineFailure("gone", code="page_in_failed")
        assert (await client.raw(COMPLETIONS, b'{"model": "base", "prompt": "x"}', right))[0] == 500
        async with client.session.get(client.address + "/metrics", headers=right) as response:
            text = await response.text()
        assert "secret" not in text
        seen = samples(text)
        refusals = {key[1:]: value for key, value in seen.items() if key[0] == "lorad:refusals_total"}
        assert refusals == {
            ("model_not_found", "404"): 1,
            ("body_json", "400"): 1,
            ("not_found", "404"): 1,
            ("missing_api_key", "401"): 1,
            ("page_in_failed", "500"): 1,
        }
        assert seen["lorad:http_requests_total", COMPLETIONS, "404"] == 1
        assert seen["lorad:http_requests_total", "other", "404"] == 1
        assert seen["lorad:http_requests_total", "/v1/models/{name}", "401"] == 1


async def test_a_client_that_leaves_is_no_failure_and_an_error_in_a_stream_is_one() -> None:
    async with serving() as client:
        client.engine.auto = False
        client.engine.script = lambda request: [97] * 50
        fields = {"model": "base", "prompt": "hi", "max_tokens": 50, "stream": True}
        with pytest.raises(asyncio.TimeoutError):
            timeout = aiohttp.ClientTimeout(total=0.2)
            await client.session.post(client.address + COMPLETIONS, json=fields, timeout=timeout)
        while client.front.gate.inside:
            await asyncio.sleep(0.01)
        asked = asyncio.create_task(client.stream(COMPLETIONS, **fields))
        while not client.engine.running:
            await asyncio.sleep(0.01)
        client.engine.step()
        await asyncio.sleep(0.05)
        client.engine.refuse = EngineFailure("lost", code="worker_lost")
        client.engine.step()
        await asked
        seen = await scrape(client)
        assert seen["lorad:http_requests_total", COMPLETIONS, "499"] == 1
        assert {key[1:] for key in seen if key[0] == "lorad:refusals_total"} == {("worker_lost", "200")}
        assert seen["vllm:request_success_total", "0", "abort", "base"] == 1
        assert seen["vllm:request_success_total", "0", "error", "base"] == 1


async def test_names_that_change_are_counted_and_idle_adapters_are_there() -> None:
    async with serving(adapters=("devil",)) as client:
        registry = client.front.registry
        registry.publish(adapter_info("new"))
        registry.publish(adapter_info("new"))  # the same again
        registry.publish(adapter_info("new", "other-generation"))
        seen = await scrape(client)
        assert seen["lorad:adapter_info", "new", "other-generation", "8"] == 1
        assert seen["lorad:adapter_requests_running", "new"] == 0
        registry.withdraw("new")
        seen = await scrape(client)
        changes = {key[1]: value for key, value in seen.items() if key[0] == "lorad:generation_changes_total"}
        assert changes == {"added": 1, "replaced": 1, "removed": 1}
        assert not [key for key in seen if "new" in key]


async def test_memory_build_and_a_silent_engine() -> None:
    async with serving() as client:
        client.engine.stats_now = empty_stats(resident_bytes=7 << 20)
        seen = await scrape(client)
        assert seen["lorad:process_resident_memory_bytes", "engine"] == 7 << 20
        assert seen["lorad:process_resident_memory_bytes", "front"] > 1 << 20
        assert [key[1:4] for key in seen if key[0] == "lorad:build_info"] == [("llama", "base-digest", "float32")]
        client.engine.fault = EngineFailure("gone", code="engine_gone")
        seen = await scrape(client)
        assert seen["lorad:engine_up",] == 0
        assert not [key for key in seen if key[0] in ("vllm:num_requests_running", "lorad:steps_total")]


# tenants


def of_tenants(seen: Samples, name: str) -> dict[str, float]:
    return {key[1]: value for key, value in seen.items() if key[0] == name}


async def test_tenants_use_and_service(tmp_path: Path) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    made = [file.put(Tenant(name, 0)) for name in ("acme", "umbrella", "initech", "hooli")]
    keys = {tenant.name: file.add_key(tenant.name)[0] for tenant in made}
    operator = file.add_key(None)[0]
    file.close()
    async with serving(tenants=tmp_path / "state.sqlite", metrics_labels_max=2) as client:
        client.engine.cached_tokens = 1
        client.engine.stats_now = empty_stats(
            tenants={
                0: TenantStats(1, 9, 9, 9),  # nobody's
                made[0].number: TenantStats(3_000_000_000, 1, 0, 4),
                made[1].number: TenantStats(2_500_000_000, 0, 2, 0),
                made[2].number: TenantStats(2_000_000_000, 2, 1, 7),
                made[3].number: TenantStats(1_000_000_000, 0, 0, 0),
            }
        )
        for name, times in (("acme", 3), ("umbrella", 2), ("initech", 1)):
            for _ in range(times):
                async with client.session.post(
                    client.address + COMPLETIONS,
                    json={"model": "devil", "prompt": "hi"},
                    headers={"Authorization": f"Bearer {keys[name]}"},
                ) as response:
                    assert response.status == 200
        seen = await scrape(client, Authorization=f"Bearer {operator}")
        assert of_tenants(seen, "lorad:tenant_requests_total") == {"acme": 3, "umbrella": 2, OTHER: 1}
        assert of_tenants(seen, "lorad:tenant_prompt_tokens_total") == {"acme": 6, "umbrella": 4, OTHER: 2}
        assert of_tenants(seen, "lorad:tenant_cached_tokens_total") == {"acme": 3, "umbrella": 2, OTHER: 1}
        assert of_tenants(seen, "lorad:tenant_generation_tokens_total") == {"acme": 6, "umbrella": 4, OTHER: 2}
        assert of_tenants(seen, "lorad:tenant_requests_running") == {"acme": 1, "umbrella": 0, OTHER: 2}
        assert of_tenants(seen, "lorad:tenant_requests_waiting") == {"acme": 0, "umbrella": 2, OTHER: 1}
        assert of_tenants(seen, "lorad:tenant_pages") == {"acme": 4, "umbrella": 0, OTHER: 7}
        assert of_tenants(seen, "lorad:tenant_service_seconds") == {"acme": 3.0, "umbrella": 2.5, OTHER: 1.0}
