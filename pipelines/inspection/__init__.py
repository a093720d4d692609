"""Examples decoded, shown and counted; third-party ones adopted."""
