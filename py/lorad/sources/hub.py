"""An adapter in a repository of the Hugging Face hub: `hf://owner/name[@revision][/folder]`.

huggingface_hub answers what there is: the commit that a revision means now, its files, their sizes and hashes; it
also knows endpoint and token. The bytes are read here, since its own download can't be cancelled, limited or timed.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lorad.sources.address import Resolve, resolve
from lorad.sources.connection import port_of
from lorad.sources.files import Item, choose
from lorad.sources.reject import reject
from lorad.sources.source import Source
from lorad.sources.transfer import CHUNK_BYTES, Sink, Transfer
from lorad.sources.web import Again, Web, refuse_status, with_retries

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class HubFolder:
    """The files of one commit; it can't change, so it's asked for once."""

    def __init__(self, source: Source, transfer: Transfer, ask: Resolve = resolve) -> None:
        from huggingface_hub import constants
        from huggingface_hub.utils._headers import build_hf_headers

        self._source = source
        self._endpoint = (source.policy.hub_endpoint or constants.ENDPOINT).rstrip("/")
        url = urlsplit(self._endpoint)
        place = f"{url.hostname}:{port_of(url)}"
        # What the hub stores lies with a content network, under URLs that are signed for a while.
        self._web = Web(
            source.policy,
            trusted=frozenset((place,)),
            leads=True,
            headers=build_hf_headers(library_name="lorad"),
            ask=ask,
        )
        folder, _, single = source.path.rpartition("/") if source.path.endswith(".gguf") else (source.path, "", "")
        info = with_retries(transfer, lambda: self._info(transfer))
        self._commit = str(info.sha or "")
        if not _COMMIT.fullmatch(self._commit):
            raise reject("source_unreachable", f"{source.text}: the hub names no commit")
        self._folder = f"{folder}/" if folder else ""
        self._items = self._list(info, single)
        path = f"/{source.path}" if source.path else ""
        self.resolved = f"hf://{source.place}@{self._commit}{path}"

    def items(self, transfer: Transfer) -> tuple[Item, ...]:
        """The adapter's files."""
        return self._items

    def read(self, item: Item, sink: Sink, transfer: Transfer) -> None:
        """Fetches a file and holds it against the hash that the hub states."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._source.place, self._folder + item.name, revision=self._commit, endpoint=self._endpoint)
        self._web.read(url, item, sink, transfer, fixed=True)
        kind, _, stated = item.proof.partition(":")
        if stated and _hash(sink.path, kind, transfer) != stated:
            raise reject("source_changed", f"{item.name} of {self._source.text} isn't what the hub's hash says")

    def close(self) -> None:
        """Nothing is open between calls."""

    def _info(self, transfer: Transfer) -> Any:
        """What the hub says about the repository at the revision."""
        from huggingface_hub import HfApi, errors

        transfer.check()
        api = HfApi(endpoint=self._endpoint, library_name="lorad")
        text = self._source.text
        try:
            return api.model_info(
                self._source.place,
                revision=self._source.revision or None,
                files_metadata=True,
                timeout=min(self._source.policy.idle_seconds, max(transfer.remaining(), 0.001)),
            )
        except errors.GatedRepoError:
            raise reject("source_denied", f"{text} is gated: its terms aren't accepted by the token's owner") from None
        except errors.RepositoryNotFoundError:
            raise reject("source_missing", f"{text}: no such repository, or the token may not see it") from None
        except errors.RevisionNotFoundError:
            raise reject("source_missing", f"{text}: the repository has no such revision") from None
        except errors.HfHubHTTPError as error:
            answer = error.response
            refuse_status(answer.status_code, text, answer.headers.get("Retry-After", ""))
        except errors.OfflineModeIsEnabled:
            raise reject("source_unreachable", f"{text}: the hub's offline mode is on (HF_HUB_OFFLINE)") from None
        except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
            late = "timeout" in type(error).__name__.lower()
            code = "source_timeout" if late else "source_unreachable"
            raise Again(code, f"{text}: the hub doesn't answer") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise reject("source_unreachable", f"{text}: the hub's answer can't be read") from None

    def _list(self, info: Any, single: str) -> tuple[Item, ...]:
        here = {
            file.rfilename.removeprefix(self._folder): file
            for file in info.siblings or ()
            if file.rfilename.startswith(self._folder) and "/" not in file.rfilename.removeprefix(self._folder)
        }
        if single:
            here = {name: file for name, file in here.items() if name == single}
        if not here:
            raise reject("source_missing", f"nothing is at {self._source.text}")
        items = []
        for name in choose(here, self._source.text):
            file = here[name]
            proof = f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}" if file.blob_id else ""
            items.append(Item(name, file.size, proof, bool(proof), proof))
        return tuple(items)


def _hash(path: Path, kind: str, transfer: Transfer) -> str:
    """sha256 of a file, or the sha1 that git gives it."""
    state = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as file:
        while data := file.read(CHUNK_BYTES):
            state.update(data)
            transfer.check()
    return state.hexdigest()
