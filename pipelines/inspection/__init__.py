"""Examples looked at: decoded, counted, and those of others taken in."""
