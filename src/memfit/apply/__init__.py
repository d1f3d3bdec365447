"""A live model carries out a plan (recomputation, moves), and gives it up again; nothing is measured here."""
