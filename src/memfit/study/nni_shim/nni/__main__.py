"""Command line for trials that are no Python programs: gets parameters and reports results.

python -m nni parameter            all parameters as JSON
python -m nni parameter lr         one of them, as text
python -m nni intermediate 0.83
python -m nni final 0.91
"""

import json
import sys

from . import trial

_USAGE = "usage: python -m nni parameter [NAME] | intermediate VALUE | final VALUE"


def main(words):
    """Run one command."""
    if len(words) == 2 and words[0] in ("intermediate", "final"):
        trial.get_next_parameter()
        report = trial.report_final_result if words[0] == "final" else trial.report_intermediate_result
        if words[0] == "intermediate":
            trial.overwrite_intermediate_seq(_num_reported())
        report(_value(words[1]))
    elif words[:1] == ["parameter"] and len(words) <= 2:
        parameters = trial.get_next_parameter()
        chosen = parameters[words[1]] if len(words) == 2 else parameters
        print(chosen if isinstance(chosen, str) else json.dumps(chosen))
    else:
        sys.exit(_USAGE)


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def _num_reported():
    """How many intermediate results earlier calls left."""
    try:
        with open(trial.metrics_path(), encoding="utf-8") as file:
            return sum('"PERIODICAL"' in line for line in file)
    except OSError:
        return 0


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyError as missing:
        sys.exit(f"there is no parameter {missing}")
