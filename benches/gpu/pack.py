"""Makes the pack that checks the GPU worker elsewhere: `make gpu-check-pack` writes `dist/gpu-check` and a tar of it.

In it are the wheel, what lorad needs beyond torch, Triton and NumPy, the check, the tests' cases, and data.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests"
sys.path.insert(1, str(TESTS))

BYTES_MAX = 60_000_000
"""Of the whole pack."""
LAYERS, TOKENS, PROMPTS = 4, 64, (5, 60, 200)

HERE_ONLY = ("pack.py", "data.py", "truncate.py", "ruff.toml")
"""What only making a pack needs."""
CASES = (
    "attention_steps.py",
    "cpu_ops.py",
    "definitions",
    "gpu_adapters.py",
    "interpreter_repairs.py",
    "lora_cases.py",
    "paged.py",
    "rope_steps.py",
)
"""Of the tests."""
NEEDS = ("gguf", "msgspec", "pyyaml", "safetensors")
"""What the engine and the check import beyond torch, Triton and NumPy and what these bring along."""
DEMO = "lorad/demo/tenants/"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True, help="lorad's")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "gpu-check", help="replaced if it's there")
    asked = parser.parse_args()
    from lorad.demo.base import embedded_base

    shutil.rmtree(asked.out, ignore_errors=True)
    write_code(asked.out)
    write_wheels(asked.out / "wheels", asked.wheel)
    (asked.out / "data").mkdir()
    from data import write_data

    write_data(embedded_base(), asked.out / "data", layers=LAYERS, tokens=TOKENS, prompts=PROMPTS)
    size = sum(file.stat().st_size for file in asked.out.rglob("*") if file.is_file())
    if size > BYTES_MAX:
        sys.exit(f"the pack has {size:,} bytes, at most {BYTES_MAX:,} are allowed")
    with tarfile.open(asked.out.with_suffix(".tar"), "w") as tar:
        tar.add(asked.out, asked.out.name)
    print(f"{asked.out}: {size / 1e6:.1f} MB; on a machine with a GPU: python check.py --json out.json")


def write_code(out: Path) -> None:
    """The check and the tests' cases."""
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache", *HERE_ONLY)
    shutil.copytree(HERE, out, ignore=ignored)
    (out / "cases").mkdir()
    for name in CASES:
        source = TESTS / name
        if source.is_dir():
            shutil.copytree(source, out / "cases" / name, ignore=ignored)
        else:
            shutil.copy(source, out / "cases")
    shutil.copy(ROOT / "LICENSE", out)


def write_wheels(out: Path, wheel: Path) -> None:
    """lorad's wheel and, at the versions of `requirements.lock`, what it needs."""
    out.mkdir()
    without_demo(wheel, out / wheel.name)
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(out),
    ]
    download += ["-c", str(ROOT / "requirements.lock"), "--implementation", "cp"]
    download += [f"--platform={platform}" for platform in PLATFORMS]
    for version in PYTHONS:
        subprocess.run([*download, "--python-version", version, *NEEDS], check=True)


def without_demo(wheel: Path, target: Path) -> None:
    """A copy that lacks the demo's adapters: most of the wheel, and nothing of the check."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for item in source.infolist():
            content = source.read(item)
            if item.filename.startswith(DEMO):
                continue
            if item.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                content = "".join(line for line in lines if not line.startswith(DEMO)).encode()
            copy.writestr(item, content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
