"""Adapters from wherever they are into a cache on the disk. Knows nothing of the engine, HTTP routes or torch."""

from lorad.sources.cache import AdapterCache, Entry
from lorad.sources.policy import SCHEMES, SourcePolicy
from lorad.sources.registry import Registry
from lorad.sources.source import Source, parse_source, trusted_source

__all__ = ["SCHEMES", "AdapterCache", "Entry", "Registry", "Source", "SourcePolicy", "parse_source", "trusted_source"]
