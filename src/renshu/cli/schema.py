"""`renshu schema`."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON schema of recipes, with which an editor completes and checks them."""
    from renshu.pipeline.schema import recipe_schema

    print(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
