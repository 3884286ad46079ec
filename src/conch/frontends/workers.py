"""The worker processes of one server."""

from conch.frontends.offload.pool import MAX_WORKER_MEMORY_BYTES, OffloadPool
from conch.frontends.openai.chat_prompt import ChatPrompts


class Workers:
    """`codecs` read and write large messages, `prompts` render chat templates. Processes start when they are needed."""

    def __init__(self, codec_memory_bytes: int = MAX_WORKER_MEMORY_BYTES) -> None:
        """Assign. `codec_memory_bytes` is the most that one codec process may take."""
        self.codecs = OffloadPool("codec", memory_bytes=codec_memory_bytes)
        self.prompts = ChatPrompts()

    async def stop(self) -> None:
        """End all processes."""
        await self.codecs.stop()
        await self.prompts.stop()
