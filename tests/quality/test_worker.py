import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from draftgate.errors import WorkloadError
from draftgate.quality import worker
from draftgate.quality.judgement import Finding, Judgement, Status, Task

JSON = Task(language="json")
GOOD = Judgement(Status.VALID, ("json",), (), "bare")


def pid() -> int:
    worker.ask(JSON, "1", None)
    assert worker._child
    return worker._child._process.pid


def test_a_judgement_comes_back_whole() -> None:
    assert worker.ask(JSON, "[1]", None) == GOOD
    assert worker.ask(JSON, "[1\n}", None).findings == (Finding("syntax", "expected ',' or ']'", 2, 1),)


def test_one_child_judges_one_text_after_the_other() -> None:
    assert pid() == pid() != os.getpid()


def test_errors_about_the_task_come_back_as_errors() -> None:
    with pytest.raises(WorkloadError, match="leads nowhere"):
        worker.ask(Task(schema={"$ref": "#/a"}), "1", None)
    assert worker.ask(JSON, "[1]", None) == GOOD


def test_a_text_that_kills_the_child_is_unchecked_and_the_next_one_is_not() -> None:
    old = pid()
    os.kill(old, signal.SIGSEGV)
    judgement = worker.ask(JSON, "[1]", None)
    assert judgement == Judgement(Status.UNCHECKED, (), (Finding("limit", "its parser died of SIGSEGV"),))
    assert worker.ask(JSON, "[1]", None) == GOOD
    assert pid() != old


def test_memory_is_bounded() -> None:
    # Tree-sitter's error recovery takes memory by the square of the length here: 5 GB.
    judgement = worker.ask(Task(language="c"), "%w(" * 200_000, None)
    assert judgement.status is Status.UNCHECKED
    assert judgement.findings[0].kind == "limit"
    assert worker.ask(JSON, "[1]", None) == GOOD


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    old = pid()
    with monkeypatch.context() as patched:
        patched.setattr(worker, "WALL_S", 0.3)
        judgement = worker.ask(Task(schema={"pattern": "^(a+)+$"}), '"' + "a" * 40 + '!"', None)
    assert judgement.status is Status.UNCHECKED
    assert judgement.findings[0].message.startswith("its parser took more than")
    assert pid() != old


def test_an_end_by_the_limit_of_cpu_time_says_so() -> None:
    os.kill(pid(), signal.SIGXCPU)
    assert "s of CPU time" in worker.ask(JSON, "[1]", None).findings[0].message


def test_threads_wait_for_each_other() -> None:
    wrong: list[Judgement] = []

    def work(i: int) -> None:
        for n in range(20):
            judgement = worker.ask(JSON, f"[{i}, {n}" + "]" * (n % 2), None)
            if (judgement == GOOD) != bool(n % 2):
                wrong.append(judgement)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


SCRIPT = """
import os
from draftgate.quality import worker
from draftgate.quality.judgement import Task

def pid():
    assert worker.ask(Task(language="json"), "[1]", None).status == "valid"
    return worker._child._process.pid

mine = pid()
if (fork := os.fork()) == 0:
    os._exit(0 if pid() != mine else 1)
assert os.waitpid(fork, 0)[1] == 0
assert pid() == mine
print(mine, flush=True)
input()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_fork_has_its_own_child_and_none_outlives_its_parent(killed: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        if killed:
            parent.kill()
        else:
            parent.communicate(b"\n")
            assert parent.returncode == 0
    # Readable once the process has ended.
    assert select.select([descriptor], [], [], 60.0)[0]
    os.close(descriptor)
