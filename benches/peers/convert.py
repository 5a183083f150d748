"""Converts the random adapters for llama.cpp with its own script, all in one process.

    python convert.py [--dir FOLDER]

f16, which llama.cpp's CPU kernels read fastest. Apart from `prepare.py` because the script brings a gguf
package of its own, which must be the one that is imported.
"""

from __future__ import annotations

import argparse
import logging
import os
import runpy
import sys
from contextlib import redirect_stderr

from layout import ADAPTERS, Layout


def main() -> None:
    """One adapter after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=None)
    layout = Layout.of(parser.parse_args().dir)
    script = str(layout.llama_source / "convert_lora_to_gguf.py")
    sys.path.insert(0, str(layout.llama_source / "gguf-py"))
    sys.path.insert(0, str(layout.llama_source))
    logging.disable(logging.INFO)
    for index in range(ADAPTERS):
        out = layout.adapter_gguf(index)
        out.parent.mkdir(parents=True, exist_ok=True)
        words = ["--base", layout.base_hf, "--outtype", "f16", "--outfile", out, layout.adapter(index)]
        sys.argv = [script, *map(str, words)]
        with open(os.devnull, "w") as sink, redirect_stderr(sink):
            runpy.run_path(script, run_name="__main__")
        print(f"\r  converted {index + 1}/{ADAPTERS}", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
