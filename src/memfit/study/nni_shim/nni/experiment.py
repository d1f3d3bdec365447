"""Stand-in for `nni.experiment.Experiment`, which starts nothing here and says why."""


class Experiment:
    """An experiment is started by `memfit study`, not from inside a Python program."""

    def __init__(self, *args, **kwargs):
        raise RuntimeError(
            "memfit starts experiments from a file: write the config that this program builds to a YAML file "
            "and run `memfit study config.yml`"
        )
