"""Offline search over policies."""
