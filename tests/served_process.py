"""`lorad serve` as a process, for tests of the real thing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request


class Serving:
    """A `lorad serve` process and its address."""

    def __init__(self, model: str, *options: str) -> None:
        command = [sys.executable, "-m", "lorad", "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if found := re.search(r"serving (\S+) on (http://\S+)", line):
                self.url = found[2]
                return
        raise AssertionError("the server did not start:\n" + "\n".join(self.lines))

    def post(self, path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)
