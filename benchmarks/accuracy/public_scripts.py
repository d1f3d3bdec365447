"""Are public training scripts, taken as they are, predicted like they run?

  python -m benchmarks.accuracy.public_scripts FOLDER [--only NAME] [--gpu-python PYTHON] [--engines cpu,fake,phantom]

FOLDER holds clones or unpacked archives of the repositories below; one that is missing is skipped with a reason. Each
is copied to a working folder, gets small made-up data there, and nothing in it is edited. On the CPU the script runs
to its end for real, in a process whose allocator is counted from outside, and the tensor peaks are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accuracy import public_data as data

MAX_SECONDS = 900
CUT = 124
"""The code of a run that took too long."""
_PARTS = {
    "examples": ".",
    "nanoGPT": ".",
    "minGPT": ".",
    "pytorch-cifar": ".",
    "transformers": "examples/pytorch",
    "pytorch-lightning": "examples",
    "nni": "examples/trials",
}
_TRAINER = "--do_train --do_eval --num_train_epochs 1 --report_to none"
_NANO_CPU = "--device=cpu --compile=False --max_iters=4 --lr_decay_iters=4 --gradient_accumulation_steps=2"
_NANO = "config/train_shakespeare_char.py --log_interval=1"
_NANO_SIZE = "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128"


@dataclass(frozen=True, kw_only=True)
class Script:
    """One script: where it lies, what it is called with, the data it reads, and its flags for a GPU."""

    name: str
    path: str
    arguments: str = ""
    gpu_arguments: str | None = ""
    """Added on a GPU instead of `cpu_arguments`; None: the script knows no GPU."""
    cpu_arguments: str = ""
    data: tuple[tuple[str, data.Maker], ...] = field(default=())
    working_folder: str = ""
    """Below the working copy; the script's own folder unless given."""
    path_folders: tuple[str, ...] = ()
    real_seconds: int = MAX_SECONDS
    """How long the real run may take; one that is cut then has the peak it had."""

    @property
    def repository(self) -> str:
        """The name of the repository's folder."""
        return self.path.split("/", 1)[0]


_EXAMPLES_MNIST = (("examples/data", data.mnist),)
_WORDS = (("examples/word_language_model/data/wikitext-2", data.word_files),)
_HF = "transformers/examples/pytorch"
_LIGHTNING = "pytorch-lightning/examples"
_AUTOENCODER_MNIST = (
    (f"{_LIGHTNING}/Datasets", lambda folder: data.mnist(folder, 60_000)),
    (f"{_LIGHTNING}/pytorch/basics/data", data.mnist),
)
"""The script splits 60,000 images by itself; the library asks in the working folder whether it can download."""
_LIGHTNING_MNIST = (("pytorch-lightning/Datasets", data.mnist), ("site/lightning/Datasets", data.mnist))


def _glue(name: str, more: str) -> Script:
    return Script(
        name=name,
        path=f"{_HF}/text-classification/{name}.py",
        arguments=f"{more} --train_file pairs.csv --validation_file pairs.csv --output_dir out "
        "--model_name_or_path tiny --per_device_train_batch_size 8 --num_train_epochs 1",
        data=(
            (f"{_HF}/text-classification", data.sentence_pairs),
            (f"{_HF}/text-classification", data.metrics),
            (f"{_HF}/text-classification/tiny", data.tiny_distilbert),
        ),
    )


