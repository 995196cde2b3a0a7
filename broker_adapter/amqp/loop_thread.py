"""An asyncio loop in a thread of its own, as both ends of a connection use it."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

#: Longest time that cancelled tasks have to end when a loop stops, in seconds.
_DROP_SECONDS: Final = 1.0


class LoopThread:
    """An asyncio loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        # Whatever the application has for its own loops: those of uvloop have transports of another kind.
        self.loop = asyncio.SelectorEventLoop()
        self._thread_id = -1
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._drop_tasks())

    async def _drop_tasks(self) -> None:
        """A socket that is being accepted or connected belongs to a task of asyncio, and to no protocol yet."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_DROP_SECONDS)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn

    def stop(self) -> None:
        """End the thread and free the loop; what is still under way is dropped, within a second."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def owns_current_thread(self) -> bool:
        """Return whether the caller runs in the loop's thread, which must not wait."""
        return threading.get_ident() == self._thread_id
