"""Assessors: stopping hopeless trials."""
