"""Conch and the real Triton side by side: same model files, same load generators, interleaved rounds.

`python -m benchmarks.run` is the way in; `README.md` beside this file says what is measured and how to read it.
"""
