"""Checks that files of weights are complete and hold the tensors of a model's class. Only headers are read."""

import contextlib
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch.overrides import TorchFunctionMode
from torch.serialization import MAGIC_NUMBER
from transformers import AutoModelForTokenClassification
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME
from verl.utils.model import get_hf_auto_model_class

from recipe.online_refiner.verl_glue.preflight.files import one_line

Shapes = dict[str, tuple[int, ...]]
"""The shapes of tensors, by name."""
LFS_POINTER = b"version https://git-lfs"
"""The first bytes of the text that Git LFS leaves in place of a file that was not fetched."""
OLD_BEGINNINGS = [pickle.dumps(MAGIC_NUMBER, protocol) for protocol in (2, 3)]
"""The first bytes of files of ``torch.save`` before 1.6, in the protocols that ``torch.load`` reads as weights."""
SAVE_AGAIN = "; save the model as safetensors, or by torch.save without pickle_protocol"
ZIP_END = b"PK\x05\x06"
"""The first bytes of a ZIP archive's last record, which ``torch.save`` writes without a comment behind it."""
ZIP_END_SIZE = 22
"""The number of bytes of that record."""
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
"""The files in which PEFT looks for an adapter's tensors, in this order."""
MAX_TENSORS = 4000
"""The largest number of tensors that are compared by name; more (one per expert) would take transformers seconds."""


def wrong_with_torch_file(path: Path) -> str | None:
    """Return what is wrong with a file of ``torch.save``, or None.

    A ZIP archive ends with a record of its own, so a file that was cut, or filled up with zeros, lacks it.
    """
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size == 0:
        return f"{path} is empty"
    with path.open("rb") as stream:
        begins = stream.read(len(LFS_POINTER))
        stream.seek(max(0, size - ZIP_END_SIZE))
        ends = stream.read(len(ZIP_END))
    if begins == LFS_POINTER:
        return f"{path} is a pointer of Git LFS: fetch the file with git lfs pull"
    return None if ends == ZIP_END else f"{path} is cut off: its {size} bytes do not end as torch.save ends a file"


def find_weights(folder: Path, *, any_name: bool = False) -> dict[Path, list[str]]:
    """Return the files of a model's weights, each with the tensors that an index of shards expects in it.

    Args:
        folder: The model's folder.
        any_name: Whether an engine such as vLLM reads the folder, which takes files of any name if those of
            transformers are not there.

    Raises:
        ValueError: If an index of shards cannot be read.
    """
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME):  # transformers' order
        path = folder / name
        if path.is_file():
            return _shards(path) if path.suffix == ".json" else {path: []}
    if not any_name:
        return {}
    found = (sorted(folder.glob(f"*.{end}")) for end in ("safetensors", "bin", "pt"))
    return dict.fromkeys(next((files for files in found if files), []), [])


def _shards(index: Path) -> dict[Path, list[str]]:
    try:
        shards: dict[Path, list[str]] = {}
        for tensor, shard in json.loads(index.read_text())["weight_map"].items():
            shards.setdefault(index.parent / shard, []).append(tensor)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of shards: {one_line(error)}") from error
    return shards


def model_shapes(weights: dict[Path, list[str]]) -> Shapes | None:
    """Return the shape of each tensor in a model's files, by name; None if a file's format does not tell the shapes.

    Args:
        weights: What :func:`find_weights` has found.

    Raises:
        ValueError: If a file is missing, empty, a pointer of Git LFS or cut off, or lacks a tensor of the index.
    """
    every: Shapes = {}
    is_known = True
    for path, expected in weights.items():
        held = shapes_of(path)
        if held is None:
            is_known = False
            continue
        if lacks := [tensor for tensor in expected if tensor not in held]:
            raise ValueError(f"{path} lacks the tensor {lacks[0]}, which the index of shards expects in it")
        every |= held
    return every if is_known else None


