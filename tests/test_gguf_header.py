"""What a GGUF header may say: hostile counts, sizes and places are refused by name, and each key has its type."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lorad.errors import ModelRejected
from lorad.models.gguf_config import config_from_gguf
from lorad.models.gguf_header import parse_header, read_header
from lorad.text.gguf_tokenizer import tokenizer_from_gguf
from lorad.text.model import load_text_model
from tiny import make_tiny, make_tiny_gguf

U8, U32, F32, STRING, ARRAY = 0, 4, 6, 8, 9
Tensor = tuple[str, Sequence[int], int, int]
"""Name, dimensions, number type, offset."""


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def array(inner: int, count: int, elements: bytes = b"") -> bytes:
    """A value's type and content."""
    return struct.pack("<IIQ", ARRAY, inner, count) + elements


def u32(value: int) -> bytes:
    return struct.pack("<II", U32, value)


def header(
    keys: Sequence[tuple[str | bytes, bytes]] = (),
    tensors: Sequence[Tensor] = (),
    *,
    counts: tuple[int, int] | None = None,
    data: int = 4096,
) -> bytes:
    """A file with `data` bytes after its header. `counts`: other numbers of tensors and of keys than are there."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, *(counts or (len(tensors), len(keys))))]
    parts += [string(key) + value for key, value in keys]
    for name, dims, kind, offset in tensors:
        parts.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
    return b"".join(parts) + bytes(data)


def aligned(to: int) -> list[tuple[str | bytes, bytes]]:
    return [("general.alignment", u32(to))]


SOUND: list[Tensor] = [("a", (8, 2), 0, 0), ("b", (32,), 2, 64)]
MOST = (1 << 64) - 1

FULL = array(U8, 1 << 20, bytes(1 << 20))

HOSTILE = {
    "tensors without end": (header(counts=(MOST, 0)), f"{MOST} tensors follow"),
    "keys without end": (header(counts=(0, 1 << 40)), f"{1 << 40} keys follow"),
    "key as long as all": (header(counts=(0, 1), data=0) + struct.pack("<Q", MOST), f"string of {MOST} bytes"),
    "key that isn't UTF-8": (header([(b"\xff\xfe", u32(1))]), "isn't UTF-8"),
    "value that isn't UTF-8": (header([("a", struct.pack("<I", STRING) + string(b"\xc3"))]), "isn't UTF-8"),
    "key twice": (header([("a", u32(1)), ("a", u32(2))]), "'a' is there twice"),
    "long key twice": (header([("a" * 5000, u32(1)), ("a" * 5000, u32(2))]), "aaa...aaa"),
    "unknown type": (header([("a", struct.pack("<I", 13))]), "unknown type 13"),
    "negative length": (header([("a", array(STRING, 1, struct.pack("<q", -1)))]), f"string of {MOST} bytes"),
    "array without end": (header([("a", array(U8, MOST))]), f"{MOST} elements follow"),
    "array longer than the file": (header([("a", array(U32, 1 << 20))]), "ends within an array"),
    "arrays without end": (header([("a", array(ARRAY, 1 << 22))]), "elements follow"),
    "arrays that together have no end": (header([(str(i), FULL) for i in range(5)]), "elements follow"),
    "arrays in arrays": (header([("a", array(ARRAY, 1) + array(ARRAY, 1)[4:] * 8)]), "arrays within"),
    "no dimensions": (header((), [("a", (), 0, 0)]), "0 dimensions"),
    "five dimensions": (header((), [("a", (1, 1, 1, 1, 1), 0, 0)]), "5 dimensions"),
    "dimension of nothing": (header((), [("a", (8, 0), 0, 0)]), "shape [0, 8]"),
    "product beyond 64 bits": (header((), [("a", (1 << 33, 1 << 33), 0, 0)]), "shape"),
    "product that comes round to 0": (header((), [("a", (1 << 32, 1 << 32), 0, 0)]), "shape"),
    "more than the file": (header((), [("a", (1 << 20,), 0, 0)]), "it is cut: tensor 'a' ends at byte"),
    "unknown number type": (header((), [("a", (8,), 4, 0)]), "unknown number type 4"),
    "part of a block": (header((), [("a", (31,), 2, 0)]), "whole Q4_0 blocks of 32"),
    "tensor twice": (header((), [("a", (8,), 0, 0), ("a", (8,), 0, 32)]), "'a' is there twice"),
    "overlap": (header((), [*SOUND, ("c", (8,), 0, 64)]), "'c' begins at 64, the one before it ends at 96"),
    "overlap by a part": (header((), [("a", (16,), 0, 0), ("b", (8,), 0, 32)]), "'b' begins at 32, the one before it"),
    "hole": (header((), [("a", (8,), 0, 0), ("b", (8,), 0, 64)]), "'b' begins at 64, the one before it ends at 32"),
    "place beyond 64 bits": (header((), [("a", (8,), 0, MOST)]), f"'a' begins at {MOST}"),
    "alignment 0": (header(aligned(0), SOUND), "general.alignment is 0"),
    "alignment 4": (header(aligned(4), SOUND), "general.alignment is 4"),
    "alignment 24": (header(aligned(24), SOUND), "general.alignment is 24"),
    "alignment as a float": (header([("general.alignment", struct.pack("<If", F32, 32))]), "alignment is 32.0"),
    "alignment beyond the file": (header(aligned(1 << 31), SOUND), "it is cut: tensor 'a'"),
}  # fmt: skip


def test_a_sound_header_is_read() -> None:
    for keys in ([], aligned(64)):
        tensors = [SOUND[0], ("b", (32,), 2, 64)]
        found = parse_header(header(keys, tensors)).tensors
        assert [(info.kind, info.shape, info.bytes) for info in found.values()] == [
            ("F32", (2, 8), 64),
            ("Q4_0", (32,), 18),
        ]
        assert found["b"].begin == found["a"].begin + 64
        assert found["a"].begin % (64 if keys else 32) == 0


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused_by_name(tmp_path: Path, case: str) -> None:
    content, text = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelRejected) as caught:
        read_header(path)
    assert caught.value.code == "gguf_form"
    assert text in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "value",
    [array(U8, 1 << 34), array(STRING, 1 << 34), struct.pack("<IQ", STRING, 1 << 34)],
    ids=["bytes", "strings", "string"],
)
def test_lengths_within_a_huge_file_take_no_memory(tmp_path: Path, value: bytes) -> None:
    """The file is as long as the array says, as one of weights may be."""
    path = tmp_path / "huge.gguf"
    with open(path, "wb") as file:
        file.write(header([("a", value)], data=0))
        file.truncate(1 << 35)
    tracemalloc.start()
    with pytest.raises(ModelRejected):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Sound keys of two families, with those that are seldom written."""
    folder, found = tmp_path_factory.mktemp("keys"), {}
    for family in ("llama", "gemma3"):
        path = make_tiny_gguf(make_tiny(folder / family, family), folder / "x.gguf")
        found[family] = read_header(path).metadata | {
            f"{family}.rope.scaling.type": "linear",
            f"{family}.rope.scaling.factor": 2.0,
            f"{family}.attention.causal": True,
            f"{family}.expert_count": 0,
            f"{family}.vocab_size": 320,
            "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab"],
            "tokenizer.ggml.token_type": [3, 3, 1, 1, 1],
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.eot_token_id": 1,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_eos_token": True,
        }
    found["gemma3"]["gemma3.attention.sliding_window_pattern"] = 2
    return found


