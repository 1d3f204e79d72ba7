"""Notices to people: make and send them regularly, and the endpoints about their channels.

Each channel sends its notices one message at a time, on a thread of its own: a channel that fails delays neither the
others nor the queue. Stopping the receiver waits for no message; an unfinished message is sent again at the next start,
with the same key.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace
from starlette.requests import Request

from training.fleet.database.writer import DatabaseError
from training.fleet.manifest.channels import NotifyChannel
from training.fleet.receiver.http.bodies import read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.service.notify.notices import NoticeOutbox, Notices
from training.fleet.service.notify.rules import Message
from training.fleet.service.notify.secret import SendError, unreadable
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.messages import NotifyReply, NotifyTestReply, NotifyTestRequest, NotifyTestView

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 5.0  # between two looks for news
Send = Callable[[NotifyChannel, Message], None]


def _send(channel: NotifyChannel, message: Message) -> None:
    """Send a message; the modules for HTTP and SMTP are loaded only now, to save memory in a receiver that sends
    none."""
    from training.fleet.receiver.notify.senders import send

    send(channel, message)


class Notifier:
    """The maker and sender of notices. The server calls :meth:`tick` every few seconds."""

    def __init__(self, context: ReceiverContext, send: Send = _send) -> None:
        self._context = context
        self._send = send
        queue = context.service.queue
        self._outbox = NoticeOutbox(queue.db, queue.clock)
        self._notices = Notices(queue.db, queue.clock, self._outbox, context.store.has_room)
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def tick(self) -> None:
        """Make notices of new events, and start sending each channel's messages that are due."""
        channels = await self._context.call(self._look)
        for channel in channels:
            if channel.name not in self._sending:
                task = asyncio.ensure_future(self._work_off(channel))
                self._sending[channel.name] = task
                task.add_done_callback(partial(self._ended, channel.name))

    async def forget_old(self) -> None:
        """Delete old notices that every channel has sent, except those of a state that still lasts. Call this rarely,
        because it reads all notices."""
        await self._context.call(self._notices.forget_old)

    def _ended(self, name: str, _task: asyncio.Task[None]) -> None:
        self._sending.pop(name, None)

    async def settled(self) -> None:
        """Wait until no message is being sent."""
        while self._sending:
            await asyncio.wait(list(self._sending.values()))
            await asyncio.sleep(0)

    def close(self) -> None:
        """Cancel all sending, without waiting for messages under way."""
        for task in self._sending.values():
            task.cancel()

    def _look(self) -> tuple[NotifyChannel, ...]:
        channels = self._context.service.plan.channels
        self._outbox.place(channels)
        self._notices.look()
        return channels

    async def _work_off(self, channel: NotifyChannel) -> None:
        """Send the channel's messages until none is due."""
        try:
            while (message := await self._context.call(partial(self._outbox.next, channel))) is not None:
                error = await self.try_to_send(channel, message)
                if error is None:
                    await self._context.call(partial(self._outbox.sent, channel))
                    logger.info("notify %s: sent %s", channel.name, message.key)
                else:
                    await self._context.call(partial(self._outbox.failed, channel, error))
                    logger.warning("notify %s: %s", channel.name, error)
        except DatabaseError as error:
            logger.warning("notify %s: left for the next time: %s", channel.name, error)

    async def try_to_send(self, channel: NotifyChannel, message: Message) -> str | None:
        """Send a message on a thread for which a stop need not wait; return why it did not arrive, None if it did."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()

        def settle(error: str | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error: str | None = None
            try:
                self._send(channel, message)
            except SendError as wrong:
                error = str(wrong)
            except Exception as wrong:  # a channel must not take the receiver with it
                logger.exception("notify %s", channel.name)
                error = f"a bug in the receiver, {type(wrong).__name__}; its log has the rest"
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, error)

        threading.Thread(target=work, name=f"notify-{channel.name}", daemon=True).start()
        error = await done
        self._context.tally.notified(channel.name, error)
        return error

    async def test(self, channel: NotifyChannel) -> NotifyTestView:
        """Send a test message over a channel; the answer's ``error`` says why it did not arrive."""
        key, text = f"cis490-test-{secrets.token_hex(8)}", "This is a test: notices of the training fleet arrive here."
        message = Message(key, "CIS490: a test", text, (), self._context.database_id)
        error = await self.try_to_send(channel, message)
        return NotifyTestView(channel=channel.name, kind=channel.kind, error=error)


async def notify(context: ReceiverContext, _request: Request) -> Answer:
    """Answer with the plan's channels, and how far each has sent its notices."""
    channels = context.service.plan.channels
    outbox = NoticeOutbox(context.reader, context.clock)
    found = await context.look(lambda: outbox.waiting(channels))
    dumb = await context.disk(lambda: {each.name: unreadable(each) for each in channels})
    shown = [replace(each, error=dumb[each.channel] or each.error) for each in found]
    return NotifyReply(channels=shown, now=context.clock.now())


async def notify_test(context: ReceiverContext, request: Request) -> Answer:
    """Send a test message over one channel or all; answer for each channel whether the message arrived."""
    body = await read_json(context, request, NotifyTestRequest)
    channels = [each for each in context.service.plan.channels if body.channel in (None, each.name)]
    if body.channel is not None and not channels:
        known = ", ".join(each.name for each in context.service.plan.channels) or "none"
        raise Refusal(ProblemType.UNKNOWN_NAME, f"the plan has no channel {body.channel}; its [notify.*] are: {known}")
    notifier = Notifier(context)
    return NotifyTestReply(results=list(await asyncio.gather(*map(notifier.test, channels))))