SCRIPTS = (
    Script(name="mnist", path="examples/mnist/main.py", arguments="--epochs 1", data=_EXAMPLES_MNIST),
    Script(name="vae", path="examples/vae/main.py", arguments="--epochs 1", data=_EXAMPLES_MNIST),
    Script(
        name="dcgan",
        path="examples/dcgan/main.py",
        arguments="--dataset mnist --dataroot ../data --niter 1",
        gpu_arguments="--accel",
        data=(("examples/data", lambda folder: data.mnist(folder, 200, 100)),),
    ),
    Script(
        name="mnist_rnn",
        path="examples/mnist_rnn/main.py",
        arguments="--epochs 1",
        gpu_arguments="--accel",
        data=_EXAMPLES_MNIST,
    ),
    Script(
        name="imagenet resnet18",
        path="examples/imagenet/main.py",
        arguments="images --epochs 1 -b 8 -j 1",
        data=(("examples/imagenet/images", data.image_folder),),
    ),
    Script(
        name="word_language_model LSTM",
        path="examples/word_language_model/main.py",
        arguments="--epochs 1",
        gpu_arguments="--accel",
        data=_WORDS,
    ),
    Script(
        name="word_language_model Transformer",
        path="examples/word_language_model/main.py",
        arguments="--epochs 1 --model Transformer --lr 5",
        gpu_arguments="--accel",
        data=_WORDS,
    ),
    Script(name="regression", path="examples/regression/main.py", gpu_arguments=None),
    Script(
        name="mnist_hogwild",
        path="examples/mnist_hogwild/main.py",
        arguments="--epochs 1",
        gpu_arguments="--cuda",
        data=_EXAMPLES_MNIST,
    ),
    Script(
        name="time_sequence_prediction",
        path="examples/time_sequence_prediction/train.py",
        arguments="--steps 1",
        gpu_arguments=None,
        data=(("examples/time_sequence_prediction/traindata.pt", data.sine_waves),),
    ),
    Script(
        name="nanoGPT",
        path="nanoGPT/train.py",
        arguments=f"{_NANO} {_NANO_SIZE}",
        cpu_arguments=_NANO_CPU,
        data=(("nanoGPT/data/shakespeare_char", data.character_tokens),),
    ),
    Script(
        name="minGPT adder",
        path="minGPT/projects/adder/adder.py",
        cpu_arguments="--trainer.max_iters=4",
        path_folders=("minGPT",),
    ),
    Script(
        name="minGPT chargpt",
        path="minGPT/projects/chargpt/chargpt.py",
        cpu_arguments="--trainer.max_iters=4",
        data=(("minGPT/projects/chargpt/input.txt", data.character_file),),
        path_folders=("minGPT",),
    ),
    Script(name="pytorch-cifar", path="pytorch-cifar/main.py", data=(("pytorch-cifar/data", data.cifar10),)),
    Script(
        name="run_qa",
        path=f"{_HF}/question-answering/run_qa.py",
        arguments=f"{_TRAINER} --train_file squad.json --validation_file squad.json --output_dir out "
        "--model_name_or_path tiny --per_device_train_batch_size 8 --max_seq_length 384 --doc_stride 128",
        data=(
            (f"{_HF}/question-answering", data.questions),
            (f"{_HF}/question-answering", data.metrics),
            (f"{_HF}/question-answering/tiny", data.tiny_distilbert),
        ),
    ),
    _glue("run_glue", "--do_train --do_eval --report_to none"),
    _glue("run_glue_no_trainer", ""),
    Script(
        name="run_clm",
        path=f"{_HF}/language-modeling/run_clm.py",
        arguments=f"{_TRAINER} --train_file prose.txt --validation_file prose.txt --output_dir out "
        "--model_name_or_path tiny --per_device_train_batch_size 4 --block_size 128",
        data=(
            (f"{_HF}/language-modeling", data.prose),
            (f"{_HF}/language-modeling", data.metrics),
            (f"{_HF}/language-modeling/tiny", data.tiny_gpt2),
        ),
    ),
    Script(
        name="lightning fabric train_torch",
        path=f"{_LIGHTNING}/fabric/image_classifier/train_torch.py",
        arguments="--epochs 1",
        data=_LIGHTNING_MNIST,
    ),
    Script(
        name="lightning fabric train_fabric",
        path=f"{_LIGHTNING}/fabric/image_classifier/train_fabric.py",
        arguments="--epochs 1",
        data=_LIGHTNING_MNIST,
    ),
    Script(
        name="lightning autoencoder",
        path=f"{_LIGHTNING}/pytorch/basics/autoencoder.py",
        arguments="--trainer.max_epochs 1",
        data=_AUTOENCODER_MNIST,
    ),
    Script(
        name="nni mnist-pytorch",
        path="nni/examples/trials/mnist-pytorch/mnist.py",
        arguments="--epochs 1 --data_dir data",
        data=(("nni/examples/trials/mnist-pytorch/data", data.mnist),),
    ),
)


_GANS = "PyTorch-GAN/implementations"
_TUTORIAL = "pytorch-tutorial/tutorials"
_CONTENTS = "PyTorch-Tutorial/tutorial-contents"
_FEW_DIGITS = (("PyTorch-GAN/data/mnist", lambda folder: data.mnist(folder, 256, 10)),)


def _tutorial(folder: str) -> Script:
    maker = data.cifar10 if "residual" in folder else data.mnist
    return Script(
        name=f"tutorial {folder.partition('/')[2]}",
        path=f"{_TUTORIAL}/{folder}/main.py",
        data=((f"{_TUTORIAL}/data", maker),),
        real_seconds=60,
    )


