"""Rules that page, and where their pages go."""
