"""What the files of deploy/ hold, for the tests: YAML read strictly, and lorad's command lines with their variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
TEMPLATES = DEPLOY / "helm/lorad/templates"
YAML = sorted(path for path in DEPLOY.rglob("*.yaml") if TEMPLATES not in path.parents)
FILES = sorted(path for path in [*DEPLOY.rglob("*"), ROOT / ".dockerignore"] if path.is_file())


class Command(NamedTuple):
    """How a file starts lorad."""

    arguments: list[str]
    """After `lorad`."""
    variables: dict[str, str]


class _Strict(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML's readers take one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"given twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a file."""
    return [document for document in yaml.load_all(path.read_text(), _Strict) if document]


def objects(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Kubernetes objects of the files in a folder that are no patches, by kind and name."""
    found = {}
    for path in sorted((DEPLOY / folder).glob("*.yaml")):
        if path.name.endswith((".patch.yaml", ".values.yaml", "kustomization.yaml")):
            continue
        for document in read(path):
            found[document["kind"], document["metadata"]["name"]] = document
    return found


def kubernetes() -> Command:
    """The StatefulSet's, with its ConfigMap and stand-ins for the secret's values."""
    found = objects("kubernetes")
    container = found["StatefulSet", "lorad"]["spec"]["template"]["spec"]["containers"][0]
    variables = {}
    for source in container["envFrom"]:
        variables |= found["ConfigMap", source["configMapRef"]["name"]]["data"]
    for variable in container["env"]:
        key = variable["valueFrom"]["secretKeyRef"]
        variables[variable["name"]] = found["Secret", key["name"]]["stringData"][key["key"]]
    return Command(container["args"], variables)


def compose() -> Command:
    """The compose file's; what the shell gives is made up."""
    (document,) = read(DEPLOY / "compose.yaml")
    service = document["services"]["lorad"]
    given = [argument.replace("${MODEL:-smollm2}", "smollm2") for argument in service["command"]]
    assert not [argument for argument in given if "$" in argument]
    return Command(given, {**image(), **dict.fromkeys(service["environment"], "made-up")})


def systemd() -> Command:
    """The unit's, with the variables of it and of the example of its file."""
    unit = unit_values("lorad.service")
    variables = dict(line.split("=", 1) for line in unit["Environment"])
    example = (DEPLOY / "systemd/lorad.env.example").read_text().splitlines()
    variables |= dict(line.split("=", 1) for line in example if line and not line.startswith("#"))
    (start,) = unit["ExecStart"]
    program, *arguments = start.split()
    assert Path(program).name == "lorad"
    return Command([argument.replace("${BASE}", variables["BASE"]) for argument in arguments], variables)


def image() -> dict[str, str]:
    """lorad's variables that the image sets."""
    words = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").split()
    return dict(word.split("=", 1) for word in words if word.startswith("LORAD_"))


def unit_values(name: str) -> Mapping[str, list[str]]:
    """A unit's settings; one that is there several times has several values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def instructions(name: str) -> Iterator[tuple[str, str]]:
    """A Dockerfile's instructions and what follows them."""
    lines = [line for line in (DEPLOY / name).read_text().splitlines() if line and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word, " ".join(rest.split())
