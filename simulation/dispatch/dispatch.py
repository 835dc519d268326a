"""Clients on several workers at a time, and what becomes of the clients of a lost worker.

Workers keep data, and nothing else that matters: models go there with each call and come back with its answers. So what
a lost worker has not answered is computed again, to the same numbers.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from fairbloom.logs import log

from .pipes import Answers, Call, ClientTask, Lost, Pipes


class Dispatch:
    """The clients of one call, until all are answered; `on_answers` is called with how many are, whenever some are."""

    def __init__(self, pipes: Pipes, call: Call, on_answers: Callable[[int], None]) -> None:
        self._pipes, self._call, self._on_answers = pipes, call, on_answers
        self._waiting: dict[int, list[ClientTask]] = {}
        self._answers: Answers = {}
        self._losses = Counter[str]()

    def answers(self, lists: Sequence[Sequence[ClientTask]]) -> Answers:
        """Let each worker do its list of clients; return the answer of every client."""
        try:
            self._pipes.begin(self._call)
            for worker, clients in enumerate(lists):
                self._send(worker, clients)
            while self._waiting:
                worker, said = self._pipes.receive(self._waiting)
                if isinstance(said, Lost):
                    self._replace(worker, said)
                else:
                    self._note(worker, said)
        except BaseException:  # Ctrl-C too: what is still on its way answers no later call
            self._pipes.end()
            raise
        return self._answers

    def _send(self, worker: int, clients: Sequence[ClientTask]) -> None:
        if clients:
            self._waiting[worker] = list(clients)
            self._pipes.send(self._call, worker, clients)

    def _note(self, worker: int, answers: Answers) -> None:
        self._answers |= answers
        self._on_answers(len(self._answers))
        left = [client for client in self._waiting.pop(worker) if client.name not in answers]
        if left:
            self._waiting[worker] = left

    def _replace(self, worker: int, lost: Lost) -> None:
        """Let a new worker do what one that has ended had left, the client that it was computing last."""
        left = self._waiting.pop(worker)
        suspect = next((client for client in left if client.row == lost.row), left[0])
        again = [client for client in left if client is not suspect]
        self._losses[suspect.name] += 1
        if self._losses[suspect.name] < 2:
            again.append(suspect)
            then = "is computed again"
        else:
            self._answers[suspect.name] = f"computing it has ended 2 workers ({lost.how})"
            then = "is refused"
        log.warning("a worker ended (%s) before it had computed client %s, which %s", lost.how, suspect.name, then)
        self._send(worker, again)
