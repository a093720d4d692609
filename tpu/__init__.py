"""Where the computation runs: strategies, TPU checks, cloud commands."""
