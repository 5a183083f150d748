"""The grammar of an answer that may or must call functions, in the form of `lorad.text.tools`."""

from __future__ import annotations

from collections.abc import Mapping

from lorad.grammars.build import literal
from lorad.text.tools import BEGIN, END


def calls_grammar(arguments: Mapping[str, str], *, required: bool, several: bool, answer: str | None = None) -> str:
    """`arguments`: the rule of each function's arguments, by its name; `required`: nothing but calls; `several`: more
    than one call; `answer`: the rule of an answer without a call, None: any text, which may stand around calls."""
    from llguidance import LLMatcher

    bodies = " | ".join(f"body_{index}" for index in range(len(arguments)))
    more = f'("\\n{BEGIN}" body)*' if several else ""
    rules = [f"body: {bodies}", f"calls: {literal(BEGIN)} body {more}"]
    for index, (name, rule) in enumerate(arguments.items()):
        head = literal(f'\n{{"name": "{name}", "arguments": ')
        rules += [
            f"body_{index}: {head} arguments_{index} {literal('}' + chr(10) + END)}",
            f"arguments_{index}: {rule}",
        ]
    if required:
        rules = ["start: calls", *rules]
    elif answer is not None:
        rules = ["start: answer | calls", f"answer: {answer}", *rules]
    else:
        # A lazy lexeme ends where its mark is complete: from there on the answer is a call.
        start = "start: (before body)* after" if several else "start: before body | after"
        rules = [
            start,
            f"before[lazy]: TEXT {literal(BEGIN)}",
            "after: TEXT",
            r"TEXT: /(.|\n)*/",
            *rules[:1],
            *rules[2:],
        ]
    return str(LLMatcher.grammar_from_lark("%llguidance {}\n" + "\n".join(rules) + "\n"))
