// What the npm package `openai` makes of clawweb's answers, as one JSON object. test_clients.py asks.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const say = (content, more = {}) => ({
  model: "base",
  messages: [{ role: "user", content }],
  max_tokens: 12,
  temperature: 0,
  ...more,
});
const create = (...args) => client.chat.completions.create(...args);
const found = {};

const whole = await create(say("Name a colour."));
found.whole = { text: whole.choices[0].message.content, usage: whole.usage, object: whole.object };

let text = "";
let usage = null;
const stream = await create(
  say("Name a colour.", { stream: true, stream_options: { include_usage: true } }),
);
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
found.streamed = { text, usage };

const helper = client.chat.completions.stream(say("Name a colour."));
found.helper = { text: (await helper.finalChatCompletion()).choices[0].message.content };

const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Oslo", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};
const called = await create(
  say("What is the weather in Rome?", { tools: [weather], tool_choice: "required", max_tokens: 64 }),
);
found.tools = called.choices[0].message.tool_calls?.map((call) => call.function.name) ?? [];

const failure = async (promise) => {
  try {
    await promise;
    return "nothing";
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code };
  }
};
const stranger = new OpenAI({ apiKey: "claw-wrong", maxRetries: 0 });
found.errors = {
  key: await failure(stranger.chat.completions.create(say("Hello"))),
  model: await failure(create(say("Hello", { model: "gpt-9" }))),
  length: await failure(create(say("word ".repeat(4000)))),
};

const aborted = await create(say("Count to one hundred.", { stream: true, max_tokens: 400 }));
for await (const chunk of aborted) {
  found.aborted = chunk.id;
  if (chunk.choices[0].delta.content) break; // leaving the loop closes the connection
}

const limited = new OpenAI({ apiKey: process.env.LIMITED_KEY, maxRetries: 0 });
await limited.models.list();
found.errors.limit = await failure(limited.models.list());

console.log(JSON.stringify(found));
