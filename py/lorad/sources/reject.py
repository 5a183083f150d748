"""Refusals of sources and of the cache, by code.

source_scheme        a kind of source that isn't allowed, or that nobody knows
source_prefix        a place outside `SourcePolicy.prefixes`
source_path          a path, name or URL of the wrong form, or one that leads out of its root
source_address       a host without an address that may be asked
source_missing       nothing there, or no adapter in it
source_size          more bytes or files than the policy allows
source_digest        other content than was expected
source_changed       it changed while it was read, twice
source_unreachable   no answer, or one that can't be used, after all retries
source_timeout       not there in the time that the policy gives
source_hung          a place where so many fetches hang that no more are begun
source_denied        credentials that are missing, wrong or not enough
source_cancelled     nobody wants it any more
cache_full           no room: in the cache's limit (with both numbers) or on the disk
cache_unusable       the cache's folder can't be written

A message says what the caller named and what was found there, nothing of what lies around it.
"""

from __future__ import annotations

from lorad.errors import AdapterRejected, InvalidRequest


def malformed(code: str, message: str) -> InvalidRequest:
    """A source that is refused for what it's called, before anything is opened."""
    return InvalidRequest(f"source: {message}", code=code, param="source")


def reject(code: str, message: str) -> AdapterRejected:
    """A source that is refused for what was found, with one of the codes above."""
    return AdapterRejected(message, code=code)


class Changed(Exception):
    """What is read isn't what was listed; the message says which file. Reading starts anew once."""
