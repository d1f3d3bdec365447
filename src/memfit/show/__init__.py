"""Shows records to people: terminal text, figures, HTML pages, exports; measures and decides nothing."""
