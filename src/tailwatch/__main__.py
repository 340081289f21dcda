"""`python -m tailwatch` is the command `tailwatch`."""

from tailwatch.cli import main

if __name__ == "__main__":
    main()
