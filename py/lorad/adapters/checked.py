"""`CheckedAdapter`: an adapter that is known to be applicable in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lorad.lazy import torch
from lorad.models.elements import Element


class ModuleLora(NamedTuple):
    """One adapted module: y += scale · B (A x), then y = gain · y + bias."""

    layer: int
    module: int
    """Index into `ModelConfig.adaptable()`."""
    rank: int
    """0: nothing but vectors."""
    scale: float
    a: torch.Tensor
    """[rank, in], the adapter's element type, contiguous."""
    b: torch.Tensor
    """[out, rank], the adapter's element type, contiguous."""
    gain: torch.Tensor | None = None
    """f32 [out]: DoRA's magnitudes over the norms of W + scale · B · A."""
    bias: torch.Tensor | None = None
    """f32 [out]: of B, scaled, and what was added to the base's own by training."""

    def parts(self) -> tuple[torch.Tensor, ...]:
        """All that lies in pages."""
        return tuple(part for part in (self.a, self.b, self.gain, self.bias) if part is not None)


@dataclass(frozen=True)
class CheckedAdapter:
    """Made by `lorad.adapters.load`, and of such by `combine.add_up`; immutable, as everything that names it by its
    generation relies on."""

    name: str
    generation: str
    """32 hex digits over the weights, scales and base that are in force: equal content, equal generation."""
    element: Element
    """The widest number type of the file; narrower tensors were widened exactly."""
    modules: tuple[ModuleLora, ...]
    """In order of (layer, module); at least one."""
    warnings: tuple[str, ...] = ()
    """What isn't wrong and should be known."""
    chat_template: str = ""
    """Source of the template that its folder has; "": none. It isn't part of the generation."""

    @property
    def tag(self) -> int:
        """The low 32 bits of the generation, never 0: what plan rows and device slots carry."""
        return int(self.generation[-8:], 16) or 1

    @property
    def rank(self) -> int:
        """The highest rank of any module; what was trained in full has that of its width."""
        return max(module.rank for module in self.modules)

    @property
    def bytes(self) -> int:
        """Bytes of all its weights."""
        return sum(part.numel() * part.element_size() for module in self.modules for part in module.parts())
