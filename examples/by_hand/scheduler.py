"""The scheduler by hand, without a model: requests on a small pool, every step shown; then the same with more pages."""

import rich

from lorad import debug

# a pool of 24 pages of 16 tokens, for the KV of all requests and for the adapters
step = debug.Stepper(pages=24, rows_max=4, tokens_max=64, slots_max=3)
legal = step.register("legal", pages=4)
games = step.register("games", pages=8)
for _ in range(3):
    step.add(40, legal, max_tokens=12)
    step.add(100, games, max_tokens=12)
    step.add(20, None, max_tokens=12)

while step.step():
    rich.print(step)

# what it did is a trace: it can be saved, played again, and asked what would have happened otherwise
recording = step.recording()
rich.print(debug.compare(recording, debug.again(recording, pages=64)))
