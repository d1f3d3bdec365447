"""Shipped test tools: made records, oracles, and contract classes."""
