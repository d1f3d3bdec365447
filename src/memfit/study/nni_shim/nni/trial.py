"""Parameters of an NNI trial and the file that its results go to."""

import os

__all__ = [
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
]

_environment = os.environ
_is_standalone = _environment.get("NNI_PLATFORM") in (None, "unittest")
_folder = _environment.get("MEMFIT_TRIAL_FOLDER", "")
_record = None
_intermediate_seq = 0
_metrics_file = None
is_silent = False


def get_experiment_id():
    """The study's id."""
    return _environment.get("NNI_EXP_ID") or "STANDALONE"


def get_trial_id():
    """The trial's id."""
    return _environment.get("NNI_TRIAL_JOB_ID") or "STANDALONE"


def get_sequence_id():
    """The trial's number, from 0."""
    return int(_environment.get("NNI_TRIAL_SEQ_ID") or 0)


def get_next_parameter():
    """This trial's parameters; the same ones however often it is called."""
    global _record
    if _record is None:
        _record = _standalone_record() if _is_standalone else _read_record()
    return _record["parameters"]


def get_next_parameters():
    """The same as get_next_parameter."""
    return get_next_parameter()


def get_current_parameter(tag=None):
    """The parameters that were got before, or one of them."""
    if _record is None:
        return None
    return _record["parameters"] if tag is None else _record["parameters"][tag]


def report_intermediate_result(metric):
    """Report how the trial stands: a number, or a dict whose 'default' is one."""
    global _intermediate_seq
    _report("PERIODICAL", _intermediate_seq, metric)
    _intermediate_seq += 1


def report_final_result(metric):
    """Report what came out: a number, or a dict whose 'default' is one. The first one counts."""
    _report("FINAL", 0, metric)


def overwrite_intermediate_seq(value):
    """Go on counting intermediate results from here, after a checkpoint was loaded."""
    global _intermediate_seq
    _intermediate_seq = value


def _report(kind, sequence, metric):
    if _is_standalone:
        _say(kind, sequence, metric)
        return
    assert _record is not None, "nni.get_next_parameter() needs to be called before a result is reported"
    _append(kind, sequence, metric)


def _standalone_record():
    import warnings

    warnings.warn(
        "Running trial code without runtime: no parameters, and results are only printed. "
        "`memfit study CONFIG` runs it with both.",
        RuntimeWarning,
        stacklevel=3,
    )
    return {"parameter_id": None, "parameters": {}}


def _read_record():
    from json import loads

    path = os.path.join(_folder, "parameter.json")
    try:
        with open(path, encoding="utf-8") as file:
            return loads(file.read())
    except OSError as error:
        raise RuntimeError(f"the parameters of this trial cannot be read: {error}") from None


def _append(kind, sequence, metric):
    global _metrics_file
    from time import time

    from .plain_json import dumps

    if _metrics_file is None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        _metrics_file = os.open(metrics_path(), flags, 0o644)
    head = f'"type": "{kind}", "sequence": {sequence}, "time": {time():.6f}'
    line = f'{{{head}, "value": {dumps(metric)}}}\n'
    os.write(_metrics_file, line.encode("utf-8"))


def metrics_path():
    """The file that results are appended to."""
    return os.path.join(_folder, "metrics.jsonl")


def _say(kind, sequence, metric):
    """As NNI logs results of a run by hand."""
    if is_silent:
        return
    from time import strftime

    what = f"Final result: {metric}"
    if kind == "PERIODICAL":
        what = f"Intermediate result: {metric}  (Index {sequence})"
    moment = strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{moment}] {what}", flush=True)
