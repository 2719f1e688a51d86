"""Engines that speculate, and what they share."""
