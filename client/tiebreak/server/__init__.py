"""A server of texts with OpenAI's interface, each answer with a receipt (docs/how-to/serving.md)."""

from tiebreak.http_server import listen_at
from tiebreak.server.completion_server import CompletionServer
from tiebreak.server.text_service import IssuedReceipts, TextService

__all__ = ["CompletionServer", "IssuedReceipts", "TextService", "listen_at"]
