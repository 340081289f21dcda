"""The demo: a whole game day on one machine. Together with `cli` the only part that sees all rooms."""
