"""Parts that several public functions share: checks of their options, and openers of records for the page."""
