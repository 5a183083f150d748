"""The wheel, installed elsewhere, holds everything: the compiled core, the linked kernels, the demo's tenants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SEEN = """
import json, pathlib, lorad, lorad._core, lorad.kernels
from lorad.demo.tenant import tenants
from lorad.page.files import FILES
root = pathlib.Path(lorad.__file__).parent
print(json.dumps({
    "root": str(root),
    "core": lorad._core.__version__,
    "version": lorad.__version__,
    "kernels": sorted(str(p.relative_to(root)) for p in (root / "kernels").rglob("*.py")),
    "tenants": [t.name for t in tenants()],
    "page": sorted(FILES),
    "typed": (root / "py.typed").exists(),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_is_one_for_all_pythons_and_holds_its_licence(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".rs", ".log"))]


@pytest.mark.slow
def test_the_wheel_holds_what_is_said_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (folder,) = {name.partition("/")[0] for name in names} - {"lorad"}
        metadata = message_from_bytes(file.read(f"{folder}/METADATA"))
        entry_points = file.read(f"{folder}/entry_points.txt").decode()
    assert folder.endswith(".dist-info") and "lorad=lorad.cli:main" in entry_points.replace(" ", "")
    assert {"lorad/_core.abi3.so", "lorad/_core.pyi"} <= set(names)
    tenants = ROOT / "py/lorad/demo/tenants"
    files = {f"lorad/demo/tenants/{path.relative_to(tenants)}" for path in tenants.rglob("*") if path.is_file()}
    assert files <= set(names), "licences of the tenants' texts are among them"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = metadata.get_all("Requires-Dist", [])
    plain = {_requirement(line) for line in wanted if "extra ==" not in line}
    assert plain == {_requirement(line) for line in project["dependencies"]}
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Requires-Python"] == project["requires-python"]


def _requirement(line: str) -> str:
    return line.partition(";")[0].strip().replace("_", "-")


@pytest.mark.slow
def test_an_installed_wheel_imports_everything(wheel: Path, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*install, str(wheel)], check=True)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    output = subprocess.run(
        [sys.executable, "-c", SEEN], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
    ).stdout
    seen = json.loads(output)
    assert seen["root"] == str(tmp_path / "lorad"), "the wheel itself must be what is imported"
    assert seen["core"] == seen["version"]
    in_tree = sorted(f"kernels/{p.relative_to(ROOT / 'kernels')}" for p in (ROOT / "kernels").rglob("*.py"))
    assert seen["kernels"] == in_tree
    assert len(seen["tenants"]) >= 5
    static = ROOT / "py" / "lorad" / "page" / "static"
    assert len(seen["page"]) == len(list(static.iterdir())) > 10
    assert seen["typed"]
