"""Senders of gateways: what is queued for other sites, sent to them."""
