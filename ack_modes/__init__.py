"""How a delivery ends: outcomes, and one strategy for each acknowledge mode.  Pure; standard library only."""

from ack_modes.outcome import DeliveryTag, Outcome, Settlement

__all__ = ["DeliveryTag", "Outcome", "Settlement"]
