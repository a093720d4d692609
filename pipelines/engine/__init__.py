"""How a job is run: steps and shuffles, one Beam graph or passes on this machine."""
