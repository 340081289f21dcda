"""A whole game day on one machine; with `cli` the only part that sees all rooms."""
