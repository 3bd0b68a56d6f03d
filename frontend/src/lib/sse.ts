/** Server-sent events of an answer to a POST, which an EventSource cannot make. */

export interface Message {
  event: string;
  data: string;
}

/** The messages of a response, as they come. */
export async function* messages(response: Response): AsyncGenerator<Message> {
  let rest = "";
  for await (const text of texts(response)) {
    rest = (rest + text).replaceAll("\r\n", "\n");
    const blocks = rest.split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const message = parse(block);
      if (message.data) yield message;
    }
  }
}

async function* texts(response: Response): AsyncGenerator<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function parse(block: string): Message {
  const message = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) message.event = line.slice(6).trim();
    if (line.startsWith("data:")) message.data += line.slice(5).trim();
  }
  return message;
}
