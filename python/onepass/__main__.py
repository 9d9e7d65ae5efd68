"""python -m onepass info: what the library is and what it found on this machine."""

import argparse

from onepass import info


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m onepass")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verbs.add_parser("info", help="show the library and what it found on this machine")
    parser.parse_args()
    for name, text in info().items():
        print(f"{name:<17} {text}")


if __name__ == "__main__":
    main()
