"""Cells behind bubblewrap (github.com/containers/bubblewrap), the small set-up tool that Flatpak rests on."""

from dataclasses import dataclass
from pathlib import PurePath

from draftgate.quality.sandbox import layout
from draftgate.quality.sandbox.cage import Cage, sealed
from draftgate.quality.sandbox.limits import Limits
from draftgate.quality.sandbox.seccomp import filter_program

__all__ = ["Bubblewrap"]


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """One `bwrap` command a cell."""

    name: str = "bubblewrap"
    program: str = "bwrap"

    def cage(self, limits: Limits) -> Cage:
        """Command line for one cell."""
        calls = sealed(filter_program())
        uid = layout.fresh_uid()
        argv = [self.program, *_NAMESPACES, *(_AS_ROOT if uid is not None else _AS_USER), "--seccomp", str(calls)]
        for path in layout.readable():
            for folder in reversed(PurePath(path).parents):
                argv += ["--perms", "0755", "--dir", str(folder)]  # else a parent may come out as root's alone
            argv += ["--ro-bind", path, path]
        for path, target in layout.links():
            argv += ["--symlink", target, path]
        argv += ["--tmpfs", "/dev"]
        for path in layout.DEVICES:
            argv += ["--dev-bind", path, path]
        argv += ["--remount-ro", "/dev"]
        argv += ["--perms", "1777", "--size", str(limits.tmp_bytes), "--tmpfs", "/tmp", "--remount-ro", "/"]
        return Cage((*argv, "--chdir", "/tmp", "--", *layout.interpreter()), uid, (calls,), process_1=True)


_NAMESPACES = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1"),
    *("--hostname", "cell", "--new-session", "--die-with-parent"),
)
_AS_USER = ("--unshare-user", "--uid", "65534", "--gid", "65534")
_AS_ROOT = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""Root needs no namespace for users, and keeps what `inside.boot.become` needs to give up root."""
