"""Adapters in object stores, through obstore: `s3://`, `gs://` and `az://`.

Credentials and endpoints are the environment's, as each store's own tools read them; a source can't name either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from lorad.sources.files import Item, choose
from lorad.sources.reject import Changed, reject
from lorad.sources.source import Source
from lorad.sources.transfer import Sink, Transfer
from lorad.sources.web import Again, refuse_status, with_retries

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_STATUS = re.compile(r"Server returned non-2xx status code: ([0-9]{3}) ")
_METADATA = re.compile(r" http://[^ ]*/(latest/(api|meta-data)|computeMetadata|metadata/identity)")
"""Where credentials are asked for when the environment has none."""
STREAM_BYTES = 256 << 10
"""Of a body between two looks at deadline and `cancelled`."""
_HTTP_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


class ObjectFolder:
    """The objects right below a prefix, or one object whose name ends in .gguf."""

    def __init__(self, source: Source) -> None:
        self.resolved = source.text
        self._source = source

    def items(self, transfer: Transfer) -> tuple[Item, ...]:
        """The adapter's files as they are now."""
        path, text = self._source.path, self._source.text
        if path.endswith(".gguf"):
            return (self._head(path, transfer),)
        prefix = f"{path}/" if path else ""
        names = list_names(self._source, transfer)[0]
        if not names:
            raise reject("source_missing", f"nothing is at {text}")
        chosen = choose(names, text)
        if len(chosen) > transfer.policy.files_max:
            return tuple(Item(name, None) for name in chosen)
        # A listing's tags aren't spelled like those of the objects' own answers in every store.
        return tuple(self._head(prefix + name, transfer) for name in chosen)

    def read(self, item: Item, sink: Sink, transfer: Transfer) -> None:
        """Fetches a file; the store itself refuses to send another version's bytes."""
        import obstore

        path = self._source.path
        key = path if path.endswith(".gguf") else f"{path}/{item.name}".lstrip("/")

        def once() -> None:
            transfer.check()
            if sink.written == item.bytes:
                return
            if sink.written and not item.strong:
                sink.restart()
            options: dict[str, Any] = {"range": {"offset": sink.written}} if sink.written else {}
            if item.strong:
                options["if_match"] = item.tag
            with _failures(item.name):
                answer = obstore.get(_store(self._source, transfer), key, options=cast(Any, options))
                meta = answer.meta
                if meta["size"] != item.bytes or (item.tag and _tag(meta)[0] != item.tag):
                    raise Changed(f"{item.name} changed while it was read")
                for data in answer.stream(min_chunk_size=STREAM_BYTES):
                    if sink.written + len(data) > meta["size"]:
                        raise Changed(f"{item.name} had {meta['size']} bytes and has more")
                    sink.write(memoryview(data))
            if sink.written < meta["size"]:
                raise Again("source_unreachable", f"{item.name} ended after {sink.written} of {meta['size']} bytes")

        with_retries(transfer, once)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _head(self, key: str, transfer: Transfer) -> Item:
        import obstore

        name = key.rpartition("/")[2]

        def once() -> Item:
            transfer.check()
            with _failures(name):
                meta = obstore.head(_store(self._source, transfer), key)
            return Item(name, meta["size"], *_tag(meta))

        return with_retries(transfer, once)


def list_names(source: Source, transfer: Transfer) -> tuple[list[str], list[str]]:
    """Names of the objects and of the folders right below a source's path."""
    import obstore

    prefix = f"{source.path}/" if source.path else ""

    def once() -> tuple[list[str], list[str]]:
        transfer.check()
        with _failures(source.text):
            found = obstore.list_with_delimiter(_store(source, transfer), prefix=source.path or None)
        objects = [meta["path"] for meta in found["objects"]]
        folders = list(found["common_prefixes"])
        return [path.removeprefix(prefix) for path in objects], [path.removeprefix(prefix) for path in folders]

    return with_retries(transfer, once)


def _store(source: Source, transfer: Transfer) -> Any:
    """A store whose requests end when the fetch has to."""
    from obstore.store import AzureStore, GCSStore, S3Store

    policy = source.policy
    left = timedelta(seconds=max(transfer.remaining(), 0.001))
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=policy.connect_seconds),
        "read_timeout": timedelta(seconds=policy.idle_seconds),
        "timeout": left,
        "user_agent": "lorad",
    }
    endpoint = next((value for name in _HTTP_ENDPOINTS[source.scheme] if (value := os.environ.get(name))), "")
    if endpoint.lower().startswith("http://"):
        # The operator wrote it so: a store on this machine or in the private network.
        client["allow_http"] = True
    # Retries are ours, so that they are counted once and can be cancelled.
    retry: RetryConfig = {"max_retries": 0, "retry_timeout": left}
    kind = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[source.scheme]
    with _failures(source.text):
        return cast(Any, kind)(source.place, client_options=client, retry_config=retry)


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """obstore's errors as refusals. Their own texts hold URLs, headers and settings, so none of it is passed on."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise reject("source_missing", f"nothing is at {what}") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise reject("source_denied", f"{what}: the store doesn't allow it with these credentials") from None
    except (exceptions.PreconditionError, exceptions.NotModifiedError):
        raise Changed(f"{what} changed while it was read") from None
    except exceptions.InvalidPathError:
        raise reject("source_path", f"{what} has a key, or is one, with an empty part or with . or ..") from None
    except ValueError:
        raise reject("source_path", f"{what}: not a path of an object store") from None
    except (exceptions.BaseError, OSError) as error:
        text = str(error)
        if _METADATA.search(text):
            raise reject("source_denied", f"{what}: there are no credentials for this store") from None
        if status := _STATUS.search(text):
            refuse_status(int(status[1]), what)
        late = "TimedOut" in text or "timed out" in text
        code = "source_timeout" if late else "source_unreachable"
        raise Again(code, f"{what}: " + ("no answer in time" if late else "the store doesn't answer")) from None


def _tag(meta: Any) -> tuple[str, bool]:
    """What changes with an object's content, and whether it's the same only for the same bytes."""
    if etag := meta.get("e_tag"):
        return str(etag), not str(etag).startswith("W/")
    return str(meta.get("last_modified") or ""), False
