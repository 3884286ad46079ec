"""The code that runs in the processes of Python models and engines.

    python_main.py                  entry point of a Python model's process, and of the fork server
    engine_main.py                  entry point of an engine's process
    triton_python_backend_utils.py  the module that models import as `pb_utils`
    c_python_backend_utils.py       its classes under their other name
    conch_child/ipc/                shared with the server: frames, arena, prctl, sandbox
    conch_child/python/             the Python model's side
    conch_child/engine/             drivers of engines, and their loops

This folder is appended to `sys.path` of the process, where its names meet those of the model and its packages, so it
holds no more than these. The interpreter may differ from the server's (Python 3.8 or newer; 3.9 for engines) and has
numpy, but not `conch`: nothing below imports it, and imports inside `conch_child` are relative, so that the same files
are modules of the server as well.
"""
