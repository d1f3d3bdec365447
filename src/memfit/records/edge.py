"""What does training take on a small device: memory by batch and image size, the price of fitting, hours and energy?

Bytes are computed from shapes on fake tensors, seconds are counted in arithmetic operations; nothing was run.
"""

from __future__ import annotations

import msgspec


class MemoryCell(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one network: parameters, gradients and activations, without optimizer state."""

    network: str
    image_size: int
    batch_size: int
    plain_bytes: int
    """With everything kept."""
    smallest_bytes: int
    """Of the plan that takes least."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step within a budget, over that of the plain step; None where it does not fit."""

    network: str
    image_size: int
    batch_size: int
    budget_bytes: int
    plain_bytes: int
    smallest_bytes: int
    sequential: float | None
    """Equal segments, the best number of them, on the network as it is."""
    revolve: float | None
    nested: float | None
    """The optimal nested plan."""
    linear_slots: int
    """Layers that fit when all are taken as equally large; the edge work's way to count."""
    linear_sequential: float | None
    """By the published formula for equal layers."""
    linear_revolve: float | None


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of somebody else's, and ours for the same question."""

    what: str
    published: str
    ours: str
    source: str


class LinkSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Sending a day's images over one link."""

    mbit_per_second: float
    send_hours: float
    send_watt_hours: float
    verdict: str


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """Training on a day's images where they are, against sending them."""

    network: str
    image_size: int
    images_per_day: int
    image_bytes: int
    num_epochs: int
    gflop_per_image: float
    """One forward."""
    device_gflops: float
    device_watts: float
    link_watts: float
    slowdown: float
    """Of the plan that fits into the budget."""
    train_hours: float
    train_watt_hours: float
    links: tuple[LinkSpeed, ...]
    """The one that was asked for first."""
    most_images_per_day: int
    """As many as the device trains on in a day."""
    equal_mbit_per_second: float
    """The speed at which sending takes as long as training."""


class EdgeTables(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    budget_bytes: int
    by_batch: tuple[MemoryCell, ...]
    by_size_alone: tuple[MemoryCell, ...]
    """By image size at batch 1."""
    by_size: tuple[MemoryCell, ...]
    """By image size at batch 8."""
    prices: tuple[Price, ...]
    curves: tuple[Price, ...]
    """The price over budgets, for the networks that are drawn."""
    published: tuple[PublishedFigure, ...]
    worth: Worth | None
    not_worth_because: str = ""
    """Why there is no answer about worth."""
