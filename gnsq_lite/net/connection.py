"""One nsqd: its greenlet reads frames, answers heartbeats at once and hands messages on (CONN-2, HB-1).

The cost is per read, not per message: one pass over what a read brought, and all answers of a turn of the loop in one
write.  Answers may come from any thread.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Any

import gevent

from gnsq_lite.clock import Clock
from gnsq_lite.errors import (
    ConnectionLost,
    DecompressionError,
    HandshakeTimeout,
    HeartbeatTimeout,
    NSQConnectionError,
    NSQError,
    ProtocolError,
    UnexpectedFrame,
    error_for,
)
from gnsq_lite.message import Message
from gnsq_lite.net.flight import InFlight
from gnsq_lite.net.pace import Pace
from gnsq_lite.net.runtime import Loop
from gnsq_lite.net.stream import Stream, connect
from gnsq_lite.net.target import Owner, Target
from gnsq_lite.net.telling import Complaints, log_safely
from gnsq_lite.options import ConnectionOptions, format_address
from gnsq_lite.speed import Fins
from gnsq_lite.wire import commands
from gnsq_lite.wire.compress import make_codec
from gnsq_lite.wire.constants import CLOSE_WAIT, FRAME_ERROR, HEARTBEAT
from gnsq_lite.wire.frames import Frame, FrameDecoder
from gnsq_lite.wire.identify import Negotiated, build_identify
from gnsq_lite.wire.session import Done, Send, Session, StartCompression, StartTLS

log = logging.getLogger("gnsq_lite.net")

#: Seconds a message stays counted in flight after its deadline: TOUCH travels, nsqd's timers are coarse.
_GRACE = 0.5

#: Most bytes of a frame of the handshake, and of what one read of it decompresses to.
_HANDSHAKE_BYTES = 1024 * 1024
#: Most frames of a handshake; but for heartbeats, nsqd sends five.
_HANDSHAKE_FRAMES = 1000
#: Frames, messages apart, between two looks at the clock.
_FRAMES_AT_ONCE = 256
#: Bytes of answers that wait for a Reader's nsqd to take them, before no more is read.
_MOST_UNSENT = 4 * 1024 * 1024


class Connection:
    """A connection and its counts.  ``open`` and ``run`` are called, in turn, by the one greenlet that owns it."""

    def __init__(self, loop: Loop, target: Target, options: ConnectionOptions, owner: Owner, clock: Clock) -> None:
        self.loop, self.target, self.options, self.owner, self.clock = loop, target, options, owner, clock
        self.topic, self.channel = target.topic, target.channel
        self.endpoint = target.endpoint
        self.address = format_address(target.endpoint.address)
        self.negotiated: Negotiated | None = None
        self.auth_reply: Any = None
        self.read_at = clock.now()
        self.msg_timeout, self.max_msg_timeout = 60.0, 900.0
        #: Messages that were received and not answered (MSG-5).
        self.in_flight = InFlight()
        self.finished = self.requeued = self.expired = self.answers_lost = 0
        self.opened_at: float | None = None
        self.close_waited = False
        self._stream: Stream | None = None
        self._codec: Any = None
        self._early = b""
        self._fins = Fins(self._flush_soon)
        #: Where a handler's success puts FIN without a call of :meth:`finish`; None where that has more to do.
        self.fins = self._fins if type(self).finish is Connection.finish else None
        self._out: list[bytes] = []
        self._reqs: list[bytes] = []
        limit = min(options.max_frame_size, _HANDSHAKE_BYTES)
        self._decoder = FrameDecoder[Message](limit, Message, self, at_once=_FRAMES_AT_ONCE)
        self.complaints = Complaints(clock)
        self._pace = Pace(loop, clock)

    # -- opening (CONN-1, CONN-5)

    def open(self) -> None:
        """Connect and shake hands, up to the OK of SUB; waits.

        Raises:
            ConnectError, HandshakeTimeout, TLSError, NsqdError, ProtocolError: closed again; the text names the nsqd.
        """
        host, port = self.target.connect_to or self.endpoint.address
        self._stream = stream = connect(self.loop, host, port, self.options.connect_timeout)
        stream.address = self.address
        limit = gevent.Timeout(self.options.handshake_timeout)
        limit.start()
        try:
            self._shake_hands(stream, host)
        except gevent.Timeout as expired:
            self.close(ConnectionLost(self.address, "given up"))
            if expired is not limit:
                raise
            why = f"no end of the handshake within {self.options.handshake_timeout:g} s: is this nsqd's TCP port?"
            raise HandshakeTimeout(self.address, why) from None
        except NSQError as error:
            if isinstance(error, ProtocolError):
                error.address = self.address
            self.close(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "given up"))
            raise
        finally:
            limit.close()
        self.opened_at = self.clock.now()

    def _shake_hands(self, stream: Stream, host: str) -> None:
        options = self.options
        if self.target.identify_extra:
            options = replace(options, extra_identify={**options.extra_identify, **self.target.identify_extra})
        identify = build_identify(options, hostname_default=socket.gethostname())
        session = Session(options, self.address, identify=identify, subscribe=self.target.subscribe)
        stream.write(session.start())
        for _ in range(_HANDSHAKE_FRAMES):
            step = session.receive(self._one_frame(stream))
            if isinstance(step, Send):
                self._emit(step.data)
            elif isinstance(step, StartTLS):
                stream.start_tls(options.tls, host, self._decoder.take_pending())  # type: ignore[arg-type]
                self._early = stream.decrypt_buffered()
            elif isinstance(step, StartCompression):
                self._codec = make_codec(step.algorithm, step.level)
                self._early = self._decompress_early(self._decoder.take_pending())
            elif isinstance(step, Done):
                break
        else:
            raise UnexpectedFrame(f"no end of the handshake within {_HANDSHAKE_FRAMES} frames")
        for warning in session.warnings:
            log.warning("%s: %s", self.address, warning)
        self.auth_reply = session.auth_reply
        self._adopt(session.negotiated)

    def _one_frame(self, stream: Stream) -> Frame:
        """Return the next frame and read no meaning into the bytes after it: they may be encrypted (SEC-3)."""
        frame = self._decoder.feed_one(self._early)
        while frame is None:
            data = stream.read()
            frame = self._decoder.feed_one(data if self._codec is None else self._decompress_early(data))
        self._early = b""
        return frame

    def _decompress_early(self, data: bytes) -> bytes:
        """Decompress a read of the handshake, which holds an answer or two: more is a bomb."""
        plain = b""
        for piece in self._codec.decompress(data):
            plain += piece
            if len(plain) > _HANDSHAKE_BYTES:
                raise DecompressionError(f"a read of the handshake decompresses to more than {_HANDSHAKE_BYTES} bytes")
        return plain

    def _adopt(self, negotiated: Negotiated | None) -> None:
        self.negotiated = negotiated
        self._decoder.limit = self.options.max_frame_size
        if self.target.choose_message is not None:
            self._decoder.make_message = self.target.choose_message(negotiated)
        if negotiated is not None:
            self.msg_timeout = negotiated.msg_timeout or self.msg_timeout
            self.max_msg_timeout = negotiated.max_msg_timeout or self.max_msg_timeout

    # -- reading

    def run(self) -> None:
        """Read until the connection ends; waits.  Always ends with an exception, the reason."""
        stream = self._stream
        if stream is None:
            raise ConnectionLost(self.address, "not open")
        try:
            self._deliver(self._decoder.take_pending())
            while True:
                data = stream.read()
                self.read_at = self._pace.began = self.clock.now()
                if self._codec is None:
                    self._deliver(data)
                else:
                    for chunk in self._codec.decompress(data):
                        self._deliver(chunk)
                        self._give_way()
        except NSQError as error:
            if isinstance(error, ProtocolError):
                error.address = self.address
            self.close(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "closed by this client"))
            raise

    def _deliver(self, data: bytes) -> None:
        decoder, in_flight = self._decoder, self.in_flight
        while True:
            messages, frames = decoder.feed(data)
            if messages:
                in_flight.add(messages)
                self.owner.on_messages(self, messages)
            for frame in frames:
                self._on_frame(frame)
            decoder.check()
            if messages and len(in_flight) > self._pace.most:
                self._pace.rest(self.address, len(in_flight), self._is_crowded)
                self._go_on()
            if not decoder.more:
                return
            data = b""
            self._give_way()

    def _give_way(self) -> None:
        """Let the loop do its other work where this read takes long; raise what closed the connection meanwhile."""
        if self._pace.give_way():
            self._go_on()

    def _go_on(self) -> None:
        if self._stream is not None and self._stream.closed is not None:
            raise self._stream.closed

    def _is_crowded(self) -> bool:
        return self.is_open() and (len(self.in_flight) > self._pace.most or self.unsent() > _MOST_UNSENT)

    def _on_frame(self, frame: Frame) -> None:
        body = frame.body
        if frame.kind == FRAME_ERROR:
            error = error_for(body, self.address)
            if error.closes_connection:
                raise error
            self.owner.on_error_frame(self, error)
        elif body == HEARTBEAT:
            # One answers all that came meanwhile: any byte is a sign of life.
            if not (self._out and self._out[-1] is commands.NOP) and self.unsent() < _MOST_UNSENT:
                self.send(commands.NOP)
        else:
            if body == CLOSE_WAIT:
                self.close_waited = True
            self.owner.on_response(self, body)

    def read_at_least(self, size: int) -> None:
        """Wait for *size* bytes, or a moment, before the next read; for any bytes again with 1, or where compressed."""
        if self._stream is not None and self._codec is None:
            self._stream.read_at_least(size)

    # -- writing

    def send(self, data: bytes) -> None:
        """Queue *data*; all that is queued in one turn of the loop is one write.  From any thread; never waits."""
        self._out.append(data)
        if not self._fins.due:
            self._fins.due = True
            self._flush_soon()

    def _flush_soon(self) -> None:
        self.loop.call_soon(self._flush)

    def set_ready(self, count: int) -> None:
        """Queue RDY; from now on nsqd may have so many messages out here, also where it was told less since."""
        self._pace.allow(count)
        self.send(commands.ready(count))

    def finish(self, message: Message) -> None:
        """Queue FIN; from any thread.  The message was claimed by its caller."""
        self._fins.add(message.id)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Queue REQ; from any thread.  None: the delay that the message's attempts call for."""
        command = commands.requeue(message.id, self.owner.requeue_delay(message, delay))
        if backoff:
            self.loop.call_soon(lambda: self._fail(command))
        else:
            self._queue_requeue(command)

    def _fail(self, command: bytes) -> None:
        # The RDY 0 that a failure may call for goes out first: else nsqd sends the message again at once.
        self.owner.on_failure()
        self._queue_requeue(command)

    def _queue_requeue(self, command: bytes) -> None:
        self._reqs.append(command)
        if not self._fins.due:
            self._fins.due = True
            self._flush_soon()

    def answer_late(self, message: Message, *, finished: bool) -> None:
        """Queue the answer to a message that was counted out: should nsqd have sent it here again, it still counts."""
        self.send(commands.finish(message.id) if finished else commands.requeue(message.id, 0.0))

    def touch(self, message: Message) -> None:
        """Queue TOUCH; from any thread."""
        self.send(commands.touch(message.id))

    def _flush(self) -> None:
        # Other threads may append meanwhile: take what is there now, by its number, and leave the rest.
        self._fins.due = False
        out, reqs = self._out, self._reqs
        queued, requeued = len(out), len(reqs)
        fins, finished = self._fins.take()
        data = b""
        if queued:
            data = b"".join(out[:queued])
            del out[:queued]
        if requeued:
            data += b"".join(reqs[:requeued])
            del reqs[:requeued]
        data = data + fins if data else fins
        if self._stream is None or self._stream.closed is not None:
            self.answers_lost += finished + requeued
            self.owner.on_answers_lost(finished + requeued)
            return
        self._emit(data)
        if finished or requeued:
            self.finished += finished
            self.requeued += requeued
            self.in_flight.answered(finished + requeued)
            self._pace.look()
            self.owner.on_answered(self, finished, requeued, 0)

    def _emit(self, data: bytes) -> None:
        stream = self._stream
        if stream is not None and data:
            stream.write(data if self._codec is None else self._codec.compress(data))

    def flush_now(self) -> None:
        """Send what is queued without waiting for the turn's end; in the loop's thread."""
        self._flush()

    @property
    def received(self) -> int:
        """Messages since it was opened."""
        return self.in_flight.received

    # -- watching

    def check(self, now: float) -> list[Message]:
        """Close the connection when nsqd has been silent, or takes no bytes, for too long (HB-2); count out, and
        return, what nsqd has taken back (MSG-5).  Called about once a second, in the loop's thread."""
        stream = self._stream
        if stream is None or stream.closed is not None or self.opened_at is None:
            return []
        self.complaints.tell(now)
        if self._pace.rests:  # it is not nsqd that is silent; and to it, this side must not seem to be
            self.read_at = now
            self.send(commands.NOP)
        silent = now - max(self.read_at, self.opened_at)
        if silent > 2 * self.options.heartbeat_interval:
            why = f"no byte from nsqd for {silent:.1f} s, two heartbeat intervals"
            self.close(HeartbeatTimeout(self.address, why))
        elif stream.stuck_since is not None and now - stream.stuck_since > self.options.write_timeout:
            why = f"nsqd has taken no bytes for {self.options.write_timeout:g} s"
            self.close(ConnectionLost(self.address, why))
        else:
            self._pace.look()
            return self._count_out(now)
        return []

    def _count_out(self, now: float) -> list[Message]:
        late = self.in_flight.expire(now - _GRACE, now - _GRACE - self.msg_timeout)
        if late:
            self.expired += len(late)
            text = "%s: %d messages were not answered in time; nsqd sends them again"
            log_safely(log, logging.WARNING, text, self.address, len(late))
            self.owner.on_answered(self, 0, 0, len(late))
        return late

    # -- the end

    def is_open(self) -> bool:
        """Whether the handshake is done and the connection not closed."""
        return self.opened_at is not None and self._stream is not None and self._stream.closed is None

    def close(self, reason: NSQError) -> None:
        """Close at once; the reading greenlet gets *reason*.  In the loop's thread; again: nothing."""
        stream = self._stream
        if stream is not None and stream.closed is None:
            if not isinstance(reason, NSQConnectionError):
                reason = ConnectionLost(self.address, str(reason))
            stream.close(reason)
        self.in_flight.clear()
        self._pace.look()
        self.complaints.tell()

    def send_close(self) -> None:
        """Send CLS: nsqd sends no more messages and answers CLOSE_WAIT (CLOSE-1)."""
        self.send(commands.CLS)

    def shut_down(self) -> None:
        """Send what is queued, then end of stream: nsqd reads all of it and closes."""
        self._flush()
        if self._stream is not None:
            self._stream.shut_down()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        if self._stream is not None:
            self._stream.abandon()

    def has_ended(self) -> bool:
        """Look whether nsqd has closed the connection while nobody read; in the loop's thread."""
        return self._stream is None or self._stream.has_ended()

    def unsent(self) -> int:
        """Bytes nsqd has not taken yet."""
        return self._stream.unsent if self._stream is not None else 0

    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent."""
        return (self._stream.bytes_in, self._stream.bytes_out) if self._stream is not None else (0, 0)

    def __repr__(self) -> str:
        state = "open" if self.is_open() else "closed"
        return f"<Connection {self.endpoint} {state} in_flight={len(self.in_flight)}>"
