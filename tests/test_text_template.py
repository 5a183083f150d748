"""Chat templates: transformers' names and rules, inside the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorad.errors import InvalidRequest, ModelRejected
from lorad.text import budget
from lorad.text.model import load_text_model
from lorad.text.template import ChatTemplate

HELLO = [{"role": "user", "content": "hi <b>"}]


def test_the_embedded_bases_template(smollm2_gguf: Path) -> None:
    text = load_text_model(smollm2_gguf).render(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    )
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hi <b></s>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi <b>"}]'),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for m in [1,2,3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}{{ 'x' }}{% endgeneration %}", "x"),
        ("{% if tools %}t{% endif %}{% if add_generation_prompt %}g{% endif %}", "g"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
    ],
)
def test_what_templates_may_use(source: str, wanted: str) -> None:
    assert ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(HELLO) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ messages[9].content }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ range(1000000000) | list }}",
        "{% include '/etc/passwd' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_is_the_requests_fault(source: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate(source).render(HELLO)
    assert refusal.value.status == 400 and refusal.value.param == "messages"


def test_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HELLO)


def test_a_template_that_doesnt_compile_is_the_models_fault() -> None:
    with pytest.raises(ModelRejected):
        ChatTemplate("{% if %}")


def test_no_template_is_said(tmp_path: Path, smollm2_gguf: Path) -> None:
    text = load_text_model(smollm2_gguf)
    text.template = None
    with pytest.raises(InvalidRequest, match="chat template"):
        text.chat(HELLO)
    with pytest.raises(InvalidRequest, match="chat_template"):
        load_text_model(smollm2_gguf, tmp_path / "missing.jinja")


RUNAWAYS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "call blocks": "{% macro m() %}{{ caller() }}{% endmacro %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% call m() %}{% endcall %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for a in range(99999) recursive %}{{ loop(range(2)) if loop.depth < 60 }}{% endfor %}",
}


@pytest.mark.parametrize("source", RUNAWAYS.values(), ids=RUNAWAYS)
def test_one_that_never_ends_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "RENDER_SECONDS", 0.05)
    with pytest.raises(InvalidRequest, match=r"longer than 0\.05 s") as refusal:
        ChatTemplate(source).render(HELLO)
    assert refusal.value.code == "chat_template"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    ],
)
def test_a_product_that_is_too_large_isnt_computed(source: str) -> None:
    with pytest.raises(InvalidRequest, match="too large"):
        ChatTemplate(source).render(HELLO)


def test_small_products_are_as_ever() -> None:
    assert ChatTemplate("{{ '-' * 3 }}{{ 2 ** 10 }}{{ 0.5 * 3 }}{{ [1] * 2 }}").render(HELLO) == "---10241.5[1, 1]"


def test_no_name_of_a_template_hides_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "RENDER_SECONDS", 0.05)
    source = "{% set tick = 1 %}{% set environment = 1 %}" + RUNAWAYS["loops"]
    with pytest.raises(InvalidRequest, match="longer"):
        ChatTemplate(source).render(HELLO)
