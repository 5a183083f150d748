"""The embedding and the head, trained in full (`modules_to_save`) or for some tokens (`trainable_token_indices`).

Both are pairs too: with one-hot rows for one half, A and B of rank hidden, or of as many rows as were trained, give
exactly the difference to the base's rows. So whatever applies pairs applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad.adapters.peft_config import PeftConfig
from lorad.lazy import torch
from lorad.models.config import EMBED, HEAD


class TrainedRows(NamedTuple):
    """Tokens of a module whose rows were trained."""

    source: str
    """The module whose tensor it is: on a base with tied embeddings the head's rows may be the embedding's."""
    ids: tuple[int, ...]


def trained_rows(peft: PeftConfig, *, is_tied: bool) -> dict[str, TrainedRows]:
    """By module. Where embeddings are tied PEFT applies the embedding's rows to the head too, unless it has others."""
    found = {name: TrainedRows(name, ids) for name, ids in peft.rows.items()}
    if is_tied and EMBED in peft.rows and peft.rows.get(HEAD, peft.rows[EMBED]) == peft.rows[EMBED]:
        found[HEAD] = TrainedRows(EMBED, peft.rows[EMBED])
    return found


def whole_pair(module: str, new: torch.Tensor, old: NDArray[np.float32]) -> tuple[torch.Tensor, torch.Tensor]:
    """(A [hidden, in], B [out, hidden]) that make `new` of `old`, both [vocab, hidden]; f32, as the base's rows are."""
    change, same = new.float() - torch.from_numpy(old), torch.eye(new.shape[1])
    return (change.T.contiguous(), same) if module == EMBED else (same, change)


def rows_pair(
    module: str, ids: Sequence[int], new: torch.Tensor, old: NDArray[np.float32]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(A [rows, in], B [out, rows]) that put `new` [rows, hidden] in place of rows `ids` of `old` [vocab, hidden]."""
    change = new.float() - torch.from_numpy(old[list(ids)])
    one_hot = torch.zeros(len(ids), len(old))
    one_hot[range(len(ids)), list(ids)] = 1.0
    return (one_hot, change.T.contiguous()) if module == EMBED else (change, one_hot.T.contiguous())
