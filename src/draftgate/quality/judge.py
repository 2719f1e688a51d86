"""Is an output the kind of thing that was asked for? One call, whatever the text."""

from draftgate.quality import worker
from draftgate.quality.examine import MAX_CHARS
from draftgate.quality.judgement import Finding, Judgement, Status, Task, place

__all__ = ["judge"]


def judge(task: Task, output: str | bytes, finish: str | None = None) -> Judgement:
    """Judge one output by its form: encoding, then tool calls or language and schema. Tests are not run.

    What decides for which language, and how exact it is, the `exact_*` modules and `syntax` say. A text that is
    larger than `examine.max_chars`, or that breaks its parser, is UNCHECKED with a finding; it cannot hang or crash
    the caller, because a child process does the work (`worker`).

    Args:
        task: what is known about the output.
        output: the text, or its bytes as they came.
        finish: why the engine stopped. After "length" (the token limit) an output that is right as far as it goes is
            TRUNCATED, and half a character at the end of the bytes is left out.

    Raises:
        WorkloadError: the task is wrong: its schema, its tools, or a schema for a language that holds no value.
        MissingExtraError: the parser of the language is not installed.
    """
    try:
        text = output if isinstance(output, str) else _decoded(output, cut=finish == "length")
        _refuse_characters(text)
    except _EncodingError as error:
        return Judgement(Status.INVALID, ("encoding",), (error.finding,))
    if len(text) > MAX_CHARS:
        finding = Finding("limit", f"longer than {MAX_CHARS} characters, the most that are read of any output")
        return Judgement(Status.UNCHECKED, (), (finding,))
    return worker.ask(task, text, finish)


class _EncodingError(Exception):
    def __init__(self, message: str, before: str) -> None:
        super().__init__(message)
        self.finding = Finding("encoding", message, *place(before, len(before)))


def _decoded(output: bytes, cut: bool) -> str:
    try:
        return output.decode()
    except UnicodeDecodeError as error:
        sound = output[: error.start].decode()
        if cut and error.reason == "unexpected end of data":
            return sound
        raise _EncodingError(f"not UTF-8 at byte {error.start}: {error.reason}", sound) from None


def _refuse_characters(text: str) -> None:
    at = text.find("\0")
    if at >= 0:
        raise _EncodingError("a NUL character", text[:at])
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _EncodingError("half of a surrogate pair, which is no character", text[: error.start]) from None
