"""Sessions: the one object that people hold, sync and async, and the turns in it.

`session.py` and `aio.py` are its two faces. `parts.py` builds what they delegate to: `log`,
`capture`, `checkpoints`, `browse`, `rewind`, `turnlog`, `drive`. `begin.py` creates, resumes and
forks. `turns.py` is the engine of a turn; `drive.py` and `aio_drive.py` carry out what it asks
for, with what an agent or a model streams (`flows.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._startup.loading import loader

if TYPE_CHECKING:
    from .session import Session as Session

__all__ = ["Session"]

__getattr__ = loader(globals(), {"Session": "session"})
