"""Small made-up data in the layouts of public training scripts: MNIST, CIFAR-10, images, text, SQuAD, tiny models.

Everything is drawn from a fixed seed and written below one folder; nothing is downloaded.
"""

from __future__ import annotations

import csv
import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

Maker = Callable[[Path], None]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,.!?'\n "


def mnist(folder: Path, num_train: int = 1000, num_test: int = 1000) -> None:
    """The four idx files as torchvision's MNIST(folder) expects them after a download."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", num_train), ("t10k", num_test)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def cifar10(folder: Path, num_images: int = 128) -> None:
    """The pickled batches of CIFAR-10; their checksums are not the official ones (see `accept_made_up_files`)."""
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        data = np.random.default_rng(0).integers(0, 256, (num_images, 3072), dtype=np.uint8)
        (target / name).write_bytes(pickle.dumps({"data": data, "labels": [k % 10 for k in range(num_images)]}))
    (target / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{k}" for k in range(10)]}))


def image_folder(folder: Path, num_classes: int = 2, num_images: int = 10, side: int = 256) -> None:
    """train/ and val/, one folder for each class."""
    from PIL import Image

    for part in ("train", "val"):
        for label in range(num_classes):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            for number in range(num_images):
                pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.jpg")


def cora(folder: Path, num_nodes: int = 2708, num_words: int = 1433) -> None:
    """cora.content and cora.cites: a citation graph of seven classes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(0)
    names = (
        "Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Reinforcement_Learning",
        "Rule_Learning", "Theory",
    )  # fmt: skip
    with (folder / "cora.content").open("w") as file:
        for number in range(num_nodes):
            words = "\t".join(map(str, (drawn.random(num_words) < 0.013).astype(int)))
            file.write(f"{1000 + number}\t{words}\t{names[number % 7]}\n")
    edges = drawn.integers(1000, 1000 + num_nodes, (5429, 2))
    (folder / "cora.cites").write_text("".join(f"{start}\t{end}\n" for start, end in edges))


def pictures(folder: Path, num_images: int = 10, height: int = 321, width: int = 481) -> None:
    """train/ and test/ with pictures and no classes."""
    from PIL import Image

    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(num_images):
            pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / part / f"{number}.jpg")


