"""Programs that a model wrote, run where they can do no harm.

Each program runs in a cell: a fresh Python interpreter with the standard library, behind the first of these that works
here (`find_sandbox` tries them; it refuses to run anything without, unless told otherwise):

    bubblewrap   the `bwrap` command: namespaces, its own root folder, a filter of system calls
    native       the same walls, built by a small Python program of our own
    landlock     one process that can read and compute and nothing else, for containers that refuse namespaces

What a cell cannot do, each point with its attacks in tests/quality/attacks:

- reach the network: no interface, no socket of any kind, Unix and abstract ones included
- read files of the host, other than the interpreter's and the system's libraries; behind landlock names can be seen
- write anywhere but in /tmp, a tmpfs of `Limits.tmp_bytes`; behind landlock, nowhere
- see, signal or trace other processes, or leave one behind: when a run returns, all of its processes have ended
- read the tool's environment or open files; use a terminal or a device but null, zero, random and urandom
- become another user, gain capabilities, make namespaces, mount, start programs of the host
- use more than its `Limits` of time, memory, processes, output and disk

What this does not cover: a hole in the kernel, which the cell shares with the host (put a virtual machine around it
if the code is aimed at you); timing and other side channels; memory that the kernel holds for a cell, as full pipes do,
bounded by the numbers of processes and open files only; the number of files in /tmp under bubblewrap, bounded by CPU
time only. Memory of several processes together is looked at every 50 ms, so it can pass its limit for so long. CPU time
is counted for each process, wall-clock time for all. Code sees the versions of interpreter and kernel, and the clock.

`Sandbox.run` runs one program and says how it ended, which is no verdict: a program chooses its status. For verdicts,
`pair.put_to_tests` runs program and tests in two cells, and the program cannot forge one. It can still pass by luck or
by knowing the answers; it can change lists that tests hand to it, so tests that compare with such a list afterwards can
be fooled; and it answers for its own objects where a problem allows those (`Problem.objects`).

Linux on x86-64 and aarch64; bubblewrap 0.8, or Linux 5.14, or Landlock as of Linux 6.2.
"""

from draftgate.quality.sandbox.find import Sandbox, find_sandbox
from draftgate.quality.sandbox.limits import Limits, Outcome

__all__ = ["Limits", "Outcome", "Sandbox", "find_sandbox"]