MORE_SCRIPTS = (
    Script(
        name="siamese_network",
        path="examples/siamese_network/main.py",
        arguments="--epochs 1",
        data=(("examples/data", lambda folder: data.mnist(folder, 300, 300)),),
    ),
    Script(
        name="mnist_forward_forward",
        path="examples/mnist_forward_forward/main.py",
        arguments="--epochs 3 --train_size 500 --test_size 500",
        data=(("examples/mnist_forward_forward/data", data.mnist),),
    ),
    Script(
        name="gat",
        path="examples/gat/main.py",
        arguments="--epochs 25",
        data=(("examples/gat/cora", data.cora),),
        real_seconds=120,
    ),
    Script(name="reinforce", path="examples/reinforcement_learning/reinforce.py", gpu_arguments=None, real_seconds=40),
    Script(
        name="actor_critic", path="examples/reinforcement_learning/actor_critic.py", gpu_arguments=None, real_seconds=40
    ),
    Script(
        name="super_resolution",
        path="examples/super_resolution/main.py",
        arguments="--upscale_factor 3 --batchSize 4 --testBatchSize 4 --nEpochs 1",
        gpu_arguments="--accel",
        data=(("examples/super_resolution/dataset/BSDS300/images", data.pictures),),
    ),
    Script(
        name="makemore",
        path="makemore/makemore.py",
        arguments="--max-steps 501",
        gpu_arguments="--device cuda",
        real_seconds=120,
    ),
    Script(name="ng-video-lecture bigram", path="ng-video-lecture/bigram.py", real_seconds=60),
    *(
        Script(name=f"PyTorch-GAN {name}", path=f"{_GANS}/{name}/{name}.py", arguments="--n_epochs 2", data=_FEW_DIGITS)
        for name in ("gan", "wgan_gp", "acgan", "infogan", "aae")
    ),
    _tutorial("02-intermediate/deep_residual_network"),
    _tutorial("02-intermediate/bidirectional_recurrent_neural_network"),
    _tutorial("03-advanced/variational_autoencoder"),
    Script(
        name="tutorial language_model",
        path=f"{_TUTORIAL}/02-intermediate/language_model/main.py",
        data=((f"{_TUTORIAL}/02-intermediate/language_model/data/train.txt", data.word_lines),),
        real_seconds=100,
    ),
    *(
        Script(name=f"pytorch-examples {name}", path=f"pytorch-examples/{folder}/{name}.py", gpu_arguments=None)
        for folder, name in (("autograd", "two_layer_net_autograd"), ("nn", "dynamic_net"))
    ),
    *(
        Script(name=f"PyTorch-Tutorial {name}", path=f"{_CONTENTS}/{name}.py", gpu_arguments=None, real_seconds=40)
        for name in ("403_RNN_regressor", "406_GAN")
    ),
    Script(
        name="Pytorch-UNet",
        path="Pytorch-UNet/train.py",
        arguments="--epochs 1 --scale 0.5 --batch-size 2",
        gpu_arguments="--amp",
        data=(("Pytorch-UNet/data", data.masked_pictures),),
        real_seconds=200,
    ),
    Script(
        name="timm train",
        path="pytorch-image-models/train.py",
        arguments="--data-dir images --model resnet18 --epochs 1 -b 4 --num-classes 2 --workers 0 --img-size 64 "
        "--warmup-epochs 0",
        cpu_arguments="--device cpu",
        data=(("pytorch-image-models/images", lambda folder: data.image_folder(folder, 2, 10, 80)),),
    ),
    Script(
        name="accelerate nlp_example",
        path="accelerate/examples/nlp_example.py",
        cpu_arguments="--cpu",
        data=(("accelerate/examples", data.paraphrases), ("accelerate/examples/bert-base-cased", data.tiny_bert)),
    ),
    Script(
        name="run_mlm",
        path=f"{_HF}/language-modeling/run_mlm.py",
        arguments=f"{_TRAINER} --train_file prose.txt --validation_file prose.txt --output_dir out "
        "--model_name_or_path tiny --per_device_train_batch_size 4 --max_seq_length 64",
        data=(
            (f"{_HF}/language-modeling", data.prose),
            (f"{_HF}/language-modeling", data.metrics),
            (f"{_HF}/language-modeling/tiny", data.tiny_bert),
        ),
    ),
    Script(name="cleanrl ppo", path="cleanrl/cleanrl/ppo.py", arguments="--total-timesteps 2000"),
    Script(
        name="cleanrl dqn",
        path="cleanrl/cleanrl/dqn.py",
        arguments="--total-timesteps 1500 --learning-starts 500",
        path_folders=("cleanrl",),
    ),
)
"""Scripts of other habits: graphs, reinforcement learning, several networks, long loops."""


def prepare(script: Script, repositories: Path, work: Path) -> str:
    """Copy the repository and make its data; returns why that is not possible, or nothing."""
    part = _PARTS.get(script.repository, ".")
    source = repositories / script.repository / part
    if not (repositories / script.path).is_file():
        return f"not run: {script.path} is not in {repositories.name}"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work / script.repository / part, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
    data.accept_made_up_files(work / "site")
    data.stand_ins(work / "real")
    for place, make in script.data:
        make(work / place)
    return ""


