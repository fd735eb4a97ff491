"""Tools: what a model may call, how it is described to it, checked and run."""

from renshu.tools.call import ToolResult, abandoned_tools
from renshu.tools.tool import ToolSpec, is_tool, tool

__all__ = ["ToolResult", "ToolSpec", "abandoned_tools", "is_tool", "tool"]
