"""What is asked of the engine: prompts, and the packs that ship with draftgate."""

from draftgate.workload.packs import load, pack_names
from draftgate.workload.prompt import Message, Prompt, Workload, load_jsonl

__all__ = ["Message", "Prompt", "Workload", "load", "load_jsonl", "pack_names"]
