"""Load a model with its tokenizer, and save what was trained.

Nothing is taken from a checkpoint's generation config but the ids that end a turn: sampling values hidden
in a checkpoint must never change what a recipe says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from renshu.errors import ModelError
from renshu.models import quantised
from renshu.models.adapters import add_adapter, fingerprint, has_adapter, load_adapter
from renshu.models.get import KNOWN, cached
from renshu.models.precision import autocast_type, enable_autocast, enable_checkpointing, weight_type
from renshu.models.settings import ModelSettings

EMBEDDED = Path(__file__).parent / "embedded"
ORIGIN = "renshu.json"  # beside a saved adapter: the model below it, a fingerprint of its weights, their bits
LONGEST_REASON = 300  # characters of another library's error


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for training and sampling.

    eos_ids: the ids that end a turn, says the checkpoint. origin: the model that an adapter lies on; a folder
    by its absolute path, so that the adapter finds it from anywhere.
    """

    model: Any
    tokenizer: Any
    settings: ModelSettings
    eos_ids: frozenset[int]
    origin: str


def load(settings: ModelSettings) -> LoadedModel:
    """The model a recipe asks for, with a fresh adapter if it asks for one.

    A folder that holds an adapter is its origin with that adapter, which is trained on. Raises ModelError,
    also for a fresh adapter on top of that one.
    """
    origin, source = settings.name, locate(settings.name)
    adapter_folder = source if _holds_adapter(source) else None
    if adapter_folder is not None:
        if settings.adapter is not None:
            raise ModelError(
                f"{source} holds an adapter already, which is trained on: set model.adapter=none"
            )
        origin = _origin(Path(adapter_folder))
        source = locate(origin)
    device = _device(settings.device)
    model = _base(source, settings, device, adapter_folder)
    base = model
    if adapter_folder is not None:
        _require_base(Path(adapter_folder), origin, model)
        model = load_adapter(model, adapter_folder)
    elif settings.adapter is not None:
        model = add_adapter(model, settings.adapter)
    disable_dropout(model)
    if (dtype := autocast_type(settings, device)) is not None:
        enable_autocast(base, dtype)
    if settings.checkpointing:
        enable_checkpointing(base)
    tokenizer = _tokenizer(adapter_folder or source, settings.trust_remote_code)
    if Path(origin).expanduser().is_dir():
        origin = str(Path(origin).expanduser().resolve())
    return LoadedModel(model.to(device), tokenizer, settings, eos_ids(model, tokenizer), origin)


def _base(source: str, settings: ModelSettings, device: torch.device, adapter_folder: str | None) -> Any:
    """The model itself; in four bits for a fresh `qlora`, and below an adapter that was trained on such."""
    adapted = adapter_folder is not None or settings.adapter is not None
    dtype = weight_type(settings, device, adapted=adapted)
    fresh = settings.adapter is not None and settings.adapter.kind == "qlora"
    if not (fresh or (adapter_folder is not None and _trained_on_four_bits(Path(adapter_folder)))):
        return _from_pretrained(source, settings, dtype=dtype)
    config = quantised.four_bit(autocast_type(settings, device) or dtype)
    model = _from_pretrained(
        source, settings, dtype=dtype, quantization_config=config, device_map={"": device}
    )
    quantised.settle(model, source)
    return model


