"""A tool as verl's ``function_tool_path`` takes it."""

from verl.tools.function_tool import function_tool


@function_tool
def add(a: int, b: int) -> tuple[str, float]:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b), 0.5
