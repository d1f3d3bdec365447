"""Local web server over folders of records."""
