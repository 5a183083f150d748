"""The tests of CPU operators on each lesser level of this CPU: LORAD_CPU is read when the extension first computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lorad import _core

HERE = Path(__file__).parent
FILES = sorted(str(path) for path in HERE.glob("test_cpu_*.py") if path != Path(__file__))
LEVEL = (
    "import os\n"
    "from lorad import _core\n"
    "assert _core.cpu_features()['level'] == os.environ['LORAD_CPU'], _core.cpu_features()\n"
)


@pytest.mark.parametrize("level", _core.cpu_levels()[:-1])
def test_lesser_levels_pass_too(level: str) -> None:
    environment = {**os.environ, "LORAD_CPU": level}
    subprocess.run([sys.executable, "-c", LEVEL], env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *FILES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_best_level_is_taken() -> None:
    assert len(FILES) == 5
    assert _core.cpu_features()["level"] == os.environ.get("LORAD_CPU", _core.cpu_levels()[-1])
