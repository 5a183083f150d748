"""Values of a base's config that can't be meant: each is refused by its field, none fails later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorad.errors import ModelRejected
from lorad.models.config import ModelConfig
from lorad.models.open import open_model
from tiny import make_tiny, make_tiny_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def refused(path: Path) -> tuple[str, str]:
    with pytest.raises(ModelRejected) as refusal:
        open_model(path)
    assert len(refusal.value.message) < 300
    return refusal.value.code, refusal.value.message


def changed(folder: Path, changes: dict[str, Any]) -> Path:
    """A tiny base with other fields, rotary ones in the old spelling."""
    path = make_tiny(folder / "tiny") / "config.json"
    config = json.loads(path.read_text())
    config.pop("rope_parameters", None)
    path.write_text(json.dumps(config | {"rope_theta": 10000.0} | changes))
    return path.parent


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (field, value)
            for field in ("rms_norm_eps", "rope_theta")
            for value in (0, -1, True, "1e-5", [], 1e-320, 1e300)
        ),
        ("rms_norm_eps", 10**400),
        ("rope_theta", 10**400),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", float("inf")),
        ("rope_scaling", "x"),
        ("rope_scaling", []),
        ("rope_scaling", 5),
        ("rope_scaling", False),
        ("rope_parameters", []),
        ("rope_parameters", "x"),
        ("tie_word_embeddings", "yes"),
        ("tie_word_embeddings", 1),
        ("max_position_embeddings", 10**30),
        ("hidden_size", 64.0),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_of_another_kind_is_refused_by_field(tmp_path: Path, field: str, value: object) -> None:
    code, said = refused(changed(tmp_path, {field: value}))
    named = {"max_position_embeddings": "context_length"}.get(field, field)
    named = "norm_eps" if field == "rms_norm_eps" and "config.json" not in said else named
    assert code == "model_config" and named in said


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "linear"}, "factor"),
        *(({"rope_type": "linear", "factor": value}, "factor") for value in ("8", True, 0, -1, 1e-320, 10**400, None)),
        (LLAMA3 | {"low_freq_factor": 10**400}, "low_freq_factor"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "high_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": True}, "original_max_position_embeddings"),
        ({"rope_type": "default", "partial_rotary_factor": "1"}, "partial_rotary_factor"),
    ],
    ids=str,
)
def test_scalings_are_refused_by_field(tmp_path: Path, scaling: dict[str, Any], field: str) -> None:
    code, said = refused(changed(tmp_path, {"rope_scaling": scaling}))
    assert code == "model_config" and field in said


def test_null_means_what_it_means_to_transformers(tmp_path: Path) -> None:
    weights = open_model(changed(tmp_path, {"rope_scaling": None, "partial_rotary_factor": None}))
    assert weights.config.rope_theta == 10000.0 and weights.config.rope_scaling is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"embedding_length": 102}, "model_config"),  # no whole heads
        ({"embedding_length": 128}, "model_feature"),  # heads of 32
        ({"attention.head_count": 8}, "model_feature"),
        ({"attention.head_count": 7}, "model_config"),
        ({"attention.head_count": 0}, "model_config"),
        ({"embedding_length": 0}, "model_config"),
    ],
    ids=str,
)
def test_a_damaged_width_of_heads_names_what_it_was_made_of(tmp_path: Path, given: dict[str, int], code: str) -> None:
    """Many files say no `key_length`."""
    missing = {
        "llama.attention.key_length": None,
        "llama.attention.value_length": None,
        "llama.rope.dimension_count": 16,
    }
    keys = missing | {f"llama.{name}": value for name, value in given.items()}
    found, said = refused(make_tiny_gguf(make_tiny(tmp_path / "tiny"), tmp_path / "bad.gguf", keys=keys))
    assert found == code
    assert "llama.attention.head_count = " in said and "llama.embedding_length = " in said


def test_tiny_config_is_the_tiny_model(config: ModelConfig, tmp_path: Path) -> None:
    """The fixture of that name in conftest.py."""
    assert open_model(make_tiny(tmp_path / "tiny")).config.replace(name="") == config.replace(name="")
