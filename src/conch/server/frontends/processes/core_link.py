# Compiled by mypyc in wheels.
"""The core's end of the link to one frontend process: runs what the process sends, and sends back the answers."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from conch.base.errors import ConchError, QueueFull, drop_frames
from conch.domain.generation import Delta, FinishableGeneration, GenerationRequest, SamplingParams, Usage
from conch.domain.llm.images import EncodedImage
from conch.domain.request import Admitted, InferRequest, InferResponse, Respond, Timeline
from conch.domain.tensor import Buffer, Tensor
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import Explain, HttpReply, ReplyChannel
from conch.protocols.http.router import Router
from conch.protocols.http.sender import handle
from conch.protocols.regions import RegionBytes, Regions, Window, write_output
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.inference import Inference
from conch.server.frontends.processes.link import (
    ANSWER,
    CALL,
    CALLED,
    CANCEL,
    DELTAS,
    EXCHANGE,
    EXPLAIN,
    EXPLAINED,
    FINISH,
    FORWARD,
    GENERATE,
    INFER,
    LIMITED,
    RAW,
    RAW_END,
    REFUSED,
    WRITABLE,
    FrontendLink,
    Message,
    Placed,
    encode_answer,
    timeline_of,
)
from conch.server.frontends.processes.remote_models import delta_to_plain, end_to_plain, exchange_of
from conch.server.frontends.processes.values import describe_error, of_plain, restored_error
from conch.server.frontends.v2_grpc.service import Method
from conch.server.observability.event_log import EventRecorder
from conch.server.observability.tracing.observer import Observer

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoreParts:
    """What the core serves frontend processes with. `traffic` counts the refusals of forwarded requests, by port."""

    inference: Inference
    observer: Observer
    recorder: EventRecorder
    regions: Regions
    routers: Mapping[str, Router]
    methods: Mapping[str, Method]
    traffic: Mapping[str, Traffic]
    explain: Explain | None


class CoreLink:
    """Handles the messages of one frontend process. `changed` is called before the answer to a forwarded request ends.

    `other` gets the messages that are not about requests.
    """

    def __init__(
        self, parts: CoreParts, other: Callable[[Message], None], lost: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._other = other
        self._lost = lost
        self.changed = changed
        self.link: FrontendLink
        self._requests: dict[int, _Request] = {}
        self._generations: dict[int, FinishableGeneration] = {}
        self._replies: dict[int, ForwardedReply] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def connect(self, outgoing: int, incoming: int) -> FrontendLink:
        """Create the link, by the descriptors of its arenas."""
        self.link = FrontendLink(self.handle, self.lost, outgoing, incoming)
        return self.link

    @property
    def in_flight(self) -> int:
        """How many requests and calls of the process are not answered."""
        return len(self._requests) + len(self._generations) + len(self._replies) + len(self._tasks)

    def handle(self, message: Message) -> None:
        """Begin what a message asks for."""
        kind: int = message[0]
        if kind == INFER:
            self._infer(message)
        elif kind == GENERATE:
            self._generate(message)
        elif kind == EXCHANGE:
            self._parts.recorder.exchanges.add(exchange_of(message))
        elif kind == FORWARD:
            self._forward(message)
        elif kind == CALL:
            number: int = message[1]
            self._tasks[number] = asyncio.ensure_future(self._call(number, message[2], message[3]))
        elif kind == CANCEL:
            self._cancel(message[1])
        elif kind == LIMITED:
            self._limited(message[1], message[2], message[3], timeline_of(message[4]))
        elif kind == EXPLAIN:
            self._explain(message[1], message[2], message[3])
        elif kind == FINISH:
            generation = self._generations.get(message[1])
            if generation is not None:
                generation.finish()
        elif kind == WRITABLE:
            reply = self._replies.get(message[1])
            if reply is not None:
                reply.set_writable(message[2])
        elif kind == REFUSED:
            self._refused(message)
        else:
            self._other(message)

    def lost(self) -> None:
        """Cancel everything: the process has ended, and its clients are disconnected."""
        for number in [*self._requests, *self._generations, *self._replies]:
            self._cancel(number)
        self._lost()

    def _infer(self, message: Message) -> None:
        (
            _,
            number,
            name,
            version,
            request_id,
            inputs,
            outputs,
            parameters,
            correlation_id,
            flags,
            priority,
            timeout_us,
            times,
            tenant,
            context,
            places,
        ) = message
        parts, link = self._parts, self.link
        inference = parts.inference
        timeline = timeline_of(times)
        request = InferRequest(
            name,
            [],
            version=version,
            id=request_id,
            outputs=outputs,
            parameters=parameters,
            correlation_id=correlation_id,
            flags=flags,
            priority=priority,
            timeout_us=timeout_us,
            timeline=timeline,
        )
        call = _Request(self, number)
        trace = None
        stage = "look-up"
        if parts.observer.on:
            protocol, parent, state = context or ("HTTP", "", "")
            trace = parts.observer.begin(protocol, name, timeline, parent, state)
        try:
            for input_name, datatype, shape, data in inputs:
                if type(data) is tuple and len(data) == 3:
                    window = Window(*data)
                    request.inputs.append(window.input(parts.regions, input_name, datatype, shape, request))
                else:
                    request.inputs.append(Tensor(input_name, datatype, shape, link.unpacked(data)))
            model = inference.model(name, version)
            if inference.limiter is None:
                model.check_room(timeline)
            else:
                request.meter = inference.admit(model, timeline, tenant)
            if places is not None:
                destinations = {output: parts.regions.part(*place) for output, place in places.items()}
                request.destinations = call.places = destinations
            respond: Respond = call.respond
            if trace is not None:
                trace.read(request, model.version)
                respond = trace.relay(respond)
            self._requests[number] = call
            stage = "admission"
            call.admitted = inference.infer(model, request, respond)
        except ConchError as error:
            self._requests.pop(number, None)
            if trace is not None:
                trace.refused(error)
            drop_frames(error)
            answer = error.of_request(request_id) if isinstance(error, QueueFull) else error
            answer.refused = stage
            link.send((ANSWER, number, True, encode_answer(link, answer)))
        except Exception:
            _log.exception("request to model '%s' failed unexpectedly", name)
            self._requests.pop(number, None)
            link.send((ANSWER, number, True, encode_answer(link, ConchError("internal error"))))

    def answered(self, number: int, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send a response."""
        if final:
            self._requests.pop(number, None)
        link = self.link
        link.send((ANSWER, number, final, encode_answer(link, answer)))

    def _generate(self, message: Message) -> None:
        (
            _,
            number,
            name,
            version,
            request_id,
            prompt,
            params,
            adapter,
            priority,
            special,
            return_prompt,
            prompt_only,
            images,
            times,
            tenant,
            context,
            client,
        ) = message
        parts = self._parts
        inference = parts.inference
        timeline = timeline_of(times)
        sampling: SamplingParams = of_plain(params)
        request = GenerationRequest(
            id=request_id,
            model_name=name,
            prompt=prompt,
            params=sampling,
            version=version,
            adapter=adapter,
            priority=priority,
            add_special_tokens=special,
            return_prompt=return_prompt,
            prompt_only=prompt_only,
            images=[
                EncodedImage(kind, width, height, self.link.unpacked(data)) for kind, width, height, data in images
            ],
            timeline=timeline,
            client=client,
        )
        trace = None
        if parts.observer.on:
            protocol, parent, state = context or ("HTTP", "", "")
            trace = parts.observer.begin(protocol, name, timeline, parent, state)
        generated = _Generated(self, number)
        try:
            inference.check_accepting()
            model = inference.model(name, version)
            if not isinstance(model, GenerativeModel):
                raise ConchError(f"model '{name}' does not generate text")
            if inference.limiter is not None:
                request.meter = inference.admit(model, timeline, tenant)
            if trace is not None:
                request.span = trace.began(model.version)
                generated.answered = trace.answered
            self._generations[number] = model.generate(request, generated.deltas)
            if generated.ended:
                del self._generations[number]
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            self.link.send((DELTAS, number, (), end_to_plain(error)))
            drop_frames(error)

    def generated(self, number: int, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        """Send deltas."""
        if end is not None:
            self._generations.pop(number, None)
        self.link.send((DELTAS, number, [delta_to_plain(delta) for delta in deltas], end_to_plain(end)))

    def _forward(self, message: Message) -> None:
        _, number, port, method, path, query, fields, body, keep_alive, old_version, peer, ending = message
        request = HttpRequest(method, path, fields)
        request.query, request.body = query, self.link.unpacked(body)
        request.keep_alive, request.old_version = keep_alive, old_version
        channel = ForwardedReply(self, number, peer, self._parts.traffic[port])
        channel.ending = ending
        self._replies[number] = channel
        channel.reply = HttpReply(channel, request)
        handle(self._parts.routers[port], request, channel.reply)

    def forwarded(self, number: int) -> None:
        """Drop a forwarded request that is answered."""
        self._replies.pop(number, None)

    async def _call(self, number: int, path: str, data: Buffer) -> None:
        try:
            answer: object = await self._parts.methods[path](data)
        except ConchError as error:
            answer = [describe_error(error)]
            drop_frames(error)
        except Exception:
            _log.exception("a gRPC call failed unexpectedly")
            answer = [describe_error(ConchError("internal error"))]
        self._tasks.pop(number, None)
        self.changed()
        self.link.send((CALLED, number, answer))

    def _limited(self, name: str, version: int, tenant: str, timeline: Timeline) -> None:
        """Count a request that the process has refused, as it would have been refused here."""
        inference = self._parts.inference
        try:
            inference.admit(inference.model(name, version), timeline, tenant)
        except ConchError as error:
            drop_frames(error)

    def _explain(self, number: int, call: int, received: int) -> None:
        explained = partial(self._explained, number)
        if self._parts.explain is None:
            explained("")
        else:
            self._parts.explain(call, received, explained)

    def _explained(self, number: int, text: str) -> None:
        self.link.send((EXPLAINED, number, text))

    def _cancel(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.cancel()
            return
        running = self._generations.pop(number, None)
        if running is not None:
            running.abort()
            return
        reply = self._replies.pop(number, None)
        if reply is not None:
            reply.disconnect()

    def _refused(self, message: Message) -> None:
        """Record a request that the process has refused in the request log and in traces."""
        observer = self._parts.observer
        if message[1] is None:
            _, _, method, path, status, text = message
            observer.unread(method, path, status, text)
            return
        _, context, model, times, error = message
        if not observer.on:
            return
        protocol, parent, state = context
        trace = observer.begin(protocol, model, timeline_of(times), parent, state)
        if trace is not None:
            trace.refused(restored_error(error))


class _Request:
    """A request of the process in the core."""

    __slots__ = ("_cancelled", "_link", "_number", "admitted", "places")

    def __init__(self, link: CoreLink, number: int) -> None:
        self._link = link
        self._number = number
        self._cancelled = False
        self.admitted: Admitted | None = None
        self.places: dict[str, RegionBytes] | None = None

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send a response; see `request.Respond`."""
        if self._cancelled:
            return
        if self.places is not None and isinstance(answer, InferResponse):
            try:
                answer = self._placed(answer, self.places)
            except ConchError as error:
                drop_frames(error)  # which refer to the client's memory
                answer = error
        self._link.answered(self._number, answer, final)

    def cancel(self) -> None:
        """End the request: the client has disconnected, or its process has ended."""
        self._cancelled = True
        if self.admitted is not None:
            self.admitted.cancel()

    def _placed(self, answer: InferResponse, places: dict[str, RegionBytes]) -> InferResponse:
        """Write outputs to the client's memory; they need not travel."""
        outputs: list[Tensor] = []
        for tensor in answer.outputs:
            place = places.get(tensor.name)
            if place is not None:
                write_output(tensor, place)
                tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"", Placed(tensor.nbytes))
            outputs.append(tensor)
        response = InferResponse(
            answer.model_name, answer.model_version, outputs, id=answer.id, parameters=answer.parameters
        )
        response.degraded = answer.degraded
        return response


class _Generated:
    """Where the deltas of one generation go."""

    __slots__ = ("_link", "_number", "answered", "ended")

    def __init__(self, link: CoreLink, number: int) -> None:
        self._link = link
        self._number = number
        self.answered: Callable[[ConchError | None], None] | None = None  # records the end in a trace
        self.ended = False

    def deltas(self, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        """Send deltas; see `generation.DeltaCallback`."""
        if end is not None:
            self.ended = True
            if self.answered is not None:
                self.answered(end if isinstance(end, ConchError) else None)
        self._link.generated(self._number, deltas, end)


class ForwardedReply(ReplyChannel):
    """The connection of a forwarded request, as its reply sees it: bytes go to the process that has the client."""

    def __init__(self, link: CoreLink, number: int, peer: str, traffic: Traffic) -> None:
        super().__init__()
        self._link = link
        self._number = number
        self._peer = peer
        self._traffic = traffic
        self._drained: asyncio.Future[None] | None = None
        self.reply: HttpReply | None = None

    @property
    def peer(self) -> str:
        return self._peer

    def write(self, data: Buffer) -> None:
        self._link.link.send((RAW, self._number, data))

    def write_parts(self, parts: list[Buffer]) -> None:
        for part in parts:
            self.write(part)

    def finished(self, keep_alive: bool) -> None:
        self._link.changed()
        self._link.link.send((RAW_END, self._number, keep_alive, False))
        self._end()

    def abort(self) -> None:
        self._link.link.send((RAW_END, self._number, False, True))
        self._end()

    def count_status(self, status: int) -> None:
        self._traffic.count_status(status)

    async def drained(self) -> None:
        if self.writable:
            return
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drained)

    def set_writable(self, writable: bool) -> None:
        """Change whether the client keeps up."""
        self.writable = writable
        drained, self._drained = self._drained, None
        if writable and drained is not None:
            drained.set_result(None)
        elif drained is not None:
            self._drained = drained

    def disconnect(self) -> None:
        """Drop the answer: the client has disconnected."""
        self.set_writable(True)
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.disconnect()

    def _end(self) -> None:
        self.set_writable(True)
        self.reply = None
        self._link.forwarded(self._number)
