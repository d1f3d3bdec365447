"""Independent answers that tests compare with: exhaustive searches, arithmetic, figures that torch was seen to take."""
