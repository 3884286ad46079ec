"""The response cache: responses of models for equal requests. One for the whole server.

Bounded in bytes; evicts the least recently used entry. Entries are copied out of the memory of the model, so that an
entry takes as much memory as it counts for.
"""

from collections import OrderedDict
from itertools import count
from time import monotonic_ns

from conch.domain.request import InferResponse, ParameterValue
from conch.domain.statistics.model_statistics import CacheStatistics
from conch.domain.tensor import Tensor

# Overhead of an entry and of each of its tensors: objects, names and the place in the index.
_ENTRY_BYTES = 600
_TENSOR_BYTES = 300


class CachedResponse:
    """A response without the id of its request. `group` are the keys of its model."""

    __slots__ = ("group", "outputs", "parameters", "size")

    def __init__(self, response: InferResponse, size: int, group: set[bytes], *, copied: bool) -> None:
        self.outputs = [
            Tensor(each.name, each.datatype, each.shape, each.data if copied else bytes(each.data))
            for each in response.outputs
        ]
        self.parameters: dict[str, ParameterValue] = dict(response.parameters)
        self.size = size
        self.group = group


class ResponseCache:
    """Responses by key, at most `statistics.size` bytes of them. Belongs to the event loop's thread."""

    def __init__(self, size: int) -> None:
        self.statistics = CacheStatistics(size)
        self._answers: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._models = count()

    def __len__(self) -> int:
        return len(self._answers)

    def new_model(self) -> bytes:
        """Return a new prefix for the keys of a model."""
        return b"%d" % next(self._models)

    def find(self, key: bytes) -> CachedResponse | None:
        """Return the response under a key, and mark it as used; None for a miss."""
        answer = self._answers.get(key)
        if answer is None:
            self.statistics.misses += 1
        else:
            self.statistics.hits += 1
            self._answers.move_to_end(key)
        return answer

    def fits(self, response: InferResponse) -> bool:
        """Whether a response is no larger than the whole cache."""
        return _size(response) <= self.statistics.size

    def insert(self, key: bytes, response: InferResponse, group: set[bytes], *, copied: bool = False) -> None:
        """Store a response, and evict others to make room. One that is larger than the whole cache is not stored.

        `copied`: whether its tensors are copies that only the cache uses.
        """
        began = monotonic_ns()
        size = _size(response)
        if key in self._answers:  # two equal requests were executed concurrently
            self._remove(key)
        if size <= self.statistics.size:
            while self.statistics.used + size > self.statistics.size:
                self._remove(next(iter(self._answers)))
                self.statistics.evictions += 1
            self._answers[key] = CachedResponse(response, size, group, copied=copied)
            group.add(key)
            self.statistics.used += size
            self.statistics.entries += 1
        self.statistics.insertion_ns += monotonic_ns() - began

    def forget(self, group: set[bytes]) -> None:
        """Drop all responses of a group."""
        for key in list(group):
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        answer = self._answers.pop(key)
        answer.group.discard(key)
        self.statistics.used -= answer.size
        self.statistics.entries -= 1


def _size(response: InferResponse) -> int:
    parameters = sum(len(key) + len(str(value)) for key, value in response.parameters.items())
    return _ENTRY_BYTES + parameters + sum(_TENSOR_BYTES + tensor.nbytes for tensor in response.outputs)
