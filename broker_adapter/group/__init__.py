"""Groups of nodes that act as one server: who is primary, who is in sync."""
