"""What happened: records of requests and steps, their store on disk, and their layout for replay."""
