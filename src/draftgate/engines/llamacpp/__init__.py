"""llama.cpp, embedded."""
