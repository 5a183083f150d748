"""A folder or a bucket's prefix whose sub-folders are adapters, found by their names."""

from __future__ import annotations

from collections.abc import Callable

from lorad.errors import InvalidRequest
from lorad.sources.local import list_adapters
from lorad.sources.objects import list_names
from lorad.sources.policy import SourcePolicy
from lorad.sources.reject import malformed
from lorad.sources.source import Source, check_name, parse_source
from lorad.sources.transfer import Transfer

_MEANS = "@?#%:"
"""Characters that mean something in one kind of source or another."""


class Registry:
    """Adapters by name below `prefix`, a source as `parse_source` takes it; `.` means the roots themselves."""

    def __init__(self, prefix: str, policy: SourcePolicy) -> None:
        self._policy = policy
        if prefix in ("", ".", "./"):
            # No adapter, so it's refused as a source; what lies below it may be one.
            self._place, self._prefix = parse_source("any", policy), ""
        else:
            self._place = parse_source(prefix, policy)
            self._prefix = self._place.text.rstrip("/") + "/"

    def source_of(self, name: str) -> Source:
        """The source of the adapter `name`, one part of a path. Whether it's there, only fetching it tells."""
        check_name(name)
        if name.startswith(".") or any(character in name for character in _MEANS):
            raise malformed("source_path", f"{name!r} can't be an adapter's name in a registry")
        return parse_source(self._prefix + name, self._policy)

    def listing(self, cancelled: Callable[[], bool] = lambda: False) -> list[str]:
        """Names of what is there now, ascending; without those that `source_of` wouldn't take.

        In a folder: sub-folders with an adapter's config or a .gguf file. In a bucket: all, for a look into each
        would be one request each.
        """
        transfer = Transfer(self._place.text, self._policy, cancelled=cancelled)
        names: set[str] = set()
        if self._place.scheme == "file":
            parts = self._place.path.split("/") if self._prefix else []
            for root in self._place.roots:
                names.update(list_adapters(root, parts, self._place.text, transfer))
        elif self._place.scheme in ("s3", "gs", "az"):
            names.update(name.rstrip("/") for name in list_names(self._place, transfer)[1])
        else:
            raise malformed("source_scheme", "adapters can be listed below a root and in an object store only")
        return sorted(name for name in names if self._takes(name))

    def _takes(self, name: str) -> bool:
        try:
            self.source_of(name)
        except InvalidRequest:
            return False
        return True
