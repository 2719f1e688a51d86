"""draftgate: find, prove and keep the speculative-decoding settings that pay on your workload."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
