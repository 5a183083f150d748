"""Every option of lorad, once: field, flag, environment variable, help and check derive from this file.

Flags use vLLM's spellings where vLLM has the option. A field `max_num_seqs` is the flag `--max-num-seqs` and the
environment variable `LORAD_MAX_NUM_SEQS`; a flag wins over the environment, the environment over the default.
"""

from __future__ import annotations

import argparse
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar

from lorad.errors import InvalidRequest

Config = TypeVar("Config")
YEAR_SECONDS = 365 * 86400
THREADS_MAX = 1024
RANKS_MAX = 64
Device = Literal["cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
SchedulingPolicy = Literal["fair", "arrival", "affinity"]


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | Callable[[], int] | None = None,
    off: float | None = None,
    metavar: str | None = None,
) -> Any:
    """A field with its help text and range (inclusive); `off` is taken besides."""
    meta = {"help": help, "low": low, "high": high, "off": off, "metavar": metavar}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=meta)
    return field(default=default, metadata=meta)


def machine_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class EngineConfig:
    """What the engine process needs: the model, the pool and the step."""

    model: str = option("", "GGUF file, Hugging Face folder with safetensors, or `smollm2` (the embedded base)")
    dtype: Dtype = option("auto", "number type of computation and KV pages; float32 is the reference")
    device: Device = option(
        "cpu", "what computes; cuda: an NVIDIA GPU (wants lorad[gpu]; not yet measured on one, see docs/gpu.md)"
    )
    enforce_eager: bool = option(False, "with --device cuda: start every kernel by itself instead of CUDA graphs")
    async_scheduling: bool = option(
        True,
        "with --device cuda on one GPU: start a step before the tokens of the one before are known on the host",
    )
    tensor_parallel_size: int = option(
        1, "with --device cuda: GPUs among which the base and each adapter are divided", low=1, high=RANKS_MAX
    )
    image_cache_bytes: int = option(
        4 << 30,
        "with --device cuda: pinned memory for the images of the adapters that were used last; others are read from "
        "their files again",
        low=0,
        high=machine_memory,
    )
    dequantize: bool = option(False, "widen quantised tensors to --dtype at load (the reference path, more memory)")
    deterministic: bool = option(
        False, "the same bits whatever else is in the batch, however prompts are cut, on any number of threads"
    )
    one_copy: bool = option(False, "keep no second form of a weight for a faster operator")
    max_model_len: int = option(0, "longest prompt plus output in tokens; 0: what the model allows", low=2, off=0)
    max_num_seqs: int = option(64, "requests in one step", low=1, high=4096)
    max_num_batched_tokens: int = option(512, "tokens in one step", low=1, high=65536)
    block_size: int = option(16, "tokens of KV in a page", low=1, high=256)
    kv_cache_memory_bytes: int = option(
        1 << 30, "bytes of the page pool, which KV and adapters share", low=1, high=machine_memory
    )
    max_loras: int = option(0, "distinct adapters in one step; 0: no limit but --max-num-seqs", low=0, high=4096)
    max_lora_rank: int = option(256, "adapters above this rank are refused; reserves nothing", low=1, high=4096)
    max_cpu_loras: int = option(
        16384,
        "adapters registered at once, each content once: those in force, combinations, and older ones whose requests "
        "still run; one more is refused; reserves nothing",
        low=1,
        high=1 << 20,
    )
    max_combined_adapters: int = option(
        0,
        "experimental: requests may name several adapters with weights; so many combinations are kept, idle ones "
        "included; 0: off",
        low=1,
        high=4096,
        off=0,
    )
    max_pinned_bytes: int = option(
        0,
        "bytes of the page pool that pinned adapters may take; so much less is left for one adapter and its sequence",
        low=0,
        high=machine_memory,
    )
    enable_prefix_caching: bool = option(
        True, "compute a beginning once for requests of the same tenant and adapter that share it"
    )
    scheduling_policy: SchedulingPolicy = option(
        "fair",
        "whose request comes next: fair shares of tenants and adapters; by arrival or by loaded adapters first, to "
        "compare with",
    )
    max_waiting: int = option(4096, "requests that may wait; one more is answered 429", low=1, high=1 << 24)
    costs: str = option(
        "", "file with this machine's and base's cost model (benches/costs/run.py --write); default: the built-in one"
    )
    wait_seconds_max: float = option(
        0.0,
        "longest wait that is accepted; an arrival by which anybody's could become longer is answered 429; 0: any",
        low=1e-6,
        high=YEAR_SECONDS,
        off=0,
    )
    urgent_after_seconds: float = option(
        10.0,
        "a waiting adapter keeps behind those that are loaded for so long; then the others make way for it",
        low=0,
        high=YEAR_SECONDS,
    )
    preempt_after_tokens: int = option(
        256, "tokens that a request gets, once it runs, before it may have to make way", low=1, high=1 << 20
    )
    reserved_seqs: int = option(
        0,
        "of --max-num-seqs, fewer than half, for tenants with less than their share, whose prompts then come first; an "
        "eighth to a quarter is good with several tenants, with one it changes nothing",
        low=0,
        high=2047,
    )
    page_in_bytes_per_s: int = option(
        0,
        "bring adapters into pages no faster than this, to see on one machine what slower memory does; 0: as fast as "
        "it goes",
        low=1 << 20,
        high=1 << 50,
        off=0,
    )
    trace_file: str = option(
        "", "record every input of the scheduler, token ids included, in this file, for lorad.debug; default: none"
    )
    trace_bytes_max: int = option(1 << 30, "end of a trace file; the engine goes on without", low=1)
    threads: int = option(
        0, "compute threads; 0: OMP_NUM_THREADS or the cores of this process", low=0, high=THREADS_MAX
    )
    log_format: LogFormat = option("text", "log lines on stderr, of both processes; json: one object a line")
    log_level: LogLevel = option("warning", "least level of log lines")


