"""`python -m geodata.cli`."""

from geodata.cli import main

if __name__ == "__main__":
    main()
