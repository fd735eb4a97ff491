"""A trained agent behind OpenAI's chat completions."""
