"""How are the tables of training at the edge written? As Markdown, which a terminal and a page of docs both show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memfit.records.edge import EdgeTables, MemoryCell, Price, PublishedFigure, Worth
from memfit.units import GIB, format_bytes


def edge_text(tables: EdgeTables) -> str:
    """Everything, in the order of the questions."""
    sizes = format_bytes(tables.budget_bytes)
    parts = [
        "Memory of one step in GiB, everything kept (in brackets: the least that any nested plan takes); parameters,\n"
        "gradients and activations, computed from shapes, no optimizer state",
        _memory("by batch at 224x224", tables.by_batch, by_batch=True),
        _memory("by image size at batch 1", tables.by_size_alone, by_batch=False),
        _memory("by image size at batch 8", tables.by_size, by_batch=False),
        f"Time of a step within {sizes} over the plain step, batch 8. Equal layers: the published formulas, with as\n"
        "many layers as the name says; otherwise the network as it is",
        _prices(tables.prices),
        "Published figures beside ours",
        _published(tables.published),
        _worth(tables.worth) if tables.worth is not None else f"Is it worth it? {tables.not_worth_because}",
    ]
    return "\n\n".join(parts) + "\n"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _memory(title: str, cells: Sequence[MemoryCell], *, by_batch: bool) -> str:
    columns = list(dict.fromkeys(cell.batch_size if by_batch else cell.image_size for cell in cells))
    rows = []
    for network in dict.fromkeys(cell.network for cell in cells):
        own = [cell for cell in cells if cell.network == network]
        rows.append([network, *(f"{_gib(cell.plain_bytes)} ({_gib(cell.smallest_bytes)})" for cell in own)])
    return markdown([title, *map(str, columns)], rows)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"


def _prices(prices: Sequence[Price]) -> str:
    heads = [
        "network", "image", "plain", "equal layers: slots", "sequential", "Revolve", "as it is: sequential", "Revolve",
        "optimal nested",
    ]  # fmt: skip
    return markdown(heads, (_price_row(price) for price in prices))


def _price_row(price: Price) -> list[str]:
    return [
        price.network, str(price.image_size), f"{_gib(price.plain_bytes)} GiB", str(price.linear_slots),
        *map(_times, (price.linear_sequential, price.linear_revolve, price.sequential, price.revolve, price.nested)),
    ]  # fmt: skip


def _times(ratio: float | None) -> str:
    return "does not fit" if ratio is None else f"x{ratio:.2f}"


def _published(figures: Sequence[PublishedFigure]) -> str:
    return markdown(["what", "published", "ours", "source"], ([f.what, f.published, f.ours, f.source] for f in figures))


def _worth(worth: Worth) -> str:
    asked = worth.links[0]
    lines = [
        "Is it worth it?",
        "",
        f"{worth.images_per_day} images a day of {worth.image_bytes / 1e3:.0f} kB, seen {worth.num_epochs} time(s) by "
        f"{worth.network} at {worth.image_size}x{worth.image_size}, {worth.gflop_per_image:.1f} GFLOP for one forward "
        "of one image:",
        "",
        f"- training at {worth.device_gflops:g} GFLOP/s with the plan (x{worth.slowdown:.2f}): "
        f"{_hours(worth.train_hours)}, {worth.train_watt_hours:.1f} Wh at {worth.device_watts:g} W; "
        f"at most {worth.most_images_per_day} images in a day",
        f"- sending over {asked.mbit_per_second:g} Mbit/s: {_hours(asked.send_hours)}, "
        f"{asked.send_watt_hours:.1f} Wh at {worth.link_watts:g} W; {asked.verdict}",
        f"- sending takes as long as training at {worth.equal_mbit_per_second:.2g} Mbit/s",
        "",
        markdown(
            ["link", "sending a day's images", "energy", "so"],
            (
                [f"{s.mbit_per_second:g} Mbit/s", _hours(s.send_hours), f"{s.send_watt_hours:.1f} Wh", s.verdict]
                for s in sorted(worth.links, key=lambda speed: speed.mbit_per_second)
            ),
        ),
    ]
    return "\n".join(lines)


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 0.1 else f"{hours * 60:.1f} min"
