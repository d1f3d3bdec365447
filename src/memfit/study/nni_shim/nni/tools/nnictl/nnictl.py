"""The command `nnictl`: experiments are created, listed, resumed, stopped and exported as with NNI, and run by memfit.

    nnictl create --config config.yml         nnictl experiment list [--all]       nnictl trial ls [ID]
    nnictl resume ID                          nnictl experiment export [ID] ...    nnictl trial kill [ID] --trial_id T
    nnictl view ID                            nnictl experiment status [ID]        nnictl stop [ID | all]

ID may be left out where one experiment runs. What needs NNI's server or another platform is refused with a line.
"""

import argparse
import csv
import json
import os
import sys
import time
from dataclasses import asdict

from ...experiment import manifest
from ...experiment.config import plain
from ...experiment.data import final_value, job_of, metrics_of, trials_of
from ...experiment.experiment import Experiment, RunMode
from ...experiment.memfit_process import call_memfit, read_settings, read_study, running_pid, send_request

_REFUSED = {
    "algo": "memfit reads className and codeDirectory from the config; nothing is registered",
    "hello": "see examples/study of memfit",
    "jupyter-extension": "there is no extension for Jupyter",
    "package": "nothing is registered",
    "platform": "only the platform local is served; `memfit study --on slurm` runs trials on a cluster",
    "ss_gen": "annotations in the code are not read",
    "top": "use nnictl experiment list, or memfit study list",
    "trainingservice": "only the platform local is served",
    "webui": "there is no web server; `memfit study show FOLDER` prints the study",
}


class Refused(Exception):
    """A mistake of the user, said in one line."""


# ---- experiments --------------------------------------------------------------------------------------------------


def create(options):
    """Start an experiment from its config, in the background."""
    if not os.path.isfile(options.config):
        raise Refused(f"there is no such file: {options.config}")
    written = {plain(str(name)): value for name, value in (read_settings(options.config) or {}).items()}
    experiment = Experiment(None)
    working = written.get("experimentworkingdirectory") or written.get("logdir")
    base = os.path.dirname(os.path.abspath(options.config))
    place = os.path.join(base, os.path.expanduser(working)) if working else manifest.home()
    experiment._folder = os.path.join(os.path.normpath(place), experiment.id)
    words = [os.path.abspath(options.config), "-o", experiment._folder, "--id", experiment.id]
    _begin(experiment, words, options, str(written.get("experimentname") or "N/A"))


def resume(options):
    """Go on with an experiment."""
    experiment = Experiment(None, id=_known(options.id))
    experiment.load_checkpoint()
    entry = manifest.all_experiments()[experiment.id]
    _begin(experiment, ["resume", experiment._folder], options, entry["experimentName"])


def _begin(experiment, words, options, name):
    experiment._launch(words, options.port, RunMode.Detach)
    manifest.enter(experiment.id, experiment._folder, name, options.port)
    print(f"Successfully started experiment!\nThe experiment id is {experiment.id}")
    print("nnictl experiment list, nnictl trial ls, nnictl stop: list experiments, list trials, stop")
    if options.foreground:
        experiment._wait_completion()


def view(options):
    """Print an experiment, whether it runs or not."""
    print(call_memfit("memfit", "study", "show", _folder(_known(options.id))), end="")


def stop(options):
    """Stop one experiment, the one of a port, or all."""
    running = _running()
    if options.all or options.id == "all":
        chosen = list(running)
    elif options.port is not None:
        chosen = [name for name, entry in running.items() if entry.get("port") == options.port]
    else:
        chosen = [_one(options.id, running)]
    if not chosen:
        raise Refused("there is no experiment running")
    for name in chosen:
        print(f"Stopping experiment {name}")
        experiment = Experiment(None, id=name)
        experiment.load_checkpoint()
        experiment.stop()
    print("Stop experiment success.")


def list_experiments(options):
    """The experiments that run, or all of them."""
    found = manifest.all_experiments() if options.all else _running()
    if not found:
        hint = "" if options.all else "; nnictl experiment list --all lists all"
        print(f"There is no experiment {'' if options.all else 'running'}{hint}")
        return
    print(f"{'Id':<34}{'Name':<26}{'Status':<10}{'Port':<8}StartTime")
    for name, entry in found.items():
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["startTime"] / 1000))
        title, port = entry["experimentName"], entry.get("port") or ""
        print(f"{name:<34}{title:<26}{_status(name):<10}{port!s:<8}{began}")


