"""Fetch models as KServe's storage initializer does. Run by its environment's interpreter.

Arguments: pairs of a storageUri and a folder, as of the init container.
"""

import sys

from kserve_storage import Storage

if __name__ == "__main__":
    words = sys.argv[1:]
    for uri, folder in zip(words[::2], words[1::2], strict=True):
        Storage.download(uri, folder)
