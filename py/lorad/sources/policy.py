"""What may be fetched, from where, how much and how long. Whoever may name a source can't widen it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lorad.errors import InvalidRequest

SCHEMES = ("hf", "s3", "gs", "az", "https", "http")
"""Kinds of remote sources; what names none of them is a local path."""


@dataclass(frozen=True)
class SourcePolicy:
    """Limits of a fetch. The defaults allow no source at all."""

    roots: tuple[Path, ...] = ()
    """Folders that local sources lie in; absolute."""
    schemes: frozenset[str] = frozenset()
    """Of `SCHEMES`."""
    prefixes: tuple[str, ...] = ()
    """If given, a remote source must lie below one: `s3://bucket/adapters`, `hf://owner`, `https://host/path`."""
    bytes_max: int = 4 << 30
    """Of one adapter, all files together."""
    seconds_max: float = 600.0
    """From the call to the entry, retries included."""
    files_max: int = 64
    """Of one adapter."""
    connect_seconds: float = 10.0
    idle_seconds: float = 30.0
    """The longest silence of a connection."""
    retries_max: int = 4
    """Of one request."""
    retry_seconds: float = 0.5
    """The first pause; each further one is twice as long, and all are shortened by chance."""
    private_addresses: bool = False
    """Whether http(s) may ask private and loopback addresses. Link-local and metadata addresses are never asked."""
    redirect_hosts: frozenset[str] = frozenset()
    """Hosts that an http(s) source may lead to besides its own."""
    hub_endpoint: str = ""
    """Of the Hugging Face hub; empty: HF_ENDPOINT, else the public one."""

    def __post_init__(self) -> None:
        for name in sorted(self.schemes - set(SCHEMES)):
            raise InvalidRequest(f"schemes: of {', '.join(SCHEMES)}, got {name!r}", code="option_form", param="schemes")
        for root in self.roots:
            if not root.is_absolute():
                raise InvalidRequest(f"roots: absolute folders, got {str(root)!r}", code="option_form", param="roots")
        for prefix in self.prefixes:
            if prefix.partition("://")[0] not in SCHEMES or not prefix.partition("://")[2]:
                raise InvalidRequest(
                    f"prefixes: like s3://bucket/folder, got {prefix!r}", code="option_form", param="prefixes"
                )
        for field, low in (
            ("bytes_max", 1),
            ("files_max", 1),
            ("retries_max", 0),
            ("seconds_max", 1e-3),
            ("connect_seconds", 1e-3),
            ("idle_seconds", 1e-3),
            ("retry_seconds", 0),
        ):
            value = getattr(self, field)
            if not low <= value < 1 << 62:
                raise InvalidRequest(f"{field}: at least {low}, got {value}", code="option_range", param=field)

    def permits(self, place: str) -> bool:
        """Whether `place`, a source without its revision, lies below one of the prefixes."""
        ends = [prefix.rstrip("/") for prefix in self.prefixes]
        return not ends or any(place.rstrip("/") == end or place.startswith(end + "/") for end in ends)
