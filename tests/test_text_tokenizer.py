"""Token ids against llama.cpp's and transformers', and decoding a token at a time against decoding all at once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lorad.errors import ModelRejected
from lorad.models.gguf_header import read_header
from lorad.text.detokenize import Detokenizer
from lorad.text.gguf_tokenizer import tokenizer_from_gguf
from lorad.text.model import TextModel, load_text_model
from lorad.text.tokenizer import Tokenizer

PIECES = [
    "hello", " world", "def f(x):\n    return x+1\n", "0", "7", "42", "3.14159", "1,000,000", " 12 ", "  ", "   ", "\t",
    "\n", "\n\n", "\r\n", " \n ", "it's", "we'll", "I'VE", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start",
    "日本語", "中文字符", "한국어", "привет", "العربية", "١٢٣", "²", "½", "Ⅷ", "😀", "👍🏽", "👨‍👩‍👧", "é", "e\u0301",
    "\u00a0", "\u3000", "\u200b", "<html>", '{"a": 1}', "==", "->", "…", "—", "“q”", "http://x.y/z?q=1&b=2",
    "CamelCase", "snake_case", "_", "#", "'", '"', "\\", "%20", "x86_64", "2024-01-02", "\x00", "\x04",
]  # fmt: skip


def strings(seed: int, count: int) -> list[str]:
    """Texts of all kinds, the same for a seed."""
    choose = random.Random(seed)
    return ["".join(choose.choices(PIECES, k=choose.randrange(1, 14))) for _ in range(count)]


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> TextModel:
    return load_text_model(smollm2_gguf)


def test_ids_are_llama_cpps(smollm2: TextModel) -> None:
    # Made by llama.cpp's `llama_tokenize` (special tokens parsed, none added) from the same file.
    rows = (Path(__file__).parent / "data/text/smollm2_ids.jsonl").read_text().splitlines()
    for row in rows:
        text, ids = json.loads(row)
        assert smollm2.encode(text) == ids, text
    assert len(rows) == 500


def test_digits_stand_alone(smollm2: TextModel) -> None:
    for text in ("2024", " 12 345", "a1b22", "٣٤", "x²³"):
        for token_id in smollm2.encode(text):
            token = smollm2.tokenizer.token_bytes(token_id).decode(errors="ignore")
            assert len(token) == 1 or not any(letter.isnumeric() for letter in token), (text, token)


@pytest.mark.slow
def test_ids_are_transformers(smollm2: TextModel, smollm2_gguf: Path) -> None:
    """transformers reads the file's merges but not its digits rule, so it is given the pieces between digits."""
    regex = pytest.importorskip("regex")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    special = regex.compile("(" + "|".join(regex.escape(token) for token in reference.all_special_tokens) + ")")
    for text in strings(1, 3000):
        wanted: list[int] = []
        for part in special.split(text):
            pieces = [part] if special.fullmatch(part) else regex.split(r"(\p{N})", part)
            for piece in filter(None, pieces):
                wanted += reference.encode(piece, add_special_tokens=False)
        assert smollm2.encode(text) == wanted, text


def test_decoding_by_token_is_decoding_at_once(smollm2: TextModel) -> None:
    choose = random.Random(2)
    tokenizer = smollm2.tokenizer
    cases = [smollm2.encode(text) for text in strings(3, 1000)]
    cases += [[choose.randrange(tokenizer.size) for _ in range(choose.randrange(1, 12))] for _ in range(3000)]
    for ids in cases:
        for skip in (True, False):
            detokenizer = Detokenizer(tokenizer, skip_special=skip)
            parts = [detokenizer.push(token_id) for token_id in ids]
            assert "".join(parts) + detokenizer.flush() == tokenizer.decode(ids, skip_special=skip), ids


def test_characters_are_never_split_nor_kept_waiting(smollm2: TextModel) -> None:
    for text in ("hello 😀 bye", "日本語 中文", "e\u0301 👨‍👩‍👧", "👍🏽👍🏽"):
        ids = smollm2.encode(text)
        detokenizer = Detokenizer(smollm2.tokenizer)
        raw, sent = b"", ""
        for token_id in ids:
            raw += smollm2.tokenizer.text_bytes(token_id)
            sent += detokenizer.push(token_id)
            assert "\ufffd" not in sent
            assert sent == raw.decode(errors="ignore"), "what is complete is out at once"
        assert sent == text and detokenizer.flush() == ""


