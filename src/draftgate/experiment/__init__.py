"""The run itself: record, plan, compare live, decide; all of it on disk and resumable."""
