"""`Size`: how large what a module adds can be.

Every value of a file may be finite, and every answer NaN all the same.
"""

from __future__ import annotations

from typing import NamedTuple

from lorad.adapters.checked import ModuleLora
from lorad.lazy import torch

LARGEST = 1e30
"""Of norms, vectors and what they make together: f32 ends at 3.4e38, and activations are to be multiplied by it."""


class Size(NamedTuple):
    """Of one module: Frobenius norms of A and B, the scale, the largest of gain and bias."""

    a: float
    b: float
    scale: float
    gain: float
    bias: float

    @staticmethod
    def of(lora: ModuleLora) -> Size:
        """Looks at all its values."""
        a, b = (float(torch.linalg.vector_norm(half, dtype=torch.float64)) for half in (lora.a, lora.b))
        gain = 1.0 if lora.gain is None else float(lora.gain.abs().max())
        bias = 0.0 if lora.bias is None else float(lora.bias.abs().max())
        return Size(a, b, lora.scale, gain, bias)

    @property
    def fits(self) -> bool:
        """Whether f32 holds what comes in between and what comes out."""
        # The scale comes before B, so a B of zeros doesn't undo it: ∞ · 0 is NaN.
        between = abs(self.scale) * self.a
        together = between * self.b
        return all(
            value <= LARGEST
            for value in (self.a, self.b, between, together, self.gain, together * self.gain, self.bias)
        )

    def __str__(self) -> str:
        return (
            f"‖A‖ = {self.a:.3g}, ‖B‖ = {self.b:.3g}, scale {self.scale:g}, factor {self.gain:.3g}, bias "
            f"{self.bias:.3g}; at most {LARGEST:g}"
        )
