"""One self-contained HTML page about a tuning run, and its charts."""
