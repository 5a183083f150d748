"""`PreparedAdapter`: an adapter that was read, checked and packed, and can be registered without further waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.derived import BaseValues
from lorad.adapters.image import AdapterImage, build_image
from lorad.adapters.load import load_adapter
from lorad.adapters.parity import check_parity
from lorad.adapters.sharded import sharded
from lorad.engine.messages import AdapterInfo
from lorad.models.config import ModelConfig
from lorad.models.shard import Shard


class Base(NamedTuple):
    """What adapters are held against."""

    config: ModelConfig
    digest: str
    values: BaseValues
    page_bytes: int
    max_lora_rank: int


class PreparedAdapter(NamedTuple):
    """Its weights are in the image alone."""

    info: AdapterInfo
    tag: int
    image: AdapterImage


def check(name: str, path: str, base: Base) -> CheckedAdapter:
    """Reads an adapter and holds it against the base."""
    return load_adapter(name, path, base.config, base.digest, max_lora_rank=base.max_lora_rank, base=base.values)


def prepare(checked: CheckedAdapter, path: str, page_bytes: int, shards: Sequence[Shard] = ()) -> PreparedAdapter:
    """Packs an adapter and holds its pages against it. Touches no shared state, so it may run on any thread.

    `shards`: of the ranks, if there are several; the image has each one's part then.
    """
    first, *others = [sharded(checked, shard) for shard in shards] or [checked]
    image = build_image(first, page_bytes, others)
    for rank, part in enumerate((first, *others)):
        check_parity(part, image.of_rank(rank))
    info = AdapterInfo(
        name=checked.name,
        generation=checked.generation,
        rank=checked.rank,
        modules=len(checked.modules),
        pages=image.layout.pages,
        bytes=checked.bytes,
        path=path,
        warnings=checked.warnings,
        chat_template=checked.chat_template,
    )
    return PreparedAdapter(info, checked.tag, image)
