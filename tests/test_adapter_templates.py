"""An adapter's own chat template: where it's found, what is refused, and that it's used for that adapter alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asking import refused
from controlling import Control, controlling
from lorad import Engine
from lorad.adapters.chat_template import BYTES_MAX, read_chat_template
from lorad.engine.loader import Loader
from lorad.engine.loading import Opening
from lorad.errors import AdapterRejected
from lorad.models.open import open_model
from make_adapter import make_adapter
from serving import TEMPLATE, TURN
from tiny import make_tiny

CHAT = "/v1/chat/completions"
OWN = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
HELLO = [{"role": "user", "content": "hi"}]
BASES = [TURN, *b"user:hi", TURN]


def config(folder: Path, template: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": template}))


def test_where_it_is_found(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) == ""
    for template, wanted in (
        ("a", "a"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], ""),
        (None, ""),
        (7, ""),
    ):
        config(tmp_path, template)
        assert read_chat_template(tmp_path) == wanted
    config(tmp_path, "a")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_chat_template(tmp_path) == "file", "as transformers has it"
    (tmp_path / "one.gguf").write_text("")
    assert read_chat_template(tmp_path / "one.gguf") == "", "a file is no folder"


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("syntax", lambda folder: (folder / "chat_template.jinja").write_text("{% for %}"), "compile"),
    ("unknown tag", lambda folder: config(folder, "{% nothing %}"), "compile"),
    ("not UTF-8", lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff"), "UTF-8"),
    ("too long", lambda folder: (folder / "chat_template.jinja").write_text("a" * (BYTES_MAX + 1)), str(BYTES_MAX)),
    ("too long there", lambda folder: config(folder, "a" * (BYTES_MAX + 1)), str(BYTES_MAX + 1)),
    ("half a pair", lambda folder: config(folder, "\ud800"), "surrogate"),
    ("a folder", lambda folder: (folder / "chat_template.jinja").mkdir(), "regular"),
]


@pytest.mark.parametrize(("what", "spoil", "says"), BROKEN, ids=[what for what, _, _ in BROKEN])
def test_what_is_refused(what: str, spoil: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    spoil(tmp_path)
    with pytest.raises(AdapterRejected, match=says) as refusal:
        read_chat_template(tmp_path)
    assert refusal.value.code == "adapter_chat_template"


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(AdapterRejected) as refusal:
        read_chat_template(tmp_path)
    assert refusal.value.code == "adapter_config"


def test_it_comes_with_the_adapter_out_of_the_loader(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base")
    folder = make_adapter(tmp_path / "a", open_model(base).config, rank=4, modules=("q_proj",), seed=1)
    (folder / "chat_template.jinja").write_text(OWN)
    engine = Engine(str(base), loader=Loader(Opening(str(base), 64)))
    try:
        with_template = engine.load_adapter("a", str(folder))
        assert with_template.chat_template == OWN
        (folder / "chat_template.jinja").unlink()
        without = engine.load_adapter("b", str(folder))
        assert without.chat_template == "" and without.generation == with_template.generation
        tokenizer = engine.text_model.tokenizer
        assert engine.add("hi", "a").prompt == tokenizer.encode("[hi]>", add_special_tokens=False)
        assert engine.add("hi", "b").prompt == engine.add("hi").prompt == engine.text_model.chat(HELLO)
        (folder / "chat_template.jinja").write_text("{% for %}")
        with pytest.raises(AdapterRejected, match="adapter 'c'") as refusal:
            engine.load_adapter("c", str(folder))
        assert refusal.value.code == "adapter_chat_template"
    finally:
        engine.close()


def own(control: Control, name: str, template: str) -> str:
    source = control.write(name, name)
    (control.root / name / "chat_template.jinja").write_text(template)
    return source


async def prompt(control: Control, model: str, **fields: object) -> list[int]:
    """What the engine is given for a conversation; /tokenize says the same."""
    status, answer = await control.client.post(CHAT, model=model, messages=HELLO, max_tokens=1, **fields)
    assert status == 200, answer
    ids = control.engine.submitted[-1].prompt
    if not fields:
        assert (await control.client.post("/tokenize", model=model, messages=HELLO))[1]["tokens"] == ids
    return ids


async def test_it_is_used_for_that_adapter_alone_also_after_a_restart(tmp_path: Path) -> None:
    async with controlling(tmp_path, combined_max=2) as control:
        await control.load("own", own(control, "own", OWN))
        await control.load("plain", control.write("plain", "plain"))
        await control.ask("PUT", "/v1/lora_aliases/alias", target="own")
        for model, wanted in (("own", b"[hi]>"), ("alias", b"[hi]>"), ("base:own", b"[hi]>")):
            assert await prompt(control, model) == list(wanted)
        assert await prompt(control, "plain") == await prompt(control, "base") == BASES
        assert (await control.card("own"))["chat_template"] == "adapter"
        assert (await control.card("plain"))["chat_template"] == "base"
        together = [{"name": "own", "weight": 0.5}, {"name": "plain", "weight": 0.5}]
        assert await prompt(control, "base", adapters=together) == BASES
        assert await prompt(control, "base", adapters=[{"name": "own", "weight": 1.0}]) == BASES
    async with controlling(tmp_path) as control:
        assert await prompt(control, "own") == list(b"[hi]>")
        assert await prompt(control, "plain") == BASES


async def test_a_reload_brings_another_one_with_the_same_weights(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = own(control, "own", OWN)
        await control.load("own", source)
        (control.root / "own" / "chat_template.jinja").write_text("new{{ messages[0].content }}")
        assert (await control.load("own", source, reload=True))[0] == 200
        assert await prompt(control, "own") == list(b"newhi")
        (control.root / "own" / "chat_template.jinja").unlink()
        config(control.root / "own", TEMPLATE)
        assert (await control.load("own", source, reload=True))[0] == 200
        assert await prompt(control, "own") == BASES
        (control.root / "own" / "chat_template.jinja").write_text("{% for %}")
        assert refused(await control.load("own", source, reload=True))["code"] == "adapter_chat_template"
        assert await prompt(control, "own") == BASES, "what was in force stays"


async def test_its_refusals_are_the_requests(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("own", own(control, "own", "{{ raise_exception('not for you') }}"))
        answer = await control.client.post(CHAT, model="own", messages=HELLO)
        assert "not for you" in refused(answer, "messages")["message"]
        assert await prompt(control, "base") == BASES
