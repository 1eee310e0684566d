"""`python -m squashlens`: the command line."""

from squashlens.cli import main

if __name__ == "__main__":
    main()
