// The official Node client against a running server. use: node conformance.mjs BASE_URL KEY
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const common = { model: "smol", messages, temperature: 0, max_tokens: 8 };

async function refused(body, status, code, param) {
  try {
    await client.chat.completions.create(body);
  } catch (error) {
    assert.equal(error.status, status, String(error));
    assert.equal(error.code, code, String(error));
    if (param !== undefined) assert.equal(error.param, param);
    return error;
  }
  assert.fail(`expected ${code}`);
}

const cases = {
  async "C01 one message"() {
    const { data, response } = await client.chat.completions.create(common).withResponse();
    assert.equal(data.object, "chat.completion");
    assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
    assert.ok(["stop", "length"].includes(data.choices[0].finish_reason));
    assert.ok(response.headers.get("x-request-id"));
  },
  async "C02 stream helper"() {
    const whole = await client.chat.completions.create(common);
    const stream = client.chat.completions.stream(common);
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
    assert.equal(text, whole.choices[0].message.content);
  },
  async "C03 usage of a stream"() {
    const stream = await client.chat.completions.create({ ...common, stream: true, stream_options: { include_usage: true } });
    let usage = null;
    for await (const chunk of stream) usage = chunk.usage ?? usage;
    const whole = await client.chat.completions.create(common);
    assert.equal(usage.total_tokens, whole.usage.total_tokens);
  },
  async "C06 model not found"() {
    const error = await refused({ ...common, model: "nope", temperature: 9 }, 404, "model_not_found", "model");
    assert.ok(error instanceof OpenAI.NotFoundError);
  },
  async "C09 ranges"() {
    const error = await refused({ ...common, temperature: 2.1 }, 400, "invalid_value", "temperature");
    assert.ok(error instanceof OpenAI.BadRequestError);
  },
  async "C05 wrong key"() {
    const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.chat.completions.create(common), OpenAI.AuthenticationError);
  },
  async "C18 logprobs through the stream helper"() {
    const stream = client.chat.completions.stream({ ...common, logprobs: true, top_logprobs: 3 });
    const final = await stream.finalChatCompletion();
    const whole = await client.chat.completions.create({ ...common, logprobs: true, top_logprobs: 3 });
    assert.deepEqual(final.choices[0].logprobs.content, whole.choices[0].logprobs.content);
  },
  async "several choices in one stream"() {
    const stream = client.chat.completions.stream({ ...common, n: 3, temperature: 1, seed: 3 });
    const final = await stream.finalChatCompletion();
    assert.deepEqual(final.choices.map((c) => c.index), [0, 1, 2]);
  },
  async "completions"() {
    const whole = await client.completions.create({ model: "smol", prompt: "One two three", temperature: 0, max_tokens: 6 });
    const stream = await client.completions.create({ model: "smol", prompt: "One two three", temperature: 0, max_tokens: 6, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
    assert.equal(text, whole.choices[0].text);
  },
  async "models"() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ["smol"]);
    assert.equal((await client.models.retrieve("smol")).id, "smol");
  },
  async "abort"() {
    const stream = await client.chat.completions.create({ ...common, max_tokens: 1500, ignore_eos: true, stream: true });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
  },
};

for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log(`ok ${name}`);
}
console.log("all passed");
