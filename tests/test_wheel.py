"""The wheel, installed elsewhere, holds everything: the compiled core, the linked kernels, the demo's tenants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
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
