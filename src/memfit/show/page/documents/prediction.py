"""Document of a prediction: its peaks by level, who is alive there, the sweep, savings and assumptions."""

from __future__ import annotations

import shlex

from memfit.records.prediction import Prediction, RankPredictions, named_ranks
from memfit.records.timeline import Timeline
from memfit.show.as_json import plain
from memfit.show.page.documents.document import Body, Document, traced_step
from memfit.show.views.cheapest_changes import cheapest_changes, fit_words
from memfit.units import format_bytes

HEADLINES = ("smallest", "device", "process", "reserved", "allocated", "tensors")
"""The first of these that a prediction knows is its headline."""


def prediction_document(prediction: Prediction) -> Document:
    """Everything the page draws of a prediction."""
    timeline = prediction.timeline
    body: Body = {
        name: plain(getattr(prediction, name))
        for name in prediction.__struct_fields__
        if name not in ("timeline", "format", "format_version")
    }
    device = "cpu" if prediction.device == "cpu" or timeline is None else device_of(timeline)
    body["sentence"] = prediction_sentence(prediction)
    body["fits"] = prediction.fits
    body["traced"] = [
        traced_step(one, device=device, name="the predicted steps", source="predicted")
        for one in (timeline,)
        if one is not None
    ]
    body["changes"] = [plain(change) for change in cheapest_changes(prediction.savings, fit_words(prediction))]
    name = shlex.join([prediction.target, *(prediction.arguments or ())])
    return Document(kind="prediction", title=f"{name} on {prediction.device}", body=body)


def ranks_document(found: RankPredictions) -> Document:
    """Every class of alike ranks with its own prediction; the page shows the fullest first."""
    body: Body = {
        "sentence": ranks_sentence(found),
        "fits": found.fits,
        "level": found.level,
        "fullest": found.classes.index(found.fullest),
        "asked_at": list(found.asked_at),
        "classes": [
            {
                "ranks": named_ranks(each.ranks),
                "num_ranks": len(each.ranks),
                "why": each.why,
                "num_bytes": found.bytes_of(each),
                "prediction": prediction_document(each.prediction).body,
            }
            for each in found.classes
        ],
    }
    return Document(
        kind="prediction", title=f"{found.target} on {found.num_ranks} x {found.device}, every rank", body=body
    )


def ranks_sentence(found: RankPredictions) -> str:
    """How the ranks differ, which one is the fullest, and whether all fit."""
    alike = "all alike" if len(found.classes) == 1 else f"of {len(found.classes)} kinds"
    full = found.fullest
    peak = f"rank {named_ranks(full.ranks)} is the fullest" if len(found.classes) > 1 else "each"
    fits = {None: "no limit was given", True: "every rank fits", False: "not every rank fits"}[found.fits]
    size = format_bytes(found.bytes_of(full))
    return f"{found.num_ranks} ranks, {alike}; {peak} with a predicted {found.level} peak of {size}; {fits}."


def device_of(timeline: Timeline) -> str:
    """The device with the most bytes that is not the host; the host where there is no other."""
    sums: dict[str, int] = {}
    for span in timeline.spans:
        sums[span.device] = sums.get(span.device, 0) + span.num_bytes
    others = {name: size for name, size in sums.items() if name != "cpu"}
    return max(others, key=lambda name: others[name]) if others else "cpu"


def prediction_sentence(prediction: Prediction) -> str:
    """The headline peak, where it is, whether it fits, and how far predictions of this kind were off."""
    for name in HEADLINES:
        figure = prediction.level(name)  # pyright: ignore[reportArgumentType]
        if figure is None or (figure.value is None and figure.high is None):
            continue
        size = format_bytes(figure.value if figure.value is not None else figure.high or 0.0)
        size = size if figure.value is not None else f"at most {size}"
        place = f"in the {prediction.at_peak.phase} of step {prediction.at_peak.step}"
        return f"Predicted {name} peak: {size}, {place}; {_fit(prediction)}. {_capital(prediction.error_band)}".strip()
    return "This prediction has no peak."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fit(prediction: Prediction) -> str:
    if prediction.memory_limit_bytes is None:
        return "no limit was given"
    limit = format_bytes(prediction.memory_limit_bytes)
    if prediction.failed is None:
        return f"it fits into {limit}"
    failed = prediction.failed
    where = ", ".join(part for part in (failed.module, failed.line) if part)
    asked = f"{format_bytes(failed.requested_bytes)} in the {failed.phase} of step {failed.step}"
    return f"it does not fit into {limit}: the first allocation that fails is {asked}{f' ({where})' if where else ''}"
