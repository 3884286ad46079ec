"""`python -m conch` is `conch`."""

from conch.cli import main

if __name__ == "__main__":
    main()
