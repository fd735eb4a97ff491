"""Puts a trained model into the package: weights, config, tokenizer, and the log that ends with their hash.

python pretrain/release.py --from pretrain/build
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM

HERE = Path(__file__).parent
EMBEDDED = HERE.parent / "src/renshu/models/embedded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="build", type=Path, default=HERE / "build")
    parser.add_argument("--stage", default="dialogues")
    options = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(options.build / options.stage, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    model.save_pretrained(EMBEDDED)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(options.build / name, EMBEDDED / name)
    digest = hashlib.sha256((EMBEDDED / "model.safetensors").read_bytes()).hexdigest()
    lines = (options.build / "log.jsonl").read_text().splitlines()
    lines.append(json.dumps({"sha256": digest}))
    (HERE / "log.jsonl").write_text("\n".join(lines) + "\n")
    print(digest)


if __name__ == "__main__":
    main()
