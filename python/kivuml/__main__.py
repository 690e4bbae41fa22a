"""The `kivu` command: `python -m kivuml`."""

import os
import signal
import sys


def main():
    from . import _package

    # The command has handlers of its own, and must end on Ctrl-C before it installs them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _package.native().command([sys.executable, "-m", "kivuml"], ["kivu", *sys.argv[1:]])
    sys.stdout.flush()
    sys.stderr.flush()
    # As in a program, threads that still run end here.
    os._exit(code)


if __name__ == "__main__":
    main()
