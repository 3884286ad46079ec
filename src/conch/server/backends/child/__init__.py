"""Code that runs in the processes of Python models and engines.

    python_main.py                  entry point of a Python model's process, and of the fork server
    engine_main.py                  entry point of an engine's process
    triton_python_backend_utils.py  the module that models import as `pb_utils`
    c_python_backend_utils.py       its classes under Triton's other module name
    conch_child/ipc/                shared with the server: frames, arena, prctl, sandbox
    conch_child/python/             Python models
    conch_child/engine/             drivers of engines, and their loops

This folder is appended to `sys.path` of the process beside the model's folder and packages, so it holds no other names
than these. The interpreter may differ from the server's (Python 3.8 or newer; 3.9 for engines) and has numpy, but not
`conch`. Imports inside `conch_child` are relative, so that the server imports the same files as `conch` modules.
"""
