"""What is asked of the engine: prompts, the packs that ship with draftgate, and checks of an output."""

from draftgate.workload.checks import check
from draftgate.workload.packs import load, pack_names
from draftgate.workload.prompt import Message, Prompt, Workload, load_jsonl

__all__ = ["Message", "Prompt", "Workload", "check", "load", "load_jsonl", "pack_names"]
