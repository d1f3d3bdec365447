"""The published results that can be run again: their question, sources, statements, and how long they take."""

from __future__ import annotations

from memfit.records.reproduction import PublishedResult
from memfit.reproduce import edge, offloading, optimizers, pipelining
from memfit.reproduce.hyperparameters import statements as hyperparameter_statements
from memfit.reproduce.hyperparameters.published_tables import SOURCE as HYPERPARAMETERS_SOURCE

RESULTS: tuple[PublishedResult, ...] = (
    PublishedResult(
        name="hyperparameters",
        question="Which hyperparameters drive the memory of a training?",
        sources=(HYPERPARAMETERS_SOURCE,),
        does="runs the 21 published trials again, trials that change one hyperparameter alone, and other learners, "
        "three times each, in shuffled order, every one measured",
        takes="about 20 minutes",
        statements=hyperparameter_statements.SAID,
    ),
    PublishedResult(
        name="offloading",
        question="Which planner is fastest where memory is short and a link leads to the host?",
        sources=(
            "Beaumont, Eyraud-Dubois and Shilova, Optimal GPU-CPU offloading strategies for deep neural network "
            "training, 2020",
            "Beaumont, Eyraud-Dubois and Shilova, Efficient combination of rematerialization and offloading for "
            "training DNNs, 2021",
        ),
        does="compares 20 planners on four networks over budgets and links; predicted and simulated, nothing is run",
        takes="about 2.5 minutes",
        statements=(offloading.HEURISTICS_SAY, offloading.COMBINED_SAYS),
    ),
    PublishedResult(
        name="edge",
        question="Can a ResNet be trained on a device with 2 GiB, and is it worth it?",
        sources=(
            "Kukreja et al., Training on the edge: the why and the how, 2019",
            "Naveen and Kumar, 2019 (the memory of ResNet-18 when it recomputes, on a Raspberry Pi)",
        ),
        does="computes memory, the price of fitting, hours and energy from shapes; nothing is run",
        takes="less than a minute",
        statements=(edge.MEMORY_SAYS, edge.CHECKPOINTS_SAY, edge.FACTOR_SAYS),
    ),
    PublishedResult(
        name="optimizers",
        question="What do optimizers and techniques cost and save for DistilBERT?",
        sources=(optimizers.SOURCE,),
        does="predicts nine optimizers under six techniques for a GPU, and searches for the published peaks; "
        "--measure also trains a smaller one here",
        takes="about 2 minutes",
        statements=optimizers.SAID,
    ),
    PublishedResult(
        name="pipelining",
        question="How fast can a pipeline be within the memory of its ranks?",
        sources=(pipelining.SOURCE,),
        does="plans pipelines of standard networks, or of profiles that you give, over ranks and memory; planned and "
        "simulated, nothing is run",
        takes="about 3 minutes",
        statements=pipelining.SAID,
    ),
)
"""In the order in which they are listed."""
