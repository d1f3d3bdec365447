"""Config of an experiment, field by field as in NNI; it is checked by memfit when the experiment starts.

Names are free as NNI's are: `trialCommand`, `trial_command` and `TrialCommand` are one field in a constructor or a
file. An attribute that is no field is refused, so that a misspelt one is no silent default.
"""

import copy
import os

from .memfit_process import read_settings

PATHS = ("search_space_file", "trial_code_directory", "experiment_working_directory", "code_directory")
USUAL_FOLDER = "~/nni-experiments"
NOT_CHOSEN = "_none_"
"""Name of a tuner or assessor that is there to be filled in, and was not."""


def plain(name):
    """A field's name without case and underscores."""
    return name.lower().replace("_", "")


def camel_case(name):
    """trial_command as trialCommand."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


class Config:
    """Fields with defaults; None is: not set."""

    FIELDS = {}  # noqa: RUF012

    def __init__(self, **given):
        object.__setattr__(self, "_base_path", os.getcwd())
        by_name = {plain(name): value for name, value in given.items()}
        for name, default in self.FIELDS.items():
            setattr(self, name, by_name.pop(plain(name), copy.deepcopy(default)))
        if by_name:
            raise AttributeError(f"{type(self).__name__} does not have field(s) {', '.join(sorted(by_name))}")

    def __setattr__(self, name, value):
        if name not in self.FIELDS and not name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} does not have field {name}")
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        raise AttributeError(f"{type(self).__name__} does not have field {name}")

    def __repr__(self):
        given = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS if getattr(self, name) is not None)
        return f"{type(self).__name__}({given})"

    def __eq__(self, other):
        return type(self) is type(other) and self.json() == other.json()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def load(cls, path):
        """Read a file, YAML or JSON; paths in it are relative to its folder."""
        written = read_settings(path)
        if not isinstance(written, dict):
            raise TypeError(f"Content of config file {path} is not a dict/object")
        config = cls(**written)
        config._move_base(os.path.dirname(os.path.abspath(str(path))))
        return config

    def _move_base(self, folder):
        self._base_path = folder
        for name in self.FIELDS:
            if isinstance(getattr(self, name), Config):
                getattr(self, name)._move_base(folder)

    def json(self):
        """The config as a JSON object with whole paths; what is not set is left out."""
        found = {}
        for name in self.FIELDS:
            value = getattr(self, name)
            if value is not None and not _is_not_chosen(value):
                found[camel_case(name)] = self._written(name, value)
        return found

    def _written(self, name, value):
        if isinstance(value, Config):
            return value.json()
        if isinstance(value, (list, tuple)):
            return [self._written(name, each) for each in value]
        if name in PATHS:
            return os.path.normpath(os.path.join(self._base_path, os.path.expanduser(str(value))))
        return str(value) if isinstance(value, os.PathLike) else value

    def canonical_copy(self):
        """A copy of the config."""
        return copy.deepcopy(self)

    def validate(self):
        """Raise when a field is missing that every experiment needs; the rest is checked at its start."""
        self.json()


def _is_not_chosen(value):
    return isinstance(value, Config) and getattr(value, "name", None) == NOT_CHOSEN


class _Algorithm(Config):
    FIELDS = {"name": None, "class_name": None, "code_directory": None, "class_args": None}  # noqa: RUF012


class AlgorithmConfig(_Algorithm):
    """A built-in tuner or assessor."""

    FIELDS = {"name": None, "class_args": None}  # noqa: RUF012


class CustomAlgorithmConfig(_Algorithm):
    """A tuner, assessor or advisor of one's own."""

    FIELDS = {"class_name": None, "code_directory": ".", "class_args": None}  # noqa: RUF012


class LocalConfig(Config):
    """The platform `local`."""

    FIELDS = {  # noqa: RUF012
        "platform": "local",
        "trial_command": None,
        "trial_code_directory": None,
        "trial_gpu_number": None,
        "debug": None,
        "nni_manager_ip": None,
        "use_active_gpu": None,
        "max_trial_number_per_gpu": 1,
        "gpu_indices": None,
        "reuse_mode": None,
    }


class ExperimentConfig(Config):
    """ExperimentConfig('local') is a template to fill in; ExperimentConfig(trial_command=...) takes fields at once."""

    FIELDS = {  # noqa: RUF012
        "experiment_name": None,
        "experiment_type": "hpo",
        "search_space_file": None,
        "search_space": None,
        "trial_command": None,
        "trial_code_directory": ".",
        "trial_concurrency": None,
        "trial_gpu_number": None,
        "max_experiment_duration": None,
        "max_trial_number": None,
        "max_trial_duration": None,
        "nni_manager_ip": None,
        "use_annotation": None,
        "debug": None,
        "log_level": None,
        "experiment_working_directory": USUAL_FOLDER,
        "tuner_gpu_indices": None,
        "tuner": None,
        "assessor": None,
        "advisor": None,
        "training_service": None,
        "shared_storage": None,
    }

    def __init__(self, training_service_platform=None, **given):
        super().__init__(**given)
        if training_service_platform is not None:
            self.training_service = _service(training_service_platform)
        for kind in ("tuner", "assessor", "advisor"):
            value = getattr(self, kind)
            if isinstance(value, dict):
                setattr(self, kind, _Algorithm(**value))
            elif value is None and training_service_platform is not None:
                setattr(self, kind, _Algorithm(name=NOT_CHOSEN, class_args={}))
        if isinstance(self.training_service, dict):
            _service(self.training_service.get("platform", "local"))
            self.training_service = LocalConfig(**self.training_service)

    def validate(self):
        """Raise when a field is missing that every experiment needs; the rest is checked at its start."""
        for name in ("trial_command", "trial_concurrency"):
            service = self.training_service if isinstance(self.training_service, LocalConfig) else LocalConfig()
            if getattr(self, name) is None and getattr(service, name, None) is None:
                raise ValueError(f"ExperimentConfig: {name} is not set")
        if self.search_space is None and self.search_space_file is None:
            raise ValueError("ExperimentConfig: search_space and search_space_file must be set one")
        if self.json().get("tuner") is None and self.json().get("advisor") is None:
            raise ValueError("ExperimentConfig: tuner must be set")


def _service(platform):
    names = platform if isinstance(platform, (list, tuple)) else [platform]
    if list(names) != ["local"]:
        raise ValueError(
            f"only the platform 'local' is served by memfit, not {platform!r}; "
            "`memfit study CONFIG --on slurm` or `--on ADDRESS` runs the trials on a cluster"
        )
    return LocalConfig()
