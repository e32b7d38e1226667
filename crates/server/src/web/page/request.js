// From what the page holds to the body of POST /v1/chat/completions. A setting left empty is not sent: the model's and the
// server's defaults hold then.

/** The settings, as the texts of their fields. */
export const DEFAULTS = Object.freeze({
  system: "",
  thinking: "",
  effort: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  seed: "",
  max_tokens: "",
  tools: "",
  tool_choice: "",
});

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];

/** A tool to begin with; the built-in model knows it. */
export const EXAMPLE_TOOL = `[
  {
    "type": "function",
    "function": {
      "name": "get_weather",
      "description": "The weather in a city",
      "parameters": {
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"]
      }
    }
  }
]`;

/** The tools of a text: an array of tools, one tool, or bare functions. Throws an `Error` that says what is wrong. */
export function readTools(text) {
  if (text.trim() === "") return [];
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`Not JSON: ${error.message}`);
  }
  const list = Array.isArray(value) ? value : [value];
  return list.map((tool, index) => {
    const whole = tool?.function === undefined ? { type: "function", function: tool } : tool;
    if (typeof whole.function?.name !== "string" || whole.function.name === "") {
      throw new Error(`Tool ${index + 1} has no name.`);
    }
    return whole;
  });
}

/** A message in the protocol's form; `null` for one that has nothing to say to the model. */
function wire(message) {
  if (message.role === "user") return { role: "user", content: message.content };
  if (message.role === "tool") return { role: "tool", tool_call_id: message.tool_call_id, content: message.content };
  // A call that was cut off in mid-arguments was never made.
  const calls = message.calls.filter((call) => {
    try {
      return call.name !== "" && typeof JSON.parse(call.arguments) === "object";
    } catch {
      return false;
    }
  });
  if (message.content === "" && calls.length === 0) return null;
  const out = { role: "assistant", content: message.content === "" ? null : message.content };
  if (message.reasoning !== "") out.reasoning_content = message.reasoning;
  if (calls.length > 0) {
    out.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return out;
}

/** The body that asks for the next message of `messages`. Throws what `readTools` throws. */
export function requestBody(messages, settings, model) {
  const body = {
    messages: messages.map(wire).filter((message) => message !== null),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (model) body.model = model;
  if (settings.system.trim() !== "") body.messages.unshift({ role: "system", content: settings.system });
  for (const name of NUMBERS) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.thinking !== "") body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.effort !== "") body.reasoning_effort = settings.effort;
  const tools = readTools(settings.tools);
  if (tools.length > 0) {
    body.tools = tools;
    if (settings.tool_choice !== "") body.tool_choice = settings.tool_choice;
  }
  return body;
}
