"""Progress lines of long work."""
