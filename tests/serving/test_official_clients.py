"""Programs as customers have them, pointed at the endpoint by its address alone: openai, anthropic, pydantic-ai."""

from typing import Literal

import anthropic
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, Tool, ToolDefinition, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from feedback.assembly import assemble
from tests.serving.conftest import Policy

pytestmark = pytest.mark.engine

City = Literal["Oslo", "Lima", "Cairo"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima", "Cairo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def anthropic_client(policy: Policy) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=policy.url, api_key="none", max_retries=0, timeout=120)


def test_openai_is_answered_with_a_tool_call_that_is_captured_as_forced(policy: Policy):
    answer = policy.client().chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "What is the weather in Lima?"}],
        tools=[WEATHER],  # pyright: ignore[reportArgumentType]
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=64,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls if call.type == "function"] == ["weather"]
    assert policy.generation(answer.id).sampling.structured


def test_openai_parses_structured_output(policy: Policy):
    class Verdict(BaseModel):
        liked: bool
        city: City

    answer = policy.client().chat.completions.parse(
        model="policy",
        messages=[{"role": "user", "content": "Do you like Oslo?"}],
        response_format=Verdict,
        max_tokens=64,
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)
    assert policy.generation(answer.id).sampling.structured


def test_openai_s_stream_helper_reads_usage_and_stop(policy: Policy):
    with policy.client().chat.completions.stream(
        model="policy",
        messages=[{"role": "user", "content": "Count to three."}],
        max_tokens=32,
        seed=3,
        stop=[" ", "."],  # the helper takes an answer that its length ended for an error
        stream_options={"include_usage": True},
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events
    assert final.usage is not None
    generation = policy.generation(final.id)
    assert final.usage.completion_tokens == len(generation.token_ids)
    assert final.choices[0].message.content == generation.text
    assert generation.sampling.seed == 3


def test_anthropic_s_messages_are_answered_and_captured(policy: Policy):
    raw = anthropic_client(policy).messages.with_raw_response.create(
        model="policy",
        max_tokens=12,
        system="Be brief.",
        messages=[{"role": "user", "content": "What do you think about rain?"}],
        extra_headers={"x-episode-id": "anthropic-1"},
    )
    message = raw.parse()
    assert message.role == "assistant"
    generation = policy.generation(raw.headers["x-inference-id"])
    assert [block.text for block in message.content if block.type == "text"] == [generation.text]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (
        len(generation.prompt_token_ids),
        len(generation.token_ids),
    )
    assert generation.episode_id == "anthropic-1"


def test_anthropic_s_stream_is_read_to_its_end(policy: Policy):
    with anthropic_client(policy).messages.stream(
        model="policy", max_tokens=12, messages=[{"role": "user", "content": "What do you think about rain?"}]
    ) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
        inference_id = stream.response.headers["x-inference-id"]
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert policy.generation(inference_id).text == text


def test_anthropic_is_told_of_an_unknown_model_in_its_own_error(policy: Policy):
    with pytest.raises(anthropic.NotFoundError, match="policy@v99"):
        anthropic_client(policy).messages.create(
            model="policy@v99", max_tokens=4, messages=[{"role": "user", "content": "Rain?"}]
        )


async def test_an_agent_of_pydantic_ai_works_through_its_tool_and_its_turns_are_one_episode(policy: Policy):
    class Report(BaseModel):
        city: City
        umbrella: bool

    asked: list[str] = []

    def weather(city: City) -> str:
        """The weather of a city."""
        asked.append(city)
        return f"It rains in {city}."

    # So small a model may go on asking: the tool is offered for two steps, the report from the third on.
    async def for_two_steps(context: RunContext, tool: ToolDefinition) -> ToolDefinition | None:
        return tool if len(asked) < 2 else None

    async def after_two_steps(context: RunContext, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        return tools if len(asked) >= 2 else []

    agent = Agent(
        OpenAIChatModel("policy", provider=OpenAIProvider(base_url=f"{policy.url}/v1", api_key="none")),
        tools=[Tool(weather, prepare=for_two_steps)],
        output_type=ToolOutput(Report),
        capabilities=[PrepareOutputTools(after_two_steps)],
        model_settings=OpenAIChatModelSettings(
            max_tokens=96, temperature=0.7, parallel_tool_calls=False, extra_headers={"x-episode-id": "agent-1"}
        ),
        retries=3,
    )
    result = await agent.run("Do I need an umbrella in Cairo?")
    assert isinstance(result.output, Report)
    assert len(asked) >= 2
    responses = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    assert all(isinstance(part, ToolCallPart) for response in responses for part in response.parts)
    generations = [policy.generation(response.provider_response_id or "") for response in responses]
    assert {generation.episode_id for generation in generations} == {"agent-1"}
    # Each step was sampled once and is in one trajectory, whether or not the template kept the past as it was.
    drafts = assemble(generations)
    assert sum(len(draft.generations) for draft in drafts) == len(generations)
    assert sum(sum(draft.action_mask) for draft in drafts) == sum(len(g.token_ids) for g in generations)
