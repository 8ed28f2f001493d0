def record() -> None:
    """Record."""
