"""From a directory to a tree: which directory it is, what is captured, its scans."""
