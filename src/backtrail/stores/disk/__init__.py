"""What stores on a disk share: locks, group sync, databases, process forks."""
