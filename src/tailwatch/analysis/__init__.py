"""Which rank, which phase, since when, and how sure: pure functions on tables of records."""
