"""Expert parallelism: how token rows get to the rank that owns their expert, and back."""

from tailwatch.trainer.ep.exchange import Dispatched, ExpertExchange
from tailwatch.trainer.ep.gloo import GlooExchange
from tailwatch.trainer.ep.local import LocalExchange

__all__ = ["Dispatched", "ExpertExchange", "GlooExchange", "LocalExchange"]
