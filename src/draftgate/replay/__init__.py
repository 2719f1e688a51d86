"""What other policies would have done with recorded drafts, and how far to trust the answer."""
