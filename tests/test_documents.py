"""What the documents say of the code is so: options, codes, variables, links."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import codes
import documents
import pytest

from lorad import cli
from lorad.observe.catalog import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")])
VARIABLE = re.compile(r'"(LORAD_[A-Z_]+|OMP_NUM_THREADS|XDG_DATA_HOME|GLIBC_TUNABLES)"')


def test_options_are_up_to_date() -> None:
    text = documents.OPTIONS.read_text()
    assert text == documents.options(text), "run `make docs`"
    for config in documents.CONFIGS.values():
        for name in config.__dataclass_fields__:
            assert name == "model" or f"`LORAD_{name.upper()}`" in text


def test_codes_are_up_to_date_and_have_words() -> None:
    text = documents.ERRORS.read_text()
    assert text == documents.errors(text), "run `make docs`"
    meanings = documents.meanings(text)
    assert set(meanings) == {found.code for found in codes.raised()}
    assert [code for code, words in meanings.items() if not words.strip()] == [], "say what they mean, and what to do"


def test_every_part_of_the_scan_finds_its_codes() -> None:
    found = {(one.code, one.status, one.where) for one in codes.raised()}
    assert ("context_length_exceeded", 400, "server/lengths.py") in found, "a literal"
    assert ("source_path", 400, "sources/source.py") in found, "by a helper of another module"
    assert ("costs_value", 400, "engine/costs.py") in found, "by a helper of its own"
    assert ("sampling_range", 400, "engine/asked.py") in found, "a helper's default"
    assert ("tenant_tokens_per_minute", 429, "tenants/limits.py") in found, "a variable of a loop"
    assert ("never_fits", 400, "engine/refusals.py") in found, "the core's"
    assert ("request_entity_too_large", 413, "server/failures.py") in found, "HTTP's own"
    assert ("adapter_parity", 400, "adapters/reject.py") in found, "of a docstring's list"
    assert ("scenario_key", 400, "simulate/scenario.py") in found, "the simulator's"


def test_a_code_that_cant_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.py").write_text('raise InvalidRequest("no", code=f"made_{up}")\n')
    monkeypatch.setattr(codes, "PACKAGE", tmp_path)
    with pytest.raises(codes.Untold, match=r"bad\.py:1"):
        codes.raised()


def test_every_refusal_of_the_core_is_known() -> None:
    text = (ROOT / "rust/lorad-sched/src/error.rs").read_text()
    listed = text[text.index("pub const CODES") : text.index("];", text.index("pub const CODES"))]
    assert set(re.findall(r'"(\w+)"', listed)) <= {one.code for one in codes.raised()}


def test_every_variable_that_is_read_is_documented() -> None:
    text = documents.OPTIONS.read_text()
    read = {name for path in codes.PACKAGE.rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    assert {"LORAD_DATA_DIR", "LORAD_CPU", "LORAD_SERVER"} <= read
    assert [name for name in sorted(read) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        if anchor and file.suffix == ".md":
            assert anchor in _anchors(file.read_text()), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_metric_in_a_page_is_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it tells former names
    known = {metric.series for _, metrics in SECTIONS for metric in metrics}
    assert set(re.findall(r"\b(?:lorad|vllm):[a-z]\w+", page.read_text())) <= known


def test_the_readme_names_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []


def _anchors(text: str) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    """All flags of a parser and of its commands."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found.update(*map(_flags, action.choices.values()))
    return found


FLAGGED = (
    "fleet",
    "quick-start",
    "tuning",
    "security",
    "errors",
    "control",
    "scheduling",
    "http-api",
    "tenancy",
    "page",
    "sources",
)


@pytest.mark.parametrize("name", FLAGGED)
def test_every_flag_in_a_page_is_there(name: str) -> None:
    text = (ROOT / f"docs/{name}.md").read_text()
    others = {"--write"}  # of benches/costs/run.py
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", text)) <= _flags(cli._parser()) | others
