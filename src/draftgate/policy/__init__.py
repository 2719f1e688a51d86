"""When a drafted token is kept, and how many are drafted: rules, thresholds, categories, lengths, policy files."""
