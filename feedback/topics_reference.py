"""The topics and their messages as an AsyncAPI document, ``docs/asyncapi.json``, out of the code.

python -m feedback.topics_reference > docs/asyncapi.json
"""

import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from feedback.log_contract import MAX_MESSAGE_BYTES
from feedback.topics import TOPICS, Topic

VERSION = "1.0.0"
"""Of the document; it grows with every change."""
SCHEMAS = "#/components/schemas/"
ABOUT = """\
What the service writes to Kafka. Each topic stands behind `kafka.topic_prefix`. Delivery is at least once: tell
repetitions by the key. A message without a value is a tombstone: what came before it with its key was erased.
Numbers of seconds are Unix times. What JSON Schema cannot say (which lists are equally long) is in the descriptions."""
AS_IT_CAME = {"type": "string", "format": "binary", "description": "The message as it came, whatever it is."}


def describe_topics() -> str:
    """The whole document, JSON."""
    document = {
        "asyncapi": "3.0.0",
        "info": {"title": "Online RL", "version": VERSION, "description": ABOUT.replace("\n", " ")},
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "operations": {
            f"{action}_{topic.title}": {
                "action": action,
                "channel": {"$ref": f"#/channels/{topic.name}"},
                "messages": [{"$ref": f"#/channels/{topic.name}/messages/{topic.title}"}],
            }
            for topic in TOPICS
            for action in ("send", "receive")
            if action == "send" or topic.is_read
        },
        "components": {
            "messages": {topic.title: _message(topic) for topic in TOPICS},
            "schemas": _schemas([topic.payload for topic in TOPICS if topic.payload is not None]),
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _channel(topic: Topic) -> dict[str, Any]:
    configuration = {"cleanup.policy": ["compact"], "retention.ms": -1, "max.message.bytes": MAX_MESSAGE_BYTES}
    return {
        "address": topic.name,
        "messages": {topic.title: {"$ref": f"#/components/messages/{topic.title}"}},
        "bindings": {"kafka": {"topicConfiguration": configuration, "bindingVersion": "0.5.0"}},
    }


def _message(topic: Topic) -> dict[str, Any]:
    key = {"type": "string", "pattern": topic.key, "description": topic.about_key}
    return {
        "name": topic.title,
        "contentType": "application/octet-stream" if topic.payload is None else "application/json",
        "payload": AS_IT_CAME if topic.payload is None else {"$ref": SCHEMAS + topic.payload.__name__},
        "bindings": {"kafka": {"key": key, "bindingVersion": "0.5.0"}},
    }


def _schemas(models: list[type[BaseModel]]) -> dict[str, Any]:
    # Of what is written, not of what would be accepted: a field with a default is always there.
    _, found = models_json_schema([(model, "serialization") for model in models], ref_template=SCHEMAS + "{model}")
    return found["$defs"]


if __name__ == "__main__":
    sys.stdout.write(describe_topics())
