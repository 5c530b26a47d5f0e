"""`python -m ripieno`: the program of the wheel."""

import os
import shutil
import sys
import sysconfig


def program():
    """The program of this environment, or else the first one on the path."""
    own = os.path.join(sysconfig.get_path("scripts"), "ripieno")
    return own if os.path.isfile(own) else shutil.which("ripieno")


def main():
    found = program()
    if found is None:
        sys.exit("the program ripieno is neither in this environment nor on the path; install the wheel")
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
