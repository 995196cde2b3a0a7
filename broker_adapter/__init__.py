"""What the SDK stands on: errors, destinations, envelopes, settings, the transport port and its implementations."""
