"""`lm-eval` as a client of the server: its own models of OpenAI's interface, with several batch sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.evaluation_tasks import write_tasks
from tests.client.server.conftest import Served

pytestmark = pytest.mark.slow


def evaluated(model: Any, room: Path, name: str, **more: Any) -> tuple[dict[str, Any], list[Any]]:
    """The scores of a task, and all answers to its requests, by document."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    from tiebreak.evaluation.task_files import read_task

    place = room / f"copy {len(list(room.iterdir()))}"
    place.mkdir()
    manager = TaskManager(include_defaults=False)
    tasks = list(manager.load([read_task(room / f"{name}.yaml", place).config])["tasks"].values())
    how = {"task_manager": manager, "bootstrap_iters": 0, "verbosity": "ERROR"}
    found = lm_eval.simple_evaluate(model=model, tasks=tasks, **how, **more)
    answers = [(one["doc_id"], one["resps"]) for one in found["samples"][name]]
    return found["results"][name], sorted(answers, key=lambda pair: pair[0])


def test_no_batch_size_changes_a_digit(served: Served, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
    from tiebreak.evaluation.engine_model import Answers, EngineModel

    write_tasks(tmp_path)
    served.loaded.tokenizer.save_pretrained(tmp_path / "tokenizer")
    for name in ("words", "ends"):
        right, answers = evaluated(EngineModel(served.loaded, "exact", Answers()), tmp_path, name)
        for size in (1, 4, 5):
            model = LocalCompletionsAPI(
                base_url=f"{served.url}v1/completions",
                model=served.service.model,
                tokenizer=str(tmp_path / "tokenizer"),
                tokenizer_backend="huggingface",
                batch_size=size,
            )
            found, again = evaluated(model, tmp_path, name)
            assert again == answers and found == right
    chat = LocalChatCompletion(base_url=f"{served.url}v1/chat/completions", model=served.service.model)
    once, again = (evaluated(chat, tmp_path, "ends", apply_chat_template=True) for _ in range(2))
    assert once == again and len(once[1]) == 6
