"""The worker processes of one server."""

from conch.frontends.offload.pool import OffloadPool
from conch.frontends.openai_chat_prompt import ChatPrompts


class Workers:
    """`codecs` read and write large messages, `prompts` render chat templates. Processes start when they are needed."""

    def __init__(self) -> None:
        self.codecs = OffloadPool("codec")
        self.prompts = ChatPrompts()

    async def stop(self) -> None:
        """End all processes."""
        await self.codecs.stop()
        await self.prompts.stop()
