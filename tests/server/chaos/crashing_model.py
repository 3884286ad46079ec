"""A Python model that does to itself what a request's parameters say, copied into repositories by the tests beside it.

    gate     a path: say `<gate>.reached`, continue when `<gate>.open` exists
    do       what to do then; a method below
    answers  how many responses a decoupled request gets; `do` is done before the last of them
    large    give that number of floats as output LARGE

While there is a file `hold` beside the configuration, `initialize` does not end; its process is in `hold.pid`.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.by_senders = "senders" in config.get("parameters", {})
        hold = Path(args["model_repository"], "hold")
        if hold.exists():
            hold.with_suffix(".new").write_text(str(os.getpid()))
            hold.with_suffix(".new").rename(hold.with_suffix(".pid"))
        while hold.exists():
            time.sleep(0.001)

    def execute(self, requests):
        if self.decoupled or self.by_senders:
            for request in requests:
                self.answer_by_sender(request)
            return None
        return [self.answer(request, json.loads(request.parameters())) for request in requests]

    def answer(self, request, order):
        self.obey(order)
        return self.response(request, order)

    def answer_by_sender(self, request):
        order = json.loads(request.parameters())
        sender = request.get_response_sender()
        for _ in range(order.get("answers", 1) - 1):
            sender.send(self.response(request, order))
        self.obey(order)
        sender.send(self.response(request, order), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, request, order):
        value = request.inputs()[0].as_numpy()
        shape = value.shape
        tensors = [pb_utils.Tensor("OUTPUT0", value), pb_utils.Tensor("PID", np.full(shape, os.getpid(), np.int32))]
        if "large" in order:
            floats = np.full((*shape[:-1], order["large"]), float(value.flat[0]), np.float32)
            tensors.append(pb_utils.Tensor("LARGE", floats))
        return pb_utils.InferenceResponse(tensors)

    def obey(self, order):
        if "gate" in order:
            Path(order["gate"] + ".reached").touch()
            while not Path(order["gate"] + ".open").exists():
                time.sleep(0.001)
        if "do" in order:
            getattr(self, order["do"])()

    # ── what may be done ──

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def segfault(self):
        ctypes.string_at(0)

    def abort(self):
        os.abort()

    def exit(self):
        os._exit(3)

    def loop(self):
        while True:
            pass

    def out_of_memory(self):
        np.ones(1 << 46, np.uint8)

    def out_of_memory_in_native_code(self):
        """Abort, as a library does without memory."""
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), size + (1 << 20)))
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        if not libc.malloc(ctypes.c_size_t(1 << 30)):
            libc.abort()

    def system_exit(self):
        raise SystemExit(5)

    def keyboard_interrupt(self):
        raise KeyboardInterrupt

    def close_descriptors(self):
        os.closerange(3, 1024)
        time.sleep(600)

    def babble(self):
        for descriptor in self._descriptors():
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"\xff" * 100)
        time.sleep(600)

    def leave_a_child(self):
        """Leave a process of the same group that holds everything which can be inherited."""
        self._start_sleeper()
        os._exit(3)

    def leave_a_daemon(self):
        """Leave a process behind in a new session."""
        child = self._start_sleeper(start_new_session=True)
        print(f"daemon {child.pid}", flush=True)
        os._exit(3)

    def leave_a_fork(self):
        """Leave a copy of this very process."""
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os._exit(3)

    def die_in_the_middle_of_a_write(self):
        """Have the next message to the server be cut short by death."""

        def half(connection, data, *rest):
            view = memoryview(data).cast("B")
            os.write(connection.fileno(), view[: len(view) // 2])
            self.kill()

        socket.socket.sendall = socket.socket.send = half

    def _start_sleeper(self, **options):
        return subprocess.Popen(["sleep", "600"], pass_fds=self._descriptors(), **options)

    def _descriptors(self):
        return [int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists() or link.is_symlink()]
