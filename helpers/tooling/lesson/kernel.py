"""The kernel in which lessons run: ipykernel's, without the configuration that a machine may hold.

Jupyter starts this file. A variable moves the profile of a user (`environment.TABLE`), but none
moves what an administrator put into etc/ipython, below /, /usr/local or this environment:
configuration and startup files for all users.
"""

import contextlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, in which no lesson should find a module
    from ipykernel import kernelapp
    from IPython.core import application

    application.ENV_CONFIG_DIRS.clear()
    application.SYSTEM_CONFIG_DIRS.clear()
    if Path("matplotlibrc").exists():
        # One beside the lesson would come before the variable MATPLOTLIBRC. The import looks for
        # it, and for the backend, which ipykernel sets later.
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        with contextlib.chdir(Path(__file__).parent):
            import matplotlib  # noqa: F401
    kernelapp.launch_new_instance()
