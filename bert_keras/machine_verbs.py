"""Options of the verbs about machines: is one ready, what does it cost, rent one."""

import argparse

import tpu


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=tpu.PURPOSES,
        default="cpu",
        help="what the machine is to do (default: %(default)s)",
    )
    parser.add_argument(
        "--path",
        nargs="+",
        default=[],
        metavar="DIRECTORY",
        help="directories that a run will read or write, on disk or on gs://: room, "
        "rights",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the findings as JSON"
    )
