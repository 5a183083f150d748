"""What a source is called: parsed, checked and written in one way, before anything is opened."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lorad.sources.policy import SCHEMES, SourcePolicy
from lorad.sources.reject import malformed

LENGTH_MAX = 2048
NAME_BYTES_MAX = 255
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://)?(.*)", re.DOTALL)
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
"""Letters and marks that show nothing, though their category doesn't say so."""
_BUCKETS = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}"),
}
_REPO = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+/-]*[A-Za-z0-9_+-])?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\.?|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class Source:
    """Where an adapter is, as the policy allows it. Nothing of it was opened yet."""

    text: str
    """The one spelling of this source."""
    scheme: str
    """Of `SCHEMES`, or `file`."""
    place: str
    """Bucket, `owner/name`, or host with port; empty for a local source."""
    path: str
    """Below the root or place, parts joined by `/`; of a URL as it's sent, quoted."""
    policy: SourcePolicy
    revision: str = ""
    roots: tuple[Path, ...] = ()
    """Roots that a local source may be in, tried in order."""


def parse_source(text: str, policy: SourcePolicy) -> Source:
    """The source that `text` names. Opens nothing; refusals are `InvalidRequest` with `param` "source"."""
    if not text or len(text) > LENGTH_MAX:
        raise malformed("source_path", f"1 to {LENGTH_MAX} characters, got {len(text)}")
    if unseen := hidden(text):
        raise malformed("source_path", f"has a character that can't be seen or isn't text: {unseen}")
    match = _SCHEME.fullmatch(text)
    # One letter and a colon would be a drive, and no root has one; `name:part` without slashes may be a folder.
    if match is None or (match[1].lower() not in SCHEMES and "://" not in text and not match[2].startswith("/")):
        return _local(text, policy)
    scheme = match[1].lower()
    if scheme not in policy.schemes or "://" not in text:
        allowed = ", ".join(sorted(policy.schemes)) or "none"
        if policy.roots:
            allowed += ", and paths below a root"
        raise malformed("source_scheme", f"{scheme}: isn't allowed here (allowed: {allowed})")
    source = {"hf": _hub, "http": _web, "https": _web}.get(scheme, _bucket)(text, scheme, match[2], policy)
    if not policy.permits(f"{source.scheme}://{source.place}/{source.path}"):
        raise malformed("source_prefix", f"{source.text} is outside of the places that are allowed")
    return source


def trusted_source(path: Path, policy: SourcePolicy) -> Source:
    """A folder or .gguf file that the operator named, anywhere on this machine; never one from a request."""
    whole = path.absolute()
    return Source(str(path), "file", "", "/".join(whole.parts[1:]), policy, roots=(Path("/"),))


def hidden(text: str) -> str:
    """The first character of `text` that can't be seen or isn't text, as U+…; empty if there is none."""
    for character in text:
        kind = unicodedata.category(character)
        if kind[0] == "C" or (kind[0] == "Z" and character != " ") or character in _UNSEEN:
            return f"U+{ord(character):04X}"
    return ""


def check_name(name: str, what: str = "name") -> str:
    """`name` if it can be one part of a path anywhere; refused as `source_path` if not."""
    if hidden(name) or "/" in name or "\\" in name or name != name.strip(" ") or name in ("", ".", ".."):
        raise malformed("source_path", f"{what} {name!r} can't be a part of a path")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise malformed("source_path", f"{what}: at most {NAME_BYTES_MAX} bytes, got {len(name.encode())}")
    return name


def _local(text: str, policy: SourcePolicy) -> Source:
    if not policy.roots:
        raise malformed("source_scheme", "local paths aren't allowed here: there is no root for them")
    if "\\" in text:
        raise malformed("source_path", f"{text!r} has a backslash; parts are separated by /")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise malformed("source_path", f"{text!r} leads upwards (..)")
    roots, spelling = policy.roots, "/".join(parts)
    if text.startswith("/"):
        spelling = "/" + spelling
        roots, parts = _below(parts, roots)
    if not parts or not roots:
        raise malformed("source_path", f"{text!r} isn't below a folder that adapters may come from")
    path = "/".join(check_name(part, "the part") for part in parts)
    return Source(spelling, "file", "", path, policy, roots=roots)


def _below(parts: list[str], roots: tuple[Path, ...]) -> tuple[tuple[Path, ...], list[str]]:
    """The root that an absolute path begins with, either spelling of it, and the rest of the path."""
    # As they were given first: the other spelling is asked of a disk that may be dead.
    for spelling in (Path, Path.resolve):
        for root in roots:
            start = list(spelling(root).parts[1:])
            if parts[: len(start)] == start:
                return (root,), parts[len(start) :]
    return (), []


def _bucket(text: str, scheme: str, rest: str, policy: SourcePolicy) -> Source:
    bucket, _, key = rest.partition("/")
    if not _BUCKETS[scheme].fullmatch(bucket) or ".." in bucket:
        raise malformed("source_path", f"{bucket!r} isn't a bucket's name")
    path = "/".join(_parts(key))
    return Source(f"{scheme}://{bucket}/{path}".rstrip("/"), scheme, bucket, path, policy)


def _hub(text: str, scheme: str, rest: str, policy: SourcePolicy) -> Source:
    owner, _, rest = rest.partition("/")
    repo, _, folder = rest.partition("/")
    name, at, revision = repo.partition("@")
    revision = unquote(revision)
    for word in (owner, name):
        if not _REPO.fullmatch(word) or len(word) > 96 or "--" in word or ".." in word:
            raise malformed("source_path", f"{text!r} isn't hf://owner/name[@revision][/folder]")
    odd = any(part in revision for part in ("..", "//", "/.", "./"))
    if at and (odd or not _REVISION.fullmatch(revision) or len(revision) > 200):
        raise malformed("source_path", f"{revision!r} can't be a revision")
    path = "/".join(_parts(folder))
    where = f"hf://{owner}/{name}" + (f"@{quote(revision, safe='')}" if at else "") + (f"/{path}" if path else "")
    return Source(where, scheme, f"{owner}/{name}", path, policy, revision=revision)


def _web(text: str, scheme: str, rest: str, policy: SourcePolicy) -> Source:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise malformed("source_path", f"{text!r} isn't a URL") from None
    if "@" in url.netloc:
        # Not quoted: what stands there is a password.
        raise malformed("source_path", "a URL with a user name or a password isn't taken")
    if "?" in text or "#" in text:
        raise malformed("source_path", "a URL with ? or # isn't taken: it names a folder or a .gguf file")
    host = url.netloc.removesuffix(f":{port}") if port is not None else url.netloc.removesuffix(":")
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise malformed("source_path", f"{text!r} has no host")
    place = host.lower().rstrip(".")
    if port not in (None, {"http": 80, "https": 443}[scheme]):
        place += f":{port}"
    parts = [quote(part) for part in _parts(url.path.removeprefix("/"), quoted=True)]
    path = "/".join(parts)
    return Source(f"{scheme}://{place}/{path}", scheme, place, path, policy)


def _parts(path: str, quoted: bool = False) -> list[str]:
    """The parts of a remote path, unquoted if it's `quoted`; one slash at its end means nothing."""
    if not path.strip("/"):
        if path:
            raise malformed("source_path", f"{path!r} has an empty part")
        return []
    try:
        parts = [unquote(part, errors="strict") if quoted else part for part in path.removesuffix("/").split("/")]
    except UnicodeDecodeError:
        raise malformed("source_path", f"{path!r} isn't UTF-8 once unquoted") from None
    return [check_name(part, "the part") for part in parts]
