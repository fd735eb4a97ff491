"""Every exception Renshu raises on purpose.

RenshuError
├── ConfigError          a recipe or option: unknown key, wrong type, impossible combination
├── DataError            a file, row or field that cannot be read
├── TemplateError        a chat template that cannot do what is asked of it
├── ModelError           a model that cannot be loaded or is not supported
│   └── UnsupportedAttention   an attention argument our kernels do not implement
├── ContextOverflow      more tokens than the model's context holds
├── ContractError        an environment, tool or reward that breaks its contract
│   └── ToolDefinitionError    a tool whose signature cannot become a schema
├── ToolError            raised inside a tool: its text is shown to the model as the tool's answer
├── InfrastructureError  the machine, not the policy, failed: the episode is unscored
├── EngineError          sampling failed
├── TrainingError        training cannot go on
│   └── OtherProcessFailed     in another process, which says how: this one ends without a word
└── CheckpointError      a checkpoint is incomplete, damaged or does not fit
"""

from __future__ import annotations


class RenshuError(Exception):
    """Base of all errors raised on purpose; its text says what is wrong, where, and what to do."""


class ConfigError(RenshuError): ...


class DataError(RenshuError): ...


class TemplateError(RenshuError): ...


class ModelError(RenshuError): ...


class UnsupportedAttention(ModelError): ...


class ContextOverflow(RenshuError): ...


class ContractError(RenshuError): ...


class ToolDefinitionError(ContractError): ...


class ToolError(RenshuError):
    """Raise it in a tool to refuse: the model reads the text as the tool's answer."""


class InfrastructureError(RenshuError):
    """Raise it in a tool or environment if the machine failed: the episode is then unscored, not failed."""


class EngineError(RenshuError): ...


class TrainingError(RenshuError): ...


class OtherProcessFailed(TrainingError):
    """Not told to the user: the process that failed does that."""

    exit_code = 75


class CheckpointError(RenshuError): ...
