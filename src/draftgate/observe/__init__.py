"""What a controller sees, for others to watch: metrics as data, and everything that is made from them."""
