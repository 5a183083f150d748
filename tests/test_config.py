"""Options: a value out of range is one line on stderr that names option, limit and value, however it is given."""

from __future__ import annotations

import pytest

from lorad import __version__, cli
from lorad.config import (
    EngineConfig,
    ServerConfig,
    as_flags,
    check,
    from_arguments,
    machine_memory,
    without_options,
)


@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("max-model-len", "1", "0 or at least 2"),
        ("max-model-len", "-5", "0 or at least 2"),
        ("kv-cache-memory-bytes", "1152921504606846976", f"at most {machine_memory()} (this machine's memory)"),
        ("kv-cache-memory-bytes", "1125899906842624000000", f"at most {machine_memory()}"),
        ("kv-cache-memory-bytes", "0", "at least 1"),
        ("drain-seconds", "nan", "at least 0"),
        ("drain-seconds", "inf", "at most 31536000"),
        ("drain-seconds", "-1", "at least 0"),
        ("max-waiting", "99999999999999999999999", "at most 16777216"),
        ("max-num-seqs", "0", "at least 1"),
        ("wait-seconds-max", "-1", "0 or at least 1e-06"),
        ("wait-seconds-max", "nan", "0 or at least 1e-06"),
        ("urgent-after-seconds", "-0.5", "at least 0"),
        ("preempt-after-tokens", "0", "at least 1"),
        ("reserved-seqs", "-1", "at least 0"),
    ],
)
@pytest.mark.parametrize("given", ["flag", "environment"])
def test_values_out_of_range(
    option: str,
    value: str,
    limit: str,
    given: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = option.replace("-", "_")
    if given == "environment":
        monkeypatch.setenv(f"LORAD_{name.upper()}", value)
    assert cli.main(["serve", "/no/such/model", *([f"--{option}={value}"] if given == "flag" else [])]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"lorad: {name}: {limit}") and said.endswith("[option_range]\n") and said.count("\n") == 1
    assert f"got {float(value) if 'seconds' in option else value}" in said


def test_border_values_and_defaults_are_taken() -> None:
    check(EngineConfig())
    check(ServerConfig())
    check(EngineConfig(max_model_len=2, kv_cache_memory_bytes=machine_memory(), max_waiting=1 << 24))
    check(EngineConfig(wait_seconds_max=0, urgent_after_seconds=0, preempt_after_tokens=1 << 20, reserved_seqs=2047))
    check(ServerConfig(drain_seconds=0))


def test_flags_give_the_configs_again() -> None:
    engine = EngineConfig(
        model="m", dtype="bfloat16", deterministic=True, enable_prefix_caching=False, wait_seconds_max=0.25, costs="a b"
    )
    server = ServerConfig(port=0, lora_modules=["a=x", "b=y=z"], drain_seconds=0.0)
    parsed = cli._parser().parse_args(["serve", "m", *as_flags(engine, server)])
    assert from_arguments(EngineConfig, parsed, {}) == engine
    assert from_arguments(ServerConfig, parsed, {}) == server
    assert as_flags(EngineConfig(model="m"), ServerConfig()) == []


def test_an_environment_without_options() -> None:
    given = {"LORAD_PORT": "1", "LORAD_DTYPE": "float16", "LORAD_DATA_DIR": "d", "PATH": "p"}
    assert without_options(given, EngineConfig, ServerConfig) == {"LORAD_DATA_DIR": "d", "PATH": "p"}
    assert without_options(given, ServerConfig)["LORAD_DTYPE"] == "float16"


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version_as_a_command_and_as_a_flag(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main([asked])
    except SystemExit as end:  # argparse's own flags end at once
        code = int(end.code or 0)
    assert code == 0 and capsys.readouterr().out == f"lorad {__version__}\n"
