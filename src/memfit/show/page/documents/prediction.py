"""Document of a prediction: its peaks by level, who is alive there, the sweep, savings and assumptions."""

from __future__ import annotations

import shlex

from memfit.records.prediction import Prediction
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
        return f"Predicted {name} peak: {size}, {place}; {_fit(prediction)}. {prediction.error_band}".strip()
    return "This prediction has no peak."


def _fit(prediction: Prediction) -> str:
    if prediction.memory_limit_bytes is None:
        return "no limit was given"
    limit = format_bytes(prediction.memory_limit_bytes)
    if prediction.failed is None:
        return f"it fits into {limit}"
    return f"it does not fit into {limit}: {prediction.failed.message}"
