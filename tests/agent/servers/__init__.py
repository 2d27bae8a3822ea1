"""Real HTTP servers on loopback that speak the protocols of providers.

    with OpenAIServer() as server:
        server.script("hello", Failure(429, headers={"retry-after": "1"}))
        ...  # ask a model with base_url=server.url
        server.requests  # the bodies that came in

Each valid request is answered by the next thing in the script: text, an assistant message in
the provider's format, an `Answer`, a `Failure`, a `Broken` stream, or a callable that makes
one of these from the body. A request that breaks the provider's rules gets 400 and takes
nothing from the script. Deviations from the providers are written where they are.
"""

from .anthropic import AnthropicServer
from .base import Answer, Broken, Failure, Step
from .openai import OpenAIServer

__all__ = ["Answer", "AnthropicServer", "Broken", "Failure", "OpenAIServer", "Step"]
