"""`Loader`: adapters are read, checked and packed in a process of their own.

So a load shares neither interpreter nor address space with the steps: it takes what the cores have left, and whatever a
file provokes, a crash or all memory included, ends the loader and nothing else. The image crosses as an open file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading

import numpy as np

from lorad.adapters.image import MODULES, AdapterImage, make_layout
from lorad.engine.child import environment, how_it_ended
from lorad.engine.frames import error_of, receive, send
from lorad.engine.loading import ANSWER, Failed, Job, Loaded, Opening
from lorad.engine.prepared import PreparedAdapter
from lorad.errors import EngineFailure, Unavailable

ANSWER_SECONDS = 600.0
"""How long a load may take. A loader that hangs, on a disk or stopped, must not keep all loads and unloads."""
END_SECONDS = 5.0
"""How long a loader that is told to end may take."""


class Loader:
    """Its process is started at once and again after it has died. `prepare` may be called on any thread, in turns."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._turn = threading.Lock()
        self._closed = False
        self._process, self._socket = self._start()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def prepare(self, name: str, path: str, *, digest: str, page_bytes: int) -> PreparedAdapter:
        """Reads, checks and packs an adapter for a base of this digest and a pool of such pages."""
        with self._turn:
            if self._closed:
                raise Unavailable("the engine is closed", code="engine_closed")
            if self._process.poll() is not None:
                self._socket.close()
                self._process, self._socket = self._start()
            try:
                self._socket.settimeout(ANSWER_SECONDS)
                send(self._socket, Job(name, path, digest, page_bytes))
                answer, descriptor = receive(self._socket, ANSWER)
            except TimeoutError:
                self._process.kill()
                self._process.wait()
                why = f"the loader was ended, as it has not answered for {ANSWER_SECONDS:g} s"
                raise EngineFailure(f"adapter {name!r}: {why}", code="loader_died") from None
            except (OSError, EOFError):
                raise self._died(name) from None
        if isinstance(answer, Failed):
            raise error_of(answer.failure)
        return _prepared(answer, descriptor, page_bytes)

    def close(self) -> None:
        """Ends the process, also in the middle of a load."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lorad.engine.loading", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment(),
            )
        send(ours, self._opening)
        return process, ours

    def _died(self, name: str) -> EngineFailure:
        self._process.kill()
        code = self._process.wait()
        what = "was stopped" if self._closed else how_it_ended(code)
        return EngineFailure(f"adapter {name!r}: the loader {what} while it read it", code="loader_died")


def _prepared(answer: Loaded, descriptor: int | None, page_bytes: int) -> PreparedAdapter:
    if descriptor is None:
        raise EngineFailure("the loader sent no image", code="engine_protocol")
    file = os.fdopen(descriptor, "rb", buffering=0)
    layout = make_layout(answer.layout, page_bytes)
    image = AdapterImage(layout, page_bytes, file, np.frombuffer(answer.modules, dtype=MODULES))
    return PreparedAdapter(answer.info, answer.tag, image)
