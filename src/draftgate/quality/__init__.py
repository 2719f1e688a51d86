"""Whether an output is what was asked for, and whether an arm's outputs are as good as without speculation."""
