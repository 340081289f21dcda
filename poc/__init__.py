"""Decides claims: A/B runs with intervals."""
