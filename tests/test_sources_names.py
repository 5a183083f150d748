"""What a source may be called, and which addresses may be asked: nothing is opened here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lorad.errors import InvalidRequest
from lorad.sources import SCHEMES, Source, SourcePolicy, parse_source
from lorad.sources.address import addresses, may_ask
from lorad.sources.reject import AdapterRejected

ROOT = Path("/srv/adapters")
ALL = SourcePolicy(roots=(ROOT,), schemes=frozenset(SCHEMES))


def refusal(text: str, policy: SourcePolicy = ALL) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_source(text, policy)
    assert caught.value.param == "source"
    return caught.value


@pytest.mark.parametrize(
    "text", ["a b/ä", "a b/ä/", "./a b/ä", "a b//ä", "a b/./ä", "/srv/adapters/a b/ä", "//srv//adapters/./a b/ä/"]
)
def test_a_local_path_has_one_spelling(text: str) -> None:
    source = parse_source(text, ALL)
    assert (source.scheme, source.path, source.roots) == ("file", "a b/ä", (ROOT,))
    assert source.text in ("a b/ä", "/srv/adapters/a b/ä")


@pytest.mark.parametrize(
    "text",
    [
        "..", "../x", "a/../b", "a/..", "/srv/adapters/../x", "/etc", "/srv/adapters-too/x", "/srv", "/srv/adapters",
        "/", ".", "./", "a\\b", "..\\x", "a\0b", "a\nb", "a\u202eb", "a\u200bb", "a\ufeffb", "a\u3164b", "a\ufe0fb",
        "a\u00a0b", "a\u2028b", "a\ud800b", "a\ue000b", "a\U000e0041b", "a /b", " a", "x" * 256, "x/" * 2000, "",
    ],
)  # fmt: skip
def test_paths_that_lead_out_or_hide_something(text: str) -> None:
    assert refusal(text).code == "source_path"


def test_outside_is_refused_alike_whether_it_is_there_or_not() -> None:
    there, missing = refusal("/etc/passwd"), refusal("/etc/nothing-is-here")
    assert there.message.replace("passwd", "") == missing.message.replace("nothing-is-here", "")


def test_a_root_may_be_named_by_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    policy = SourcePolicy(roots=(tmp_path / "root",))
    for text in (tmp_path / "root/a", tmp_path / "real/a"):
        assert parse_source(str(text), policy).path == "a"


def test_without_roots_there_is_no_local_source() -> None:
    refused = refusal("a", SourcePolicy(schemes=frozenset(SCHEMES)))
    assert refused.code == "source_scheme"


@pytest.mark.parametrize("text", ["s3://b12/x", "hf://a/b", "https://h/x", "http://h/x", "gs://bbb/x", "az://bbb/x"])
def test_schemes_that_are_not_allowed(text: str) -> None:
    assert refusal(text, SourcePolicy()).code == "source_scheme"
    assert "allowed: none" in refusal(text, SourcePolicy()).message
    others = frozenset(SCHEMES) - {text.partition(":")[0]}
    assert refusal(text, SourcePolicy(schemes=others)).code == "source_scheme"
    assert refusal(text.upper(), SourcePolicy(schemes=others)).code == "source_scheme"


@pytest.mark.parametrize(
    "text",
    ["ftp://h/x", "file:///etc/passwd", "FILE:///etc", "file:/etc/passwd", "gopher://h/", "data://x", "http:/h/x",
     "s3:bucket", "git+https://h/x", "jar:http://h/x!/a"],
)  # fmt: skip
def test_schemes_that_nobody_knows(text: str) -> None:
    assert refusal(text).code == "source_scheme"


@pytest.mark.parametrize(
    ("text", "spelling", "place", "path"),
    [
        ("s3://bucket-1/a/b/", "s3://bucket-1/a/b", "bucket-1", "a/b"),
        ("s3://bucket-1", "s3://bucket-1", "bucket-1", ""),
        ("S3://bucket-1/a=1/x y", "s3://bucket-1/a=1/x y", "bucket-1", "a=1/x y"),
        ("gs://my_bucket/a.gguf", "gs://my_bucket/a.gguf", "my_bucket", "a.gguf"),
        ("az://box/a", "az://box/a", "box", "a"),
        ("https://Example.ORG:443/a%20b/", "https://example.org/a%20b", "example.org", "a%20b"),
        ("https://example.org:8443/ä", "https://example.org:8443/%C3%A4", "example.org:8443", "%C3%A4"),
        ("http://[::1]:80/x", "http://[::1]/x", "[::1]", "x"),
        ("hf://owner/name/sub/dir", "hf://owner/name/sub/dir", "owner/name", "sub/dir"),
    ],
)
def test_remote_sources_have_one_spelling(text: str, spelling: str, place: str, path: str) -> None:
    source = parse_source(text, ALL)
    assert (source.text, source.place, source.path) == (spelling, place, path)
    assert parse_source(source.text, ALL) == source


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs%2Fpr%2F1", "0" * 40])
def test_hub_revisions(revision: str) -> None:
    source = parse_source(f"hf://owner/name@{revision}/sub", ALL)
    assert source.revision == revision.replace("%2F", "/")
    assert source.path == "sub"
    assert parse_source(source.text, ALL) == source


@pytest.mark.parametrize(
    "text",
    [
        "s3://", "s3://UPPER/x", "s3://a..b/x", "s3://user@bucket/x", "s3://bucket:80/x", "s3://bucket/../x",
        "s3://bucket/a//b", "s3://bucket/./b", "s3://b/x", "s3://169.254.169.254@x/y", "s3://bucket//",
        "s3://bucket/a\\b", "gs://a/../b", "az://a_b/x", "az://a--b/x", "az://-ab/x", "hf://owner", "hf://owner/",
        "hf:///name", "hf://owner/name@", "hf://owner/name@../x", "hf://owner/name@a..b", "hf://owner/name/../x",
        "hf://owner/..", "hf://../name", "hf://o/n@%2e%2e", "hf://o/n@a%2f..%2fb", "hf://o/n?x", "hf://o/n#x",
        "hf://o@x/n", "hf://o/a--b", "https://", "https:///x", "https://user:secret@h/x", "https://h/x?y=1",
        "https://h/x#y", "https://h:99999/x", "https://h:x/y", "https://h/a/../b", "https://h/%2e%2e/b",
        "https://h/a%2fb", "https://h/a%00b", "https://h/a%5cb", "https://h/a//b", "https://h/%ff",
        "https://h\\@evil/x", "https://[::1/x", "https://a b/x", "https://h%20/x", "https://ä.example/x",
        "https://-h/x",
    ],
)  # fmt: skip
def test_remote_sources_of_the_wrong_form(text: str) -> None:
    refused = refusal(text)
    assert refused.code == "source_path"
    assert "secret" not in refused.message


@pytest.mark.parametrize("character", "_-./a")
def test_long_names_are_read_at_once(character: str) -> None:
    """An expression that can match in many ways would take years for these."""
    run = character * 1900
    for text in (
        f"hf://a{run}!/x",
        f"hf://a/b{run}!",
        f"hf://a/b@c{run}!",
        f"s3://a{run}!",
        f"az://a{run}!",
        f"https://a{run}!/",
    ):
        assert refusal(text).code == "source_path"


def test_prefixes_confine_remote_sources() -> None:
    policy = SourcePolicy(
        schemes=frozenset(SCHEMES), prefixes=("s3://bucket/adapters/", "hf://owner", "https://h.example/x")
    )
    for text in ("s3://bucket/adapters", "s3://bucket/adapters/a", "hf://owner/n@v1/x", "https://H.example:443/x/y"):
        assert isinstance(parse_source(text, policy), Source)
    for text in ("s3://bucket/adapters-too/a", "s3://bucket", "hf://owner2/n", "https://h.example/xy",
                 "http://h.example/x/y", "https://h.example:444/x/y", "gs://bucket/adapters/a"):  # fmt: skip
        assert refusal(text, policy).code == "source_prefix"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schemes", frozenset({"ftp"})), ("roots", (Path("x"),)), ("prefixes", ("bucket/x",)), ("prefixes", ("s3://",)),
        ("bytes_max", 0), ("seconds_max", 0.0), ("seconds_max", float("nan")), ("files_max", 0), ("retries_max", -1),
        ("idle_seconds", 0.0), ("connect_seconds", -1.0), ("retry_seconds", -1.0),
    ],
)  # fmt: skip
def test_a_policy_that_means_nothing(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SourcePolicy(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field


PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"]
PRIVATE = ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "::1", "fc00::1", "::ffff:10.0.0.1",
           "2002:7f00:1::", "64:ff9b::7f00:1", "127.8.8.8"]  # fmt: skip
NEVER = ["169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1", "ff02::1",
         "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
         "2002:a9fe:a9fe::", "fec0::1", "no address"]  # fmt: skip


def test_addresses() -> None:
    assert [address for address in PUBLIC + PRIVATE + NEVER if may_ask(address, False)] == PUBLIC
    assert [address for address in PUBLIC + PRIVATE + NEVER if may_ask(address, True)] == PUBLIC + PRIVATE


def test_a_host_is_asked_at_allowed_addresses_only() -> None:
    assert addresses("h", 80, False, lambda host, port: ["10.0.0.1", "8.8.8.8"]) == ["8.8.8.8"]
    with pytest.raises(AdapterRejected) as caught:
        addresses("h", 80, False, lambda host, port: ["10.0.0.1"])
    assert caught.value.code == "source_address"
    assert "10.0.0.1" not in caught.value.message


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhost", "[::1]", "0"])
def test_odd_spellings_of_loopback(host: str) -> None:
    with pytest.raises(AdapterRejected) as caught:
        addresses(host, 80, False)
    assert caught.value.code in ("source_address", "source_unreachable")


def test_naming_a_source_imports_nothing_heavy() -> None:
    heavy = ("torch", "obstore", "huggingface_hub", "aiohttp")
    code = f"import sys, lorad.sources; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_path_below_a_root_as_it_was_given_asks_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other roots' disks may be dead, and this is asked on the event loop."""

    def hangs(path: Path) -> Path:
        raise AssertionError(f"{path} was looked for")

    monkeypatch.setattr(Path, "resolve", hangs)
    roots = (tmp_path / "dead", tmp_path / "well")
    assert parse_source(str(tmp_path / "well" / "x"), SourcePolicy(roots=roots)).roots == roots[1:]
