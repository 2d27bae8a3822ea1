"""From a tree back to a directory: the plan, carrying it out, recovery after a crash."""
