"""Check of a search space, which custom tuners make before they read it."""

_TYPES = {
    "choice": None, "randint": 2, "uniform": 2, "quniform": 3, "loguniform": 2, "qloguniform": 3,
    "normal": 2, "qnormal": 3, "lognormal": 2, "qlognormal": 3,
}  # fmt: skip


def validate_search_space(search_space, support_types=None, raise_exception=False):
    """Whether every parameter is of a supported type with as many values as that takes; or raise what is wrong."""
    problem = _problem(search_space, support_types or list(_TYPES))
    if problem and raise_exception:
        raise ValueError(problem)
    return not problem


def _problem(search_space, supported):
    if not isinstance(search_space, dict):
        return f"search space is a {type(search_space).__name__}, expect a dict : {search_space!r}"
    for name, spec in search_space.items():
        if not isinstance(spec, dict) or "_type" not in spec or "_value" not in spec:
            return f"search space '{name}' does not have '_type' and '_value' : {spec!r}"
        kind, values = spec["_type"], spec["_value"]
        if kind not in supported:
            return f"search space '{name}' has unsupported type '{kind}' : {spec!r}"
        number = _TYPES.get(kind)
        if not isinstance(values, list) or (number is not None and len(values) != number):
            return f"search space '{name}' has wrong values for {kind} : {spec!r}"
    return ""
