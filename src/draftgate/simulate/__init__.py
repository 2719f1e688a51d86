"""A simulated engine that replays recorded drafts, and the real control loop on it."""
