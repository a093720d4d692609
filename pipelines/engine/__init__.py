"""Jobs of steps and shuffles, run as one Beam graph or in passes on this machine."""
