"""`make gpu-check` on a machine without a GPU: every section at tiny sizes, on a pack's data of a tiny base."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import interpreted
from tiny import make_tiny, make_tiny_gguf

ROOT = Path(__file__).resolve().parents[1]
GPU = ROOT / "benches" / "gpu"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a pack has, of a base that is cut from three layers to two."""
    folder = tmp_path_factory.mktemp("check")
    base = make_tiny_gguf(make_tiny(folder / "tiny"), folder / "tiny.gguf", "Q8_0")
    (folder / "data").mkdir()
    make = (
        "import sys; from pathlib import Path; from data import write_data; "
        "write_data(Path(sys.argv[1]), Path(sys.argv[2]), layers=2, tokens=6, prompts=(5, 20))"
    )
    _python("-c", make, str(base), str(folder / "data"), check=True)
    return folder / "data"


def _python(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    paths = [ROOT / "py", GPU, ROOT / "tests", interpreted.FOLDER]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=check)


def test_a_dry_run_does_all_sections(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = _python(str(GPU / "check.py"), "--dry-run", "--data", str(data), "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["ok"] and result["dry_run"]
    for name, section in result["sections"].items():
        assert section["error"] is None and section["findings"], name
    figures = [finding for section in result["sections"].values() for finding in section["findings"]]
    names = {finding["what"][:2] for finding in figures if finding["target"]}
    assert {"G1", "G2", "G4", "G5"} <= names, "each figure has its line"
    assert all(finding["reached"] is None for finding in figures), "a CPU says nothing of a GPU's speed"


def test_a_wrong_answer_fails_it(data: Path, tmp_path: Path) -> None:
    answers = json.loads((data / "answers.json").read_text())
    answers[0]["tokens"][0] ^= 1
    other = tmp_path / "data"
    other.mkdir()
    for name in ("model.gguf", "adapters"):
        (other / name).symlink_to(data / name)
    (other / "answers.json").write_text(json.dumps(answers))
    done = _python(str(GPU / "check.py"), "--dry-run", "--data", str(other), "--only", "model")
    assert done.returncode == 1
    assert "WRONG f32, replayed: the reference's greedy tokens" in done.stdout
    assert "failed: model" in done.stdout


ENDS_EARLY = """
import json, os, sys, time, types
from pathlib import Path
import check

def run(scene, report):
    report.must("the first thing", True)
    if sys.argv[2] == "crashes":
        os.abort()
    if sys.argv[2] == "raises":
        raise ValueError("injected")
    time.sleep(600)

sys.modules["sections.injected"] = types.ModuleType("sections.injected")
sys.modules["sections.injected"].run = run
limit = 20 if sys.argv[2] == "stays" else None
print(json.dumps(check.run_section("injected", limit, Path(sys.argv[1]), True)))
"""


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("crashes", "the process ended with status -6"),
        ("raises", "ValueError: injected"),
        ("stays", "not done after 20 s"),
    ],
)
def test_a_section_that_ends_early_keeps_what_it_found(data: Path, how: str, error: str) -> None:
    done = _python("-c", ENDS_EARLY, str(data), how, check=True)
    told = json.loads(done.stdout)
    assert told["error"] == error
    assert how == "stays" or [finding["what"] for finding in told["findings"]] == ["the first thing"]


EVERYTHING = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
import importlib, check
import interpreter_repairs, lorad.worker.gpu.cuda
for name in check.SECTIONS:
    importlib.import_module(f"sections.{name}")
"""


def test_a_pack_holds_all_that_the_check_imports(tmp_path: Path) -> None:
    """Beyond torch, Triton, NumPy and what these bring, only `NEEDS`: neither the server's packages nor the tests'."""
    write = "import sys, pack; from pathlib import Path; pack.write_code(Path(sys.argv[1])); print(*pack.NEEDS)"
    needs = _python("-c", write, str(tmp_path / "pack"), check=True).stdout.split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    named = {re.split(r"[\[<>=;]", line)[0].lower() for line in wanted}
    refused = named - {*needs, "torch", "numpy", "jinja2"}
    assert {"aiohttp", "tokenizers", "transformers", "pytest", "pyyaml"} - {*needs} <= refused
    paths = [ROOT / "py", tmp_path / "pack", tmp_path / "pack" / "cases", interpreted.FOLDER]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", EVERYTHING, *sorted(name.replace("-", "_") for name in refused)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
