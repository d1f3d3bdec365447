"""Cells of a grid: predicted, measured, judged, and kept on disk."""