def save(loaded: LoadedModel, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write weights (safetensors), config and tokenizer; of an adapted model the adapter only.

    weights: the model's, by name, where it holds them in part.
    """
    folder = Path(folder)
    loaded.model.save_pretrained(folder, safe_serialization=True, state_dict=weights)
    loaded.tokenizer.save_pretrained(folder)
    if has_adapter(loaded.model):
        record = {"model": loaded.origin, "weights": fingerprint(loaded.model)}
        if quantised.layers(loaded.model):
            record["quantised"] = quantised.NF4
        (folder / ORIGIN).write_text(json.dumps(record) + "\n", encoding="utf-8")


def locate(name: str) -> str:
    """A folder, or a name for the hub. Raises ModelError for a folder without a model in it."""
    if name == "embedded":
        if not (EMBEDDED / "model.safetensors").is_file():
            raise ModelError(f"the embedded model's files are missing from {EMBEDDED}: reinstall renshu")
        return str(EMBEDDED)
    if name in KNOWN:
        folder = cached(name)
        if folder is None:
            raise ModelError(f"{name} is not on this machine yet: run `renshu models get {name}`")
        return str(folder)
    path = Path(name).expanduser()
    if path.is_dir():
        if not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
            raise ModelError(f"{path} holds no model: {_instead(path)}")
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: no such folder")
    return name


def _instead(path: Path) -> str:
    """What a folder without a model holds, and how that is named."""
    if (path / "checkpoints" / "final").is_dir():
        return f"it is a run; the model that it kept is {path}/checkpoints/final"
    if (path / "trainable.safetensors").is_file():
        return "these are the weights of a stage; another one begins with them by `from: runs/x:stage`"
    return "there is neither config.json nor adapter_config.json in it"


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a turn, by the generation config, else by the model's config, else by the tokenizer."""
    generation = getattr(model, "generation_config", None)
    for owner in (generation, model.config):
        found = getattr(owner, "eos_token_id", None)
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset() if tokenizer.eos_token_id is None else frozenset([tokenizer.eos_token_id])


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout to 0: with it, the trainer would not see the policy that sampled."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if name.endswith("dropout") and isinstance(value, float):
                setattr(module, name, 0.0)


def _from_pretrained(source: str, settings: ModelSettings, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            **options,
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            output_loading_info=True,
        )
    except Exception as error:  # damaged files, missing packages, the checkpoint's own code
        raise ModelError(_explain(source, error)) from error
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in found["mismatched_keys"]]
    if wrong := sorted([*found["missing_keys"], *mismatched]):
        raise ModelError(
            f"{source} does not hold the weights that its config.json describes: {len(wrong)} are missing or "
            f"of another shape, e.g. {wrong[0]}; they would be random"
        )
    return model


def _tokenizer(source: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except Exception as error:  # as above
        raise ModelError(_explain(source, error)) from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"{source}: only tokenizers of the `tokenizers` library are supported (tokenizer.json)"
        )
    return tokenizer


def _explain(source: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            f"{source} wants to run Python code of its own. If you have read it and trust it, "
            "set model.trust_remote_code=true"
        )
    short = " ".join(text.split())
    short = short if len(short) <= LONGEST_REASON else short[:LONGEST_REASON] + " …"
    return f"{source} cannot be loaded: {short or type(error).__name__}"


def _holds_adapter(source: str) -> bool:
    return (Path(source) / "adapter_config.json").is_file()


def _origin(folder: Path) -> str:
    """The model that the adapter in `folder` was trained on."""
    if (folder / ORIGIN).exists():
        return str(_member(folder / ORIGIN, "model"))
    return str(_member(folder / "adapter_config.json", "base_model_name_or_path"))


def _trained_on_four_bits(folder: Path) -> bool:
    if not (folder / ORIGIN).exists():
        return False
    kind = _member(folder / ORIGIN, "quantised", "")
    if kind not in ("", quantised.NF4):
        raise ModelError(f"{folder / ORIGIN}: 'quantised' is {kind!r}; known: {quantised.NF4!r}")
    return bool(kind)


def _require_base(folder: Path, origin: str, model: Any) -> None:
    """Raise ModelError if the adapter in `folder` was trained on other weights than these."""
    if not (folder / ORIGIN).exists():
        return  # another library's adapter says nothing
    trained_on, here = _member(folder / ORIGIN, "weights", ""), fingerprint(model)
    if trained_on and here and trained_on != here:
        raise ModelError(
            f"{folder} holds an adapter that was trained on other weights than {origin} has now: "
            "put the original model back"
        )


def _member(path: Path, key: str, default: Any = None) -> Any:
    try:
        value = json.loads(path.read_text("utf-8")).get(key, default)
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if value is None:
        raise ModelError(f"{path} has no {key!r}: the adapter does not say which model it belongs to")
    return value


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"model.device={name}: {str(error).splitlines()[0]}") from None
    return device
