"""JSON schemas of the API's answers: required keys, types and enumerations of the published OpenAI specification (2.3.0), plus our
documented extensions, with nothing else allowed at the top level of choices and log-probabilities."""
from jsonschema import Draft202012Validator

_INT = {"type": "integer"}
_STR = {"type": "string"}
_NULLABLE_STR = {"type": ["string", "null"]}

_TOP_LOGPROB = {
    "type": "object",
    "required": ["token", "logprob", "bytes"],
    "properties": {"token": _STR, "logprob": {"type": "number"}, "bytes": {"type": ["array", "null"], "items": _INT}},
    "additionalProperties": False,
}
_TOKEN_LOGPROB = {
    "type": "object",
    "required": ["token", "logprob", "bytes", "top_logprobs"],
    "properties": dict(_TOP_LOGPROB["properties"], top_logprobs={"type": "array", "items": _TOP_LOGPROB}),
    "additionalProperties": False,
}
_LOGPROBS = {
    "type": ["object", "null"],
    "required": ["content", "refusal"],
    "properties": {
        "content": {"type": ["array", "null"], "items": _TOKEN_LOGPROB},
        "refusal": {"type": ["array", "null"], "items": _TOKEN_LOGPROB},
    },
    "additionalProperties": False,
}
_FINISH = ["stop", "length", "tool_calls", "content_filter", "function_call"]
_USAGE = {
    "type": "object",
    "required": ["completion_tokens", "prompt_tokens", "total_tokens"],
    "properties": {
        "completion_tokens": _INT,
        "prompt_tokens": _INT,
        "total_tokens": _INT,
        "completion_tokens_details": {"type": "object", "additionalProperties": _INT},
        "prompt_tokens_details": {"type": "object", "additionalProperties": _INT},
    },
    "additionalProperties": False,
}
_COMMON = {"id": _STR, "created": _INT, "model": _STR, "system_fingerprint": _STR}

CHAT_COMPLETION = {
    "type": "object",
    "required": ["id", "choices", "created", "model", "object"],
    "properties": dict(
        _COMMON,
        object={"const": "chat.completion"},
        service_tier={"enum": ["auto", "default", "flex", "scale", "priority"]},
        usage=_USAGE,
        choices={
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["finish_reason", "index", "message", "logprobs"],
                "properties": {
                    "finish_reason": {"enum": _FINISH},
                    "index": _INT,
                    "logprobs": _LOGPROBS,
                    "stop_reason": {"type": ["string", "integer", "null"]},
                    "message": {
                        "type": "object",
                        "required": ["role", "content", "refusal"],
                        "properties": {"role": {"const": "assistant"}, "content": _NULLABLE_STR, "refusal": _NULLABLE_STR},
                    },
                },
                "additionalProperties": False,
            },
        },
    ),
}

CHAT_CHUNK = {
    "type": "object",
    "required": ["choices", "created", "id", "model", "object"],
    "properties": dict(
        _COMMON,
        object={"const": "chat.completion.chunk"},
        usage={"anyOf": [_USAGE, {"type": "null"}]},
        choices={
            "type": "array",
            "items": {
                "type": "object",
                "required": ["delta", "finish_reason", "index", "logprobs"],
                "properties": {
                    "delta": {
                        "type": "object",
                        "properties": {"role": {"const": "assistant"}, "content": _NULLABLE_STR},
                        "additionalProperties": False,
                    },
                    "finish_reason": {"enum": [*_FINISH, None]},
                    "index": _INT,
                    "logprobs": _LOGPROBS,
                    "stop_reason": {"type": ["string", "integer", "null"]},
                },
                "additionalProperties": False,
            },
        },
    ),
}

COMPLETION = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices"],
    "properties": dict(
        _COMMON,
        object={"const": "text_completion"},
        usage=_USAGE,
        choices={
            "type": "array",
            "items": {
                "type": "object",
                "required": ["finish_reason", "index", "logprobs", "text"],
                "properties": {
                    "finish_reason": {"enum": ["stop", "length", "content_filter"]},
                    "index": _INT,
                    "text": _STR,
                    "logprobs": {
                        "type": ["object", "null"],
                        "properties": {
                            "text_offset": {"type": "array", "items": _INT},
                            "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
                            "tokens": {"type": "array", "items": _STR},
                            "top_logprobs": {"type": "array", "items": {"type": ["object", "null"]}},
                        },
                        "additionalProperties": False,
                    },
                },
            },
        },
    ),
}


def validate(schema, body):
    Draft202012Validator(schema).validate(body)
