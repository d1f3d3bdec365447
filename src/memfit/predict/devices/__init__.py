"""Devices to predict for: size, rates, and where those figures are from."""