def test_a_character_cut_off_at_the_end_is_decoded_as_the_tokenizer_does(smollm2: TextModel) -> None:
    ids = smollm2.encode("a😀")[:-1]
    detokenizer = Detokenizer(smollm2.tokenizer)
    assert "".join(map(detokenizer.push, ids)) == "a"
    assert "a" + detokenizer.flush() == smollm2.tokenizer.decode(ids)


def test_what_the_file_says(smollm2: TextModel) -> None:
    assert smollm2.tokenizer.size == 49152
    assert smollm2.tokenizer.end_ids == (0, 2)
    assert len(smollm2.tokenizer.special_ids) == 17
    assert smollm2.tokenizer.bos_token == "<|im_start|>"
    assert smollm2.tokenizer.text_bytes(2) == b"" and smollm2.tokenizer.token_bytes(2) == b"<|im_end|>"
    assert smollm2.tokenizer.text_bytes(1 << 40) == smollm2.tokenizer.text_bytes(-1) == b""


def tiny_metadata(**changes: object) -> dict[str, object]:
    tokens = ["<s>", "</s>", "a", "b", "ab", "Ġ", "<tool>"]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, 4],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    metadata.update({f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    return metadata


def test_start_and_user_defined_tokens() -> None:
    plain = tokenizer_from_gguf(tiny_metadata())
    assert plain.encode("ab <tool>") == [4, 5, 6]
    assert plain.encode("") == []
    assert plain.text_bytes(6) == b"<tool>" and plain.decode([4, 6, 1]) == "ab<tool>"
    with_start = tokenizer_from_gguf(tiny_metadata(add_bos_token=True))
    assert with_start.encode("ab") == [0, 4] and with_start.encode("") == [0]
    assert with_start.encode("ab", add_special_tokens=False) == [4]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": "llama"}, "tokenizer_model"),
        ({"pre": "qwen2"}, "tokenizer_pre"),
        ({"merges": []}, "tokenizer_vocab"),
        ({"merges": ["ab"]}, "tokenizer_vocab"),
        ({"token_type": [1]}, "tokenizer_vocab"),
    ],
)
def test_a_tokenizer_that_isnt_known_is_refused(changes: dict[str, object], code: str) -> None:
    with pytest.raises(ModelRejected) as refusal:
        tokenizer_from_gguf(tiny_metadata(**changes))
    assert refusal.value.code == code


@pytest.mark.parametrize("content", [b"", b"GGU", b"GGML" * 20, b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0" + b"\xff" * 40])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelRejected):
        read_header(tmp_path / "x.gguf")


def folder(tmp_path: Path, **files: object) -> Path:
    core = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<end>", special=True)])
    core.save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    text = load_text_model(
        folder(
            tmp_path,
            tokenizer_config={
                "eos_token": {"content": "</s>"},
                "chat_template": [{"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"}],
            },
            generation_config={"eos_token_id": [4]},
            config={"eos_token_id": 0},
        )
    )
    assert text.tokenizer.end_ids == (3, 4)
    assert text.chat([{"role": "user", "content": "ab"}]) == [2, 3]
    assert text.tokenizer.decode([2, 3, 0]) == "aba"


def test_a_folders_template_file_wins(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_text_model(folder(tmp_path, tokenizer_config={"chat_template": "config"})).render([]) == "file"
    (tmp_path / "given.jinja").write_text("given")
    assert load_text_model(tmp_path, tmp_path / "given.jinja").render([]) == "given"


def test_pieces_with_byte_fallback() -> None:
    vocab = {"<unk>": 0, "▁a": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x98>": 4, "<0x80>": 5, "b": 6}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    detokenizer = Detokenizer(Tokenizer(core, end_ids=()))
    assert [detokenizer.push(token_id) for token_id in (1, 2, 3, 4, 5, 6)] == [" a", "", "", "", "😀", "b"]


def test_a_decoder_that_isnt_a_map_to_bytes_is_refused() -> None:
    core = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(ModelRejected):
        Tokenizer(core, end_ids=())
    core.decoder = decoders.WordPiece()
    with pytest.raises(ModelRejected):
        Tokenizer(core, end_ids=())
