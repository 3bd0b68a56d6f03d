import { expect, test } from "vitest";
import { messages } from "./sse";

test("messages come whole, however they were cut on the way, and pings are passed over", async () => {
  const parts = ["event: status\r\nda", 'ta: {"message": "a"}\r\n\r', "\n: ping\r\n\r\nevent: analysis\r\ndata: {}\r\n\r\n"];
  const body = new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
      controller.close();
    },
  });
  const seen = [];
  for await (const message of messages(new Response(body))) seen.push(message);
  expect(seen).toEqual([
    { event: "status", data: '{"message": "a"}' },
    { event: "analysis", data: "{}" },
  ]);
});
