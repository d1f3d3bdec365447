"""Statistics of a study, without words: design, encoding, regression, estimates and intervals."""
