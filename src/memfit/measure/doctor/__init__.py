"""Probes of what this machine can measure (`memfit doctor`)."""
