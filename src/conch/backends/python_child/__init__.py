"""The code that runs in a Python model's own process; the server imports `conch_child.wire` and `arena` from here too.

    main.py                         what the process is started with
    triton_python_backend_utils.py  the module that models import as `pb_utils`
    c_python_backend_utils.py       its classes under their other name
    conch_child/                    everything else

This folder goes on `sys.path` of the model's process, where its names meet those of the model and of its packages.
So it holds no more than these. The interpreter may be another one than the server's (Python 3.8 or newer) and
has numpy, but not `conch`: nothing below imports it, and imports inside `conch_child` are relative, so that the same
files are modules of the server as well.
"""