def shapes_of(path: Path) -> Shapes | None:
    """Return the shape of each tensor in one file, by name.

    None for a file of torch's format before 1.6, which would have to be loaded as a whole.

    Raises:
        ValueError: If the file is missing, empty, a pointer of Git LFS, cut off, or holds no tensors by name.
    """
    if path.suffix == ".safetensors":
        return _safetensors_shapes(path)
    with contextlib.suppress(OSError), path.open("rb") as stream:
        begins = stream.read(max(map(len, OLD_BEGINNINGS)))
        if begins in OLD_BEGINNINGS:
            return None
        if begins[:1] == pickle.PROTO:
            raise ValueError(f"{path} is a pickle that torch.load does not read as weights{SAVE_AGAIN}")
    if wrong := wrong_with_torch_file(path):
        raise ValueError(wrong)
    try:
        held = torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except Exception as error:  # of a pickle, almost anything
        raise ValueError(f"{path} cannot be read as transformers reads it: {_refusal(error)}") from error
    if not isinstance(held, Mapping):
        raise ValueError(f"{path} holds a {type(held).__name__}, not tensors by name{SAVE_AGAIN}")
    return {name: tuple(tensor.shape) for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}


def _refusal(error: Exception) -> str:
    """Return why ``torch.load`` refuses a file: its own words begin with those on its setting ``weights_only``."""
    if isinstance(error, pickle.UnpicklingError):
        reason = str(error).partition("WeightsUnpickler error:")[2] or str(error)
        return reason.strip().partition("\n")[0].partition(". ")[0] + SAVE_AGAIN
    return one_line(error)


def _safetensors_shapes(path: Path) -> Shapes:
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    with path.open("rb") as stream:
        begins = stream.read(len(LFS_POINTER))
    if begins == LFS_POINTER:
        raise ValueError(f"{path} is a pointer of Git LFS: fetch the file with git lfs pull")
    if not begins:
        raise ValueError(f"{path} is empty")
    try:
        with safe_open(path, framework="np") as opened:  # for torch it would reserve memory for the whole file
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is cut off, or no safetensors file: {error}") from error


def model_class(config: Any, *, is_critic: bool) -> Any:
    """Return the class of transformers with which verl loads a model; None if there is none, or the code is remote.

    Raises:
        ValueError: If a model with this config cannot be made.
    """
    auto = AutoModelForTokenClassification if is_critic else get_hf_auto_model_class(config)
    if getattr(config, "auto_map", None):
        return None
    try:
        with torch.device("meta"), _quiet():
            return type(auto.from_config(config, attn_implementation="eager"))
    except ValueError as error:
        if "Unrecognized configuration class" in str(error):
            return None
        raise ValueError(f"its config.json does not make a model: {one_line(error)}") from error


def wrong_with_shapes(config: Any, shapes: Shapes, *, is_critic: bool = False) -> str | None:
    """Return one line on the tensors that a model's class would not find, by transformers' own loader.

    The loader gets tensors without memory. It knows tied weights, names of older versions and tensors that it stacks.
    Tensors that no parameter takes are ignored, as the loader ignores them. A critic's head may be missing if the file
    is a language model's.

    Args:
        config: The model's config, as verl changes it.
        shapes: The tensors in the model's files.
        is_critic: Whether the model is a critic.

    Raises:
        ValueError: If a model with this config cannot be made.
    """
    if len(shapes) > MAX_TENSORS or getattr(config, "quantization_config", None):
        return None
    if (found := model_class(config, is_critic=is_critic)) is None:
        return None
    tensors = {name: torch.empty(shape, device="meta", dtype=torch.bfloat16) for name, shape in shapes.items()}
    settings = {"attn_implementation": "eager", "dtype": torch.bfloat16, "device_map": {"": "meta"}}
    settings |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        with _quiet(), _AllEqual():
            model, info = found.from_pretrained(None, config=config, state_dict=tensors, **settings)
    except RuntimeError as error:  # of tensors that it cannot put together
        return f"{found.__name__} cannot be loaded: {one_line(error)}"
    body = f"{model.base_model_prefix}."
    missing = sorted(name for name in info["missing_keys"] if not is_critic or name.startswith(body))
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"{len(shapes)} tensors are there, but {missing[0]}{others} of {found.__name__} is not"
    for name, there, wanted in sorted(info["mismatched_keys"]):
        return f"its {name} is {_sizes(there)}, and its config.json asks for {_sizes(wanted)}"
    return None


class _AllEqual(TorchFunctionMode):
    """Calls tensors without memory equal: transformers compares tied weights if a file has both of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True if func is torch.equal else func(*args, **(kwargs or {}))


def _sizes(shape: Any) -> str:
    return " x ".join(map(str, shape)) if len(shape) else "a single number"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers while it loads, since a rule reports faults in one line."""
    logging = transformers.utils.logging
    level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows:
            logging.enable_progress_bar()
