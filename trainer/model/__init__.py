"""The model that is trained: a small decoder whose feed-forward parts are mixtures of experts."""

from tailwatch.trainer.model.decoder import Decoder
from tailwatch.trainer.model.moe import MoE

__all__ = ["Decoder", "MoE"]