@dataclass(frozen=True)
class ServerConfig:
    """What the front process needs."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0: any free one", low=0, high=65535)
    served_model_name: str = option("", "public name of the base; default: `smollm2` or the file's own name")
    lora_modules: list[str] = option([], "adapters to serve", metavar="NAME=PATH")
    api_key: str = option("", "key that every route but /health wants; default: none")
    tenants: bool = option(
        False, "keys, tenants and their limits are those of the state file: lorad tenants, lorad keys, lorad usage"
    )
    control_key: str = option("", "key that the control endpoints want; default: they are off")
    state_file: str = option(
        "", "SQLite file with what the control endpoints were asked for; default: state.sqlite in the data folder"
    )
    adapter_roots: list[str] = option(
        [], "folders below which the control endpoints may load local adapters; default: none", metavar="FOLDER"
    )
    adapter_schemes: list[str] = option(
        [], "remote sources that they may load: hf, s3, gs, az, https, http; default: none", metavar="SCHEME"
    )
    adapter_prefixes: list[str] = option(
        [], "if given, remote sources must lie below one of these, as in s3://bucket/folder", metavar="PREFIX"
    )
    adapter_private_addresses: bool = option(
        False, "whether https and http sources may be at private and loopback addresses"
    )
    adapter_redirect_hosts: list[str] = option(
        [], "hosts that an https or http source may lead to besides its own", metavar="HOST"
    )
    adapter_registry: str = option(
        "", "folder or bucket prefix whose adapters are loaded when a request names them; default: none"
    )
    max_on_demand_adapters: int = option(
        1024, "adapters of --adapter-registry that are registered at once, idle ones included", low=1
    )
    adapter_bytes_max: int = option(4 << 30, "files of one adapter together, at most", low=1)
    adapter_fetch_seconds: float = option(600.0, "how long bringing one adapter may take", low=1, high=YEAR_SECONDS)
    adapter_cache_bytes: int = option(
        20 << 30, "disk that adapters' files may take in the data folder; those that are loaded stay", low=1
    )
    metrics_host: str = option("127.0.0.1", "address of --metrics-port")
    metrics_port: int = option(
        0, "port of a listener that has nothing but /metrics, without a key; 0: none", low=1, high=65535, off=0
    )
    metrics_labels_max: int = option(
        100, "adapters, and tenants, with series of their own in /metrics, the busiest; all others are `other`", low=1
    )
    log_requests: bool = option(False, "a log line for each request: ids, model, status, tokens, ms; never its text")
    otlp_endpoint: str = option(
        "",
        "OpenTelemetry receiver (OTLP over HTTP) that gets a span for each request, as in http://127.0.0.1:4318; "
        "default: OTEL_EXPORTER_OTLP_ENDPOINT, else none",
    )
    chat_template: str = option("", "file with a Jinja chat template instead of the model's own")
    body_bytes_max: int = option(8 << 20, "longest request body", low=1024)
    memory_low_bytes: int = option(
        128 << 20,
        "with less memory left, of the machine or the container, no adapters are loaded and no requests taken that "
        "would wait; 0: never",
        low=0,
    )
    drain_seconds: float = option(
        30.0, "how long running requests may go on after a stop signal", low=0, high=YEAR_SECONDS
    )


def add_arguments(parser: argparse.ArgumentParser, *configs: type) -> None:
    """Adds a flag for each field of `configs`."""
    for config in configs:
        group = parser.add_argument_group(config.__name__.removesuffix("Config").lower())
        hints = typing.get_type_hints(config)
        for item in fields(config):
            if item.name == "model":
                continue
            flag = "--" + item.name.replace("_", "-")
            kind = hints[item.name]
            help_text = item.metadata["help"] + f" (env {_env(item.name)})"
            if kind is bool:
                # what is on by default gets a --no- flag
                action = argparse.BooleanOptionalAction if item.default else "store_true"
                group.add_argument(flag, action=action, default=None, help=help_text)
            elif typing.get_origin(kind) is list:
                group.add_argument(flag, nargs="+", action="extend", metavar=item.metadata["metavar"], help=help_text)
            elif typing.get_origin(kind) is Literal:
                group.add_argument(flag, choices=typing.get_args(kind), help=help_text)
            else:
                shown = item.default if item.default not in ("", MISSING) else None
                suffix = f"; default {shown}" if shown is not None else ""
                group.add_argument(flag, type=kind, metavar=kind.__name__, help=help_text + suffix)


def from_arguments(
    config: type[Config], arguments: argparse.Namespace, environ: Mapping[str, str] | None = None
) -> Config:
    """Builds a checked `config` from parsed flags, then the environment, then the defaults."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(config)
    for item in fields(config):  # type: ignore[arg-type]
        given = getattr(arguments, item.name, None)
        if given is None and _env(item.name) in environ:
            given = _parse(item.name, hints[item.name], environ[_env(item.name)])
        if given is not None:
            values[item.name] = given
    return check(config(**values))


