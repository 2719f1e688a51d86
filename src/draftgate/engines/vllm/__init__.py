"""vLLM: acceptance rules in torch, and the plugin that puts them into a server."""
