"""The place of `nnictl`."""
