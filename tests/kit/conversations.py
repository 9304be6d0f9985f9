"""Conversations that chat templates are tried with, and what transformers makes of them."""

from __future__ import annotations

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a <city>, as "text".',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city, é."},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
_CALL = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Cádiz", "days": 2}},
}
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "  What is a sieve? é\n"}
_ANSWER = {"role": "assistant", "content": "A tool."}

#: Messages, and what comes with them.
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "a message": ([_USER], {}),
    "a system prompt": ([_SYSTEM, _USER], {}),
    "turns": ([_SYSTEM, _USER, _ANSWER, _USER, _ANSWER, _USER], {}),
    "a variable": ([_USER], {"enable_thinking": False, "thinking": False}),
    "tools": ([_SYSTEM, _USER], {"tools": [WEATHER]}),
    "a call of a tool": (
        [
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "abc123def", "content": "sun"},
        ],
        {"tools": [WEATHER]},
    ),
    "reasoning": (
        [_USER, {**_ANSWER, "reasoning_content": "Let me think."}, _USER],
        {"documents": [{"title": "Sieves", "text": "A sieve is a tool.", "doc_id": "1"}]},
    ),
}
