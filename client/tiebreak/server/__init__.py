"""A server of texts with OpenAI's interface, each answer with a receipt (docs/how-to/serving.md)."""

from tiebreak.server.completion_server import CompletionServer, ServingError, listen_at
from tiebreak.server.text_service import IssuedReceipts, TextService, TextSigner

__all__ = ["CompletionServer", "IssuedReceipts", "ServingError", "TextService", "TextSigner", "listen_at"]