def masked_pictures(folder: Path, num_images: int = 30) -> None:
    """imgs/ and masks/, one mask of two classes for each picture."""
    from PIL import Image

    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(num_images):
        drawn = np.random.default_rng(number)
        pixels = drawn.integers(0, 256, (160, 240, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "imgs" / f"{number:04d}.jpg")
        Image.fromarray((pixels[:, :, 0] > 127).astype(np.uint8)).save(folder / "masks" / f"{number:04d}_mask.gif")


def word_lines(path: Path) -> None:
    """One file of 600 lines of 20 words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    path.write_text("\n".join(" ".join(f"w{drawn.randrange(500)}" for _ in range(20)) for _ in range(600)) + "\n")


def paraphrases(folder: Path, num_rows: int = 48) -> None:
    """nyu-mll/glue with the configuration mrpc, and a metric glue/, where Hugging Face looks before it asks the hub."""
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True, exist_ok=True)
    drawn, parts = random.Random(0), ("train", "validation", "test")
    for part in parts:
        rows = [
            {"sentence1": _sentence(drawn), "sentence2": _sentence(drawn), "label": k % 2, "idx": k}
            for k in range(num_rows)
        ]
        (place / f"mrpc-{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "".join(f"  - split: {part}\n    path: mrpc-{part}.jsonl\n" for part in parts)
    (place / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")
    (folder / "glue").mkdir(exist_ok=True)
    (folder / "glue" / "glue.py").write_text(_METRIC.format(name="accuracy", features=_NUMBERS))


def word_files(folder: Path, num_words: int = 500, num_lines: int = 400) -> None:
    """train.txt, valid.txt and test.txt of a word language model."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    lines = [" ".join(f"w{drawn.randrange(num_words)}" for _ in range(12)) for _ in range(num_lines)]
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def characters(num_letters: int = 20000) -> str:
    """A text over a fixed alphabet."""
    drawn = random.Random(0)
    return _LETTERS + "".join(drawn.choice(_LETTERS) for _ in range(num_letters))


def character_file(path: Path) -> None:
    """One text file."""
    path.write_text(characters())


def character_tokens(folder: Path) -> None:
    """train.bin, val.bin and meta.pkl of a character-level GPT."""
    folder.mkdir(parents=True, exist_ok=True)
    number = {letter: position for position, letter in enumerate(sorted(set(_LETTERS)))}
    tokens = np.array([number[letter] for letter in characters()], dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        tokens.tofile(folder / name)
    meta = {"vocab_size": len(number), "stoi": number, "itos": {k: v for v, k in number.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def sine_waves(path: Path) -> None:
    """A saved numpy array of 100 waves of 1000 points, in the old format of torch.save's pickle of numpy."""
    import torch

    phases = np.random.default_rng(2).integers(-80, 80, (100, 1))
    torch.save(np.sin((np.arange(1000)[None, :] + phases) / 20.0), path)


def _sentence(drawn: random.Random, low: int = 5, high: int = 40) -> str:
    return " ".join(f"w{drawn.randrange(500)}" for _ in range(drawn.randrange(low, high)))


def sentence_pairs(folder: Path, num_rows: int = 64) -> None:
    """pairs.csv with sentence1, sentence2 and label."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence1", "sentence2", "label"])
        rows.writerows([_sentence(drawn), _sentence(drawn), drawn.randrange(2)] for _ in range(num_rows))


def questions(folder: Path, num_rows: int = 48) -> None:
    """squad.json: context, question and answers, as Hugging Face's SQuAD has them."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    rows = []
    for number in range(num_rows):
        context = _sentence(drawn, 60, 300)
        answer = context.split()[7]
        answers = {"text": [answer], "answer_start": [context.index(answer)]}
        rows.append({"id": str(number), "context": context, "question": _sentence(drawn, 5, 12), "answers": answers})
    (folder / "squad.json").write_text(json.dumps({"version": "1.1", "data": rows}))


def prose(folder: Path, num_lines: int = 400) -> None:
    """prose.txt: one sentence in each line."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    (folder / "prose.txt").write_text("\n".join(_sentence(drawn) for _ in range(num_lines)) + "\n")


def _words(special: list[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate([*special, *(f"w{k}" for k in range(500))])}


def _tokenizer(special: dict[str, str]) -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = _words(list(special.values()))
    inside = Tokenizer(models.WordLevel(words, unk_token=special["unk_token"]))
    inside.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    if "cls_token" in special:
        marks = [(word, words[word]) for word in ("[CLS]", "[SEP]")]
        inside.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
        )
    return PreTrainedTokenizerFast(tokenizer_object=inside, model_max_length=512, **special)


def tiny_distilbert(folder: Path) -> None:
    """A randomly initialised DistilBERT of two layers and its tokenizer."""
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    marks = ("pad", "unk", "cls", "sep", "mask")
    tokenizer = _tokenizer({f"{name}_token": f"[{name.upper()}]" for name in marks})
    config = DistilBertConfig(vocab_size=505, dim=128, hidden_dim=512, n_layers=2, n_heads=4)
    DistilBertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]


def tiny_bert(folder: Path) -> None:
    """A randomly initialised BERT of two layers and its tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    marks = ("pad", "unk", "cls", "sep", "mask")
    tokenizer = _tokenizer({f"{name}_token": f"[{name.upper()}]" for name in marks})
    config = BertConfig(
        vocab_size=505, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]


def tiny_gpt2(folder: Path) -> None:
    """A randomly initialised GPT-2 of two layers and its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = _tokenizer({"unk_token": "<|endoftext|>", "bos_token": "<|bos|>", "eos_token": "<|eos|>"})
    config = GPT2Config(
        vocab_size=503, n_embd=128, n_layer=2, n_head=4, n_positions=512, bos_token_id=1, eos_token_id=2
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]


_METRIC = '''"""A metric without a download: the share of equal answers."""
import datasets
import evaluate

class Metric(evaluate.Metric):
    def _info(self):
        features = datasets.Features({features})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, **options):
        return {{"{name}": 0.5, "f1": 0.5}}
'''
_NUMBERS = '{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}'
_ANSWERS = (
    '{"predictions": {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}, "references": '
    '{"id": datasets.Value("string"), "answers": datasets.features.Sequence('
    '{"text": datasets.Value("string"), "answer_start": datasets.Value("int32")})}}'
)


def metrics(folder: Path) -> None:
    """accuracy/ and squad/ in the working folder, where `evaluate.load` looks before it asks the hub."""
    for name, features in (("accuracy", _NUMBERS), ("squad", _ANSWERS)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{name}.py").write_text(_METRIC.format(name=name, features=features))


_STTY = "#!/bin/sh\necho 24 80\n"
_NNI = """def get_next_parameter():
    return {}
report_intermediate_result = report_final_result = print
"""
_NNI_UTILS = """def merge_parameter(base, given):
    return base
"""


def stand_ins(folder: Path) -> None:
    """For the real run: a terminal's size for scripts that ask `stty`, and NNI without a tuner."""
    (folder / "nni").mkdir(parents=True, exist_ok=True)
    (folder / "stty").write_text(_STTY)
    (folder / "stty").chmod(0o755)
    (folder / "nni" / "__init__.py").write_text(_NNI)
    (folder / "nni" / "utils.py").write_text(_NNI_UTILS)


_SITE = '''"""On the path of every process of the comparison: torchvision takes a file that exists for the right one."""
import importlib.abc, importlib.machinery, os, sys

class _Loosen(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision.datasets.utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def execute(module):
            run(module)
            module.check_integrity = lambda fpath, md5=None: os.path.isfile(fpath)
        spec.loader.exec_module = execute
        return spec

import importlib.util
sys.meta_path.insert(0, _Loosen())
'''


def accept_made_up_files(folder: Path) -> None:
    """sitecustomize.py for PYTHONPATH: made-up files pass torchvision's checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE)
