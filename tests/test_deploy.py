"""deploy/: what it says of lorad is so, Kubernetes takes its objects, and its files agree with each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

import deployed
from deployed import DEPLOY, FILES, ROOT, TEMPLATES, YAML
from loopback import serving
from lorad import cli
from lorad.config import EngineConfig, ServerConfig, from_arguments
from lorad.errors import InvalidRequest
from lorad.server.auth import OPEN_ROUTES
from lorad.server.run import CUT_SECONDS
from test_documents import VARIABLE

COMMANDS = {"kubernetes": deployed.kubernetes, "compose": deployed.compose, "systemd": deployed.systemd}
SCHEMAS = ("1.30", "1.37")
"""The oldest Kubernetes that has what is used, and the newest whose schema is here."""
OTHERS = {"InferencePool", "HTTPRoute", "ServiceMonitor", "ModelAdapter", "Kustomization"}
"""Kinds that aren't Kubernetes' own. They were held against their definitions by hand, as their heads say."""
ENGINE_SECONDS = 10.0
"""What the end of the engine's process may take at most: asked, then killed."""
OTHER_PROGRAMS = {
    "docker": ("--build", "--build-arg", "--build-context", "--from", "--gpus", "--mount"),
    "HEALTHCHECK": ("--interval", "--retries", "--start-period", "--timeout"),
    "pip": ("--constraint", "--find-links", "--no-cache-dir"),
    "maturin": ("--locked", "--out", "--release"),
    "apt-get": ("--no-install-recommends",),
    "useradd, groupadd": ("--gid", "--home-dir", "--no-create-home", "--shell", "--system", "--uid"),
    "systemctl": ("--now", "--quiet"),
    "kubectl": ("--from-literal",),
    "health.py": ("--timeout", "--url"),
}
"""Flags of others that are in deploy/ too."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# what it says of lorad


@pytest.mark.parametrize("name", COMMANDS)
def test_lorad_takes_its_command_line_and_variables(name: str) -> None:
    arguments, variables = COMMANDS[name]()
    parsed = cli._parser().parse_args(arguments)
    engine = from_arguments(EngineConfig, parsed, variables)
    server = from_arguments(ServerConfig, parsed, variables)
    assert engine.kv_cache_memory_bytes == 2 << 30 and server.drain_seconds == 60
    assert "control_key" in {item.removeprefix("LORAD_").lower() for item in variables}
    assert server.host == ("127.0.0.1" if name == "systemd" else "0.0.0.0")


def _known_variables() -> set[str]:
    known = {f"LORAD_{name.upper()}" for config in (EngineConfig, ServerConfig) for name in config.__dataclass_fields__}
    for path in (ROOT / "py/lorad").rglob("*.py"):
        known |= set(VARIABLE.findall(path.read_text()))
    return known - {"LORAD_MODEL"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_variable_is_one_that_lorad_reads(path: Path) -> None:
    assert set(re.findall(r"\bLORAD_[A-Z_]*[A-Z]\b", path.read_text())) <= _known_variables()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_flag_is_one_that_lorad_has(path: Path) -> None:
    flags = {f"--{name.replace('_', '-')}" for config in (EngineConfig, ServerConfig) for name in vars(config())}
    flags |= {flag for theirs in OTHER_PROGRAMS.values() for flag in theirs}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", path.read_text())) <= flags


@pytest.mark.parametrize("chart", [False, True], ids=["kubernetes", "helm"])
def test_probes_ask_what_is_open(chart: bool) -> None:
    text = (TEMPLATES if chart else DEPLOY / "kubernetes").joinpath("statefulset.yaml").read_text()
    paths = re.findall(r"^ +path: (\S+)$", text, re.MULTILINE)
    assert len(paths) == 3 and {("GET", path) for path in paths} <= OPEN_ROUTES


def test_grace_is_more_than_a_drain_takes() -> None:
    pod = deployed.objects("kubernetes")["StatefulSet", "lorad"]["spec"]["template"]["spec"]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = float(deployed.kubernetes().variables["LORAD_DRAIN_SECONDS"])
    needed = drain + CUT_SECONDS + ENGINE_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= pause + needed
    (document,) = deployed.read(DEPLOY / "compose.yaml")
    assert _seconds(document["services"]["lorad"]["stop_grace_period"]) >= needed
    (stop,) = deployed.unit_values("lorad.service")["TimeoutStopSec"]
    assert _seconds(stop) >= float(deployed.systemd().variables["LORAD_DRAIN_SECONDS"]) + CUT_SECONDS + ENGINE_SECONDS
    (added,) = re.findall(r"add (\d+) ", (TEMPLATES / "_helpers.tpl").read_text())
    assert int(added) >= pause + CUT_SECONDS + ENGINE_SECONDS


def _seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


# YAML and Kubernetes


@pytest.mark.parametrize("path", YAML, ids=relative)
def test_yaml_is_tidy(path: Path) -> None:
    assert deployed.read(path), "keys that are there twice are refused"
    text = path.read_text()
    assert text.endswith("\n") and not text.endswith("\n\n") and "\t" not in text
    lines = text.splitlines()
    assert [line for line in lines if line != line.rstrip() or len(line) > 120] == []
    assert [line for line in lines if (len(line) - len(line.lstrip())) % 2 and not line.lstrip().startswith("#")] == []


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("folder", ["kubernetes", "gateway", "aibrix"])
def test_kubernetes_takes_the_objects(folder: str, version: str) -> None:
    for (kind, _), document in deployed.objects(folder).items():
        if kind not in OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_field_is_noticed() -> None:
    document = deployed.objects("kubernetes")["StatefulSet", "lorad"]
    document["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(document, SCHEMAS[-1], strict=True)


def test_objects_name_each_other() -> None:
    found = deployed.objects("kubernetes")
    labels = found["StatefulSet", "lorad"]["spec"]["template"]["metadata"]["labels"]
    container = found["StatefulSet", "lorad"]["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": int(deployed.kubernetes().variables["LORAD_PORT"])}
    for (kind, _), document in found.items():
        spec = document.get("spec", {})
        if kind == "Service":
            assert spec["selector"].items() <= labels.items()
            assert {port["targetPort"] for port in spec["ports"]} <= set(ports)
        if kind in ("PodDisruptionBudget", "StatefulSet"):
            assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert found["NetworkPolicy", "lorad"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert ("Service", found["StatefulSet", "lorad"]["spec"]["serviceName"]) in found
    volumes = {"data"} | {one["name"] for one in found["StatefulSet", "lorad"]["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    monitor = found["ServiceMonitor", "lorad"]["spec"]
    chosen = [
        document
        for (kind, _), document in found.items()
        if kind == "Service" and monitor["selector"]["matchLabels"].items() <= document["metadata"]["labels"].items()
    ]
    assert len(chosen) == 1, "each replica is scraped once"
    credentials = monitor["endpoints"][0]["authorization"]["credentials"]
    assert credentials["key"] in found["Secret", credentials["name"]]["stringData"]


def test_services_arent_taken_for_options() -> None:
    # A pod is told of a service `lorad` by LORAD_PORT=tcp://…, unless it says that it doesn't want to be.
    assert (
        deployed.objects("kubernetes")["StatefulSet", "lorad"]["spec"]["template"]["spec"]["enableServiceLinks"]
        is False
    )
    assert "enableServiceLinks: false" in (TEMPLATES / "statefulset.yaml").read_text()
    parsed = cli._parser().parse_args(["serve", "smollm2"])
    with pytest.raises(InvalidRequest, match="LORAD_PORT"):
        from_arguments(ServerConfig, parsed, {"LORAD_PORT": "tcp://10.0.0.1:8000"})


def test_examples_choose_the_pods() -> None:
    def labels(folder: str) -> dict[str, str]:
        (patch,) = deployed.read(DEPLOY / folder / "statefulset.patch.yaml")
        base = deployed.objects("kubernetes")["StatefulSet", "lorad"]["spec"]["template"]["metadata"]["labels"]
        return {**base, **patch["spec"]["template"]["metadata"]["labels"]}

    pool = deployed.objects("gateway")["InferencePool", "lorad"]["spec"]
    assert pool["selector"]["matchLabels"].items() <= labels("gateway").items()
    assert pool["targetPorts"] == [{"number": 8000}]
    adapter = deployed.objects("aibrix")["ModelAdapter", "support-v7"]["spec"]
    assert adapter["podSelector"]["matchLabels"].items() <= labels("aibrix").items()
    prefixes = deployed.kubernetes().variables["LORAD_ADAPTER_PREFIXES"].split()
    assert any(adapter["artifactURL"].startswith(f"{prefix}/") for prefix in prefixes), "the server would refuse it"


def test_every_file_of_a_kustomization_is_there() -> None:
    for path in DEPLOY.rglob("kustomization.yaml"):
        (document,) = deployed.read(path)
        named = [*document["resources"], *(patch["path"] for patch in document.get("patches", []))]
        assert named and [name for name in named if not (path.parent / name).exists()] == []


def test_the_chart_has_what_the_manifests_have() -> None:
    (chart,) = deployed.read(DEPLOY / "helm/lorad/Chart.yaml")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert chart["version"] == chart["appVersion"] == version
    kinds = re.findall(r"^kind: (\w+)$", "\n".join(path.read_text() for path in TEMPLATES.iterdir()), re.MULTILINE)
    assert set(kinds) == {kind for kind, _ in deployed.objects("kubernetes")} - {"Secret", "NetworkPolicy"}
    (values,) = deployed.read(DEPLOY / "helm/lorad/values.yaml")
    used = re.findall(r"\.Values\.(\w+)", "\n".join(path.read_text() for path in TEMPLATES.iterdir()))
    assert set(used) == set(values), "a value that nothing reads, or one that isn't there"


# images and units


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_images_are_built_with_care(name: str) -> None:
    found = list(deployed.instructions(name))
    last = found[max(number for number, (word, _) in enumerate(found) if word == "FROM") :]
    tail = {word: rest for word, rest in last}
    assert tail["USER"] == "10001:10001" and tail["VOLUME"] == "/data"
    assert tail["ENTRYPOINT"] == '["lorad"]' and "/opt/lorad/health.py" in tail["HEALTHCHECK"]
    cli._parser().parse_args(re.findall(r'"([^"]+)"', tail["CMD"]))
    arguments = dict(rest.split("=") for word, rest in found if word == "ARG")
    need = re.search(r"^NEED_RUST := (\d+)\.(\d+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert need and tuple(map(int, arguments["RUST"].split("."))) >= tuple(map(int, need.groups()))
    assert arguments["PYTHON"] in ("3.11", "3.12")
    for word, rest in found:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
        if word == "COPY" and not rest.startswith("--from"):
            assert (ROOT / rest.split()[0]).exists()
        if word == "FROM" and not rest.startswith("scratch"):
            assert ":${" in rest, "no image without a version"


def test_the_context_keeps_what_the_wheel_needs() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    needed = ("Cargo.toml", "Cargo.lock", "README.md", "LICENSE", "pyproject.toml", "requirements.lock")
    for name in (*needed, "rust", "py", "kernels", "deploy"):
        assert name not in ignored and (ROOT / name).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").glob("lorad*.*"):
        # It wants the programs to be there.
        (tmp_path / path.name).write_text(
            path.read_text().replace("ExecStart=/opt/lorad/bin/lorad", "ExecStart=/bin/true")
        )
    units = [str(path) for path in sorted(tmp_path.glob("*.service")) + sorted(tmp_path.glob("*.timer"))]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stop_signal_is_for_lorad_alone() -> None:
    # The engine gets no signal of its own: it goes on until what runs has ended.
    assert deployed.unit_values("lorad.service")["KillMode"] == ["mixed"]


# health.py


@pytest.fixture
def answer() -> Iterator[tuple[str, list[Any]]]:
    """A server that answers with the status code and text that are in the list."""
    said: list[Any] = [200, '{"status": "ready"}']

    def respond(handler: BaseHTTPRequestHandler) -> None:
        body = str(said[1]).encode()
        handler.send_response(said[0])
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with serving(respond) as server:
        yield f"{server.url}/health", said


def _ask(url: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(DEPLOY / "health.py"), "--url", url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def test_health(answer: tuple[str, list[Any]]) -> None:
    url, said = answer
    assert _ask(url) == (0, "ready")
    said[:] = [503, '{"status": "draining"}']
    assert _ask(url) == (1, "draining")
    said[:] = [200, "<html>"]
    assert _ask(url) == (0, "not lorad's answer")
    code, text = _ask("http://127.0.0.1:1/health")
    assert code == 1 and text.startswith("no answer")
