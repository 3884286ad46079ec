"""OpenVINO GenAI without a server: `python -m benchmarks.llm.raw MODEL SCHEDULER`, jobs on stdin, timings on stdout.

The bound of what a server can reach with this engine: nothing but the pipeline is stepped. A request is added when
another one ends, as clients would do it; its text is made in the end, at once. SCHEDULER is JSON, the fields of the
library's `SchedulerConfig`; jobs and timings are JSON, one a line.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import openvino_genai as genai

from benchmarks.llm.timings import Recorder, Stream, Timings
from benchmarks.llm.work import OUTPUT_TOKENS, Job


class Loop:
    """A pipeline, and jobs that it does one after the other."""

    def __init__(self, model: str, scheduler: dict[str, Any]) -> None:
        settings = genai.SchedulerConfig()
        for name, value in scheduler.items():
            setattr(settings, name, value)
        self._pipeline = genai.ContinuousBatchingPipeline(model, settings, "CPU", {})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._configuration = genai.GenerationConfig(
            max_new_tokens=OUTPUT_TOKENS, ignore_eos=True, do_sample=False, eos_token_id=-1
        )
        self._number = 0

    def do(self, job: Job) -> Timings:
        """Keep `job.concurrency` requests in the pipeline until all have ended."""
        recorder = Recorder()
        prompts = iter(job.prompts())
        running = [self._added(prompts) for _ in range(job.concurrency)]
        while any(running):
            self._pipeline.step()
            now = time.perf_counter()
            running = [self._moved(request, now, prompts, recorder) for request in running]
        return recorder.timings()

    def _added(self, prompts: Iterator[str]) -> "_Request | None":
        prompt = next(prompts, None)
        if prompt is None:
            return None
        stream = Stream(time.perf_counter())
        self._number += 1
        return _Request(self._pipeline.add_request(self._number, prompt, self._configuration), stream)

    def _moved(
        self, request: "_Request | None", now: float, prompts: Iterator[str], recorder: Recorder
    ) -> "_Request | None":
        """Take what a step has brought to a request; return what runs in its place."""
        if request is None:
            return None
        stream = request.stream
        while request.handle.can_read():
            for output in request.handle.read().values():
                request.token_ids += output.generated_ids
                stream.chunks.append(now)
        if request.handle.get_status() == genai.GenerationStatus.RUNNING:
            return request
        self._tokenizer.decode(request.token_ids)
        stream.tokens, stream.ended = len(request.token_ids), now
        if stream.tokens == OUTPUT_TOKENS:
            recorder.done(stream)
        else:
            recorder.failed(f"{stream.tokens} tokens in place of {OUTPUT_TOKENS}")
        return self._added(prompts)


class _Request:
    """What is known of one that runs."""

    def __init__(self, handle: Any, stream: Stream) -> None:
        self.handle = handle
        self.stream = stream
        self.token_ids: list[int] = []


def main() -> None:
    """Load the model, say so, and do the jobs of stdin until it ends."""
    loop = Loop(sys.argv[1], json.loads(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(loop.do(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
