"""How a model stretches its rotary frequencies, from the config of either file format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lorad.errors import ModelRejected
from lorad.models.fields import mapping, positive, shown
from lorad.models.gguf_keys import Keys

F32 = NDArray[np.float32]
_HF = "config.json: "


class RopeScaling(Protocol):
    """Changes the inverse frequencies of rotary embedding."""

    def apply(self, frequencies: F32) -> F32:
        """`frequencies` f32 [head_dim / 2] as theta gives them; returns those to use."""


@dataclass(frozen=True)
class LinearRope:
    """All positions squeezed by one factor."""

    factor: float

    def apply(self, frequencies: F32) -> F32:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's scaling: low frequencies squeezed, high ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def apply(self, frequencies: F32) -> F32:
        # The same operations in the same order as transformers, so that the tables are equal bit for bit.
        low_wavelength = self.original_context / self.low_freq_factor
        high_wavelength = self.original_context / self.high_freq_factor
        wavelength = 2 * math.pi / frequencies
        scaled = np.where(wavelength > low_wavelength, frequencies / self.factor, frequencies)
        smooth = (self.original_context / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - smooth) * scaled / self.factor + smooth * scaled
        between = ~(wavelength < high_wavelength) & ~(wavelength > low_wavelength)
        return np.where(between, blended, scaled)


@dataclass(frozen=True)
class FactorRope:
    """A divisor for each frequency, as llama.cpp's converter writes Llama 3.1's scaling (`rope_freqs.weight`)."""

    factors: tuple[float, ...]

    def apply(self, frequencies: F32) -> F32:
        factors: F32 = np.array(self.factors, dtype=np.float32)
        return frequencies / factors


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> F32:
    """Inverse frequencies of the pairs of a head, f32 [head_dim / 2], scaled if there is a scaling.

    Rounded to f32 where transformers rounds them, so that long positions agree with it; the power is made in f64, as
    numpy's in f32 is a last bit off more often than torch's.
    """
    exponents = np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim)
    frequencies: F32 = np.float32(1.0) / np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    return frequencies if scaling is None else scaling.apply(frequencies)


def rope_from_hf(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling of a config.json, in transformers' old (`rope_scaling`) or new (`rope_parameters`) spelling."""
    if config.get("rope_parameters") is not None:
        return _rope(mapping(config["rope_parameters"], f"{_HF}rope_parameters"))
    scaling = mapping(config.get("rope_scaling"), f"{_HF}rope_scaling")
    return _rope({"rope_theta": config.get("rope_theta", 10000.0), **scaling})


def ropes_from_hf(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None, float]:
    """Theta and scaling of Gemma 3's global layers, and theta of its local ones, in the old or the new spelling."""
    given = mapping(config.get("rope_parameters"), f"{_HF}rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    if not set(given) <= set(kinds):
        raise ModelRejected(f"{_HF}rope_parameters is {shown(given)}, wants {kinds}", code="model_config")
    full, local = (dict(mapping(given.get(kind), f"{_HF}rope_parameters.{kind}")) for kind in kinds)
    full |= mapping(config.get("rope_scaling"), f"{_HF}rope_scaling")
    theta, scaling = _rope({"rope_theta": config.get("rope_theta", 1e6)} | full)
    local_theta, local_scaling = _rope({"rope_theta": config.get("rope_local_base_freq", 1e4)} | local)
    if local_scaling is not None:
        raise ModelRejected("rotary scaling of layers with a window isn't supported", code="model_feature")
    return theta, scaling, local_theta


def _rope(parameters: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling of one set of transformers' rope parameters."""

    def read(name: str, default: float | None = None) -> float:
        value = parameters.get(name, default)
        if value is None:
            raise ModelRejected(f"{_HF}{name} is missing", code="model_config")
        return positive(value, f"{_HF}{name}")

    kind = parameters.get("rope_type", parameters.get("type", "default"))
    scaling: RopeScaling | None = None
    if kind == "linear":
        scaling = LinearRope(read("factor"))
    elif kind == "llama3":
        low, high = read("low_freq_factor"), read("high_freq_factor")
        if low == high:
            raise ModelRejected(f"{_HF}low_freq_factor and high_freq_factor are both {low}", code="model_config")
        scaling = Llama3Rope(read("factor"), low, high, int(read("original_max_position_embeddings")))
    elif kind != "default":
        raise ModelRejected(f"rotary scaling {shown(kind)} isn't supported", code="model_feature")
    if read("partial_rotary_factor", 1.0) != 1.0:
        raise ModelRejected("partial_rotary_factor isn't supported", code="model_feature")
    return read("rope_theta", 10000.0), scaling


def rope_from_gguf(keys: Keys) -> tuple[float, RopeScaling | None]:
    """Theta and scaling of a GGUF file's keys of its architecture; `rope_freqs.weight` is the reader's business."""
    theta, kind = keys.number("rope.freq_base", 10000.0), keys.text("rope.scaling.type", "none")
    if kind == "none":
        return theta, None
    if kind == "linear":
        return theta, LinearRope(positive(keys.number("rope.scaling.factor", 0.0), "GGUF: rope.scaling.factor"))
    raise ModelRejected(f"rotary scaling {shown(kind)} isn't supported", code="model_feature")
