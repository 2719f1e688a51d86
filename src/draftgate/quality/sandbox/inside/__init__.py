"""Code that runs inside a cell: standard library only, sent in as code objects, never imported from disk there.

boot        limits and identity of the process, then its role
walls       namespaces, mounts and system-call filter, where no bubblewrap builds them
wire        calls between two processes that do not trust each other
program     roles of the untrusted side: run a program, or serve its functions to tests
judge       role of the tests' side
"""
