"""Processes that share a cache, obtain, hold and evict at random, and are killed at random moments.

Afterwards, and all the time meanwhile: what is found is whole, what is held is there.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from adapter_files import adapter_files, digest_of_files, write_files
from lorad.sources import AdapterCache

ADAPTERS, SIZE = 8, 40_000
ROUNDS = int(os.environ.get("LORAD_KILLS", "8"))

WORKER = """
import random, sys, threading, time
from pathlib import Path
from lorad.errors import LoradError
from lorad.sources import AdapterCache, SourcePolicy, parse_source

folder, root, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
cache = AdapterCache(folder, 5 * {size})
policy = SourcePolicy(roots=(root,))
print("ready", flush=True)

def look(entry):
    # What is held is read in full; what is wrong ends the process with a word about it.
    found = cache.verify(entry.digest)
    if found is None:
        print("held entry is damaged or gone", entry, flush=True)

def work(number):
    chance = random.Random(seed * 100 + number)
    while True:
        try:
            entry = cache.obtain(parse_source(f"a{{chance.randrange({adapters})}}", policy), hold=True)
        except LoradError as refusal:
            if refusal.code != "cache_full":
                print(refusal.code, refusal.message, flush=True)
            continue
        except BaseException as error:
            print("error", repr(error), flush=True)
            raise
        look(entry)
        if chance.random() < 0.3:
            cache.evict_to(chance.randrange(4 * {size}))
            look(entry)
        cache.release(entry.digest)

for number in range(4):
    threading.Thread(target=work, args=(number,)).start()
"""


def test_killed_at_any_moment(tmp_path: Path) -> None:
    contents = [adapter_files(seed, SIZE) for seed in range(ADAPTERS)]
    for seed, files in enumerate(contents):
        write_files(tmp_path / f"root/a{seed}", files)
    good = {digest_of_files(files) for files in contents}
    chance = random.Random(7)
    folder = tmp_path / "adapters"
    script = WORKER.format(size=SIZE, adapters=ADAPTERS)
    lines: list[str] = []
    entries = 0
    for number in range(ROUNDS):
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", script, folder, tmp_path / "root", str(2 * number + which)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for which in range(2)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.05, 0.3))
        # One dies first, and the other goes on with what it left, or both die at once.
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            assert worker.stdout is not None
            lines += worker.stdout.read().splitlines()
            worker.stdout.close()
            found = AdapterCache(folder, 5 * SIZE)
            for entry in found.listing():
                assert entry.digest in good
                again = found.verify(entry.digest)
                assert again is not None or worker is workers[0]  # the other one may have evicted it
                entries += 1
            found.close()
        assert not list((folder / ".staging").iterdir())
    assert not lines
    assert entries
