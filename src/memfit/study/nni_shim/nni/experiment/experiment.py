"""An experiment that a Python program starts, follows and stops; memfit runs its trials and measures each of them.

The coordinator is a process of its own (`memfit study`), in the folder WORKING_DIRECTORY/ID. It is stopped when the
program ends, unless it was started with RunMode.Detach, and another program may connect to it by its port or id.
There is no web server: the port is only a name to connect by.
"""

import atexit
import json
import logging
import os
import random
import signal
import string
import subprocess
import time
from enum import Enum
from typing import Any

from . import manifest
from .config import USUAL_FOLDER, ExperimentConfig
from .data import TrialResult, final_value, job_of, metrics_of, status_of, trials_of
from .memfit_process import memfit_python, read_study, running_pid, send_request

START_SECONDS = 120
"""How long the coordinator may take until its study is there."""
_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_logger = logging.getLogger("nni.experiment")


class RunMode(Enum):
    """What becomes of the experiment when the program ends: Detach lets it go on, the others stop it."""

    Background = "background"
    Foreground = "foreground"
    Detach = "detach"


def say(sentence):
    """One line on the terminal, as NNI's logs look."""
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + sentence, flush=True)


class Experiment:
    """Experiment('local'), then fill in `config`, then run()."""

    def __init__(self, config_or_platform, id=None):
        is_name = isinstance(config_or_platform, (str, list))
        self.config = ExperimentConfig(config_or_platform) if is_name else config_or_platform
        if id is not None and not _is_valid(id):
            raise ValueError(f"Invalid experiment ID: {id}. Use letters, digits, - and _, at most 32 of them.")
        self.id = id or "".join(random.SystemRandom().choices(string.ascii_lowercase + string.digits, k=8))
        self.port = None
        self.url_prefix = None
        self._folder: Any = None
        self._process: Any = None
        self._is_viewed = False
        self._ended_study = None

    # ---- starting and stopping --------------------------------------------------------------------------------------

    def start(self, port=8080, debug=False, run_mode=RunMode.Background):
        """Start in the background; returns once the study is there, and raises when it cannot be."""
        assert self.config is not None, "the experiment has no config"
        self.config.validate()
        self._folder = self._own_folder()
        log = os.path.join(self._folder, "log")
        os.makedirs(log, exist_ok=True)
        config_path = os.path.join(log, "experiment.json")
        with open(config_path, "w", encoding="utf-8") as file:
            json.dump(self.config.json(), file, indent=1)
        say(f"Creating experiment, Experiment ID: {self.id}")
        self._launch([config_path, "-o", self._folder, "--id", self.id], port, run_mode)

    def _own_folder(self):
        known = manifest.all_experiments().get(self.id)
        if self.config is None:
            return known["folder"] if known else None
        is_usual = self.config.experiment_working_directory in (None, USUAL_FOLDER)
        working = manifest.home() if is_usual else self.config.json()["experimentWorkingDirectory"]
        return os.path.join(working, self.id)

    def _launch(self, words, port, run_mode):
        """Start the coordinator and wait until it runs the study."""
        log = os.path.join(self._folder, "log")
        os.makedirs(log, exist_ok=True)
        command = [memfit_python(), "-m", "memfit", "study", *words, "--no-figures"]
        out = open(os.path.join(log, "nnictl_stdout.log"), "ab")  # noqa: SIM115
        err = open(os.path.join(log, "nnictl_stderr.log"), "ab")  # noqa: SIM115
        first_error = err.tell()
        with out, err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        self._ended_study = None
        self._wait_for_start(first_error)
        self.port = port
        name = (self.config.experiment_name if self.config else None) or "N/A"
        manifest.enter(self.id, self._folder, name, port)
        if run_mode is not RunMode.Detach:
            atexit.register(self.stop)
        say(f"Every trial is measured: memfit study show {_shown(self._folder)}")

    def _wait_for_start(self, first_error):
        deadline = time.monotonic() + START_SECONDS
        while running_pid(self._folder) != self._process.pid:
            code = self._process.poll()
            if code == 0:
                return  # there was nothing left to do
            if code is not None:
                with open(os.path.join(self._folder, "log", "nnictl_stderr.log"), encoding="utf-8") as file:
                    file.seek(first_error)
                    raise RuntimeError(file.read().strip() or f"the experiment could not be started (exit code {code})")
            if time.monotonic() > deadline:
                self._process.kill()
                raise RuntimeError(f"the experiment did not start within {START_SECONDS} s")
            time.sleep(0.02)

    def run(self, port=8080, wait_completion=True, debug=False):
        """Start, and wait until the experiment is done: True when it ended well. Ctrl-C stops it."""
        return self._run(lambda: self.start(port, debug), wait_completion)

    def _run(self, start, wait_completion):
        try:
            start()
            if wait_completion:
                return self._wait_completion()
        except KeyboardInterrupt:
            say("KeyboardInterrupt detected")
            self.stop()
        return None

    def _wait_completion(self):
        while self.get_status() in ("INITIALIZED", "RUNNING"):
            if self._process is None:
                time.sleep(0.5)
            else:
                self._process.wait()
        status = self.get_status()
        say(f"Experiment {self.id} is {status}: memfit study show {_shown(self._folder)}")
        return status in ("DONE", "STOPPED")

    def stop(self):
        """End the experiment and its running trials; `resume` runs those again."""
        atexit.unregister(self.stop)
        pid = None if self._folder is None else running_pid(self._folder)
        if pid is None:
            self.port = None
            return
        say("Stopping experiment, please wait...")
        os.kill(pid, signal.SIGTERM)
        while running_pid(self._folder) == pid:
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.05)
        self.port = None
        say("Experiment stopped.")

    def resume(self, port=8080, wait_completion=True, debug=False):
        """Go on with an experiment that was stopped."""
        experiment = _named(self)
        experiment.load_checkpoint()
        return experiment._run(lambda: experiment._go_on(port), wait_completion)

    def _go_on(self, port, *options):
        self._folder = manifest.all_experiments()[self.id]["folder"]
        say(f"Resuming experiment, Experiment ID: {self.id}")
        self._launch(["resume", self._folder, *options], port, RunMode.Background)

    def run_or_resume(self, port=8080, wait_completion=True, debug=False):
        """Resume when there is an experiment of this id, run it otherwise."""
        action = self.resume if self.has_checkpoint() else self.run
        return action(port, wait_completion, debug)

    def has_checkpoint(self):
        """Whether there is an experiment of this id."""
        return self.id in manifest.all_experiments()

    def load_checkpoint(self):
        """Find the experiment of this id; its config is the one it was started with."""
        if not self.has_checkpoint():
            raise RuntimeError(f"Experiment {self.id} does not exist thus cannot be resumed.")
        self._folder = manifest.all_experiments()[self.id]["folder"]
        path = os.path.join(self._folder, "log", "experiment.json")
        if self.config is None and os.path.exists(path):
            self.config = ExperimentConfig.load(path)

    def save_checkpoint(self):
        """Nothing to do: whatever happens in a study is stored when it happens."""

    def view(self, port=8080, non_blocking=False):
        """Look at an experiment, whether it runs or not; its results can be asked for afterwards."""
        experiment = _named(self)
        experiment.load_checkpoint()
        experiment._is_viewed = True
        say(f"Experiment {experiment.id}: memfit study show {_shown(experiment._folder)}")
        return experiment

    @classmethod
    def connect(cls, port):
        """The running experiment that was started with this port."""
        for name, entry in reversed(list(manifest.all_experiments().items())):
            if entry.get("port") == port and manifest.is_running(entry):
                experiment = cls(None, id=name)
                experiment.load_checkpoint()
                experiment.port = port
                say(f"Connect to port {port} success, experiment id is {name}, status is {experiment.get_status()}.")
                return experiment
        raise ConnectionError(f"no running experiment was started with port {port}: nnictl experiment list")

    # ---- what is known ----------------------------------------------------------------------------------------------

    def get_status(self):
        """RUNNING, DONE, STOPPED or ERROR; VIEWED for an experiment that is looked at and does not run."""
        if self._folder is None:
            raise RuntimeError("the experiment was not started")
        code = None if self._process is None else self._process.poll()
        if running_pid(self._folder) is not None and code is None:
            return "RUNNING"
        if self._is_viewed:
            return "VIEWED"
        if code is None:
            return "DONE" if self._is_used_up() else "STOPPED"
        return {0: "DONE", 130: "STOPPED"}.get(code, "ERROR")

    def _is_used_up(self):
        """Whether as many trials have ended as were asked for."""
        study = self._study()
        most = study["settings"].get("max_trials")
        return most is not None and sum(status_of(trial) != "RUNNING" for trial in trials_of(study)) >= most

    def _study(self):
        if self._folder is None:
            raise RuntimeError("the experiment was not started")
        has_ended = running_pid(self._folder) is None  # looked at first: what is read after the end is all there is
        if self._ended_study is None or not has_ended:
            study = read_study(self._folder)
            self._ended_study = study if has_ended else None
            return study
        return self._ended_study

    def get_trial_job(self, trial_job_id):
        """One trial."""
        for job in self.list_trial_jobs():
            if job.trialJobId == trial_job_id:
                return job
        raise KeyError(f"there is no trial {trial_job_id}")

    def list_trial_jobs(self):
        """All trials."""
        return [job_of(trial, self._folder) for trial in trials_of(self._study())]

    def get_job_statistics(self):
        """How many trials there are of each status."""
        numbers = {}
        for trial in trials_of(self._study()):
            numbers[status_of(trial)] = numbers.get(status_of(trial), 0) + 1
        return [{"trialJobStatus": status, "trialJobNumber": number} for status, number in numbers.items()]

    def get_job_metrics(self, trial_job_id=None):
        """All results of all trials, or of one, by the trial's id."""
        found = {trial["trial_id"]: metrics_of(trial) for trial in trials_of(self._study())}
        wanted = found if trial_job_id is None else {trial_job_id: found.get(trial_job_id, [])}
        return {name: metrics for name, metrics in wanted.items() if metrics}

    def export_data(self):
        """Parameters and final result of every trial that ended well."""
        ended = [trial for trial in trials_of(self._study()) if final_value(trial) is not None]
        return [
            TrialResult(trial["proposal"]["parameters"], json.dumps(final_value(trial)), trial["trial_id"])
            for trial in ended
        ]

    def get_experiment_profile(self):
        """Config, id and extent of the experiment."""
        study = self._study()
        entry = manifest.all_experiments().get(self.id, {})
        settings, trials = study["settings"], trials_of(study)
        params = {} if self.config is None else self.config.json()
        params.update(trialConcurrency=settings["concurrency"], maxTrialNumber=settings["max_trials"])
        return {
            "id": study["study_id"],
            "params": params,
            "logDir": self._folder,
            "startTime": entry.get("startTime"),
            "maxSequenceId": max([trial["proposal"]["number"] for trial in trials], default=-1),
        }

    def get_experiment_metadata(self, exp_id):
        """What is known of one experiment."""
        return next((entry for entry in self.get_all_experiments_metadata() if entry["id"] == exp_id), {})

    def get_all_experiments_metadata(self):
        """What is known of all experiments."""
        found = manifest.all_experiments()
        return [{"id": name, **entry, "pid": running_pid(entry["folder"])} for name, entry in found.items()]

    # ---- changes while it runs --------------------------------------------------------------------------------------

    def _update(self, field, value, option=None):
        if running_pid(self._folder) is not None:
            send_request(self._folder, {field: value})
        elif option is None:
            raise RuntimeError("the experiment does not run")
        else:
            self._go_on(self.port, option, str(value))

    def update_trial_concurrency(self, value):
        """Run so many trials at a time."""
        self._update("concurrency", _at_least_one(value, "the concurrency"), "--concurrency")

    def update_max_trial_number(self, value):
        """Run so many trials in all; an experiment that was done goes on."""
        self._update("max_trials", _at_least_one(value, "the number of trials"), "--trials")

    def update_max_experiment_duration(self, value):
        """Start no trial after this long: seconds, or a text such as 10m or 2h."""
        self._update("max_seconds", _seconds(value))

    def update_search_space(self, value):
        """Refused: the trials of one study share one search space."""
        raise NotImplementedError("a study has one search space: start another experiment with the new one")

    def kill_trial_job(self, trial_job_id):
        """End one running trial."""
        if running_pid(self._folder) is None:
            raise RuntimeError("the experiment does not run")
        send_request(self._folder, {"end_trial": trial_job_id, "reason": "it was ended by kill_trial_job"})


def _at_least_one(value, what):
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ValueError(f"{what} is a whole number from 1 on, found {value!r}")
    return number


def _seconds(value):
    """Seconds, or a text such as 30s, 10m or 2h."""
    text = str(value).strip()
    try:
        seconds = float(text[:-1]) * _TIMES[text[-1]] if text[-1:] in _TIMES else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"the duration is seconds, or a text such as 30s, 10m or 2h, found {value!r}")
    return seconds


def _shown(folder):
    """A folder as one would type it here."""
    near = os.path.relpath(folder)
    return folder if near.startswith("..") else near


def _is_valid(experiment_id):
    allowed = string.ascii_letters + string.digits + "-_"
    return 0 < len(experiment_id) <= 32 and all(letter in allowed for letter in experiment_id)


def _named(experiment):
    """The experiment itself, or the one of an id: Experiment.resume(id) is how NNI 2 writes it."""
    return Experiment(None, id=experiment) if isinstance(experiment, str) else experiment
