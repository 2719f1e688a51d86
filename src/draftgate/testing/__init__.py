"""Conformance suites: what every engine must do, as tests to inherit. Needs pytest."""
