"""An experiment in NNI's words; `memfit nni python main.py` runs it, and measures every trial."""

from nni.experiment import Experiment

experiment = Experiment("local", id="example")
experiment.config.experiment_name = "example"
experiment.config.trial_command = "python trial.py"
experiment.config.trial_code_directory = "."
experiment.config.search_space = {
    "width": {"_type": "choice", "_value": [64, 256, 1024]},
    "batch_size": {"_type": "choice", "_value": [16, 128]},
}
experiment.config.tuner.name = "GridSearch"
experiment.config.max_trial_number = 4
experiment.config.trial_concurrency = 2
experiment.config.experiment_working_directory = "memfit-runs/nni"

experiment.run(8080)
print(experiment.get_job_statistics())
best = max(experiment.export_data(), key=lambda result: result.value)
print(f"best: {best.value:.3f} with {best.parameter}")
experiment.stop()