LISTS: list[Any] = [[], ["x"], [1], [1.5], [[1], [2]]]
VALUES = ["x", "", -1, 0, 1, MOST, -(1 << 63), 1.5, float("nan"), float("inf"), True, False, *LISTS]
SEVERAL = ("bos_token_id", "eos_token_id", "eot_token_id")
"""These may be lists too."""


def is_right(value: Any, sound: Any) -> bool:
    """Is it of the sound value's type? An integer is a number too."""
    if isinstance(sound, list):
        return isinstance(value, list) and all(type(item) is type(sound[0]) for item in value)
    return type(value) is type(sound) or (type(value) is int and isinstance(sound, float))


def read(keys: dict[str, Any]) -> None:
    config_from_gguf(keys, tied=True, name="x")
    tokenizer_from_gguf(keys)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_key_has_its_type(metadata: dict[str, dict[str, Any]], family: str) -> None:
    """A value of another type is refused by its key's name; one of the right type by name or taken."""
    sound = metadata[family]
    read(sound)
    refused = taken = 0
    for key, plain in sound.items():
        if key == "tokenizer.chat_template":
            continue
        for value in VALUES:
            try:
                read(sound | {key: value})
                taken += 1
                wrong = ""
            except ModelRejected as refusal:
                refused += 1
                wrong = refusal.message
            if not (is_right(value, plain) or (key.endswith(SEVERAL) and is_right(value, [plain]))):
                assert key in wrong and "wants" in wrong, (key, value)
    assert refused > 300 and taken > 30


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"merges": ["a c"]}, "can't be built"),
        ({"tokens": ["<s>", "</s>", "a", "b", "ab", "a"], "token_type": []}, "'a' is there twice"),
        ({"eos_token_id": 5}, "eos_token_id is 5, the vocabulary has 5"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
    ],
    ids=str,
)
def test_vocabularies_that_dont_fit_together(
    metadata: dict[str, dict[str, Any]], changes: dict[str, Any], text: str
) -> None:
    keys = metadata["llama"] | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    with pytest.raises(ModelRejected) as caught:
        tokenizer_from_gguf(keys)
    assert caught.value.code == "tokenizer_vocab"
    assert text in caught.value.message


@pytest.mark.parametrize("token", [-1, 320, 1 << 31])
def test_ends_beyond_the_vocabulary_are_refused(metadata: dict[str, dict[str, Any]], token: int) -> None:
    """Each request would be refused for it otherwise, or never end."""
    with pytest.raises(ModelRejected, match=f"token {token}, its vocabulary has 320"):
        config_from_gguf(metadata["llama"] | {"tokenizer.ggml.eot_token_id": token}, tied=True, name="x")


@pytest.mark.parametrize(
    "template", [7, ["x"], "{% if %}", "{% if x %}" * 200 + "{% endif %}" * 200], ids=lambda t: str(t)[:8]
)
def test_chat_templates_that_dont_compile(tmp_path: Path, template: Any) -> None:
    tokens = {
        "tokens": ["a", "b", "ab"],
        "token_type": [1, 1, 1],
        "merges": ["a b"],
        "eos_token_id": 1,
        "bos_token_id": 1,
    }
    keys = {f"tokenizer.ggml.{name}": value for name, value in tokens.items()}
    path = make_tiny_gguf(
        make_tiny(tmp_path / "m"), tmp_path / "x.gguf", keys=keys | {"tokenizer.chat_template": template}
    )
    with pytest.raises(ModelRejected) as caught:
        load_text_model(path)
    assert caught.value.code in ("chat_template", "model_config")
    assert len(caught.value.message) < 400
