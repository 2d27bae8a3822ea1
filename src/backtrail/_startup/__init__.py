"""What a hook must not pay for: data classes, SHA-256, names and folders, made when needed."""
