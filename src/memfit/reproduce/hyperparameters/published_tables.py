"""The published trials on memory and hyperparameters: three tables, each as a study that `memfit explain` reads.

Source: Mahendran N, "Analysis of memory consumption by neural networks based on hyperparameters": fully connected
networks on MNIST, Fashion-MNIST and CIFAR-10, on a machine with 16 GB. A second process read the system's used memory
every 5 s; the average over a trial is what the tables give.

The tables say MB. The numbers are multiples of 4096-byte pages (divided by the number of readings that were averaged)
when an MB is 2^20 bytes, and are not when it is 10^6: they are MiB.
"""

from __future__ import annotations

from memfit.errors import UsageError
from memfit.job.network_size import known_size
from memfit.records.figure import measured, unknown
from memfit.records.study import (
    Choice,
    Integers,
    Proposal,
    SearchSpace,
    Span,
    Study,
    StudySettings,
    TrialOutcome,
    TrialRecord,
)
from memfit.records.study_findings import SYSTEM_MEMORY
from memfit.units import MIB

SOURCE = "Mahendran N, Analysis of memory consumption by neural networks based on hyperparameters"
READING = f"{SYSTEM_MEMORY}: average of readings every 5 s"
PREFIX = "paper-"
"""'paper-mnist' names the table of MNIST, where a study is asked for."""

Row = tuple[float, int, int, str, float]
"""Learning rate, epochs, batch size, widths of the hidden layers, memory in MiB."""

TABLES: dict[str, tuple[Row, ...]] = {
    "mnist": (
        (0.7886, 18, 8, "285-389-423-173-61", 2516.309735),
        (0.0583, 25, 40, "48-236-233-318-245-139", 2519.748392),
        (0.0005, 21, 97, "141-191-150-84-125-148-39", 2506.735677),
        (0.0009, 46, 98, "149-310-180-265-163", 2585.272978),
        (0.0042, 22, 66, "80-60-168-175-54-115-166-321-231", 2533.35625),
        (0.00042, 22, 66, "80-60-168-175-54-115-166-321-231", 3134.870028),
        (0.00087, 35, 90, "252-196-244-215-163-339", 2854.54834),
        (0.0006, 24, 50, "178-12-444-8-200-318-58", 2931.835938),
        (0.00012, 26, 47, "248-27-203-398-281", 2992.872013),
        (0.00065, 28, 88, "150-5-157-216-398", 3011.547743),
        (0.0012, 15, 27, "138-37-207-326-232", 3064.187174),
    ),
    "fashion-mnist": (
        (0.3617, 16, 17, "439-176-388-307-326-160", 2655.838252),
        (0.1482, 6, 11, "349-177-465-506-52-107", 2701.582899),
        (0.0004, 22, 6, "181-107-137-259-334-243", 2660.471612),
        (0.0002, 30, 18, "362-316-347-380-245-124", 2693.458608),
        (0.0016, 12, 11, "218-45-108-400-121", 2611.620271),
    ),
    "cifar-10": (
        (0.0014, 16, 14, "233-425-299-363-102", 4318.107143),
        (0.0019, 11, 7, "124-150-273-191-301-293", 3963.642543),
        (0.0069, 12, 13, "318-312-412-254-387-60", 3950.009931),
        (0.0005, 7, 26, "256-128-256-128-128", 3830.008464),
        (0.0062, 13, 8, "484-195-394-163-322-126", 3982.532723),
    ),
}


def published_study(data: str) -> Study:
    """One published table as a study; the trials have the numbers of its rows, from 1."""
    if data not in TABLES:
        raise UsageError(f"there is no published table {data!r}", hint=f"one of {', '.join(TABLES)}")
    settings = StudySettings(
        name=f"published {data}",
        source=SOURCE,
        workload="mlp",
        fixed={"data": data, "optimizer": "adam"},
        space=published_space(data),
        notes=("The optimizer is not published; Adam is assumed.",),
    )
    trials = tuple(_trial(number, row, data) for number, row in enumerate(TABLES[data], start=1))
    return Study(study_id=f"published-{data}", settings=settings, trials=trials)


def find_published(target: str) -> Study | None:
    """The published table that 'paper-mnist' and its like name; None when it names none."""
    data = target.removeprefix(PREFIX)
    return published_study(data) if data != target and data in TABLES else None


def _trial(number: int, row: Row, data: str) -> TrialRecord:
    lr, epochs, batch_size, hidden, memory_mib = row
    return TrialRecord(
        proposal=Proposal(
            number=number, parameters={"lr": lr, "epochs": epochs, "batch_size": batch_size, "hidden": hidden}
        ),
        outcome=TrialOutcome(kind="done"),
        others=known_size("mlp", {"data": data, "hidden": hidden}),
        average=measured(memory_mib * MIB, "bytes", READING),
        peak=unknown("bytes", "not published"),
        background=unknown("bytes", "not published: what other programs held is in the number"),
        end_order=number - 1,
    )


def published_space(data: str) -> SearchSpace:
    """Ranges around what was published: rate and batch between their extremes, layers as often and as wide as
    theirs."""
    rows = TABLES[data]
    widths = [[int(width) for width in row[3].split("-")] for row in rows]
    return SearchSpace(
        parameters=(
            Span(name="lr", low=min(r[0] for r in rows), high=max(r[0] for r in rows), log=True),
            Integers(name="epochs", low=min(r[1] for r in rows), end=max(r[1] for r in rows) + 1),
            Integers(name="batch_size", low=min(r[2] for r in rows), end=max(r[2] for r in rows) + 1),
            Choice(name="hidden", options=_drawn_layers(widths)),
        )
    )


def _drawn_layers(widths: list[list[int]], count: int = 200, seed: int = 11) -> tuple[str, ...]:
    """Lists of widths drawn from the published ranges: the number of layers and each width between the extremes."""
    from random import Random

    random = Random(seed)
    depths, every = [len(each) for each in widths], [width for each in widths for width in each]
    drawn = []
    for _ in range(count):
        depth = random.randint(min(depths), max(depths))
        drawn.append("-".join(str(random.randint(min(every), max(every))) for _ in range(depth)))
    return tuple(drawn)