def as_flags(*configs: object) -> list[str]:
    """The flags that give these configs again, where no environment variable sets anything (`without_options`)."""
    flags: list[str] = []
    for config in configs:
        for item in fields(config):  # type: ignore[arg-type]
            value, flag = getattr(config, item.name), item.name.replace("_", "-")
            plain = item.default_factory() if item.default_factory is not MISSING else item.default
            if item.name == "model" or value == plain:
                continue
            if isinstance(value, bool):
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, list):
                flags += [f"--{flag}", *value]
            else:
                flags.append(f"--{flag}={value}")
    return flags


def without_options(environ: Mapping[str, str], *configs: type) -> dict[str, str]:
    """An environment without the variables of these configs' fields."""
    names = {_env(item.name) for config in configs for item in fields(config)}
    return {name: value for name, value in environ.items() if name not in names}


def check(config: Config) -> Config:
    """Refuses a value out of range, naming the field, the limit and the value."""
    for item in fields(config):  # type: ignore[arg-type]
        value = getattr(config, item.name)
        low, high, off = (item.metadata.get(name) for name in ("low", "high", "off"))
        if off is not None and value == off:
            continue
        # Turned round, so that what is no number is refused too.
        if low is not None and not value >= low:
            least = f"at least {low}" if off is None else f"{off} or at least {low}"
            raise InvalidRequest(f"{item.name}: {least}, got {value}", code="option_range", param=item.name)
        most = high() if callable(high) else high
        if most is not None and not value <= most:
            limit = f"at most {most}" + (" (this machine's memory)" if high is machine_memory else "")
            raise InvalidRequest(f"{item.name}: {limit}, got {value}", code="option_range", param=item.name)
    return config


def parse_lora_modules(entries: Sequence[str]) -> dict[str, str]:
    """`name=path` entries as a dict; the name is what stands before the first `=`."""
    modules: dict[str, str] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals or not name or not path:
            raise InvalidRequest(
                f"lora_modules: wants NAME=PATH, got {entry!r}", code="option_form", param="lora_modules"
            )
        if name in modules:
            raise InvalidRequest(
                f"lora_modules: the name {name!r} is given twice", code="option_form", param="lora_modules"
            )
        modules[name] = path
    return modules


def _env(name: str) -> str:
    return "LORAD_" + name.upper()


def _parse(name: str, kind: Any, text: str) -> Any:
    try:
        if kind is bool:
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        if typing.get_origin(kind) is list:
            return text.split()
        if typing.get_origin(kind) is Literal:
            if text not in typing.get_args(kind):
                raise ValueError(text)
            return text
        return kind(text)
    except (KeyError, ValueError):
        raise InvalidRequest(
            f"{_env(name)}: not a value of this option: {text!r}", code="option_form", param=name
        ) from None
