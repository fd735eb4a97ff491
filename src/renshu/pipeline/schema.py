"""The JSON schema of a recipe: what an editor completes and checks while one is written."""

from __future__ import annotations

from typing import Any

from renshu.pipeline.recipe import Recipe

DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML plugins understand


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe file: that of `Recipe`, with the presets that are resolved before it is read."""
    schema = Recipe.model_json_schema(mode="validation")
    presets = {
        "description": "Names with keys to set, chosen with --preset.",
        "type": "object",
        "additionalProperties": {"type": "object"},
    }
    schema["properties"]["presets"] = presets
    return {"$schema": DIALECT, **schema}
