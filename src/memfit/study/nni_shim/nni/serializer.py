"""NNI's `dump` and `load` for what JSON can hold, and `trace`, which changes nothing."""

import json


def dump(obj, fp=None, **options):
    """To a text, or into an open file."""
    options = {key: value for key, value in options.items() if key in ("indent", "sort_keys", "ensure_ascii")}
    return json.dumps(obj, **options) if fp is None else json.dump(obj, fp, **options)


def load(string="", fp=None, **ignored):
    """From a text, or from an open file."""
    return json.loads(string) if fp is None else json.load(fp)


def trace(cls_or_func=None, **ignored):
    """A decorator that leaves what it decorates as it is."""
    return (lambda decorated: decorated) if cls_or_func is None else cls_or_func
