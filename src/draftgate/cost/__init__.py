"""What a step costs: measured seconds, and what acceptance is worth at that price."""
