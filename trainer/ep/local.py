"""No exchange: this rank owns all experts. The plain reference beside the real exchanges."""

from __future__ import annotations

import torch
from torch import Tensor

from tailwatch.trainer.ep.exchange import Dispatched


class LocalExchange:
    """Rows stay where they are."""

    def dispatch(self, rows: Tensor, counts: Tensor, layer: int) -> Dispatched:
        """Return the rows themselves: sorted by global expert is sorted by local expert."""
        return Dispatched(rows, counts.tolist(), [len(rows)], [len(rows)], torch.arange(len(rows)))

    def combine(self, outputs: Tensor, dispatched: Dispatched, layer: int) -> Tensor:
        """Return the outputs themselves."""
        return outputs
