"""What keeps a running engine on its policies; knows files, not engines."""
