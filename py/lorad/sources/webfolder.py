"""An adapter at an http(s) URL: a folder whose files have the known names, or one .gguf file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

from lorad.sources.address import Resolve, resolve
from lorad.sources.files import CONFIG, INDEX, KNOWN, TENSORS, Item, choose
from lorad.sources.reject import reject
from lorad.sources.source import Source, check_name
from lorad.sources.transfer import Sink, Transfer
from lorad.sources.web import Web

INDEX_BYTES_MAX = 4 << 20


class WebFolder:
    """The files below a URL. Names can't be listed over http, so the known ones are asked for."""

    def __init__(self, source: Source, ask: Resolve = resolve) -> None:
        self.resolved = source.text
        self._source = source
        self._web = Web(source.policy, ask=ask)

    def items(self, transfer: Transfer) -> tuple[Item, ...]:
        """The adapter's files as they are now."""
        if self._source.path.endswith(".gguf"):
            found = self._web.probe(self._source.text, unquote(self._source.path.rpartition("/")[2]), transfer)
            if found is None:
                raise reject("source_missing", f"nothing is at {self._source.text}")
            return (found,)
        items: dict[str, Item] = {}
        for name in KNOWN:
            if name == INDEX and TENSORS in items:
                continue
            if item := self._web.probe(self._url(name), name, transfer):
                items[name] = item
            if name == CONFIG and item is None:
                raise reject("source_missing", f"{self._source.text} has no {CONFIG}")
        if INDEX in items:
            for name in self._parts(items[INDEX], transfer):
                item = self._web.probe(self._url(name), name, transfer)
                if item is None:
                    raise reject("source_missing", f"{self._source.text} has no {name}, which {INDEX} names")
                items[name] = item
        return tuple(items[name] for name in choose(items, self._source.text))

    def read(self, item: Item, sink: Sink, transfer: Transfer) -> None:
        """Fetches a file."""
        single = self._source.path.endswith(".gguf")
        self._web.read(self._source.text if single else self._url(item.name), item, sink, transfer)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _url(self, name: str) -> str:
        return f"{self._source.text.rstrip('/')}/{quote(name)}"

    def _parts(self, index: Item, transfer: Transfer) -> list[str]:
        """File names that the index of a split adapter lists."""
        if index.bytes is None or index.bytes > INDEX_BYTES_MAX:
            raise reject("source_size", f"{INDEX}: {index.bytes} bytes, more than {INDEX_BYTES_MAX}")
        with tempfile.TemporaryDirectory() as folder, Sink(Path(folder), INDEX, transfer) as sink:
            self._web.read(self._url(INDEX), index, sink, transfer)
            text = sink.path.read_bytes()
            transfer.done -= sink.written
        try:
            named = set(json.loads(text)["weight_map"].values())
            if not named or not all(isinstance(name, str) and name.endswith(".safetensors") for name in named):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise reject("source_missing", f"{INDEX} of {self._source.text} names no files") from None
        if len(named) > transfer.policy.files_max:
            raise reject("source_size", f"{INDEX} names {len(named)} files, more than {transfer.policy.files_max}")
        return sorted(check_name(name, "the file") for name in named)
