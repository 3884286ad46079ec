"""The server's side of the python backend.

instance    one instance: keeps a process running, restarts it when it dies
model_process  one life of an instance's process: messages, tensors, what is under way
calls       what the model calls: requests to other models (BLS)
controls    … and what it asks of their lives: load, unload, ready
completion  `auto_complete_config` in a process of its own
environment the interpreter: ours, or the model's own
settings    `--backend-config=python,…`
custom_metrics  what the models count, added up
"""