def show(options):
    """What is known of an experiment."""
    print(json.dumps(_experiment(options.id).get_experiment_profile(), indent=4))


def status(options):
    """How an experiment stands."""
    experiment = _experiment(options.id)
    print(json.dumps({"status": experiment.get_status(), "jobs": experiment.get_job_statistics()}, indent=4))


def export(options):
    """Parameters and final results, as JSON or CSV."""
    study = read_study(_folder(_one(options.id)))
    rows = [_exported(trial, options.intermediate) for trial in trials_of(study) if final_value(trial) is not None]
    if not rows:
        raise Refused("no trial has a final result yet")
    with open(options.path, "w", newline="", encoding="utf-8") as file:
        if options.type == "json":
            json.dump(rows, file)
            return
        table = [_csv_row(row) for row in rows]
        names = list(dict.fromkeys(name for row in table for name in row))
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)


def _exported(trial, with_intermediate):
    row = {
        "parameter": trial["proposal"]["parameters"],
        "value": json.dumps(final_value(trial)),
        "trialJobId": trial["trial_id"],
    }
    if with_intermediate:
        row["intermediate"] = [json.dumps(each.data) for each in metrics_of(trial) if each.type == "PERIODICAL"]
    return row


def _csv_row(row):
    value = json.loads(row["value"])
    found = {"intermediate": "[" + ",".join(row["intermediate"]) + "]"} if "intermediate" in row else {}
    found.update(row["parameter"])
    found.update(value if isinstance(value, dict) else {"reward": value})
    return {**found, "trialJobId": row["trialJobId"]}


def change(options):
    """Another number of trials, at a time or in all, or another duration."""
    experiment = _experiment(options.id)
    change_it = {
        "concurrency": experiment.update_trial_concurrency,
        "trialnum": experiment.update_max_trial_number,
        "duration": experiment.update_max_experiment_duration,
    }[options.what]
    try:
        change_it(options.value)
    except ValueError as error:
        raise Refused(str(error)) from None
    print(f"INFO: Update {options.what} success!")


# ---- trials -------------------------------------------------------------------------------------------------------


def list_trials(options):
    """All trials as JSON, or those with the highest or lowest results."""
    folder = _folder(_one(options.id))
    trials = trials_of(read_study(folder))
    number = options.head or options.tail
    if number:
        with_result = [trial for trial in trials if trial.get("metric") is not None]
        trials = sorted(with_result, key=lambda trial: trial["metric"], reverse=bool(options.head))[:number]
    print(json.dumps([asdict(job_of(trial, folder)) for trial in trials], indent=4))


def kill_trial(options):
    """End one running trial."""
    folder = _folder(_one(options.id, _running()))
    known = {trial["trial_id"] for trial in trials_of(read_study(folder))}
    if options.trial_id not in known:
        raise Refused(f"there is no trial {options.trial_id}: nnictl trial ls")
    send_request(folder, {"end_trial": options.trial_id, "reason": "it was ended by nnictl trial kill"})
    print(f"INFO: trial {options.trial_id} is being ended")


def log(options):
    """What the coordinator wrote, or where the trials' logs are."""
    folder = _folder(_one(options.id))
    if options.what == "trial":
        for trial in trials_of(read_study(folder)):
            if options.trial_id in (None, trial["trial_id"]):
                print(f"id:{trial['trial_id']} path:{job_of(trial, folder).logPath}")
        return
    with open(os.path.join(folder, "log", f"nnictl_{options.what}.log"), encoding="utf-8", errors="replace") as file:
        lines = file.readlines()
    lines = lines[: options.head] if options.head else lines[-options.tail :] if options.tail else lines
    print("".join(lines), end="")


# ---- which experiment ---------------------------------------------------------------------------------------------


def _running():
    return {name: entry for name, entry in manifest.all_experiments().items() if manifest.is_running(entry)}


def _one(experiment_id, among=None):
    """The id that was given; without one, the only experiment that runs, or the latest one."""
    if experiment_id is not None:
        return _known(experiment_id)
    found = list(_running())
    if len(found) > 1:
        raise Refused(f"several experiments run, give the id of one: {', '.join(found)}")
    if not found and among is not None:
        raise Refused("there is no experiment running")
    found = found or list(manifest.all_experiments())
    if not found:
        raise Refused("there is no experiment")
    return found[-1]


def _known(experiment_id):
    if experiment_id not in manifest.all_experiments():
        raise Refused(f"there is no experiment {experiment_id}: nnictl experiment list --all")
    return experiment_id


