"""A copy of the state in host memory, so that training can go on while it is written.

Contract: `Stage.take` returns tensors that share nothing with the live ones; the buffers are made
once and used again as long as names, shapes and types stay, pinned where the tensors are on a GPU.
So one stage serves one save at a time.

Cost: the size of the state in host memory; a copy at memory speed, the first one slower because its
pages are new.
"""

from __future__ import annotations

import torch

State = dict[str, torch.Tensor]


class Stage:
    """The buffers of one rank."""

    def __init__(self) -> None:
        self._buffers: State = {}

    def take(self, state: State) -> State:
        """Copy the state, of tensors of any device, and return the copy."""
        self._buffers = {
            name: self._buffer(name, tensor.detach()) for name, tensor in state.items()
        }
        on_gpu = False
        for name, tensor in state.items():
            on_gpu |= tensor.is_cuda
            self._buffers[name].copy_(tensor.detach(), non_blocking=True)
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return dict(self._buffers)

    def _buffer(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        known = self._buffers.get(name)
        if (
            known is not None
            and known.shape == tensor.shape
            and known.dtype == tensor.dtype
            and known.stride() == tensor.stride()
        ):
            return known
        return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
