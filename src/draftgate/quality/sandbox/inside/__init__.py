"""Code that runs inside a cell: standard library only, sent in as code objects, never imported from disk there.

boot        limits and identity of the process, then its role
walls       namespaces and mounts, where no bubblewrap builds them
fence       Landlock, where neither can
kernel      the calls that those two need
wire        calls between two processes that do not trust each other
script      role: run a program from beginning to end
program     role: load a program, and serve its functions to tests
judge       role: the tests
objects     what tests may do with objects that stay in the program, where a problem allows it
"""