def _folder(experiment_id):
    return manifest.all_experiments()[experiment_id]["folder"]


def _experiment(experiment_id):
    experiment = Experiment(None, id=_one(experiment_id))
    experiment.load_checkpoint()
    return experiment


def _status(experiment_id):
    if running_pid(_folder(experiment_id)) is not None:
        return "RUNNING"
    return _experiment(experiment_id).get_status()


# ---- the command line ---------------------------------------------------------------------------------------------


def parser():
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="nnictl", description="Experiments of NNI, run by memfit.")
    top.add_argument("--version", "-v", action="store_true", help="print the version")
    commands = top.add_subparsers(dest="command")
    _add_running(commands)
    experiment = commands.add_parser("experiment", help="information of experiments").add_subparsers(dest="what")
    listing = experiment.add_parser("list")
    listing.add_argument("--all", action="store_true", help="those that have ended as well")
    listing.set_defaults(run=list_experiments)
    for name, function in (("show", show), ("status", status)):
        _with_id(experiment.add_parser(name)).set_defaults(run=function)
    exporting = _with_id(experiment.add_parser("export"))
    exporting.add_argument("--type", "-t", choices=["json", "csv"], required=True)
    exporting.add_argument("--filename", "-f", required=True, dest="path")
    exporting.add_argument("--intermediate", "-i", action="store_true")
    exporting.set_defaults(run=export)
    _add_trials(commands)
    for name, why in _REFUSED.items():
        refused = commands.add_parser(name)
        refused.add_argument("rest", nargs=argparse.REMAINDER)
        refused.set_defaults(run=lambda options, why=why: _refuse(options.command, why))
    return top


def _refuse(name, why):
    raise Refused(f"nnictl {name} is not served: {why}")


def _with_id(command):
    command.add_argument("id", nargs="?", help="id of the experiment")
    return command


def _add_running(commands):
    creating = commands.add_parser("create", help="start an experiment")
    creating.add_argument("--config", "-c", required=True)
    resuming = commands.add_parser("resume", help="go on with an experiment")
    resuming.add_argument("id")
    for command, function in ((creating, create), (resuming, resume)):
        command.add_argument("--port", "-p", type=int, default=8080, help="a number to connect by")
        command.add_argument("--debug", "-d", action="store_true")
        command.add_argument("--foreground", "-f", action="store_true", help="wait until it is done")
        command.set_defaults(run=function)
    viewing = commands.add_parser("view", help="print an experiment")
    viewing.add_argument("id")
    viewing.add_argument("--port", "-p", type=int)
    viewing.set_defaults(run=view)
    stopping = _with_id(commands.add_parser("stop", help="stop an experiment"))
    stopping.add_argument("--port", "-p", type=int)
    stopping.add_argument("--all", "-a", action="store_true")
    stopping.set_defaults(run=stop)


def _add_trials(commands):
    trial = commands.add_parser("trial", help="information of trials").add_subparsers(dest="what")
    listing = _with_id(trial.add_parser("ls"))
    listing.add_argument("--head", type=int)
    listing.add_argument("--tail", type=int)
    listing.set_defaults(run=list_trials)
    killing = _with_id(trial.add_parser("kill"))
    killing.add_argument("--trial_id", "-T", required=True)
    killing.set_defaults(run=kill_trial)
    update = commands.add_parser("update", help="change an experiment that runs").add_subparsers(dest="what")
    for name in ("concurrency", "trialnum", "duration"):
        changing = _with_id(update.add_parser(name))
        changing.add_argument("--value", "-v", required=True)
        changing.set_defaults(run=change)
    logs = commands.add_parser("log", help="what was printed").add_subparsers(dest="what")
    for name in ("stdout", "stderr", "trial"):
        reading = _with_id(logs.add_parser(name))
        reading.add_argument("--head", "-H", type=int)
        reading.add_argument("--tail", "-T" if name != "trial" else "-n", type=int)
        reading.add_argument("--trial_id", *(["-T"] if name == "trial" else []))
        reading.set_defaults(run=log)


def parse_args(words=None):
    """Run one command."""
    top = parser()
    options = top.parse_args(words)
    if options.version:
        from ... import __version__

        print(__version__)
    elif not hasattr(options, "run"):
        top.print_help()
    else:
        try:
            options.run(options)
            sys.stdout.flush()
        except BrokenPipeError:  # `nnictl trial ls | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Refused, RuntimeError) as error:
            sys.exit(f"ERROR: {error}")


if __name__ == "__main__":
    parse_args()
