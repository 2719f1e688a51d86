"""Load on an engine: when requests come, the engine behind its files, and the loop that steers it."""
