"""Grafana boards, one file per board."""
