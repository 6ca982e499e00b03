// The public TypeScript client and the public Yjs binding, against the server of HEADRACE_URL.

import { DurableStream } from "@durable-streams/client";
import { YjsProvider } from "@durable-streams/y-durable-streams";
import { YjsServer } from "@durable-streams/y-durable-streams/server";
import { afterAll, beforeAll, expect, test } from "vitest";
import * as Y from "yjs";

const server = process.env.HEADRACE_URL;
const binding = new YjsServer({ dsServerUrl: server });
let documents;

beforeAll(async () => {
  documents = `${await binding.start()}/v1/yjs/test`;
});

afterAll(() => binding.stop());

async function statusOf(method, id) {
  return (await fetch(`${documents}/docs/${id}`, { method })).status;
}

test("the client finds no stream to delete for a second time", async () => {
  const url = `${server}/v1/stream/${crypto.randomUUID()}`;
  const stream = await DurableStream.create({ url, contentType: "text/plain" });
  await stream.delete();
  await expect(stream.delete()).rejects.toMatchObject({ status: 404 });
  expect(await DurableStream.head({ url })).toMatchObject({ exists: false });
  await DurableStream.create({ url, contentType: "text/plain" });
});

test("the Yjs binding finds no document to delete for a second time", async () => {
  const id = crypto.randomUUID();
  expect(await statusOf("DELETE", id)).toBe(404);
  expect(await statusOf("PUT", id)).toBe(201);
  expect(await statusOf("DELETE", id)).toBe(204);
  expect(await statusOf("DELETE", id)).toBe(404);
  expect(await statusOf("PUT", id)).toBe(201);
});

test("Yjs documents follow each other", async () => {
  const id = crypto.randomUUID();
  expect(await statusOf("PUT", id)).toBe(201);
  const [writer, reader] = [new Y.Doc(), new Y.Doc()];
  const providers = [writer, reader].map((doc) => new YjsProvider({ doc, baseUrl: documents, docId: id }));
  try {
    await Promise.all(providers.map((provider) => provider.synced || new Promise((done) => provider.once("synced", done))));
    const arrived = new Promise((done) => reader.once("update", done));
    writer.getText("note").insert(0, "written once");
    await arrived;
    expect(reader.getText("note").toString()).toBe("written once");
  } finally {
    providers.forEach((provider) => provider.destroy());
  }
});
