"""HumanEval, HumanEval+, MBPP and MBPP+ by evalplus: `online-refiner evaluate --model DIR [EVALPLUS_OPTION...]`.

evalplus draws one greedy answer to each problem, with vLLM or without a GPU with transformers, and runs it. Options
that are not named here go to `evalplus.evaluate`, such as `--tp 2`, `--force-base-prompt`, or `--n_samples 20
--temperature 0.8`.
"""

import argparse
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DATA = {"humaneval": "HUMANEVAL_OVERRIDE_PATH", "mbpp": "MBPP_OVERRIDE_PATH"}
"""evalplus' names of its data sets, and the variable that names a local file of each."""
INSTALL = (
    "pip install --no-deps evalplus==0.3.1 stop-sequencer && pip install appdirs fire multipledispatch tempdir "
    "termcolor tree-sitter tree-sitter-python wget"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; exit status 0, or 2 if evalplus, its data or its evaluation fails."""
    parser = argparse.ArgumentParser(
        prog="online-refiner evaluate",
        usage="%(prog)s --model DIR [options] [evalplus option ...]",
        description="pass@1 on HumanEval, HumanEval+, MBPP and MBPP+, by evalplus.\n"
        "Example: online-refiner evaluate --model runs/export/apps_dapo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="a model folder, or a hub id")
    parser.add_argument("--dataset", choices=DATA, nargs="+", default=list(DATA), help="default: both")
    parser.add_argument("--output", type=Path, metavar="DIR", help="one there continues (default: a new folder)")
    arguments, options = parser.parse_known_args(argv)
    if find_spec("evalplus") is None:
        return _refuse(f"evalplus is not installed: {INSTALL}")
    for dataset in arguments.dataset:
        if wrong := _wrong_with_data(dataset):
            return _refuse(wrong)
    name = f"{Path(arguments.model).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = arguments.output or Path("runs/evaluation", name)
    import torch

    defaults = {"--backend": "vllm" if torch.cuda.is_available() else "hf"}
    if not any(option.startswith("--temperature") for option in options):
        defaults["--greedy"] = "True"
    rates: dict[str, float] = {}
    for dataset in arguments.dataset:
        command = [sys.executable, "-m", "evalplus.evaluate", "--dataset", dataset, "--model", arguments.model]
        command += [*itertools.chain(*defaults.items()), "--root", str(folder), *options]
        if subprocess.run(command).returncode:
            return _refuse(f"evalplus could not evaluate {dataset}: see its lines above")
        try:
            rates |= pass_at_1(dataset, results_in(folder / dataset))
        except ValueError as error:
            return _refuse(str(error))
    (folder / "pass_at_1.json").write_text(json.dumps(rates, indent=1) + "\n")
    print(*(f"{name:10} {rate:6.1%}" for name, rate in rates.items()), f"written to {folder}", sep="\n")
    return 0


def results_in(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what evalplus has written, by problem.

    Raises:
        ValueError: If the folder does not hold the results of exactly one model and setting.
    """
    files = [*folder.glob("*_eval_results.json")]
    if len(files) != 1:
        raise ValueError(f"{folder} has results of {len(files)} models or settings: give another --output")
    results: dict[str, list[dict[str, Any]]] = json.loads(files[0].read_text())["eval"]
    return results


def pass_at_1(dataset: str, answers: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return the mean over problems of the share of answers that pass the base tests, and all tests (`+`) if they ran.

    Args:
        dataset: The name of the benchmark, ``humaneval`` or ``mbpp``.
        answers: evalplus' results, by problem.
    """
    import pandas  # here: --help need not wait for it

    rows = [(name, one["base_status"], one["plus_status"]) for name, of_one in answers.items() for one in of_one]
    table = pandas.DataFrame(rows, columns=["problem", "base", "plus"])
    passed = {dataset: table["base"] == "pass"}
    if table["plus"].notna().all():
        passed[f"{dataset}+"] = passed[dataset] & (table["plus"] == "pass")
    return {name: float(right.groupby(table["problem"]).mean().mean()) for name, right in passed.items()}


def _wrong_with_data(dataset: str) -> str | None:
    """Let evalplus read its data, which it fetches once; return what to do where it cannot."""
    data = importlib.import_module("evalplus.data")
    read = {"humaneval": data.get_human_eval_plus, "mbpp": data.get_mbpp_plus}[dataset]
    try:
        read()
    except Exception as error:  # of the network, the file system, JSON, or evalplus' own assertions
        return (
            f"evalplus cannot read {dataset}+ ({type(error).__name__}: {error}): without a network set {DATA[dataset]} "
            f"to a copy of the file that it fetches from github.com/evalplus/{dataset}plus_release"
        )
    return None


def _refuse(line: str) -> int:
    print(f"error: {' '.join(line.split())}", file=sys.stderr)
    return 2
