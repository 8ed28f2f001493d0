"""``python -m emulator`` is the ``emu`` command."""

from emulator.cli import main

if __name__ == "__main__":
    main()