def _environment(script: Script, work: Path) -> dict[str, str]:
    folders = [str(work / "site"), *(str(work / folder) for folder in script.path_folders)]
    cache = {"HF_HOME": str(work / "cache"), "HF_HUB_OFFLINE": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    cache |= {"WANDB_MODE": "disabled", "MPLBACKEND": "Agg"}
    return os.environ | cache | {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}


def _run(
    command: list[str], script: Script, work: Path, preload: str = "", seconds: int = MAX_SECONDS
) -> tuple[int, str, str]:
    folder = (work / script.path).parent
    environment = _environment(script, work)
    if preload:
        paths = {name: os.pathsep.join([str(work / "real"), environment[name]]) for name in ("PATH", "PYTHONPATH")}
        environment |= paths | {"LD_PRELOAD": preload, "ALLOCATOR_PEAK_FILE": str(work / "peak")}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return CUT, "", f"no end within {seconds} s"
    return done.returncode, done.stdout, done.stderr


def _counter(work: Path) -> str:
    """The compiled counter."""
    library, source = work / "counter.so", Path(__file__).with_name("allocator_counter.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return str(library)


def real_peak(script: Script, work: Path) -> tuple[int | None, str]:
    """Peak bytes of the CPU allocator over the whole script, or the last line of its failure."""
    words = [*script.arguments.split(), *script.cpu_arguments.split()]
    (work / "peak").unlink(missing_ok=True)
    command = [sys.executable, Path(script.path).name, *words]
    code, _, said = _run(command, script, work, preload=_counter(work), seconds=script.real_seconds)
    if code and not (code == CUT and script.real_seconds < MAX_SECONDS):
        return None, (said.strip().splitlines() or ["no output"])[-1]
    return int.from_bytes((work / "peak").read_bytes(), "little"), ""


def predicted(script: Script, work: Path, engine: str, gpu_python: str) -> dict[str, Any]:
    """The record of `memfit predict` on one engine, or why there is none."""
    gpu = ["--device", "cuda:a100-40gb", "--engine", engine]
    options = [] if engine == "cpu" else gpu
    more = script.cpu_arguments if engine == "cpu" else script.gpu_arguments or ""
    python = gpu_python if engine == "phantom" else sys.executable
    words = [*script.arguments.split(), *more.split()]
    start = time.monotonic()
    command = [python, "-m", "memfit", "predict", Path(script.path).name, "--json", *options, "--", *words]
    code, output, said = _run(command, script, work)
    seconds = time.monotonic() - start
    if not output.strip():
        return {"failed": said.strip() or f"exit code {code}", "seconds": seconds}
    return json.loads(output) | {"seconds": seconds}


def guesses(record: dict[str, Any]) -> str:
    """The questions that the prediction answered by a guess."""
    asked = [a for a in record.get("assumptions", ()) if "answer" in a["kind"] or a["kind"] in ("size", "not seen")]
    return "; ".join(f"{a['text']} ({a.get('line', '')})" for a in asked) or "none"


def row(script: Script, engine: str, record: dict[str, Any], truth: tuple[int | None, str]) -> str:
    """One line of the table."""
    if "failed" in record:
        found = [line for line in record["failed"].splitlines() if line.startswith(("Error", "  found:"))]
        said = " ".join(line.strip() for line in found) or record["failed"].splitlines()[-1]
        return f"| {script.name} | {engine} | no answer: {said[:300]} | {record['seconds']:.0f} | |"
    peak = record["levels"][0]["figure"]["value"]
    error = "not run for real" if engine != "cpu" or truth[0] is None else f"{peak / truth[0] - 1:+.2%}"
    return (
        f"| {script.name} | {engine} | {peak / 2**20:.2f} MiB, {error} | {record['seconds']:.0f} | {guesses(record)} |"
    )


def compare(script: Script, options: argparse.Namespace) -> None:
    """All engines of one script."""
    work = options.work / script.name.replace(" ", "_")
    refused = prepare(script, options.folder, work)
    if refused:
        print(f"| {script.name} | | {refused} | | |", flush=True)
        return
    engines = [e for e in options.engines.split(",") if e == "cpu" or script.gpu_arguments is not None]
    for engine in engines:
        record = predicted(script, work, engine, options.gpu_python)
        (work / f"{engine}.json").write_text(json.dumps(record))
        truth = real_peak(script, work) if engine == "cpu" else (None, "")
        if truth[1]:
            print(f"{script.name}: the real run failed: {truth[1]}", file=sys.stderr)
        print(row(script, engine, record, truth), flush=True)


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/memfit_public"))
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    parser.add_argument("--engines", default="cpu,fake")
    parser.add_argument("--gpu-python", default=sys.executable, help="an interpreter whose torch has CUDA")
    options = parser.parse_args()
    print("| script | engine | tensor peak, error | seconds | guessed |\n|---|---|---|---|---|", flush=True)
    for script in (*SCRIPTS, *MORE_SCRIPTS):
        if options.only in script.name:
            compare(script, options)


if __name__ == "__main__":
    main()
