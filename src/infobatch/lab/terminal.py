"""Messages for a person at a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape


def print_error(error: Exception) -> None:
    """Print an error message; brackets in it are text, not markup."""
    message = f"[red]Error:[/red] {escape(str(error))}"
    Console(stderr=True).print(message, highlight=False, soft_wrap=True)
