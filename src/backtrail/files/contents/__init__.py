"""Contents by their digest: storing, verifying, collecting and erasing them."""
